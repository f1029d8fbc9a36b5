// Reads tokenizer.json in one pass: vocabulary and merges, nearly all of it, go straight into their tables,
// the rest becomes a small JSON value.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "data/bpe.hpp"

namespace ranktune::data::tokenizing {

struct TokenizerJson {
  nlohmann::json rest;  // everything but model.vocab and model.merges
  bool has_vocabulary = false;
  bool has_merges = false;
  TokenTable vocabulary;
  MergeList merges;
};

// `file` is how messages call the file. Throws UserError for malformed JSON, ids that are no ids, malformed
// merges.
TokenizerJson parse_tokenizer_json(std::string_view text, const std::string& file);

}  // namespace ranktune::data::tokenizing
