// Shared by the CPU paths: vectorised inner loops, an exponential that vectorises, and parallel loops whose
// results do not depend on the number of threads.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <limits>
#include <vector>

// Compiles a function for several instruction sets, chosen when the program is loaded. Not under sanitizers,
// whose runtime is not ready yet when the choice is made.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define RT_VECTORISE __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define RT_VECTORISE
#endif
#define RT_INLINE inline __attribute__((always_inline))

namespace ranktune::kernels {

// exp(x) to about 1 ulp (tested) within [-87, 88], 0 below, infinity above, NaN for NaN. Cody
// and Waite's reduction to |r| <= ln(2) / 2, then a polynomial whose coefficients are Cephes' expf (Moshier).
RT_INLINE float vector_exp(float x) {
  const float above = x > 88.0F ? 88.0F : x;
  const float clamped = above < -87.0F ? -87.0F : above;
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  const float shifted = clamped * 1.44269504088896341F + kRound;
  const float n = shifted - kRound;
  const float r = (clamped - n * 0.693359375F) - n * -2.12194440e-4F;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * r * r + r + 1.0F;
  const std::uint32_t exponent =
      (std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(kRound)) + 127U;
  const float scaled = p * std::bit_cast<float>(exponent << 23);
  const float bounded = x > 88.0F ? std::numeric_limits<float>::infinity() : scaled;
  return x < -87.0F ? 0.0F : bounded;
}

// body(i) for i in [0, count), each whole on one thread; about `cost` elements of work each.
template <class Body>
void for_each_row(std::int64_t count, std::int64_t cost, const Body& body) {
  constexpr std::int64_t kWorthAThread = 16384;
  const std::int64_t grain = std::max<std::int64_t>(1, kWorthAThread / std::max<std::int64_t>(1, cost));
  at::parallel_for(0, count, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) body(i);
  });
}

// body(i, memory) for tasks of uneven size: threads take the next one when they are free, each with memory of
// its own.
template <class Memory, class Body>
void for_each_task(std::int64_t count, const Body& body) {
  std::atomic<std::int64_t> next{0};
  const std::int64_t workers = std::min<std::int64_t>(count, at::get_num_threads());
  at::parallel_for(0, workers, 1, [&](std::int64_t, std::int64_t) {
    Memory memory;
    for (std::int64_t i = next++; i < count; i = next++) body(i, memory);
  });
}

// body(begin, end) over fixed blocks of [0, count), returning a partial result each, added in order.
inline constexpr std::int64_t kReductionBlock = 1 << 15;
template <class Body>
double blockwise_sum(std::int64_t count, const Body& body) {
  const std::int64_t blocks = (count + kReductionBlock - 1) / kReductionBlock;
  std::vector<double> partial(static_cast<std::size_t>(blocks));
  for_each_row(blocks, kReductionBlock, [&](std::int64_t block) {
    const std::int64_t begin = block * kReductionBlock;
    partial[static_cast<std::size_t>(block)] = body(begin, std::min(count, begin + kReductionBlock));
  });
  double sum = 0;
  for (const double value : partial) sum += value;
  return sum;
}

}  // namespace ranktune::kernels
