// The "post_processor" of tokenizer.json, as far as a single text's ids go: what is put before and behind
// them.
#pragma once

#include <cstdint>
#include <vector>

#include "data/tokenizer_part.hpp"

namespace ranktune::data::tokenizing {

class PostProcessor {
 public:
  PostProcessor() = default;
  // Throws UserError for a type that is not supported.
  explicit PostProcessor(const JsonPart& part) { add(part); }

  const std::vector<std::int32_t>& before() const { return before_; }
  const std::vector<std::int32_t>& behind() const { return behind_; }

 private:
  void add(const JsonPart& part);
  void add_template(const JsonPart& part);

  std::vector<std::int32_t> before_, behind_;
};

}  // namespace ranktune::data::tokenizing
