// A second CUDA stream for work that nothing on the way waits for: the gradients of the adapter fill the
// multiprocessors that the last wave of a large GEMM leaves idle. On the CPU the work is done at once.
#pragma once

#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <optional>

namespace ranktune::model {

class SideStream {
 public:
  explicit SideStream(at::Device device) {
    if (device.is_cuda()) stream_ = c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index());
  }

  // Enqueues work() behind all that the current stream holds now. The graph that is being captured on the
  // current stream takes it up.
  template <typename Work>
  void run(const Work& work) {
    if (!stream_) {
      work();
      return;
    }
    fork_.record();
    fork_.block(*stream_);
    const c10::cuda::CUDAStreamGuard guard(*stream_);
    work();
    done_.record();
    pending_ = true;
  }

  // The current stream goes on when everything run so far is done.
  void join() {
    if (!pending_) return;
    done_.block(c10::cuda::getCurrentCUDAStream());
    pending_ = false;
  }

 private:
  std::optional<c10::cuda::CUDAStream> stream_;
  at::cuda::CUDAEvent fork_, done_;
  bool pending_ = false;
};

}  // namespace ranktune::model
