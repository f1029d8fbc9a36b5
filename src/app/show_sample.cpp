#include "app/show_sample.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace ranktune::app {

std::string sample_table(const data::TokenStore& store, std::int64_t sample,
                         const data::Tokenizer& tokenizer) {
  const auto ids = store.sample(sample);
  const auto trained = store.trained_of(sample);
  std::string table =
      fmt::format("\n{}\n\nposition  target      id  text\n", tokenizer.decode({ids.begin(), ids.end()}));
  std::int64_t targets = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const bool is_target = i > 0 && (trained.empty() || trained[i] == 1);
    targets += is_target ? 1 : 0;
    // A token may be a part of a character.
    const std::string text = nlohmann::json(tokenizer.decode({ids[i]}))
                                 .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    table += fmt::format("{:8}  {:6}  {:6}  {}\n", i, is_target ? "*" : "", ids[i], text);
  }
  return fmt::format("{} tokens, {} of them targets\n{}", ids.size(), targets, table);
}

}  // namespace ranktune::app
