// The few colours of the console, as ECMA-48 escape sequences.
#pragma once

#include <string>
#include <string_view>

namespace ranktune::app {

inline constexpr std::string_view kBold = "\x1b[1m";
inline constexpr std::string_view kDim = "\x1b[2m";
inline constexpr std::string_view kRed = "\x1b[1;31m";
inline constexpr std::string_view kYellow = "\x1b[1;33m";
inline constexpr std::string_view kGreen = "\x1b[32m";
inline constexpr std::string_view kCyan = "\x1b[36m";

// `text` in a colour, or as it is.
inline std::string painted(std::string_view text, std::string_view color, bool on) {
  if (!on || text.empty()) return std::string(text);
  return std::string(color).append(text).append("\x1b[0m");
}

}  // namespace ranktune::app
