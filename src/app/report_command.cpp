#include "app/report_command.hpp"

#include <fmt/format.h>

#include <boost/program_options.hpp>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>

#include "app/console.hpp"
#include "app/report_plot.hpp"
#include "app/report_summary.hpp"
#include "base/error.hpp"
#include "store/metrics_schema.hpp"

namespace ranktune::app {
namespace {

namespace po = boost::program_options;
using Json = nlohmann::ordered_json;

po::options_description flags(ReportCommand& command) {
  po::options_description own("Flags");
  own.add_options()("format", po::value(&command.format)->value_name("FORM"),
                    "text: a summary for people; csv: a line a step; json: all that is recorded [text]")(
      "plot", po::value(&command.plot)->value_name("FILE"),
      "draw all the runs into one figure, FILE.png, .svg or .pdf; needs Python with h5py and matplotlib: "
      "python3, or what RANKTUNE_PYTHON names")(
      "panels", po::value(&command.panels)->value_name("NAMES"),
      "panels of the figure, commas between: loss, epoch, learning_rate, grad_norm, tokens, waiting [all]")(
      "help,h", po::bool_switch(&command.help), "print this text")(
      "version", po::bool_switch(&command.version), "print the version");
  return own;
}

// Hands over name and value of each field of a row of numbers.
template <typename Row, typename Take>
void for_each_field(const store::TableSchema& schema, const Row& row, const Take& take) {
  const auto* place = reinterpret_cast<const std::byte*>(&row);
  for (const store::FieldSchema& field : schema.fields) {
    const auto value = [&](auto number) {
      std::memcpy(&number, place, sizeof(number));
      take(field.name, number);
    };
    if (field.kind == store::FieldKind::integer) {
      value(std::int64_t{0});
    } else {
      value(0.0);
    }
    place += field.bytes;
  }
}

template <typename Row>
Json table_as_json(const store::TableSchema& schema, const std::vector<Row>& rows) {
  Json table = Json::array();
  for (const Row& row : rows) {
    Json object = Json::object();
    for_each_field(schema, row, [&](const std::string& name, auto value) { object[name] = value; });
    table.push_back(std::move(object));
  }
  return table;
}

std::string csv_text(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + '"';
}

void print_summaries(const std::vector<NamedRun>& runs) {
  Console console;
  for (const NamedRun& run : runs) {
    console.note(run.name);
    console.table(run_summary(run.record));
  }
}

}  // namespace

ReportCommand parse_report_options(const std::vector<std::string>& arguments) {
  ReportCommand command;
  try {
    po::options_description all = flags(command);
    all.add_options()("run", po::value(&command.runs));
    po::positional_options_description positional;
    positional.add("run", -1);
    po::variables_map values;
    po::store(po::command_line_parser(arguments)
                  .options(all)
                  .positional(positional)
                  .style(po::command_line_style::default_style & ~po::command_line_style::allow_guessing)
                  .run(),
              values);
    po::notify(values);
  } catch (const po::error& error) {
    command.problems.push_back(
        fmt::format("ranktune report: {}; ranktune report --help lists the flags", error.what()));
    return command;
  }
  if (command.format != "text" && command.format != "csv" && command.format != "json")
    command.problems.push_back(fmt::format("--format must be text, csv or json, not '{}'", command.format));
  if (!command.panels.empty() && command.plot.empty())
    command.problems.push_back(
        fmt::format("--panels {} means nothing without --plot FILE: give both, or neither", command.panels));
  if (command.runs.empty() && !command.help && !command.version)
    command.problems.emplace_back(
        "ranktune report needs a run: give the --output_dir of a training run, or its metrics.h5");
  return command;
}

std::string report_help() {
  ReportCommand command;
  std::ostringstream text;
  text << "Usage: ranktune report RUN... [FLAGS]\n\n"
          "Tells what training runs have recorded: recipe, machine, loss, speed, where the time went,\n"
          "interruptions. RUN is the --output_dir of a run that is over, is going on or was killed, or a\n"
          "metrics.h5. Needs no MPI.\n\n"
          "Examples:\n"
          "  ranktune report outputs\n"
          "  ranktune report outputs --format csv > steps.csv\n"
          "  ranktune report one_rank two_ranks --plot both.svg --panels loss,epoch\n\n"
       << flags(command);
  std::string help = text.str();
  while (help.ends_with('\n')) help.pop_back();
  return help;
}

std::string steps_as_csv(const std::vector<NamedRun>& runs) {
  std::string text = "run";
  for (const store::FieldSchema& field : store::steps_schema().fields) text += "," + field.name;
  text += '\n';
  for (const NamedRun& run : runs) {
    for (const store::StepRow& row : run.record.steps) {
      text += csv_text(run.name);
      for_each_field(store::steps_schema(), row,
                     [&](const std::string&, auto value) { text += fmt::format(",{}", value); });
      text += '\n';
    }
  }
  return text;
}

std::string runs_as_json(const std::vector<NamedRun>& runs) {
  Json all = Json::array();
  for (const NamedRun& run : runs) {
    const store::RunRecord& record = run.record;
    Json attributes = Json::object();
    if (!record.attempts.empty()) {
      for (const auto& [name, value] : record.attempts.back().text) attributes[name] = value;
      for (const auto& [name, value] : record.attempts.back().integers) attributes[name] = value;
    }
    Json events = Json::array();
    for (const store::EventRow& event : record.events) {
      events.push_back(
          {{"time", event.time}, {"step", event.step}, {"kind", event.kind}, {"message", event.message}});
    }
    all.push_back({{"run", run.name},
                   {"attributes", std::move(attributes)},
                   {"steps", table_as_json(store::steps_schema(), record.steps)},
                   {"ranks", table_as_json(store::ranks_schema(), record.ranks)},
                   {"evaluations", table_as_json(store::eval_schema(), record.evaluations)},
                   {"events", std::move(events)}});
  }
  return all.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

int run_report(const ReportCommand& command) {
  std::vector<NamedRun> runs;
  std::vector<std::string> wrong;
  for (const std::string& name : command.runs) {
    try {
      runs.push_back({name, store::read_run(name)});
    } catch (const UserError& error) {
      wrong.insert(wrong.end(), error.sentences().begin(), error.sentences().end());
    }
  }
  if (!wrong.empty()) throw UserError(wrong);
  if (command.format == "csv") std::fputs(steps_as_csv(runs).c_str(), stdout);
  if (command.format == "json") std::fputs(runs_as_json(runs).c_str(), stdout);
  if (command.format == "text") print_summaries(runs);
  Console console;
  for (const NamedRun& run : runs) {
    for (const std::string& problem : run.record.problems) console.warning(run.name + ": " + problem);
  }
  std::fflush(stdout);
  return command.plot.empty() ? 0 : plot_runs(command.runs, command.plot, command.panels);
}

}  // namespace ranktune::app
