// The tokenised dataset: every sample's ids laid end to end.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/prompt.hpp"
#include "data/records.hpp"
#include "data/tokenizer.hpp"

namespace ranktune::data {

struct TokenStore {
  std::vector<std::int64_t> offsets{0};  // [samples + 1] into ids
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> trained;  // [tokens] 1: a target where it is not a sample's first; empty: all are
  std::int64_t truncated = 0;         // samples cut at max_seq_length
  std::int64_t skipped = 0;           // rows left out because they hold no target

  std::int64_t samples() const { return static_cast<std::int64_t>(offsets.size()) - 1; }
  std::int64_t tokens() const { return static_cast<std::int64_t>(ids.size()); }
  std::span<const std::int32_t> sample(std::int64_t index) const;
  // Of the sample's tokens; empty: all are.
  std::span<const std::uint8_t> trained_of(std::int64_t index) const;
  // Appends one sample. `targets` [ids], or empty for all.
  void add(std::span<const std::int32_t> sample_ids, std::span<const std::uint8_t> targets);
  // Appends another store's samples after ours.
  void append(const TokenStore& other);

  // Flat bytes for a cache file or for sending between ranks, with a checksum; parse throws Failure when
  // damaged.
  std::string serialize() const;
  static TokenStore parse(std::string_view bytes);
};

// Takes `count` samples out of the store, which keeps the rest; both in their order. Which ones depends on
// the number of samples and the seed alone. 0 < count < samples.
TokenStore hold_out(TokenStore& store, std::int64_t count, std::uint64_t seed);

struct TokenizeOptions {
  PromptForm prompt_template = PromptTemplate::unsloth;
  std::string python = "python3";  // renders chat templates
  // Tokens of a chunk of plain text, at most max_seq_length, and how many of them the next one repeats; 0: a
  // row is one sample.
  std::int64_t chunk_size = 0;
  std::int64_t stride = 0;
  bool responses_only = false;  // targets are the tokens of which some part is in a response
  std::int64_t max_seq_length = 2048;
  int threads = 1;
  std::int64_t first_row = 0;  // index of rows[0] in the dataset, for messages only
  // Called now and then with the number of rows done; may throw to stop.
  std::function<void(std::int64_t)> progress;
};

// Rows [begin, end): rendered, encoded with the post-processor's special tokens, EOS text at the end,
// truncated at max_seq_length. With a chunk_size each row's text is encoded as a whole without the
// post-processor's tokens and cut into overlapping chunks; EOS follows a chunk if there is room. The ids are
// those of the whole text, whatever its responses are. The result does not depend on `threads`. Throws
// UserError.
TokenStore tokenize(std::span<const Row> rows, const Tokenizer& tokenizer, const TokenizeOptions& options);

// The same for texts that are whole, as chat templates write them: nothing is added to them. `first_row`
// counts texts.
TokenStore tokenize(std::span<const TrainingText> texts, const Tokenizer& tokenizer,
                    const TokenizeOptions& options);

// Key of the token cache: everything the ids depend on.
std::string token_cache_key(const Records& records, const Tokenizer& tokenizer,
                            const TokenizeOptions& options);

// Reads `<directory>/tokens/<key>.tokens`; nullopt when absent or damaged.
std::optional<TokenStore> load_cached_tokens(const std::filesystem::path& directory, const std::string& key);
// Writes it (temporary name, rename). Returns an error text instead of throwing: a cache that cannot be
// written is a warning.
std::optional<std::string> save_cached_tokens(const std::filesystem::path& directory, const std::string& key,
                                              const TokenStore& store);

}  // namespace ranktune::data
