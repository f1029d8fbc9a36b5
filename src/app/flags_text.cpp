#include "app/flags_text.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <vector>

namespace ranktune::app {
namespace {

bool is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

template <typename Number>
std::optional<Number> parse_whole(std::string_view text) {
  Number value{};
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value);
  if (text.empty() || error != std::errc{} || stopped != end) return std::nullopt;
  return value;
}

// A field of HH:MM:SS: digits only, 2 at most, below `bound`.
std::optional<std::int64_t> parse_clock_field(std::string_view text, std::int64_t bound) {
  if (text.empty() || text.size() > 2 || text.front() == '-') return std::nullopt;
  const auto value = parse_integer(text);
  return value && *value < bound ? value : std::nullopt;
}

}  // namespace

std::optional<std::int64_t> parse_integer(std::string_view text) {
  return parse_whole<std::int64_t>(text);
}

std::optional<double> parse_number(std::string_view text) {
  const auto value = parse_whole<double>(text);
  return value && std::isfinite(*value) ? value : std::nullopt;
}

std::optional<std::int64_t> parse_duration(std::string_view text) {
  constexpr std::int64_t kMostDays = 10'000;
  constexpr std::int64_t kDay = 86'400;
  std::int64_t seconds = 0;
  if (text.find(':') == std::string_view::npos) {
    seconds = parse_integer(text).value_or(0);
  } else {
    if (const auto dash = text.find('-'); dash != std::string_view::npos) {
      const auto days = parse_integer(text.substr(0, dash));
      if (!days || *days < 0 || *days > kMostDays) return std::nullopt;
      seconds = *days * kDay;
      text.remove_prefix(dash + 1);
    }
    const auto first = text.find(':');
    const auto second = text.find(':', first + 1);
    if (first == std::string_view::npos || second == std::string_view::npos) return std::nullopt;
    // Without days, hours may go on past 24, as Slurm has it.
    const auto hours = parse_clock_field(text.substr(0, first), 100);
    const auto minutes = parse_clock_field(text.substr(first + 1, second - first - 1), 60);
    const auto rest = parse_clock_field(text.substr(second + 1), 60);
    if (!hours || !minutes || !rest) return std::nullopt;
    seconds += *hours * 3600 + *minutes * 60 + *rest;
  }
  if (seconds < 1 || seconds > kMostDays * kDay) return std::nullopt;
  return seconds;
}

std::optional<bool> parse_switch(std::string_view text) {
  const std::string word = lower(text);
  if (word == "true") return true;
  if (word == "false") return false;
  return std::nullopt;
}

bool means_none(std::string_view text) {
  return text.empty() || lower(text) == "none";
}

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return result;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  // Rows i - 2, i - 1 and i of the table over prefixes of a and b.
  std::vector<std::size_t> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::swap(before, above);
    std::swap(above, row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, replaced});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

std::string_view nearest(std::string_view typed, std::span<const std::string_view> candidates) {
  std::string_view best;
  std::size_t best_distance = 1 + std::max<std::size_t>(1, typed.size() / 4);
  for (const std::string_view candidate : candidates) {
    const std::size_t distance = edit_distance(typed, candidate);
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  if (!best.empty() || typed.size() < 3) return best;
  // No slip of the fingers: perhaps a part of the name, as in --batch_size.
  for (const std::string_view candidate : candidates) {
    const bool part = candidate.find(typed) != std::string_view::npos;
    if (part && (best.empty() || candidate.size() < best.size())) best = candidate;
  }
  return best;
}

}  // namespace ranktune::app
