// Numbers as people read them, the smoothed rates, and the layout of the progress line. Nothing here prints.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ranktune::app {

std::string human_bytes(double bytes);                             // "12.3 GiB"
std::string human_count(double count);                             // "950", "4.1k", "16.2M"
std::string grouped(std::uint64_t number);                         // "51,760"
std::string human_duration(double seconds);                        // "0.8s", "42s", "3m05s", "1h02m", "2d03h"
std::string human_rate(double per_second, std::string_view unit);  // "23.1 it/s"; below 0.1: "12.5 s/it"

// Columns that UTF-8 text takes on a terminal, with one column per code point.
std::size_t columns(std::string_view utf8);

// Steps and tokens per second over the recent past: an exponential window, so that a passing hiccup fades and
// the first steps, which are slower, do not weigh on the estimate for ever.
class RateMeter {
 public:
  explicit RateMeter(double window_seconds = 30.0) : window_(window_seconds) {}

  void add(double steps, double tokens, double seconds);

  double steps_per_second() const { return seconds_ > 0 ? steps_ / seconds_ : 0; }
  double tokens_per_second() const { return seconds_ > 0 ? tokens_ / seconds_ : 0; }
  // Nothing before the first step.
  std::optional<double> seconds_for(double steps) const;

 private:
  double window_;
  double steps_ = 0, tokens_ = 0, seconds_ = 0;
};

// What one optimizer step looks like from outside.
struct StepView {
  std::int64_t step = 0;  // done so far
  std::int64_t total_steps = 0;
  double epoch = 0;
  double loss = 0;
  double learning_rate = 0;
  double grad_norm = 0;
  double it_per_s = 0;      // optimizer steps per second
  double tokens_per_s = 0;  // of all ranks
  std::optional<double> eta_seconds;
  std::optional<std::int64_t> gpu_memory_bytes;  // of the fullest rank
};

// How a line is drawn.
struct LineStyle {
  std::size_t width = 80;  // columns
  bool unicode = false;
  bool color = false;
};

// A bar of `width` columns, filled to `fraction`.
std::string bar(double fraction, std::size_t width, bool unicode);

// The progress line of a terminal: percentage, bar and fields, at most `style.width` columns; the least
// important fields go where it is narrow.
std::string step_line(const StepView& view, const LineStyle& style);

// The line of a log: all fields, aligned from line to line.
std::string step_log_line(const StepView& view);

}  // namespace ranktune::app
