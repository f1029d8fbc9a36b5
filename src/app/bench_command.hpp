// `ranktune bench`: times what training would do, with training's own flags.
#pragma once

#include <string>
#include <vector>

#include "cluster/session.hpp"

namespace ranktune::app {

// Flags of `ranktune bench` that are not flags of `ranktune train`.
struct BenchOptions {
  std::vector<std::string> workloads{"rows"};  // "rows", or SAMPLESxLENGTH
  std::int64_t steps = 40;                     // in a run
  std::int64_t runs = 5;
  bool timeline = false;
  bool json = false;
};

struct BenchCommand {
  BenchOptions bench;
  std::vector<std::string> train_arguments;  // everything that is not bench's own
  std::vector<std::string> problems;
  bool help = false;
};
BenchCommand parse_bench_options(const std::vector<std::string>& arguments);
std::string bench_help();

// Collective. Returns the exit code.
int run_bench(const cluster::Session& session, const BenchCommand& command);

}  // namespace ranktune::app
