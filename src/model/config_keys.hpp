// Typed access to the keys of one JSON object of config.json, with sentences that name file, key and value.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace ranktune::model {

class ConfigKeys {
 public:
  // `where` starts every sentence: the file, and the key of the object where it is not the whole file.
  ConfigKeys(const nlohmann::json& object, std::string where) : object_(object), where_(std::move(where)) {}

  const nlohmann::json& object() const { return object_; }
  const std::string& where() const { return where_; }
  bool contains(const std::string& key) const { return object_.contains(key); }
  bool present(const std::string& key) const { return contains(key) && !object_.at(key).is_null(); }

  // "WHERE: KEY = VALUE WHY", and the UserError that says it.
  std::string sentence(const std::string& key, const std::string& why) const;
  [[noreturn]] void refuse(const std::string& key, const std::string& why) const;

  // A whole number from `least` to `most`, a positive number, a truth value, a string. Each throws UserError
  // where the value is of another kind; without a fallback also where there is none.
  std::int64_t count(const std::string& key, std::int64_t most, std::int64_t least = 1) const;
  std::int64_t count_or(const std::string& key, std::int64_t fallback, std::int64_t most,
                        std::int64_t least = 1) const;
  double positive(const std::string& key) const;
  double positive_or(const std::string& key, double fallback) const;
  bool flag_or(const std::string& key, bool fallback) const;
  std::string text_or(const std::string& key, const std::string& fallback) const;

 private:
  const nlohmann::json& object_;
  std::string where_;
};

}  // namespace ranktune::model
