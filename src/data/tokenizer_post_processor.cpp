#include "data/tokenizer_post_processor.hpp"

#include <fmt/format.h>

#include "data/bpe.hpp"

namespace ranktune::data::tokenizing {
namespace {

std::vector<std::int32_t> ids_of_special_token(const JsonPart& special_tokens, const std::string& name) {
  if (!special_tokens.has(name))
    special_tokens.refuse(fmt::format("lacks \"{}\", which the template uses", name));
  const nlohmann::json list = special_tokens.child(name).child("ids").value();
  if (!list.is_array()) special_tokens.refuse(fmt::format("gives \"{}\" no array of ids", name));
  std::vector<std::int32_t> ids;
  for (const nlohmann::json& id : list) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() > static_cast<std::uint64_t>(kLargestId)) {
      special_tokens.refuse(fmt::format("gives \"{}\" the id {}, which is none", name, id.dump()));
    }
    ids.push_back(id.get<std::int32_t>());
  }
  return ids;
}

}  // namespace

void PostProcessor::add_template(const JsonPart& part) {
  std::vector<std::int32_t> before;
  std::vector<std::int32_t> behind;
  bool text_seen = false;
  for (const JsonPart& piece : part.children("single")) {
    if (piece.has("SpecialToken")) {
      const std::string name = piece.child("SpecialToken").text("id");
      const auto ids = ids_of_special_token(part.child("special_tokens"), name);
      auto& side = text_seen ? behind : before;
      side.insert(side.end(), ids.begin(), ids.end());
    } else if (piece.has("Sequence") && piece.child("Sequence").text("id") == "A" && !text_seen) {
      text_seen = true;
    } else {
      piece.refuse("is not supported: neither a special token nor the one text");
    }
  }
  if (!text_seen) part.refuse("has a template for single texts without the text");
  before_.insert(before_.begin(), before.begin(), before.end());
  behind_.insert(behind_.end(), behind.begin(), behind.end());
}

void PostProcessor::add(const JsonPart& part) {
  const std::string type = part.type();
  if (type == "Sequence") {
    for (const JsonPart& step : part.children("processors")) add(step);
  } else if (type == "TemplateProcessing") {
    add_template(part);
  } else if (type != "ByteLevel") {  // that one moves offsets only
    part.refuse(fmt::format("is a {} post-processor, which is not supported", type));
  }
}

}  // namespace ranktune::data::tokenizing
