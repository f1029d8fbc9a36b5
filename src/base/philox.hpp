// Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"
// (SC 2011). The one source of randomness: a draw is a pure function of (seed, purpose, counter), so there is
// no generator state to save and no dependence on the number of ranks. Usable in host and device code.
#pragma once

#include <array>
#include <cstdint>

#if defined(__CUDACC__)
#define RT_HOST_DEVICE __host__ __device__
#else
#define RT_HOST_DEVICE
#endif

namespace ranktune {

// What a stream of draws is for; keeps streams of the same seed apart.
enum class RandomPurpose : std::uint32_t {
  shuffle = 1,
  lora_init = 2,
  dropout = 3,
  dummy_weights = 4,
  sampling = 5
};

struct Philox4 {
  std::uint32_t x, y, z, w;
};

// Ten rounds over a 128-bit counter with a 64-bit key.
RT_HOST_DEVICE constexpr Philox4 philox4x32(Philox4 counter, std::uint32_t key0, std::uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53U} * counter.x;
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57U} * counter.z;
    counter = Philox4{
        static_cast<std::uint32_t>(product1 >> 32) ^ counter.y ^ key0, static_cast<std::uint32_t>(product1),
        static_cast<std::uint32_t>(product0 >> 32) ^ counter.w ^ key1, static_cast<std::uint32_t>(product0)};
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
  return counter;
}

// The draw number `index` of the stream (seed, purpose, stream): 128 random bits.
RT_HOST_DEVICE constexpr Philox4 random_bits(std::uint64_t seed, RandomPurpose purpose, std::uint32_t stream,
                                             std::uint64_t index) {
  return philox4x32(Philox4{static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
                            stream, static_cast<std::uint32_t>(purpose)},
                    static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32));
}

// Uniform in [0, 1) with 24 random bits, exact in fp32.
RT_HOST_DEVICE constexpr float uniform_float(std::uint32_t bits) {
  return static_cast<float>(bits >> 8) * (1.0F / 16777216.0F);
}

}  // namespace ranktune
