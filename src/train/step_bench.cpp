#include "train/step_bench.hpp"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>

#include <algorithm>
#include <numeric>

#include "base/clock.hpp"
#include "base/philox.hpp"
#include "data/batch.hpp"
#include "train/step_engine.hpp"

namespace ranktune::train {
namespace {

void wait_for(at::Device device) {
  if (device.is_cuda()) c10::cuda::device_synchronize();
}

MemoryRequest request_for(const BenchWork& work, const BenchSettings& settings, at::Device device) {
  MemoryRequest request;
  for (const auto& samples : work.steps) {
    std::int64_t window = 0;
    for (const std::int64_t sample : samples) {
      const auto length = static_cast<std::int64_t>(work.store.sample(sample).size());
      window += length;
      request.longest_sample = std::max(request.longest_sample, length);
    }
    request.largest_window = std::max(request.largest_window, window);
  }
  request.recompute = settings.recompute;
  request.max_tokens_per_pass = settings.max_tokens_per_pass;
  request.free_bytes = free_device_bytes(device, 1, settings.memory_limit);
  return request;
}

struct Run {
  double seconds = 0;
  double host_seconds = 0;
};

Run run_once(StepEngine& engine, const std::vector<std::vector<data::PassBatch>>& steps, std::int64_t& step,
             at::Device device) {
  Run run;
  wait_for(device);
  const double begin = steady_seconds();
  for (const auto& passes : steps) {
    const double launching = steady_seconds();
    engine.launch(step++, 1e-6, passes, 0);
    run.host_seconds += steady_seconds() - launching;
    engine.collect(1);
  }
  while (engine.collect(0)) {
  }
  wait_for(device);
  run.seconds = steady_seconds() - begin;
  return run;
}

}  // namespace

BenchWork fixed_work(std::int64_t samples, std::int64_t length, std::int64_t steps, std::int64_t vocabulary) {
  BenchWork work;
  work.name = std::to_string(samples) + " x " + std::to_string(length);
  for (std::int64_t i = 0; i < samples * length; ++i) {
    const auto draw = philox4x32({static_cast<std::uint32_t>(i), 0, 0, 0}, 7, 7);
    work.store.ids.push_back(static_cast<std::int32_t>(draw.x % static_cast<std::uint32_t>(vocabulary)));
    if ((i + 1) % length == 0) work.store.offsets.push_back(i + 1);
  }
  std::vector<std::int64_t> all(static_cast<std::size_t>(samples));
  std::iota(all.begin(), all.end(), 0);
  work.steps.assign(static_cast<std::size_t>(steps), all);
  return work;
}

BenchFigures bench_steps(const BenchWork& work, model::Decoder& decoder, cluster::Communicator& communicator,
                         const BenchSettings& settings) {
  const at::Device device = decoder.options().device;
  decoder.release();
  if (device.is_cuda()) {
    c10::cuda::CUDACachingAllocator::emptyCache();
    c10::cuda::CUDACachingAllocator::resetPeakStats(device.index());
  }
  BenchFigures figures;
  figures.name = work.name;
  figures.steps = static_cast<std::int64_t>(work.steps.size());
  StepEngine engine(decoder, settings.optimizer, communicator, nullptr);
  engine.buffers().master.normal_(0, 0.01);
  engine.publish_master();
  figures.plan = plan_memory(decoder, request_for(work, settings, device));
  engine.reserve(figures.plan.reserved_tokens, figures.plan.recomputed);
  std::vector<std::vector<data::PassBatch>> steps;
  for (const auto& samples : work.steps) {
    steps.push_back(data::make_passes(work.store, samples, figures.plan.max_tokens_per_pass));
    for (const data::PassBatch& pass : steps.back()) figures.tokens += static_cast<double>(pass.tokens());
  }
  figures.tokens /= static_cast<double>(figures.steps);

  std::int64_t step = 0;
  figures.first_step_seconds = run_once(engine, {steps.front()}, step, device).seconds;
  for (int warm = 0; warm < 2; ++warm) run_once(engine, steps, step, device);
  std::vector<double> seconds;
  for (int i = 0; i < settings.runs; ++i) {
    const Run run = run_once(engine, steps, step, device);
    seconds.push_back(run.seconds / static_cast<double>(figures.steps));
    figures.host_share += run.host_seconds / run.seconds / settings.runs;
  }
  std::sort(seconds.begin(), seconds.end());
  figures.step_seconds = seconds[seconds.size() / 2];
  figures.spread = (seconds.back() - seconds.front()) / figures.step_seconds;
  figures.peak_bytes = peak_device_bytes(device);
  if (device.is_cuda()) {
    figures.reserved_bytes =
        c10::cuda::CUDACachingAllocator::getDeviceStats(device.index()).reserved_bytes[0].peak;
    if (settings.timeline) {
      figures.timeline = record_kernels([&] { run_once(engine, steps, step, device); });
    }
  }
  return figures;
}

}  // namespace ranktune::train
