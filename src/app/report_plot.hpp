// Figures of runs, drawn by Python with the helper that this program carries.
#pragma once

#include <string>
#include <vector>

namespace ranktune::app {

extern const char* const kReportHelper;  // the text of src/report/ranktune_report.py

// Writes a figure (.png, .svg, .pdf) of the runs; empty `panels`: all. Runs RANKTUNE_PYTHON, or python3 of
// PATH. Returns the exit code: 2 where the helper has said what is wrong with the input or with Python's
// packages. Throws UserError where there is no such Python, Failure where it came to no agreed end.
int plot_runs(const std::vector<std::string>& runs, const std::string& figure, const std::string& panels);

}  // namespace ranktune::app
