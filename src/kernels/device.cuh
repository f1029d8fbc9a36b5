// What the CUDA kernels share: launches that are checked, 16-byte accesses, reductions within a warp and a
// block.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <string>

#include "base/error.hpp"
#include "kernels/types.hpp"

// Throws Failure naming statement, file and line; the sticky error is cleared.
#define RT_CUDA_CHECK(statement)                                                    \
  do {                                                                              \
    const cudaError_t rt_status = (statement);                                      \
    if (rt_status != cudaSuccess)                                                   \
      ::ranktune::kernels::cuda::failed(#statement, __FILE__, __LINE__, rt_status); \
  } while (false)

namespace ranktune::kernels::cuda {

[[noreturn]] inline void failed(const char* statement, const char* file, int line, cudaError_t status) {
  cudaGetLastError();
  std::string text(statement);
  text += " failed with ";
  text += cudaGetErrorName(status);
  text += ": ";
  text += cudaGetErrorString(status);
  text += " (";
  text += file;
  text += ":";
  text += std::to_string(line);
  text += ")";
  throw Failure(text);
}

using bf16 = __nv_bfloat16;

__device__ __forceinline__ float to_float(float x) {
  return x;
}
__device__ __forceinline__ float to_float(bf16 x) {
  return __bfloat162float(x);
}
template <class T>
__device__ __forceinline__ T from_float(float x);
template <>
__device__ __forceinline__ float from_float<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ bf16 from_float<bf16>(float x) {
  return __float2bfloat16_rn(x);
}

// N neighbouring elements, moved in one access.
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  T values[N];

  __device__ __forceinline__ static Pack load(const T* from) { return *reinterpret_cast<const Pack*>(from); }
  __device__ __forceinline__ void store(T* to) const { *reinterpret_cast<Pack*>(to) = *this; }
};

template <class T>
inline constexpr int kVector = 16 / sizeof(T);

// Whether rows may be accessed `bytes` at a time throughout.
inline bool aligned(const void* data, std::int64_t bytes) {
  return reinterpret_cast<std::uintptr_t>(data) % static_cast<std::uintptr_t>(bytes) == 0;
}
template <class T>
bool vectorisable(const DeviceRows& rows, int elements) {
  return rows.data == nullptr || (aligned(rows.data, elements * static_cast<std::int64_t>(sizeof(T))) &&
                                  (rows.count <= 1 || rows.stride % elements == 0));
}

inline unsigned blocks_for(std::int64_t work, std::int64_t per_block, std::int64_t most = 1 << 30) {
  const std::int64_t wanted = (work + per_block - 1) / per_block;
  return static_cast<unsigned>(wanted < 1 ? 1 : wanted > most ? most : wanted);
}

__device__ __forceinline__ float warp_sum(float x) {
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffU, x, offset);
  return x;
}
__device__ __forceinline__ double warp_sum(double x) {
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffU, x, offset);
  return x;
}

// The sum over a block of whole warps, in every thread. `shared`: 32 elements, free before and after.
template <class T>
__device__ __forceinline__ T block_sum(T x, T* shared) {
  x = warp_sum(x);
  const unsigned lane = threadIdx.x % 32;
  const unsigned warps = blockDim.x / 32;
  if (lane == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  x = warp_sum(lane < warps ? shared[lane] : T(0));
  __syncthreads();
  return x;
}

// Calls body with a null pointer of the storage type.
template <class Body>
void with_type(Type type, const Body& body) {
  if (type == Type::bf16) {
    body(static_cast<bf16*>(nullptr));
  } else {
    body(static_cast<float*>(nullptr));
  }
}

}  // namespace ranktune::kernels::cuda
