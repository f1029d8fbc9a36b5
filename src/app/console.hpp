// Everything a run says to the person at the terminal, or to its log. One rank prints; a muted console, for
// the others, takes the same calls and says nothing.
//
// On a terminal the progress stays on one line that is redrawn; in a log (no terminal, or TERM=dumb) nothing
// is ever redrawn and every line is whole.
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "app/console_format.hpp"

namespace ranktune::app {

// Where and how a console writes.
struct ConsoleSettings {
  std::ostream* out = nullptr;
  std::ostream* err = nullptr;
  bool muted = false;
  bool terminal = false;     // of out
  bool unicode = false;      // the locale says UTF-8
  bool color = false;        // of out
  bool error_color = false;  // of err
  // Two streams that reach the same screen by different ways, as from under mpirun, which forwards each by
  // itself: the seconds to leave between what is written to one and to the other.
  double stream_gap = 0;
  // Columns of the terminal, asked for anew with every line since windows change their size.
  std::function<std::size_t()> width;
  std::function<double()> now;  // seconds, steady

  // stdout and stderr of this process, with NO_COLOR, TERM and the locale's variables respected. mpirun gives
  // its ranks a pseudo-terminal even where its own output is a file; such a one has no width and counts as no
  // terminal.
  static ConsoleSettings of_process();
  static ConsoleSettings silent();
};

class Console {
 public:
  explicit Console(ConsoleSettings settings = ConsoleSettings::of_process());
  ~Console();  // as finish(), without ever throwing
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  // Whether step() redraws a line: call it for every step then, and for every logging_steps-th otherwise.
  bool is_terminal() const { return settings_.terminal; }
  std::size_t width() const;

  // The program's name and version, then the table.
  void banner(const std::vector<std::pair<std::string, std::string>>& rows);
  // Names on the left, values on the right, an empty line after the last; on a terminal, long values go on
  // under themselves.
  void table(const std::vector<std::pair<std::string, std::string>>& rows);

  // Progress of a long phase: a name seen for the first time starts it, done == total or end_phase() ends it.
  // In a log: a line at the start, one at the end with the seconds, and one every 30 s between. `unit` is
  // "bytes", or a plural. total 0: not known.
  void phase(std::string_view name, std::uint64_t done, std::uint64_t total, std::string_view unit);
  void end_phase();

  void step(const StepView& view);

  void note(std::string_view text);
  void warning(std::string_view text);                    // to stderr, "ranktune: warning: ..."
  void error(const std::vector<std::string>& sentences);  // to stderr, each "ranktune: error: ..."

  // Leaves the last progress line where it is; what comes next starts on a line of its own.
  void finish();

 private:
  struct Phase {
    std::string name;
    std::string unit;
    std::uint64_t done = 0, total = 0;
    double started = 0;
    double reported = 0;  // when the log last heard of it
  };

  LineStyle style() const;
  std::string phase_line(const Phase& phase, double seconds) const;
  std::string phase_summary(const Phase& phase, double seconds) const;
  // Puts `line` in the place of the progress line; not more often than 10 times a second unless `always`.
  void redraw(std::string line, bool always);
  void clear_progress();
  void restore_progress();
  void say(std::string_view text);
  void say_error(std::string_view text);

  ConsoleSettings settings_;
  std::optional<Phase> phase_;  // the one in progress
  std::string last_phase_;      // the name of the one before
  std::string progress_;        // the line that stands on the terminal, without its end
  double drawn_at_ = -1e9;
};

}  // namespace ranktune::app
