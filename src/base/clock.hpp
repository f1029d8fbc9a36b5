// The clock that durations and deadlines are measured with.
#pragma once

#include <chrono>

namespace ranktune {

// Seconds since some fixed moment; never goes back.
inline double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace ranktune
