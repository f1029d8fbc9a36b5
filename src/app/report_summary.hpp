// What a run has recorded, in a few lines for people.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "store/metrics.hpp"

namespace ranktune::app {

// Names and values, for Console::table. What a file does not say is left out. An empty name goes on with the
// row above it.
std::vector<std::pair<std::string, std::string>> run_summary(const store::RunRecord& record);

}  // namespace ranktune::app
