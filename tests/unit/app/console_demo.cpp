// A made-up run, to look at the console by eye: in a terminal, in a narrow one, through a pipe, under mpirun.
// console_demo [STEPS [SECONDS_PER_STEP]]
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <thread>

#include "app/console.hpp"

namespace {

void wait(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t steps = argc > 1 ? std::atoll(argv[1]) : 120;
  const double seconds = argc > 2 ? std::atof(argv[2]) : 0.05;
  ranktune::app::Console console;
  console.banner({{"model", "Qwen/Qwen3-8B, 8.19 G parameters, bfloat16"},
                  {"adapter",
                   "LoRA r 16, alpha 16 on q_proj k_proj v_proj o_proj gate_proj up_proj down_proj: 43.6 M "
                   "parameters train (0.53 %)"},
                  {"ranks", "2 on 1 host (node07), NCCL"},
                  {"devices", "2 x NVIDIA H200, 139 GiB"},
                  {"dataset", "yahma/alpaca-cleaned: 51,760 rows, 9.2 M tokens"},
                  {"steps", "1,000 of 8 samples: 0.15 epochs"},
                  {"output", "outputs"}});
  constexpr std::uint64_t kBytes = 16'381'470'720;
  for (int i = 0; i <= 40; ++i) {
    console.phase("Loading weights", kBytes / 40 * static_cast<unsigned>(i), kBytes, "bytes");
    wait(0.05);
  }
  for (unsigned i = 0; i <= 51'760; i += 1'618) {
    console.phase("Tokenising", std::min(i, 51'760U), 51'760, "rows");
    if (i == 16'180) console.warning("3 rows have no target and are skipped");
    wait(0.04);
  }
  console.phase("Tokenising", 51'760, 51'760, "rows");

  ranktune::app::RateMeter meter;
  for (std::int64_t i = 1; i <= steps; ++i) {
    wait(seconds);
    meter.add(1, 1546, seconds);
    const double x = static_cast<double>(i);
    console.step({.step = i,
                  .total_steps = steps,
                  .epoch = x * 8 / 51'760,
                  .loss = 1.1 + 0.9 * std::exp(-x / 40) + 0.05 * std::sin(x),
                  .learning_rate = 2e-5 * (1 - x / static_cast<double>(steps)),
                  .grad_norm = 0.6 + 0.2 * std::cos(x),
                  .it_per_s = meter.steps_per_second(),
                  .tokens_per_s = meter.tokens_per_second(),
                  .eta_seconds = meter.seconds_for(static_cast<double>(steps - i)),
                  .gpu_memory_bytes = 19'876'543'210});
    if (i == steps / 2) console.note("checkpoint written to outputs/checkpoint-000060");
  }
  console.finish();
  console.note("adapter  outputs/adapter");
  console.error({"this is what an error looks like: give --learning_rate a number, not 'ten'"});
}
