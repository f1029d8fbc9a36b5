#include "data/chat.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/child_process.hpp"
#include "base/error.hpp"
#include "base/file.hpp"
#include "data/chat_script.hpp"
#include "data/json_scanner.hpp"

namespace ranktune::data {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr int kRefused = 3;  // the script's exit code where standard error has a sentence for the user

Json read_object(const fs::path& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return Json::object();
  const Json value = Json::parse(read_file(path), nullptr, false);
  if (!value.is_object()) throw UserError(fmt::format("{} is not a JSON object", path.string()));
  return value;
}

// The special tokens under the names that templates use. special_tokens_map.json counts, and goes before,
// where the configuration does not list the added tokens, which is the older form of a folder.
std::string special_tokens(const fs::path& folder) {
  Json config = read_object(folder / "tokenizer_config.json");
  if (!config.contains("added_tokens_decoder"))
    config.update(read_object(folder / "special_tokens_map.json"));
  Json tokens = Json::object();
  for (const char* name :
       {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
    const auto found = config.find(name);
    if (found == config.end()) continue;
    const Json& value = found->is_object() ? found->value("content", Json()) : *found;
    if (value.is_string()) tokens[name] = value;
  }
  return tokens.dump();
}

std::string configured_template(const fs::path& folder) {
  const fs::path path = folder / "tokenizer_config.json";
  const Json found = read_object(path).value("chat_template", Json());
  if (found.is_string()) return found;
  if (!found.is_array()) {
    throw UserError(
        fmt::format("{}: the model has no chat template (chat_template.jinja, or \"chat_template\" in "
                    "tokenizer_config.json); give one with --chat_template FILE, or take rows that need none",
                    folder.string()));
  }
  std::string names;
  for (const Json& entry : found) {
    if (!entry.is_object() || !entry.value("name", Json()).is_string() ||
        !entry.value("template", Json()).is_string()) {
      throw UserError(
          fmt::format("{}: each entry of chat_template must have a name and a template", path.string()));
    }
    if (entry["name"] == "default") return entry["template"];
    names += (names.empty() ? "" : ", ") + entry["name"].get<std::string>();
  }
  throw UserError(
      fmt::format("{}: of the chat templates {} none is the default; give one with --chat_template FILE",
                  path.string(), names));
}

Json turn(const char* role, const std::string& content) {
  return {{"role", role}, {"content", content}};
}

// The messages of a row, as JSON.
std::string conversation(const Row& row) {
  if (!row.messages.empty()) return row.messages;
  const std::string input = row.input.empty() ? "" : "\n\n" + row.input;
  return Json::array({turn("user", row.instruction + input), turn("assistant", row.output)}).dump();
}

// The next lines to feed, some at a time.
class Feeder {
 public:
  Feeder(std::span<const Row> rows, std::string head) : rows_(rows), piece_(std::move(head)) {}
  std::string next() {
    constexpr std::size_t kPiece = 1 << 16;
    while (piece_.size() < kPiece && !rows_.empty()) {
      piece_ += conversation(rows_.front()) + '\n';
      rows_ = rows_.subspan(1);
    }
    return std::exchange(piece_, {});
  }

 private:
  std::span<const Row> rows_;
  std::string piece_;
};

std::string last_line(std::string_view text) {
  while (text.ends_with('\n')) text.remove_suffix(1);
  const auto line = text.rfind('\n');
  return std::string(line == std::string_view::npos ? text : text.substr(line + 1));
}

ChildResult run_script(const ChatRendering& how, const ChildTalk& talk) {
  try {
    return run_child({how.python, "-c", kChatScript}, talk);
  } catch (const UserError& error) {
    throw UserError(fmt::format(
        "chat templates are rendered by Python, and {}; install python3 with Jinja2, or name one in "
        "RANKTUNE_PYTHON",
        error.what()));
  }
}

}  // namespace

ChatTemplate read_chat_template(const fs::path& folder, const std::optional<fs::path>& file) {
  ChatTemplate chat;
  std::error_code ignored;
  if (file) {
    chat.text = read_file(*file);
  } else if (fs::exists(folder / "chat_template.jinja", ignored)) {
    chat.text = read_file(folder / "chat_template.jinja");
  } else {
    chat.text = configured_template(folder);
  }
  if (find_invalid_utf8(chat.text) != std::string_view::npos) {
    throw UserError(fmt::format("{}: a chat template is UTF-8, but this one is not",
                                file.value_or(folder / "chat_template.jinja").string()));
  }
  chat.variables = special_tokens(folder);
  return chat;
}

std::string render_chats(std::span<const Row> rows, const ChatTemplate& chat, const ChatRendering& how) {
  const Json head = {{"template", chat.text},
                     {"variables", Json::parse(chat.variables)},
                     {"date", chat.date},
                     {"spans", how.spans}};
  Feeder feeder(rows, head.dump() + '\n');
  std::string lines;
  std::int64_t done = 0;
  const ChildResult result = run_script(how, {[&] { return feeder.next(); },
                                              [&](std::string_view piece) {
                                                lines += piece;
                                                done += std::count(piece.begin(), piece.end(), '\n');
                                                if (how.progress) how.progress(done);
                                              }});
  if (result.exit_code == kRefused) throw UserError(result.errors);
  if (result.exit_code != 0 || std::cmp_not_equal(done, rows.size())) {
    throw UserError(
        fmt::format("rendering the chat template with {} ended with code {} after {} of {} rows: {}",
                    how.python, result.exit_code, done, rows.size(), last_line(result.errors)));
  }
  return lines;
}

std::vector<TrainingText> parse_rendered(std::string_view lines, std::int64_t begin, std::int64_t end) {
  std::vector<TrainingText> texts;
  for (std::int64_t number = 0; number < end; ++number) {
    const auto length = lines.find('\n');
    RT_CHECK(length != std::string_view::npos, "a line for each row");
    if (number >= begin) {
      const Json line = Json::parse(lines.substr(0, length));
      TrainingText text{line.at("text"), {}};
      for (const Json& span : line.value("spans", Json::array()))
        text.responses.push_back({span.at(0), span.at(1)});
      texts.push_back(std::move(text));
    }
    lines.remove_prefix(length + 1);
  }
  return texts;
}

}  // namespace ranktune::data
