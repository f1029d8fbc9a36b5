// What ran on the GPU between two moments, by kernel, as CUPTI saw it (through LibTorch's Kineto). Kernels
// replayed from CUDA graphs are seen one by one.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace ranktune::train {

struct KernelTime {
  std::string name;  // the kernel's, demangled; copies and fills as CUPTI calls them
  std::int64_t launches = 0;
  double seconds = 0;  // sum of the durations
};

struct KernelTimeline {
  std::vector<KernelTime> kernels;  // the longest sum first
  double busy_seconds = 0;          // in which at least one kernel ran
  double span_seconds = 0;          // from the first kernel's start to the last one's end
};

// Runs `work`, which ends with the device idle. Throws Failure where the profiler sees no kernel (CUPTI
// missing or in use).
KernelTimeline record_kernels(const std::function<void()>& work);

// The class of work that a kernel belongs to, for tables: "base and LoRA GEMM", "attention", ...
std::string_view kernel_class(std::string_view kernel_name);

}  // namespace ranktune::train
