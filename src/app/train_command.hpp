// `ranktune train`: from the command line to the adapter.
#pragma once

#include <string>
#include <vector>

#include "cluster/session.hpp"

namespace ranktune::app {

// Collective. Returns the exit code that all ranks agreed on. Throws the agreed errors of Session::together,
// StopRequested (signals.hpp) when stopped before the first step, and whatever goes wrong on this rank alone.
int run_train(const cluster::Session& session, const std::vector<std::string>& arguments,
              const std::string& command_line);

}  // namespace ranktune::app
