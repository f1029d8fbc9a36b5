#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/file.hpp"
#include "data/parallel.hpp"
#include "data/token_store.hpp"

namespace ranktune::data {
namespace {

const std::string& required_eos(const Tokenizer& tokenizer) {
  const auto& eos = tokenizer.eos_token();
  if (!eos || eos->empty()) {
    throw UserError(
        "the tokenizer names no eos_token, with which every training text ends: add \"eos_token\" to its "
        "tokenizer_config.json");
  }
  return *eos;
}

void append_row(TokenStore& store, const Row& row, const Tokenizer& tokenizer, const TokenizeOptions& options,
                std::string_view eos) {
  auto ids = tokenizer.encode(render_text(options.prompt_template, row, eos));
  if (std::cmp_greater(ids.size(), options.max_seq_length)) {
    ids.resize(static_cast<std::size_t>(options.max_seq_length));
    ++store.truncated;
  }
  if (ids.size() < 2) {
    ++store.skipped;
    return;
  }
  store.ids.insert(store.ids.end(), ids.begin(), ids.end());
  store.offsets.push_back(store.tokens());
}

// Gathers the blocks in row order.
TokenStore joined(const std::vector<TokenStore>& parts) {
  TokenStore whole;
  std::size_t ids = 0;
  for (const auto& part : parts) ids += part.ids.size();
  whole.ids.reserve(ids);
  for (const auto& part : parts) whole.append(part);
  return whole;
}

}  // namespace

TokenStore tokenize(std::span<const Row> rows, const Tokenizer& tokenizer, const TokenizeOptions& options) {
  if (options.max_seq_length < 2) {
    throw UserError(fmt::format("max_seq_length {} leaves no token to predict; it must be at least 2",
                                options.max_seq_length));
  }
  const std::string& eos = required_eos(tokenizer);
  ParallelOptions parallel;
  parallel.threads = static_cast<std::size_t>(std::max(options.threads, 1));
  if (options.progress) {
    parallel.progress = [&](std::size_t done) { options.progress(static_cast<std::int64_t>(done)); };
  }
  std::vector<TokenStore> parts(block_count(rows.size(), parallel));
  for_each_block(rows.size(), parallel, [&](std::size_t block, std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      try {
        append_row(parts[block], rows[i], tokenizer, options, eos);
      } catch (const UserError& error) {
        throw UserError(fmt::format("dataset row {} cannot be tokenised: {}",
                                    options.first_row + static_cast<std::int64_t>(i) + 1, error.what()));
      }
    }
  });
  return joined(parts);
}

std::string token_cache_key(const Records& records, const Tokenizer& tokenizer,
                            const TokenizeOptions& options) {
  // Counted up when the same text and tokenizer would give other ids than before.
  constexpr int kRecipe = 1;
  // The prompt counts by what it renders, both with and without an input.
  const std::string_view eos = required_eos(tokenizer);
  const std::string prompts = render_text(options.prompt_template, {"instruction", "input", "output"}, eos) +
                              render_text(options.prompt_template, {"instruction", "", "output"}, eos);
  return content_hash(fmt::format("{}\n{}\n{} {}\n{}\n{}\n{}", kRecipe, records.digest,
                                  format_name(records.format), records.rows.size(), tokenizer.digest(),
                                  options.max_seq_length, prompts));
}

}  // namespace ranktune::data
