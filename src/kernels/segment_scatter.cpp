// Bound: bytes, one fp32 read and one element written per parameter.
#include <c10/util/BFloat16.h>

#include <utility>

#include "kernels/cpu.hpp"
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
}

void SegmentScatter::operator()(const Tensor& master) const {
  check_vector(master, "master", at::kFloat, elements_);
  if (segments_.empty()) return;
  check_device(master, "master", segments_.front().destination);
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
