// A Hugging Face tokenizer.json with a BPE model, equal to the `tokenizers` library id for id.
//
// Text -> split at added tokens -> normalizer -> pre-tokenizer -> BPE merges -> post-processor.
// "truncation" and "padding" of the file are left out of account, as Transformers does, which sets its own
// per call. Thread-safe after construction: encode() may run on many threads at once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ranktune::data {

class Tokenizer {
 public:
  // Reads tokenizer.json, tokenizer_config.json and (where eos is not there) special_tokens_map.json.
  // Throws UserError that names the file and the part which is missing, malformed or not supported. The EOS
  // and BOS named there must be tokens; one that only the vocabulary lists becomes an added special token, as
  // in Transformers.
  static Tokenizer from_folder(const std::filesystem::path& folder);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Ids of `text` (UTF-8). With `add_special_tokens` the post-processor adds what it adds (a BOS, say), as
  // `tokenizers` does; special-token text inside `text` becomes its id either way. Throws UserError on
  // invalid UTF-8.
  std::vector<std::int32_t> encode(std::string_view text, bool add_special_tokens = true) const;

  // How many ids the post-processor puts before those of a text.
  std::size_t added_before() const;

  // Text of the ids; ids of special tokens are left out with `skip_special_tokens`.
  std::string decode(const std::vector<std::int32_t>& ids, bool skip_special_tokens = false) const;

  // One more than the largest id (vocabulary and added tokens).
  std::int32_t vocab_size() const;
  std::optional<std::int32_t> token_id(std::string_view token) const;

  // `eos_token` of tokenizer_config.json: what the prompt ends with.
  const std::optional<std::string>& eos_token() const;
  const std::optional<std::string>& bos_token() const;

  // Hash of everything the ids depend on, for caches.
  const std::string& digest() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ranktune::data
