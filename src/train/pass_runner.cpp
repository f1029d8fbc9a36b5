#include "train/pass_runner.hpp"

#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAGraph.h>

#include <algorithm>

namespace ranktune::train {
namespace {

// Graphs kept at once; one of an 8B model takes some tens of MiB of the driver's memory.
constexpr std::size_t kMostGraphs = 64;

}  // namespace

struct PassRunner::Entry {
  model::DevicePass pass;
  std::unique_ptr<at::cuda::CUDAGraph> graph;
  bool ran = false;

  Entry(const data::PassBatch& batch, const model::PassShape& shape, at::Device device)
      : pass(batch, shape, device) {}
};

PassRunner::PassRunner(model::Decoder& decoder)
    : decoder_(decoder),
      graphs_(decoder.options().device.is_cuda() && decoder.options().dtype == at::kBFloat16) {}

PassRunner::~PassRunner() = default;

std::int64_t PassRunner::padded(std::int64_t tokens) const {
  return graphs_ ? model::bucket_tokens(tokens) : tokens;
}

void PassRunner::reset() {
  entries_.clear();
}

PassRunner::Entry& PassRunner::entry_of(const data::PassBatch& batch) {
  const model::PassShape shape = model::bucket_shape(batch);
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& entry) { return entry.pass.shape == shape; });
  if (found != entries_.end()) {
    entries_.splice(entries_.begin(), entries_, found);
    entries_.front().pass.load(batch);
    return entries_.front();
  }
  if (entries_.size() == kMostGraphs) {
    at::cuda::getCurrentCUDAStream().synchronize();  // the one that goes may still be running
    entries_.pop_back();
  }
  entries_.emplace_front(batch, shape, decoder_.options().device);
  return entries_.front();
}

void PassRunner::capture(Entry& entry, const at::Tensor& step, const at::Tensor& gradient,
                         at::Tensor& nll_sum) {
  // One memory pool for all: graphs run one after the other, and none leaves anything in it.
  at::cuda::MempoolId_t pool{0, 0};
  for (const Entry& other : entries_) {
    if (other.graph) pool = other.graph->pool();
  }
  auto graph = std::make_unique<at::cuda::CUDAGraph>();
  graph->capture_begin(pool, cudaStreamCaptureModeThreadLocal);
  decoder_.forward_backward(entry.pass, step, gradient, nll_sum);
  graph->capture_end();
  entry.graph = std::move(graph);
}

void PassRunner::run(const data::PassBatch& batch, const at::Tensor& step, const at::Tensor& gradient,
                     at::Tensor& nll_sum) {
  if (!graphs_) {
    const model::DevicePass pass(batch, model::exact_shape(batch), decoder_.options().device);
    decoder_.forward_backward(pass, step, gradient, nll_sum);
    return;
  }
  Entry& entry = entry_of(batch);
  if (!entry.ran) {
    entry.ran = true;
    decoder_.forward_backward(entry.pass, step, gradient, nll_sum);
    return;
  }
  if (!entry.graph) capture(entry, step, gradient, nll_sum);
  entry.graph->replay();
}

}  // namespace ranktune::train
