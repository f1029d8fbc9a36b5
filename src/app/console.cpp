#include "app/console.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <thread>

#include "app/console_color.hpp"
#include "base/clock.hpp"
#include "base/version.hpp"

namespace ranktune::app {
namespace {

constexpr double kRedrawSeconds = 0.1;
constexpr double kLogSeconds = 30.0;
constexpr std::string_view kClearLine = "\r\x1b[K";

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// The first of the locale's variables that is set decides, as for setlocale.
bool locale_is_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    std::string value = variable(name);
    if (value.empty()) continue;
    std::transform(value.begin(), value.end(), value.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return value.find("utf-8") != std::string::npos || value.find("utf8") != std::string::npos;
  }
  return false;
}

// 0 where there is none.
std::size_t terminal_columns() {
  winsize size{};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

std::string amount(std::uint64_t count, std::string_view unit) {
  return unit == "bytes" ? human_bytes(static_cast<double>(count))
                         : fmt::format("{} {}", grouped(count), unit);
}

std::string speed(std::uint64_t count, std::string_view unit, double seconds) {
  const double rate = static_cast<double>(count) / seconds;
  return unit == "bytes" ? human_bytes(rate) + "/s" : fmt::format("{} {}/s", human_count(rate), unit);
}

// `text` cut into lines of at most `width` columns, at blanks where there are any.
std::vector<std::string> wrapped(std::string_view text, std::size_t width) {
  std::vector<std::string> lines;
  while (columns(text) > width) {
    std::size_t end = 0;  // bytes of `width` columns
    for (std::size_t seen = 0; end < text.size(); ++end) {
      const bool starts_character = (static_cast<unsigned char>(text[end]) & 0xC0U) != 0x80U;
      if (starts_character && ++seen > width) break;
    }
    const std::size_t blank = text.substr(0, end + 1).rfind(' ');
    const bool at_blank = blank != std::string_view::npos && blank > 0;
    lines.emplace_back(text.substr(0, at_blank ? blank : end));
    text.remove_prefix(at_blank ? blank + 1 : end);
  }
  lines.emplace_back(text);
  return lines;
}

}  // namespace

ConsoleSettings ConsoleSettings::of_process() {
  ConsoleSettings settings;
  const std::string term = variable("TERM");
  const bool capable = !term.empty() && term != "dumb";
  const bool color = capable && variable("NO_COLOR").empty();
  settings.out = &std::cout;
  settings.err = &std::cerr;
  settings.terminal = capable && isatty(STDOUT_FILENO) == 1 && terminal_columns() > 0;
  settings.unicode = settings.terminal && locale_is_utf8();
  settings.color = settings.terminal && color;
  settings.error_color = color && isatty(STDERR_FILENO) == 1;
  settings.stream_gap = settings.terminal && isatty(STDERR_FILENO) != 1 ? 0.03 : 0;
  settings.width = [] { return terminal_columns(); };
  settings.now = steady_seconds;
  return settings;
}

ConsoleSettings ConsoleSettings::silent() {
  ConsoleSettings settings;
  settings.out = &std::cout;
  settings.err = &std::cerr;
  settings.muted = true;
  settings.width = [] { return std::size_t{80}; };
  settings.now = [] { return 0.0; };
  return settings;
}

Console::Console(ConsoleSettings settings) : settings_(std::move(settings)) {}

Console::~Console() {
  try {
    finish();
  } catch (...) {
    // A stream that throws at the very end has nothing left to tell.
  }
}

std::size_t Console::width() const {
  constexpr std::size_t kLog = 100, kNarrowest = 20;
  return settings_.terminal ? std::max(kNarrowest, settings_.width()) : kLog;
}

LineStyle Console::style() const {
  // The last column stays free: some terminals wrap when it is written.
  return {width() - 1, settings_.unicode, settings_.color};
}

void Console::banner(const std::vector<std::pair<std::string, std::string>>& rows) {
  note(painted(fmt::format("ranktune {}", kVersion), kBold, settings_.color));
  table(rows);
}

void Console::table(const std::vector<std::pair<std::string, std::string>>& rows) {
  if (settings_.muted) return;
  clear_progress();
  constexpr std::size_t kIndent = 2, kGap = 2;
  std::size_t names = 0;
  for (const auto& [name, value] : rows) names = std::max(names, columns(name));
  const std::size_t start = kIndent + names + kGap;
  const std::size_t room = width() > start + 20 ? width() - start : 20;

  std::ostream& out = *settings_.out;
  for (const auto& [name, value] : rows) {
    out << std::string(kIndent, ' ') << painted(name, kDim, settings_.color)
        << std::string(names - columns(name) + kGap, ' ');
    // A log is searched rather than read: its values stay whole.
    const auto lines = settings_.terminal ? wrapped(value, room) : std::vector<std::string>{value};
    for (std::size_t i = 0; i < lines.size(); ++i)
      out << (i > 0 ? std::string(start, ' ') : "") << lines[i] << '\n';
  }
  out << '\n' << std::flush;
  restore_progress();
}

std::string Console::phase_line(const Phase& phase, double seconds) const {
  const LineStyle look = style();
  std::string text = phase.name + "  ";
  std::string figures = amount(phase.done, phase.unit);
  if (phase.total > 0) {
    figures = phase.unit == "bytes"
                  ? fmt::format("{} of {}", figures, amount(phase.total, phase.unit))
                  : fmt::format("{} of {}", grouped(phase.done), amount(phase.total, phase.unit));
  }
  if (seconds > 0.5) figures += "  " + speed(phase.done, phase.unit, seconds);

  const std::size_t used = columns(text) + columns(figures);
  if (phase.total > 0 && used + 12 <= look.width) {
    const std::size_t size = std::min<std::size_t>(30, look.width - used - 4);
    const double fraction = static_cast<double>(phase.done) / static_cast<double>(phase.total);
    text += painted(look.unicode ? "▕" : "[", kDim, look.color) +
            painted(bar(fraction, size, look.unicode), kCyan, look.color) +
            painted(look.unicode ? "▏" : "]", kDim, look.color) + "  ";
  } else if (used > look.width) {
    return wrapped(text + figures, look.width).front();
  }
  return text + figures;
}

std::string Console::phase_summary(const Phase& phase, double seconds) const {
  const bool whole = phase.total == 0 || phase.done >= phase.total;
  const std::string of = whole ? "" : " of " + amount(phase.total, phase.unit);
  std::string text =
      fmt::format("{}: {}{} in {}", phase.name, amount(phase.done, phase.unit), of, human_duration(seconds));
  if (seconds > 0.01 && phase.done > 0) text += fmt::format(" ({})", speed(phase.done, phase.unit, seconds));
  return text;
}

void Console::phase(std::string_view name, std::uint64_t done, std::uint64_t total, std::string_view unit) {
  if (settings_.muted) return;
  const double now = settings_.now();
  if (phase_ && phase_->name != name) end_phase();
  // A last call that says once more that all is done.
  if (!phase_ && name == last_phase_ && done >= total) return;
  if (!phase_) {
    phase_ = Phase{std::string(name), std::string(unit), done, total, now, now};
    if (!settings_.terminal) {
      const std::string size = total > 0 ? ": " + amount(total, unit) : "";
      say(fmt::format("{}{} ...", name, size));
    }
  }
  Phase& current = *phase_;
  current.done = done;
  current.total = total;
  const double seconds = now - current.started;
  if (total > 0 && done >= total) {
    end_phase();
  } else if (settings_.terminal) {
    redraw(phase_line(current, seconds), false);
  } else if (now - current.reported >= kLogSeconds) {
    current.reported = now;
    const std::string of = total > 0 ? " of " + amount(total, unit) : "";
    say(fmt::format("{}: {}{} after {}", name, amount(done, unit), of, human_duration(seconds)));
  }
}

void Console::end_phase() {
  if (settings_.muted || !phase_) return;
  const Phase phase = std::move(*phase_);
  phase_.reset();
  last_phase_ = phase.name;
  clear_progress();
  progress_.clear();
  const bool whole = phase.total == 0 || phase.done >= phase.total;
  const std::string mark = !settings_.terminal || !whole ? "" : settings_.unicode ? "✓ " : "";
  say(painted(mark, kGreen, settings_.color) + phase_summary(phase, settings_.now() - phase.started));
}

void Console::step(const StepView& view) {
  if (settings_.muted) return;
  end_phase();
  if (settings_.terminal) {
    redraw(step_line(view, style()), view.step >= view.total_steps);
  } else {
    say(step_log_line(view));
  }
}

void Console::note(std::string_view text) {
  if (!settings_.muted) say(text);
}

void Console::warning(std::string_view text) {
  if (settings_.muted) return;
  say_error(fmt::format("{} {}", painted("ranktune: warning:", kYellow, settings_.error_color), text));
}

void Console::error(const std::vector<std::string>& sentences) {
  if (settings_.muted) return;
  std::string text;
  for (const std::string& sentence : sentences) {
    if (!text.empty()) text += '\n';
    text += fmt::format("{} {}", painted("ranktune: error:", kRed, settings_.error_color), sentence);
  }
  if (!text.empty()) say_error(text);
}

void Console::finish() {
  if (settings_.muted) return;
  end_phase();
  restore_progress();  // the last line may have come too soon to be drawn
  if (!progress_.empty()) *settings_.out << '\n';
  progress_.clear();
  *settings_.out << std::flush;
}

void Console::redraw(std::string line, bool always) {
  const double now = settings_.now();
  const bool soon = now - drawn_at_ < kRedrawSeconds;
  progress_ = std::move(line);
  if (soon && !always) return;
  drawn_at_ = now;
  restore_progress();
}

void Console::clear_progress() {
  if (settings_.terminal && !progress_.empty()) *settings_.out << kClearLine << std::flush;
}

void Console::restore_progress() {
  if (settings_.terminal && !progress_.empty()) *settings_.out << kClearLine << progress_ << std::flush;
}

void Console::say(std::string_view text) {
  clear_progress();
  *settings_.out << text << '\n' << std::flush;
  restore_progress();
}

void Console::say_error(std::string_view text) {
  const auto pause = [this] {
    std::this_thread::sleep_for(std::chrono::duration<double>(settings_.stream_gap));
  };
  settings_.out->flush();
  clear_progress();
  pause();
  *settings_.err << text << '\n' << std::flush;
  pause();
  restore_progress();
}

}  // namespace ranktune::app
