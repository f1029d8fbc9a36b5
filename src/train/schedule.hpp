// Learning rate as a function of the step, as in Transformers' get_scheduler.
#pragma once

#include <cstdint>
#include <string>

namespace ranktune::train {

enum class Schedule { linear, cosine, constant, constant_with_warmup };

// "linear", "cosine", "constant", "constant_with_warmup"; throws Failure on another name (the command line
// knows them).
Schedule parse_schedule(const std::string& name);

struct ScheduleSettings {
  Schedule kind = Schedule::linear;
  double peak = 0;                // learning rate after warm-up
  std::int64_t warmup_steps = 0;  // rises linearly from 0 (constant: none)
  std::int64_t total_steps = 0;   // linear and cosine end at 0 here
};

// Learning rate used in the optimizer step number `step`, counted from 0: with warm-up the first step uses 0.
double learning_rate(const ScheduleSettings& settings, std::int64_t step);

}  // namespace ranktune::train
