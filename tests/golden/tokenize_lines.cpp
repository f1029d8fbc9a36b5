// Reads one JSON string per line and writes one JSON object per line: the ids without and with the special
// tokens, and the decoded text (without special tokens). For comparison with another tokenizer.
//   tokenize_lines FOLDER            all of that
//   tokenize_lines FOLDER --ids      the ids only, as an array
//   tokenize_lines FOLDER --time N   N threads, no output but the seconds of loading and of encoding
#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "data/tokenizer.hpp"

namespace {

using nlohmann::json;
using ranktune::data::Tokenizer;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void time_encoding(const Tokenizer& tokenizer, const std::vector<std::string>& texts, int threads) {
  std::atomic<std::size_t> next = 0;
  std::atomic<std::size_t> ids = 0;
  std::size_t bytes = 0;
  for (const std::string& text : texts) bytes += text.size();
  const auto start = Clock::now();
  {
    std::vector<std::jthread> workers;
    for (int i = 0; i < threads; ++i) {
      workers.emplace_back([&] {
        for (std::size_t at = next++; at < texts.size(); at = next++)
          ids += tokenizer.encode(texts[at]).size();
      });
    }
  }
  const double seconds = seconds_since(start);
  fmt::print("{} texts, {} bytes, {} ids: {:.3f} s, {:.1f} MB/s\n", texts.size(), bytes, ids.load(), seconds,
             static_cast<double>(bytes) / seconds / 1e6);
}

int run(const std::vector<std::string>& arguments) {
  const auto start = Clock::now();
  const Tokenizer tokenizer = Tokenizer::from_folder(arguments.at(0));
  const double loading = seconds_since(start);
  const std::string mode = arguments.size() > 1 ? arguments[1] : "";
  std::vector<std::string> texts;
  std::ios::sync_with_stdio(false);
  for (std::string line; std::getline(std::cin, line);) {
    const auto text = json::parse(line).get<std::string>();
    if (mode == "--time") {
      texts.push_back(text);
    } else if (mode == "--ids") {
      std::cout << json(tokenizer.encode(text, false)).dump() << '\n';
    } else {
      const auto ids = tokenizer.encode(text, false);
      const auto special = tokenizer.encode(text, true);
      std::cout << json{{"ids", ids},
                        {"ids_special", special},
                        {"decoded", tokenizer.decode(ids)},
                        {"decoded_plain", tokenizer.decode(special, true)}}
                       .dump()
                << '\n';
    }
  }
  if (mode == "--time") {
    fmt::print("loaded in {:.3f} s\n", loading);
    time_encoding(tokenizer, texts, std::stoi(arguments.at(2)));
  }
  return EXIT_SUCCESS;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return EXIT_FAILURE;
  }
}
