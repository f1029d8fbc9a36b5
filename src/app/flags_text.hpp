// Strict readings of the text of a flag, and the nearest name to a mistyped one.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace ranktune::app {

// The whole text as a decimal number; nothing on trailing characters, overflow, infinities or NaN.
std::optional<std::int64_t> parse_integer(std::string_view text);
std::optional<double> parse_number(std::string_view text);

// Seconds, or [D-]HH:MM:SS, as seconds; at least 1.
std::optional<std::int64_t> parse_duration(std::string_view text);

// true/false in any case, and nothing else.
std::optional<bool> parse_switch(std::string_view text);

// none in any case, or an empty text.
bool means_none(std::string_view text);

std::string lower(std::string_view text);
std::string_view trimmed(std::string_view text);

// Insertions, deletions, substitutions and swaps of neighbours (optimal string alignment).
std::size_t edit_distance(std::string_view a, std::string_view b);

// The candidate that `typed` is most likely meant to be, or empty if none is near.
std::string_view nearest(std::string_view typed, std::span<const std::string_view> candidates);

}  // namespace ranktune::app
