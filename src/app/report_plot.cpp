#include "app/report_plot.hpp"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/error.hpp"

namespace ranktune::app {
namespace {

// Exit code of a program with standard streams shared; negative: the signal that ended it.
int run_program(std::vector<std::string> words) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  pid_t child = 0;
  const int error = ::posix_spawnp(&child, arguments.front(), nullptr, nullptr, arguments.data(), ::environ);
  if (error != 0) {
    throw UserError(fmt::format(
        "cannot start '{}' ({}): --plot draws with Python, h5py and matplotlib; name a Python that "
        "has them in RANKTUNE_PYTHON",
        words.front(), std::strerror(error)));
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) throw Failure(fmt::format("waiting for Python failed: {}", std::strerror(errno)));
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

}  // namespace

int plot_runs(const std::vector<std::string>& runs, const std::string& figure, const std::string& panels) {
  const char* named = std::getenv("RANKTUNE_PYTHON");
  const std::string python = named == nullptr || *named == '\0' ? "python3" : named;
  std::vector<std::string> words{python, "-c", kReportHelper};
  if (!panels.empty()) words.push_back("--panels=" + panels);
  words.insert(words.end(), {"--", figure});
  words.insert(words.end(), runs.begin(), runs.end());
  const int code = run_program(std::move(words));
  if (code != 0 && code != 2)
    throw Failure(fmt::format("{} ended with {} {} while drawing {}", python, code < 0 ? "signal" : "code",
                              code < 0 ? -code : code, figure));
  return code;
}

}  // namespace ranktune::app
