// The two roots of every failure. UserError: the input or the machine is not what it should be, one clear
// sentence each with the offending value and what to do; exit code 2. Failure: anything else; exit code 1.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

namespace ranktune {

class UserError : public std::runtime_error {
 public:
  explicit UserError(std::string sentence);
  // Several problems found together, reported together.
  explicit UserError(std::vector<std::string> sentences);
  const std::vector<std::string>& sentences() const { return sentences_; }

 private:
  std::vector<std::string> sentences_;
};

class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

namespace detail {
[[noreturn]] void check_failed(const char* condition, const char* file, int line, const std::string& message);
}

// An invariant of ours that stays on in release builds; throws Failure.
#define RT_CHECK(condition, message)                                                               \
  do {                                                                                             \
    if (!(condition)) ::ranktune::detail::check_failed(#condition, __FILE__, __LINE__, (message)); \
  } while (false)

}  // namespace ranktune
