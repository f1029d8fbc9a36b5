// One description of a flag, from which parsing, --help and the provenance record follow.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "app/options.hpp"

namespace ranktune::app {

enum class FlagGroup { model, data, lora, training, report, save, push, run };
std::string_view caption(FlagGroup group);

// Where a flag's value goes; its type is the flag's type.
using FlagMember =
    std::variant<bool TrainOptions::*, std::int64_t TrainOptions::*, double TrainOptions::*,
                 std::string TrainOptions::*, std::optional<std::int64_t> TrainOptions::*,
                 std::optional<double> TrainOptions::*, std::optional<std::string> TrainOptions::*,
                 std::vector<std::string> TrainOptions::*>;

// Numbers allowed: minimum to maximum, both included unless said.
struct Limits {
  double minimum = 0;
  double maximum = 0;
  bool minimum_excluded = false;
  bool maximum_excluded = false;
};

struct Flag {
  std::string_view name;
  FlagGroup group;
  FlagMember member;
  std::string_view value_name = {};  // in --help; empty for switches
  std::string_view help = {};
  std::string_view default_text = {};          // where it is not the member's own default
  Limits limits = {};                          // numbers only
  std::vector<std::string_view> choices = {};  // texts only; empty: any text
  // What to do instead, where this version cannot honour the flag: any value but false or none is refused;
  // with choices, any value but those is.
  std::string_view refusal = {};
  // The word for "no value" of an optional number, besides none.
  std::string_view nothing = "none";
  bool is_duration = false;  // an optional number of seconds
};

// All flags of `ranktune train`, in the order of --help.
std::span<const Flag> train_flags();
const Flag* find_flag(std::string_view name);

// One use of a flag, as it was written.
struct Occurrence {
  std::string name;                 // with underscores
  std::vector<std::string> values;  // none: the bare flag
  std::string spelling;             // for messages: "--r", or "run.conf:3: r"
};

struct Occurrences {
  std::vector<Occurrence> flags;
  std::vector<std::string> problems;
};

// Splits a command line into flags, in order. --help and --version come back as occurrences too.
Occurrences read_command_line(const std::vector<std::string>& arguments);

// Lines `name = value` of the config file `path`; `#` starts a comment at the start of a line or after a
// blank.
Occurrences parse_config_text(std::string_view text, const std::string& path);

// Sets the flag's member. Returns the problem, if there is one; the member then keeps its value.
std::optional<std::string> apply(const Flag& flag, const Occurrence& occurrence, TrainOptions& options);

// The groups and flags of --help for which `wanted` holds, without the text around them.
std::string flags_help(unsigned width, const std::function<bool(const Flag&)>& wanted);

}  // namespace ranktune::app
