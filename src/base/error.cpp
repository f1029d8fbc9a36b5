#include "base/error.hpp"

#include <utility>

namespace ranktune {
namespace {
std::string joined(const std::vector<std::string>& sentences) {
  std::string all;
  for (const auto& sentence : sentences) {
    if (!all.empty()) all += '\n';
    all += sentence;
  }
  return all;
}
}  // namespace

UserError::UserError(std::string sentence) : UserError(std::vector<std::string>{std::move(sentence)}) {}

UserError::UserError(std::vector<std::string> sentences)
    : std::runtime_error(joined(sentences)), sentences_(std::move(sentences)) {}

namespace detail {
void check_failed(const char* condition, const char* file, int line, const std::string& message) {
  throw Failure(message + " (violated: " + condition + ", " + file + ":" + std::to_string(line) + ")");
}
}  // namespace detail

}  // namespace ranktune
