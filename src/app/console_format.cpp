#include "app/console_format.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "app/console_color.hpp"

namespace ranktune::app {
namespace {

// Three significant digits, without an exponent: "1.23", "12.3", "123".
std::string three_digits(double value) {
  const int decimals = value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f}", value, decimals);
}

struct Field {
  std::string text;
  int importance;  // the lowest goes first
};

std::vector<Field> step_fields(const StepView& view) {
  std::vector<Field> fields = {{fmt::format("{}/{}", view.step, view.total_steps), 10},
                               {fmt::format("epoch {:.2f}", view.epoch), 4},
                               {fmt::format("loss {:.4f}", view.loss), 9},
                               {fmt::format("lr {:.2e}", view.learning_rate), 5},
                               {fmt::format("norm {:.3g}", view.grad_norm), 1}};
  if (view.it_per_s > 0) fields.push_back({human_rate(view.it_per_s, "it"), 7});
  if (view.tokens_per_s > 0) fields.push_back({human_count(view.tokens_per_s) + " tok/s", 6});
  if (view.eta_seconds && view.step < view.total_steps)
    fields.push_back({"ETA " + human_duration(*view.eta_seconds), 8});
  if (view.gpu_memory_bytes) fields.push_back({human_bytes(static_cast<double>(*view.gpu_memory_bytes)), 3});
  return fields;
}

// Columns of the fields with a separator between two.
std::size_t joined_columns(const std::vector<Field>& fields, std::size_t separator) {
  std::size_t sum = 0;
  for (const Field& field : fields) sum += columns(field.text) + separator;
  return sum > separator ? sum - separator : 0;
}

double fraction_done(const StepView& view) {
  if (view.total_steps <= 0) return 0;
  return std::clamp(static_cast<double>(view.step) / static_cast<double>(view.total_steps), 0.0, 1.0);
}

}  // namespace

std::string human_bytes(double bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  while (bytes >= 999.5 && unit + 1 < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{} {}", three_digits(bytes), kUnits[unit]);
}

std::string human_count(double count) {
  if (count < 999.5) return fmt::format("{:.0f}", count);
  for (const char suffix : {'k', 'M', 'G'}) {
    count /= 1000;
    if (count < 99.95) return fmt::format("{:.1f}{}", count, suffix);
    if (count < 999.5) return fmt::format("{:.0f}{}", count, suffix);
  }
  return fmt::format("{:.0f}G", count);
}

std::string grouped(std::uint64_t number) {
  std::string text = fmt::format("{}", number);
  for (std::size_t end = text.size(); end > 3; end -= 3) text.insert(end - 3, 1, ',');
  return text;
}

std::string human_duration(double seconds) {
  if (seconds < 9.95) return fmt::format("{:.1f}s", std::max(0.0, seconds));
  constexpr double kLongest =
      1e9;  // beyond it the number says nothing, and would not fit an integer for ever
  const auto whole = static_cast<std::int64_t>(std::llround(std::min(seconds, kLongest)));
  const std::int64_t minutes = whole / 60, hours = whole / 3600, days = whole / 86400;
  if (minutes == 0) return fmt::format("{}s", whole);
  if (hours == 0) return fmt::format("{}m{:02}s", minutes, whole % 60);
  if (days == 0) return fmt::format("{}h{:02}m", hours, minutes % 60);
  return fmt::format("{}d{:02}h", days, hours % 24);
}

std::string human_rate(double per_second, std::string_view unit) {
  if (per_second <= 0) return fmt::format("0 {}/s", unit);
  if (per_second < 0.0995) return fmt::format("{} s/{}", three_digits(1 / per_second), unit);
  return fmt::format("{} {}/s", three_digits(per_second), unit);
}

std::size_t columns(std::string_view utf8) {
  return static_cast<std::size_t>(std::count_if(
      utf8.begin(), utf8.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}

void RateMeter::add(double steps, double tokens, double seconds) {
  if (seconds <= 0) return;
  const double kept = std::exp(-seconds / window_);
  steps_ = steps_ * kept + steps;
  tokens_ = tokens_ * kept + tokens;
  seconds_ = seconds_ * kept + seconds;
}

std::optional<double> RateMeter::seconds_for(double steps) const {
  if (steps_ <= 0) return std::nullopt;
  return steps * seconds_ / steps_;
}

std::string bar(double fraction, std::size_t width, bool unicode) {
  constexpr std::array<const char*, 8> kEighths = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  fraction = std::clamp(fraction, 0.0, 1.0);
  const auto eighths = static_cast<std::size_t>(fraction * 8.0 * static_cast<double>(width));
  const std::size_t full = eighths / 8;
  std::string text;
  if (unicode) {
    for (std::size_t i = 0; i < full; ++i) text += "█";
    text += kEighths[eighths % 8];
    text.append(width - columns(text), ' ');
    return text;
  }
  text.append(full, '=');
  if (full < width) text += full > 0 ? '>' : ' ';
  text.append(width - text.size(), ' ');
  return text;
}

std::string step_line(const StepView& view, const LineStyle& style) {
  constexpr std::size_t kSmallestBar = 8, kLargestBar = 32, kPercent = 5;  // "100% "
  const std::string_view separator = style.unicode ? " · " : "  ";
  const std::string_view left = style.unicode ? "▕" : "[";
  const std::string_view right = style.unicode ? "▏" : "]";
  const std::size_t around_bar = kPercent + 2 + 1;  // percentage, the bar's ends, a blank
  std::vector<Field> fields = step_fields(view);
  while (fields.size() > 1 &&
         around_bar + kSmallestBar + joined_columns(fields, columns(separator)) > style.width) {
    fields.erase(std::min_element(fields.begin(), fields.end(), [](const Field& a, const Field& b) {
      return a.importance < b.importance;
    }));
  }
  std::string text;
  for (const Field& field : fields) {
    if (!text.empty()) text += painted(separator, kDim, style.color);
    text += field.text;
  }
  const std::size_t used = around_bar + joined_columns(fields, columns(separator));
  if (used + kSmallestBar > style.width) return fields.front().text.substr(0, style.width);
  // In steps of four columns, so that the bar does not breathe with every digit that comes and goes.
  const std::size_t room = std::min(kLargestBar, style.width - used) / 4 * 4;
  const double fraction = fraction_done(view);
  // 100 % is said when all is done, not when it rounds to that.
  const int percent = static_cast<int>(std::floor(fraction * 100.0));
  return fmt::format("{:3}% {}{}{} {}", percent, painted(left, kDim, style.color),
                     painted(bar(fraction, room, style.unicode), kCyan, style.color),
                     painted(right, kDim, style.color), text);
}

std::string step_log_line(const StepView& view) {
  const std::string total = fmt::format("{}", view.total_steps);
  std::string text =
      fmt::format("step {:>{}}/{}  epoch {:.3f}  loss {:.4f}  lr {:.3e}  grad_norm {:.4f}", view.step,
                  total.size(), total, view.epoch, view.loss, view.learning_rate, view.grad_norm);
  if (view.it_per_s > 0) text += "  " + human_rate(view.it_per_s, "it");
  if (view.tokens_per_s > 0) text += fmt::format("  {} tok/s", human_count(view.tokens_per_s));
  if (view.eta_seconds && view.step < view.total_steps) text += "  ETA " + human_duration(*view.eta_seconds);
  if (view.gpu_memory_bytes) text += "  " + human_bytes(static_cast<double>(*view.gpu_memory_bytes));
  return text;
}

}  // namespace ranktune::app
