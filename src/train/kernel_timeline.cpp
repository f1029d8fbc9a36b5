#include "train/kernel_timeline.hpp"

#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>

#include "base/error.hpp"

namespace ranktune::train {
namespace {

namespace profiler = torch::autograd::profiler;
namespace settings = torch::profiler::impl;

struct Span {
  std::uint64_t begin, end;
};

// Length of the union.
double covered_seconds(std::vector<Span> spans) {
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
  std::uint64_t covered = 0;
  std::uint64_t reached = 0;
  for (const Span& span : spans) {
    const std::uint64_t from = std::max(span.begin, reached);
    if (span.end > from) covered += span.end - from;
    reached = std::max(reached, span.end);
  }
  return static_cast<double>(covered) * 1e-9;
}

struct ClassRule {
  std::string_view part;  // of the kernel's name
  std::string_view name;
};
// The first that fits counts.
constexpr std::array kClasses{
    ClassRule{"short_attention", "attention"},
    ClassRule{"flash", "attention"},
    ClassRule{"Flash", "attention"},
    ClassRule{"splitK", "split-K reductions"},
    ClassRule{"nvjet", "GEMM"},
    ClassRule{"gemm", "GEMM"},
    ClassRule{"Gemm", "GEMM"},
    ClassRule{"cutlass", "GEMM"},
    ClassRule{"rms_norm", "RMSNorm"},
    ClassRule{"swiglu", "SwiGLU"},
    ClassRule{"rotary", "QK-norm and RoPE"},
    ClassRule{"cross_entropy", "cross-entropy"},
    ClassRule{"embedding", "embedding"},
    ClassRule{"dropout", "dropout"},
    ClassRule{"adamw", "optimizer"},
    ClassRule{"partial_squares", "optimizer"},
    ClassRule{"find_nonfinite", "optimizer"},
    ClassRule{"scatter", "optimizer"},
    ClassRule{"nccl", "NCCL"},
    ClassRule{"opy", "copies and fills"},
    ClassRule{"Mem", "copies and fills"},
    ClassRule{"Fill", "copies and fills"},
};

}  // namespace

KernelTimeline record_kernels(const std::function<void()>& work) {
  const settings::ProfilerConfig config(settings::ProfilerState::KINETO);
  const std::set<settings::ActivityType> activities{settings::ActivityType::CUDA};
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities);
  work();
  const auto result = profiler::disableProfiler();

  std::map<std::string, KernelTime> by_name;
  std::vector<Span> spans;
  for (const profiler::KinetoEvent& event : result->events()) {
    if (event.deviceType() != c10::DeviceType::CUDA) continue;
    KernelTime& kernel = by_name[event.name()];
    kernel.name = event.name();
    kernel.launches += 1;
    kernel.seconds += static_cast<double>(event.durationNs()) * 1e-9;
    spans.push_back({event.startNs(), event.endNs()});
  }
  RT_CHECK(!spans.empty(), "CUPTI reported no kernel; is another profiler attached?");
  KernelTimeline timeline;
  std::uint64_t first = spans.front().begin;
  std::uint64_t last = spans.front().end;
  for (const Span& span : spans) {
    first = std::min(first, span.begin);
    last = std::max(last, span.end);
  }
  timeline.span_seconds = static_cast<double>(last - first) * 1e-9;
  timeline.busy_seconds = covered_seconds(std::move(spans));
  for (auto& [name, kernel] : by_name) timeline.kernels.push_back(std::move(kernel));
  std::sort(timeline.kernels.begin(), timeline.kernels.end(),
            [](const KernelTime& a, const KernelTime& b) { return a.seconds > b.seconds; });
  return timeline;
}

std::string_view kernel_class(std::string_view kernel_name) {
  for (const ClassRule& rule : kClasses) {
    if (kernel_name.find(rule.part) != std::string_view::npos) return rule.name;
  }
  return "other";
}

}  // namespace ranktune::train
