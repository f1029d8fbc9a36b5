#include "train/schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.hpp"

namespace ranktune::train {

Schedule parse_schedule(const std::string& name) {
  if (name == "linear") return Schedule::linear;
  if (name == "cosine") return Schedule::cosine;
  if (name == "constant") return Schedule::constant;
  if (name == "constant_with_warmup") return Schedule::constant_with_warmup;
  throw Failure("unknown learning rate schedule " + name);
}

double learning_rate(const ScheduleSettings& settings, std::int64_t step) {
  if (settings.kind == Schedule::constant) return settings.peak;
  const auto now = static_cast<double>(step);
  const auto warmup = static_cast<double>(settings.warmup_steps);
  if (now < warmup) return settings.peak * now / std::max(1.0, warmup);
  if (settings.kind == Schedule::constant_with_warmup) return settings.peak;
  const double span = std::max(1.0, static_cast<double>(settings.total_steps) - warmup);
  const double progress = (now - warmup) / span;
  if (settings.kind == Schedule::linear) return settings.peak * std::max(0.0, 1.0 - progress);
  return settings.peak * std::max(0.0, 0.5 * (1.0 + std::cos(std::numbers::pi * progress)));
}

}  // namespace ranktune::train
