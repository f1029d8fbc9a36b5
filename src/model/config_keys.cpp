#include "model/config_keys.hpp"

#include <cmath>

#include "base/error.hpp"

namespace ranktune::model {

std::string ConfigKeys::sentence(const std::string& key, const std::string& why) const {
  const std::string value = contains(key) ? " = " + object_.at(key).dump().substr(0, 80) : "";
  return where_ + ": " + key + value + " " + why;
}

void ConfigKeys::refuse(const std::string& key, const std::string& why) const {
  throw UserError(sentence(key, why));
}

std::int64_t ConfigKeys::count(const std::string& key, std::int64_t most, std::int64_t least) const {
  if (!present(key)) refuse(key, "is missing");
  const nlohmann::json& value = object_.at(key);
  if (!value.is_number_integer()) refuse(key, "is not a whole number");
  const auto number = value.get<std::int64_t>();
  if (number < least || number > most) {
    refuse(key, "is outside " + std::to_string(least) + " to " + std::to_string(most));
  }
  return number;
}

std::int64_t ConfigKeys::count_or(const std::string& key, std::int64_t fallback, std::int64_t most,
                                  std::int64_t least) const {
  return present(key) ? count(key, most, least) : fallback;
}

double ConfigKeys::positive(const std::string& key) const {
  if (!present(key)) refuse(key, "is missing");
  const nlohmann::json& value = object_.at(key);
  if (!value.is_number()) refuse(key, "is not a number");
  const auto number = value.get<double>();
  if (!(number > 0) || !std::isfinite(number)) refuse(key, "is not a positive number");
  return number;
}

double ConfigKeys::positive_or(const std::string& key, double fallback) const {
  return present(key) ? positive(key) : fallback;
}

bool ConfigKeys::flag_or(const std::string& key, bool fallback) const {
  if (!present(key)) return fallback;
  if (!object_.at(key).is_boolean()) refuse(key, "is not true or false");
  return object_.at(key).get<bool>();
}

std::string ConfigKeys::text_or(const std::string& key, const std::string& fallback) const {
  if (!present(key)) return fallback;
  if (!object_.at(key).is_string()) refuse(key, "is not a string");
  return object_.at(key).get<std::string>();
}

}  // namespace ranktune::model
