// A program that is fed on its standard input and read from on its standard output, at the same time.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace ranktune {

struct ChildResult {
  int exit_code = 0;   // 128 + the signal where one ended it
  std::string errors;  // what it wrote to standard error
};

struct ChildTalk {
  std::function<std::string()> input;            // the next piece to feed; empty: there is no more
  std::function<void(std::string_view)> output;  // a piece of what it wrote; called with nothing now and then
};

// Runs `command`, whose first word is a path or is looked for in PATH, with this process's environment and no
// signal blocked. Whatever `talk` throws ends the child first. A child that stops reading is not an error
// here. Throws UserError where it cannot be started.
ChildResult run_child(const std::vector<std::string>& command, const ChildTalk& talk);

// The Python to run: RANKTUNE_PYTHON, or python3 of PATH.
std::string python_program();

}  // namespace ranktune
