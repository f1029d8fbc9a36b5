#include "app/report_plot.hpp"

#include <fmt/format.h>

#include <cstdio>

#include "base/child_process.hpp"
#include "base/error.hpp"

namespace ranktune::app {

int plot_runs(const std::vector<std::string>& runs, const std::string& figure, const std::string& panels) {
  std::vector<std::string> words{python_program(), "-c", kReportHelper};
  if (!panels.empty()) words.push_back("--panels=" + panels);
  words.insert(words.end(), {"--", figure});
  words.insert(words.end(), runs.begin(), runs.end());
  ChildTalk talk;
  talk.input = [] { return std::string(); };
  talk.output = [](std::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout); };
  ChildResult done;
  try {
    done = run_child(words, talk);
  } catch (const UserError& error) {
    throw UserError(
        fmt::format("--plot draws with Python, h5py and matplotlib, and {}; name a Python that has them in "
                    "RANKTUNE_PYTHON",
                    error.what()));
  }
  std::fputs(done.errors.c_str(), stderr);
  if (done.exit_code != 0 && done.exit_code != 2) {
    throw Failure(
        fmt::format("{} ended with code {} while drawing {}", words.front(), done.exit_code, figure));
  }
  return done.exit_code;
}

}  // namespace ranktune::app
