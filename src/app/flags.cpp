#include "app/flags.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/make_shared.hpp>
#include <boost/program_options.hpp>
#include <sstream>

#include "app/flags_text.hpp"

namespace ranktune::app {
namespace {

namespace po = boost::program_options;

constexpr std::string_view kHelp = "help";
constexpr std::string_view kVersion = "version";
constexpr std::string_view kNegation = "no_";

// Takes the tokens of a flag as they are, none included, so that a missing value is one problem among others
// and not the end of parsing.
class RawTokens : public po::value_semantic {
 public:
  RawTokens(std::string_view value_name, unsigned most) : value_name_(value_name), most_(most) {}
  std::string name() const override { return value_name_; }
  unsigned min_tokens() const override { return 0; }
  unsigned max_tokens() const override { return most_; }
  bool is_composing() const override { return false; }
  bool is_required() const override { return false; }
  void parse(boost::any&, const std::vector<std::string>&, bool) const override {}
  bool apply_default(boost::any&) const override { return false; }
  void notify(const boost::any&) const override {}

 private:
  std::string value_name_;
  unsigned most_;
};

bool is_switch(const Flag& flag) {
  return std::holds_alternative<bool TrainOptions::*>(flag.member);
}

unsigned most_tokens(const Flag& flag) {
  return std::holds_alternative<std::vector<std::string> TrainOptions::*>(flag.member) ? 1000 : 1;
}

void add_option(po::options_description& group, std::string_view name, std::string_view value_name,
                unsigned most, const std::string& text) {
  // Boost takes the ownership of the semantic.
  group.add(boost::make_shared<po::option_description>(std::string(name).c_str(),
                                                       new RawTokens(value_name, most), text.c_str()));
}

std::string default_text(const Flag& flag) {
  if (!flag.default_text.empty()) return std::string(flag.default_text);
  const TrainOptions defaults;
  struct Text {
    const TrainOptions& options;
    std::string operator()(bool TrainOptions::*m) const { return options.*m ? "true" : ""; }
    std::string operator()(std::int64_t TrainOptions::*m) const { return fmt::format("{}", options.*m); }
    std::string operator()(double TrainOptions::*m) const { return fmt::format("{}", options.*m); }
    std::string operator()(std::string TrainOptions::*m) const { return options.*m; }
    std::string operator()(std::optional<std::int64_t> TrainOptions::*) const { return "none"; }
    std::string operator()(std::optional<double> TrainOptions::*) const { return "none"; }
    std::string operator()(std::optional<std::string> TrainOptions::*) const { return "none"; }
    std::string operator()(std::vector<std::string> TrainOptions::*) const { return "none"; }
  };
  return std::visit(Text{defaults}, flag.member);
}

std::string help_text(const Flag& flag) {
  const std::string value = default_text(flag);
  return value.empty() ? std::string(flag.help) : fmt::format("{} [{}]", flag.help, value);
}

// All names that a command line may hold, each switch with its negation.
po::options_description command_line_options() {
  po::options_description all;
  add_option(all, kHelp, "", 0, "");
  add_option(all, kVersion, "", 0, "");
  for (const Flag& flag : train_flags()) {
    add_option(all, flag.name, flag.value_name, most_tokens(flag), "");
    if (is_switch(flag)) add_option(all, std::string(kNegation).append(flag.name), "", 1, "");
  }
  return all;
}

std::string suggestion(std::string_view typed, std::string_view prefix) {
  std::vector<std::string_view> names = {kHelp, kVersion};
  for (const Flag& flag : train_flags()) names.push_back(flag.name);
  const std::string_view name = nearest(typed, names);
  return name.empty() ? std::string() : fmt::format("; did you mean '{}{}'?", prefix, name);
}

// `--Some-flag=value` with the flag's name in underscores; -h as --help.
std::string normalised(const std::string& argument) {
  if (argument == "-h") return "--help";
  if (!argument.starts_with("--")) return argument;
  std::string result = argument;
  const std::size_t end = std::min(result.find('='), result.size());
  std::replace(result.begin() + 2, result.begin() + static_cast<std::ptrdiff_t>(end), '-', '_');
  return result;
}

// `no_shuffle` as `shuffle` with the opposite value.
void resolve_negation(Occurrence& occurrence) {
  if (!occurrence.name.starts_with(kNegation) || find_flag(occurrence.name)) return;
  const Flag* flag = find_flag(std::string_view(occurrence.name).substr(kNegation.size()));
  if (!flag || !is_switch(*flag)) return;
  const bool bare = occurrence.values.empty();
  const auto value = bare ? std::optional<bool>(true) : parse_switch(occurrence.values.front());
  occurrence.name = flag->name;
  // What is neither true nor false goes on to be refused as it stands.
  if (value) occurrence.values = {*value ? "false" : "true"};
}

// Boost ends parsing at `--name=`; taken out beforehand, the other problems are found as well.
std::vector<std::string> without_empty_values(const std::vector<std::string>& arguments,
                                              std::vector<std::string>& problems) {
  std::vector<std::string> kept;
  for (const std::string& argument : arguments) {
    const std::size_t equals = argument.find('=');
    const bool is_flag = argument.starts_with("--");
    if (is_flag && equals == 2) {
      problems.push_back(fmt::format("unexpected argument '{}'", argument));
    } else if (is_flag && equals != std::string::npos && equals + 1 == argument.size()) {
      problems.push_back(fmt::format("{} has no value after the '='", argument.substr(0, equals)));
    } else {
      kept.push_back(normalised(argument));
    }
  }
  return kept;
}

std::string unexpected(const std::string& argument) {
  const std::string_view name = std::string_view(argument).substr(0, argument.find('='));
  if (argument.starts_with("-") && argument.size() > 2) {
    return fmt::format("unexpected argument '{}': flags start with two dashes{}", argument,
                       suggestion(normalised("-" + std::string(name)).substr(2), "--"));
  }
  return fmt::format("unexpected argument '{}': values follow a flag, as in --model_name FOLDER", argument);
}

std::string without_trailing_blanks(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '\n') result.erase(result.find_last_not_of(' ') + 1);
    result += c;
  }
  result.erase(result.find_last_not_of('\n') + 1);
  return result;
}

}  // namespace

std::string_view caption(FlagGroup group) {
  switch (group) {
    case FlagGroup::model:
      return "Model Options";
    case FlagGroup::data:
      return "Data Options";
    case FlagGroup::lora:
      return "LoRA Options";
    case FlagGroup::training:
      return "Training Options";
    case FlagGroup::report:
      return "Report Options";
    case FlagGroup::save:
      return "Save Model Options";
    case FlagGroup::push:
      return "Push Model Options";
    case FlagGroup::run:
      return "Run Options";
  }
  return {};
}

const Flag* find_flag(std::string_view name) {
  const auto flags = train_flags();
  const auto found =
      std::find_if(flags.begin(), flags.end(), [&](const Flag& flag) { return flag.name == name; });
  return found == flags.end() ? nullptr : &*found;
}

Occurrences read_command_line(const std::vector<std::string>& arguments) {
  Occurrences result;
  const auto tokens = without_empty_values(arguments, result.problems);
  const po::options_description known = command_line_options();
  using namespace po::command_line_style;
  std::vector<po::option> options;
  try {
    po::command_line_parser parser(tokens);
    parser.options(known).style(allow_long | long_allow_adjacent | long_allow_next).allow_unregistered();
    options = parser.run().options;
  } catch (const po::error& error) {
    result.problems.push_back(fmt::format("the command line cannot be read: {}", error.what()));
    return result;
  }
  bool after_unknown = false;  // then what follows is the unknown flag's value
  for (const po::option& option : options) {
    if (option.unregistered) {
      const std::string& token = option.original_tokens.front();
      const std::string name = option.string_key;
      result.problems.push_back(fmt::format("unknown option '--{}'{}", name, suggestion(name, "--")));
      after_unknown = token.find('=') == std::string::npos;
    } else if (option.string_key.empty()) {
      const std::string& argument = option.value.front();
      if (!after_unknown) result.problems.push_back(unexpected(argument));
      after_unknown = argument.starts_with("-");
    } else {
      after_unknown = false;
      Occurrence occurrence{option.string_key, option.value, "--" + option.string_key};
      resolve_negation(occurrence);
      result.flags.push_back(std::move(occurrence));
    }
  }
  return result;
}

std::string flags_help(unsigned width, const std::function<bool(const Flag&)>& wanted) {
  constexpr unsigned kNameColumn = 36;
  // Groups inside one description share the column where the texts start.
  po::options_description all("", width, width - kNameColumn);
  for (const FlagGroup group : {FlagGroup::model, FlagGroup::data, FlagGroup::lora, FlagGroup::training,
                                FlagGroup::report, FlagGroup::save, FlagGroup::push, FlagGroup::run}) {
    po::options_description options(std::string(caption(group)), width, width - kNameColumn);
    for (const Flag& flag : train_flags()) {
      if (flag.group == group && wanted(flag))
        add_option(options, flag.name, flag.value_name, most_tokens(flag), help_text(flag));
    }
    if (group == FlagGroup::run) {
      add_option(options, kHelp, "", 0, "Print this text.");
      add_option(options, kVersion, "", 0, "Print the version.");
    }
    if (!options.options().empty()) all.add(options);
  }
  std::ostringstream text;
  text << all;
  return without_trailing_blanks(text.str());
}

// ---- the config file ----

namespace {

struct ConfigLine {
  std::string name;
  std::string value;
};

std::string_view without_comment(std::string_view text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool starts = i == 0 || text[i - 1] == ' ' || text[i - 1] == '\t';
    if (text[i] == '#' && starts) return text.substr(0, i);
  }
  return text;
}

// The value of a line: up to the comment, or what stands between quotes. Nothing if a quote is not closed or
// is followed by more.
std::optional<std::string> config_value(std::string_view text) {
  text = trimmed(text);
  if (text.empty() || (text.front() != '"' && text.front() != '\'')) {
    return std::string(trimmed(without_comment(text)));
  }
  const std::size_t close = text.find(text.front(), 1);
  if (close == std::string_view::npos) return std::nullopt;
  if (!trimmed(without_comment(trimmed(text.substr(close + 1)))).empty()) return std::nullopt;
  return std::string(text.substr(1, close - 1));
}

}  // namespace

Occurrences parse_config_text(std::string_view text, const std::string& path) {
  Occurrences result;
  std::vector<std::pair<std::string, int>> seen;
  for (int number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = trimmed(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty() || line.front() == '#') continue;

    const std::string where = fmt::format("{}:{}: ", path, number);
    const std::size_t equals = line.find('=');
    const auto value =
        equals == std::string_view::npos ? std::nullopt : config_value(line.substr(equals + 1));
    if (!value) {
      result.problems.push_back(fmt::format("{}'{}' is not of the form name = value", where, line));
      continue;
    }
    std::string name(trimmed(line.substr(0, equals)));
    std::replace(name.begin(), name.end(), '-', '_');
    Occurrence occurrence{name, {*value}, where + name};
    resolve_negation(occurrence);
    if (!find_flag(occurrence.name)) {
      result.problems.push_back(fmt::format("{}unknown option '{}'{}", where, name, suggestion(name, "")));
      continue;
    }
    const auto before = std::find_if(seen.begin(), seen.end(),
                                     [&](const auto& entry) { return entry.first == occurrence.name; });
    if (before != seen.end()) {
      result.problems.push_back(fmt::format("{}{} is set on line {} already", where, name, before->second));
      continue;
    }
    seen.emplace_back(occurrence.name, number);
    result.flags.push_back(std::move(occurrence));
  }
  return result;
}

}  // namespace ranktune::app
