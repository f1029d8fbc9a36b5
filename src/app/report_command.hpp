// `ranktune report`: what runs have recorded. Needs neither MPI nor a device.
#pragma once

#include <string>
#include <vector>

#include "store/metrics.hpp"

namespace ranktune::app {

struct ReportCommand {
  std::vector<std::string> runs;  // output directories, or metrics.h5 files
  std::string format = "text";    // text, csv, json
  std::string plot;               // figure to write; empty: none
  std::string panels;             // of the figure, with commas between; empty: all
  std::vector<std::string> problems;
  bool help = false;
  bool version = false;
};
ReportCommand parse_report_options(const std::vector<std::string>& arguments);
std::string report_help();

struct NamedRun {
  std::string name;  // as it was asked for
  store::RunRecord record;
};

// One line a step with the columns of /train/steps behind the run's name, numbers in full precision.
std::string steps_as_csv(const std::vector<NamedRun>& runs);
// An array with an object for each run: run, attributes of its last attempt, steps, ranks, evaluations,
// events.
std::string runs_as_json(const std::vector<NamedRun>& runs);

// Prints, and returns the exit code. Throws UserError where a run cannot be read.
int run_report(const ReportCommand& command);

}  // namespace ranktune::app
