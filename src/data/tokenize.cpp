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

// Of the tokens of a text, how many lie wholly in its first bytes, and whether the next one does in part.
struct Boundary {
  std::size_t tokens = 0;
  bool divides = false;
};

// `ids`: those of the whole text without what the post-processor adds. The prefix encoded on its own has the
// same ids up to where the merges begin to see what follows; from there on decoded lengths decide.
Boundary boundary(const Tokenizer& tokenizer, std::span<const std::int32_t> ids, std::string_view prefix) {
  const auto alone = tokenizer.encode(prefix, false);
  const auto [mine, theirs] = std::mismatch(alone.begin(), alone.end(), ids.begin(), ids.end());
  const auto same = static_cast<std::size_t>(mine - alone.begin());
  if (mine == alone.end()) return {same, false};
  // From one token earlier, since a decoder may treat the first one in its own way.
  const std::size_t from = same == 0 ? 0 : same - 1;
  const auto length = [&](std::span<const std::int32_t> some, std::size_t end) {
    const auto part = some.subspan(from, end - from);
    return tokenizer.decode({part.begin(), part.end()}).size();
  };
  const std::size_t whole = length(alone, alone.size());
  std::size_t count = same;
  while (count < ids.size() && length(ids, count + 1) <= whole) ++count;
  return {count, length(ids, count) < whole};
}

// 1 for the tokens of `ids` (with what the post-processor adds) that are in a response, wholly or in part.
std::vector<std::uint8_t> response_mask(const Tokenizer& tokenizer, std::span<const std::int32_t> ids,
                                        const TrainingText& text, std::size_t before) {
  std::vector<std::uint8_t> mask(ids.size(), 0);
  const auto own = ids.subspan(std::min(before, ids.size()));
  for (const TextSpan& response : text.responses) {
    const std::string_view whole = text.text;
    const std::size_t begin = boundary(tokenizer, own, whole.substr(0, response.begin)).tokens;
    std::size_t end = own.size();
    if (response.end < whole.size()) {
      const Boundary last = boundary(tokenizer, own, whole.substr(0, response.end));
      end = last.tokens + (last.divides ? 1 : 0);
    }
    for (std::size_t i = begin; i < end; ++i) mask[before + i] = 1;
  }
  return mask;
}

void append_text(TokenStore& store, const TrainingText& text, bool add_special_tokens,
                 const Tokenizer& tokenizer, const TokenizeOptions& options) {
  auto ids = tokenizer.encode(text.text, add_special_tokens);
  std::vector<std::uint8_t> mask;
  if (options.responses_only) {
    mask = response_mask(tokenizer, ids, text, add_special_tokens ? tokenizer.added_before() : 0);
  }
  if (std::cmp_greater(ids.size(), options.max_seq_length)) {
    ids.resize(static_cast<std::size_t>(options.max_seq_length));
    mask.resize(std::min(mask.size(), ids.size()));
    ++store.truncated;
  }
  const bool has_target =
      ids.size() >= 2 && (mask.empty() || std::find(mask.begin() + 1, mask.end(), 1) != mask.end());
  if (!has_target) {
    ++store.skipped;
    return;
  }
  store.add(ids, mask);
}

// What tells one way of making texts from another.
std::string prompt_identity(const PromptForm& form, const Tokenizer& tokenizer) {
  if (form.form == PromptTemplate::chat) {
    return fmt::format("chat {} {} {}", content_hash(form.chat.text), form.chat.variables, form.chat.date);
  }
  // By what it renders, both with and without an input.
  const std::string_view eos = required_eos(tokenizer);
  return render_text(form, {"instruction", "input", "output"}, eos).text +
         render_text(form, {"instruction", "", "output"}, eos).text;
}

// As Unsloth's RawTextDataLoader does it; but it lets the trainer cut an EOS off that has no room.
void append_chunks(TokenStore& store, std::string_view text, const Tokenizer& tokenizer,
                   const TokenizeOptions& options) {
  const std::vector<std::int32_t> ids = tokenizer.encode(text, false);
  const auto eos = tokenizer.token_id(required_eos(tokenizer));
  RT_CHECK(eos.has_value(), "eos_token is a token");
  const auto size = static_cast<std::size_t>(options.chunk_size);
  const auto step = size - static_cast<std::size_t>(options.stride);
  for (std::size_t begin = 0; begin < ids.size(); begin += step) {
    const std::size_t end = std::min(begin + size, ids.size());
    std::vector<std::int32_t> chunk(ids.begin() + static_cast<std::ptrdiff_t>(begin),
                                    ids.begin() + static_cast<std::ptrdiff_t>(end));
    if (std::cmp_less(chunk.size(), options.max_seq_length)) chunk.push_back(*eos);
    store.add(chunk, {});
    if (end == ids.size()) break;
  }
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

// `append(store, i)` adds sample i of `count`.
TokenStore tokenize_all(std::size_t count, const TokenizeOptions& options,
                        const std::function<void(TokenStore&, std::size_t)>& append) {
  if (options.max_seq_length < 2) {
    throw UserError(fmt::format("max_seq_length {} leaves no token to predict; it must be at least 2",
                                options.max_seq_length));
  }
  ParallelOptions parallel;
  parallel.threads = static_cast<std::size_t>(std::max(options.threads, 1));
  if (options.progress) {
    parallel.progress = [&](std::size_t done) { options.progress(static_cast<std::int64_t>(done)); };
  }
  std::vector<TokenStore> parts(block_count(count, parallel));
  for_each_block(count, parallel, [&](std::size_t block, std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      try {
        append(parts[block], i);
      } catch (const UserError& error) {
        throw UserError(fmt::format("dataset row {} cannot be tokenised: {}",
                                    options.first_row + static_cast<std::int64_t>(i) + 1, error.what()));
      }
    }
  });
  return joined(parts);
}

}  // namespace

TokenStore tokenize(std::span<const Row> rows, const Tokenizer& tokenizer, const TokenizeOptions& options) {
  if (options.chunk_size > 0) {
    RT_CHECK(options.stride >= 0 && options.stride < options.chunk_size &&
                 options.chunk_size <= options.max_seq_length,
             "chunks go on, and fit");
    return tokenize_all(rows.size(), options, [&](TokenStore& store, std::size_t i) {
      append_chunks(store, rows[i].output, tokenizer, options);
    });
  }
  const std::string& eos = required_eos(tokenizer);
  return tokenize_all(rows.size(), options, [&](TokenStore& store, std::size_t i) {
    append_text(store, render_text(options.prompt_template, rows[i], eos), true, tokenizer, options);
  });
}

TokenStore tokenize(std::span<const TrainingText> texts, const Tokenizer& tokenizer,
                    const TokenizeOptions& options) {
  return tokenize_all(texts.size(), options, [&](TokenStore& store, std::size_t i) {
    append_text(store, texts[i], false, tokenizer, options);
  });
}

std::string token_cache_key(const Records& records, const Tokenizer& tokenizer,
                            const TokenizeOptions& options) {
  // Counted up when the same text and tokenizer would give other ids than before.
  constexpr int kRecipe = 1;
  return content_hash(
      fmt::format("{}\n{}\n{} {}\n{}\n{} {}\n{}", kRecipe, records.digest, format_name(records.format),
                  records.rows.size(), tokenizer.digest(), options.max_seq_length, options.responses_only,
                  options.chunk_size > 0 ? fmt::format("chunks {} {}", options.chunk_size, options.stride)
                                         : prompt_identity(options.prompt_template, tokenizer)));
}

}  // namespace ranktune::data
