// Bound: bytes, one fp32 read and one element written per parameter.
#include <ATen/ops/empty.h>
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "kernels/cpu.hpp"
#include "kernels/cuda_launch.hpp"
#include "kernels/cuda_scope.hpp"
#include "kernels/ops.hpp"
#include "kernels/tensor_checks.hpp"

namespace ranktune::kernels {
namespace {

template <class Element>
void copy_rows(const float* from, Tensor& destination, const Rows& rows) {
  auto* to = destination.mutable_data_ptr<Element>();
  for_each_row(rows.count, rows.width, [&](std::int64_t r) {
    for (std::int64_t c = 0; c < rows.width; ++c)
      to[r * rows.stride + c] = static_cast<Element>(from[r * rows.width + c]);
  });
}

}  // namespace

SegmentScatter::SegmentScatter(std::vector<Segment> segments) : segments_(std::move(segments)) {
  for (const Segment& segment : segments_) {
    const Tensor& to = segment.destination;
    const Rows rows = rows_of(to, "destination");
    storage_type(to, "destination");
    check_device(to, "destination", segments_.front().destination);
    RT_CHECK(segment.offset >= 0,
             "a segment starts at the negative offset " + std::to_string(segment.offset));
    elements_ = std::max(elements_, segment.offset + rows.count * rows.width);
  }
  if (segments_.empty() || !segments_.front().destination.is_cuda()) return;
  const auto count = static_cast<std::int64_t>(segments_.size());
  const Tensor host = at::empty({count, cuda::scatter_columns}, at::TensorOptions(at::kLong));
  auto* row = host.mutable_data_ptr<std::int64_t>();
  for (const Segment& segment : segments_) {
    const DeviceRows to = device_rows(segment.destination, "destination");
    row[cuda::scatter_offset] = segment.offset;
    row[cuda::scatter_rows] = to.count;
    row[cuda::scatter_cols] = to.width;
    row[cuda::scatter_address] = std::bit_cast<std::int64_t>(to.data);
    row[cuda::scatter_stride] = to.stride;
    row[cuda::scatter_type] = static_cast<std::int64_t>(storage_type(segment.destination, "destination"));
    row += cuda::scatter_columns;
  }
  table_ = host.to(segments_.front().destination.device());
}

void SegmentScatter::operator()(const Tensor& master) const {
  check_vector(master, "master", at::kFloat, elements_);
  if (segments_.empty()) return;
  check_device(master, "master", segments_.front().destination);
  if (master.is_cuda()) {
    const CudaScope scope(master);
    cuda::segment_scatter(device_data<std::int64_t>(table_), static_cast<std::int64_t>(segments_.size()),
                          device_data<float>(master), scope.stream());
    return;
  }
  const auto* from = master.const_data_ptr<float>();
  for (const Segment& segment : segments_) {
    Tensor to = segment.destination;
    const Rows rows = rows_of(to, "destination");
    if (to.scalar_type() == at::kFloat) {
      copy_rows<float>(from + segment.offset, to, rows);
    } else {
      copy_rows<c10::BFloat16>(from + segment.offset, to, rows);
    }
  }
}

}  // namespace ranktune::kernels
