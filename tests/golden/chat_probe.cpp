// Rows of conversations as the program trains on them, for comparison with Transformers:
//   chat_probe FOLDER ROWS [--template FILE] [--date DAY] [--responses]
// Writes one JSON object a row: "ids", and with --responses "trained". Python is that of RANKTUNE_PYTHON.
#include <cstdlib>
#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "data/chat.hpp"
#include "data/records.hpp"
#include "data/token_store.hpp"

namespace {

using namespace ranktune::data;

void run(const std::vector<std::string>& arguments) {
  const std::string& folder = arguments.at(0);
  std::optional<std::filesystem::path> file;
  ChatRendering how;
  if (const char* python = std::getenv("RANKTUNE_PYTHON")) how.python = python;
  std::string date;
  for (std::size_t i = 2; i < arguments.size(); ++i) {
    if (arguments[i] == "--template")
      file = arguments.at(++i);
    else if (arguments[i] == "--date")
      date = arguments.at(++i);
    else if (arguments[i] == "--responses")
      how.spans = true;
    else
      throw std::invalid_argument(arguments[i]);
  }
  const Records records = read_records({arguments.at(1)});
  ChatTemplate chat = read_chat_template(folder, file);
  chat.date = date;
  const auto texts = parse_rendered(render_chats(records.rows, chat, how), 0,
                                    static_cast<std::int64_t>(records.rows.size()));
  TokenizeOptions options;
  options.responses_only = how.spans;
  options.max_seq_length = 1 << 20;
  const TokenStore store = tokenize(texts, Tokenizer::from_folder(folder), options);
  if (store.skipped > 0) throw std::runtime_error("a row without a target");
  for (std::int64_t i = 0; i < store.samples(); ++i) {
    nlohmann::json line = {{"ids", store.sample(i)}};
    if (how.spans) line["trained"] = store.trained_of(i);
    std::cout << line.dump() << '\n';
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run({argv + 1, argv + argc});
    return EXIT_SUCCESS;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return EXIT_FAILURE;
  }
}
