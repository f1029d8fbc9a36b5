#include "data/tokenizer_part.hpp"

#include <fmt/format.h>

#include <utility>

#include "base/error.hpp"
#include "data/unicode.hpp"

namespace ranktune::data::tokenizing {
namespace {

constexpr int kMaxDepth = 16;

}  // namespace

JsonPart::JsonPart(const nlohmann::json& value, std::string file, std::string where)
    : value_(value), file_(std::move(file)), where_(std::move(where)) {}

void JsonPart::refuse(const std::string& message) const {
  throw UserError(fmt::format("{}: {} {}", file_, where_, message));
}

bool JsonPart::has(std::string_view key) const {
  return value_.is_object() && value_.contains(key) && !value_.at(std::string(key)).is_null();
}

const nlohmann::json& JsonPart::at(std::string_view key) const {
  if (!value_.is_object()) refuse("must be a JSON object");
  const auto found = value_.find(key);
  if (found == value_.end()) refuse(fmt::format("has no \"{}\"", key));
  return *found;
}

JsonPart JsonPart::child(std::string_view key) const {
  JsonPart part(at(key), file_, fmt::format("{}.{}", where_, key));
  part.depth_ = depth_ + 1;
  if (part.depth_ > kMaxDepth) refuse("is nested too deep");
  return part;
}

std::vector<JsonPart> JsonPart::children(std::string_view key) const {
  const nlohmann::json& list = at(key);
  if (!list.is_array()) refuse(fmt::format("has a \"{}\" that is not an array", key));
  if (depth_ >= kMaxDepth) refuse("is nested too deep");
  std::vector<JsonPart> parts;
  parts.reserve(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    parts.emplace_back(list[i], file_, fmt::format("{}.{}[{}]", where_, key, i));
    parts.back().depth_ = depth_ + 1;
  }
  return parts;
}

std::string JsonPart::text(std::string_view key) const {
  const nlohmann::json& value = at(key);
  if (!value.is_string()) refuse(fmt::format("has a \"{}\" that is not a string", key));
  return value.get<std::string>();
}

bool JsonPart::flag(std::string_view key) const {
  const nlohmann::json& value = at(key);
  if (!value.is_boolean()) refuse(fmt::format("has a \"{}\" that is neither true nor false", key));
  return value.get<bool>();
}

bool JsonPart::flag(std::string_view key, bool fallback) const {
  return has(key) ? flag(key) : fallback;
}

std::size_t JsonPart::count(std::string_view key) const {
  const nlohmann::json& value = at(key);
  if (!value.is_number_unsigned()) refuse(fmt::format("has a \"{}\" that is not a whole number", key));
  return value.get<std::size_t>();
}

std::string JsonPart::character(std::string_view key) const {
  std::string value = text(key);
  if (value.empty() || utf8_length(static_cast<unsigned char>(value[0])) != value.size()) {
    refuse(fmt::format("has a \"{}\" that is not one character: \"{}\"", key, value));
  }
  return value;
}

}  // namespace ranktune::data::tokenizing
