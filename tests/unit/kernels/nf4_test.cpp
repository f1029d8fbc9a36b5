// NF4 beside its definition, written out again for single weights.
#include "kernels/nf4.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/isnan.h>

#include "base/error.hpp"
#include "kernels/dynamic_map.hpp"
#include "support.hpp"

namespace ranktune::kernels {
namespace {

class Nf4 : public KernelTest {
 protected:
  Nf4Matrix quantised(const Tensor& weight, at::ScalarType decoded) const {
    Nf4Matrix matrix(weight.size(0), weight.size(1), device());
    quantise_nf4(weight.to(device()), decoded, matrix);
    return matrix;
  }
  Tensor decoded(const Nf4Matrix& matrix) const {
    Tensor out = wide(matrix.rows, matrix.columns, 0, 8);
    decode_nf4({&matrix, 1}, Tensor(), out);
    return out.to(at::kCPU, at::kFloat).contiguous();
  }
};
RT_INSTANTIATE(Nf4, kPlaces);

float absmax_of(const Nf4Matrix& matrix, std::int64_t block) {
  const auto code = matrix.absmax.cpu().const_data_ptr<std::uint8_t>()[block];
  const float scaled = matrix.absmax_map.cpu().const_data_ptr<float>()[code] *
                       matrix.nested_absmax.cpu().const_data_ptr<float>()[block / 256];
  return scaled + matrix.offset.cpu().const_data_ptr<float>()[0];
}

TEST_P(Nf4, ValuesAreSymmetricOnlyAtTheEnds) {
  for (std::size_t i = 1; i < 16; ++i) EXPECT_LT(kNf4Values[i - 1], kNf4Values[i]);
  EXPECT_EQ(kNf4Values[7], 0.0F);
}

TEST_P(Nf4, DecodesToTheDefinition) {
  const Tensor weight = at::randn({37, 192}, at::kFloat);
  const Nf4Matrix matrix = quantised(weight, at::kFloat);
  const Tensor got = decoded(matrix);
  const Tensor packed = matrix.packed.cpu();
  for (std::int64_t i = 0; i < weight.numel(); ++i) {
    const std::uint8_t byte = packed.const_data_ptr<std::uint8_t>()[i / 2];
    const float value = kNf4Values[static_cast<std::size_t>(i % 2 == 0 ? byte >> 4 : byte & 15)];
    if (i % 61 != 0) continue;
    const float want = value * absmax_of(matrix, i / 64);
    const float rounded = bf16() ? static_cast<float>(c10::BFloat16(want)) : want;
    ASSERT_EQ(got.view({-1}).const_data_ptr<float>()[i], rounded) << i;
  }
}

// Every weight gets the code whose value lies nearest to it, in units of its block's absmax.
TEST_P(Nf4, QuantisesToTheNearest) {
  const Tensor weight = at::randn({16, 64}, at::kFloat);
  const Nf4Matrix matrix = quantised(weight, at::kFloat);
  const Tensor packed = matrix.packed.cpu();
  for (std::int64_t i = 0; i < weight.numel(); ++i) {
    const float largest = weight.view({-1, 64}).select(0, i / 64).abs().max().item<float>();
    const float scaled = weight.const_data_ptr<float>()[i] / largest;
    float least = 10;
    for (const float value : kNf4Values) least = std::min(least, std::abs(value - scaled));
    const std::uint8_t byte = packed.const_data_ptr<std::uint8_t>()[i / 2];
    const float value = kNf4Values[static_cast<std::size_t>(i % 2 == 0 ? byte >> 4 : byte & 15)];
    ASSERT_NEAR(std::abs(value - scaled), least, 1e-6) << i;
  }
  // The absmax are rounded to 8 bits: to half of the map's widest step, 1.4 % of the largest deviation.
  const Tensor largest = weight.view({-1, 64}).abs().amax(1);
  const float spread = (largest - largest.mean()).abs().max().item<float>();
  for (std::int64_t b = 0; b < 16; ++b) {
    EXPECT_NEAR(absmax_of(matrix, b), largest.const_data_ptr<float>()[b], 0.0071F * spread + 1e-6F) << b;
  }
}

TEST_P(Nf4, BlocksOfZerosStayZero) {
  Tensor weight = at::randn({4, 64}, at::kFloat);
  weight[1].zero_();
  const Tensor got = decoded(quantised(weight, at::kFloat));
  EXPECT_EQ(got[1].abs().max().item<float>(), 0.0F);
  EXPECT_GT(got[0].abs().max().item<float>(), 0.0F);
}

TEST_P(Nf4, GroupsHaveTheColumnsBehindThem) {
  const Tensor first = at::randn({5, 128}, at::kFloat);
  const Tensor second = at::randn({3, 128}, at::kFloat);
  std::vector<Nf4Matrix> group{quantised(first, at::kBFloat16), Nf4Matrix{}, quantised(second, at::kHalf)};
  group[1].rows = 2;
  group[1].columns = 128;
  const Tensor behind = random({10, 16});
  Tensor out = poisoned({10, 144});
  decode_nf4(group, behind, out);
  const Tensor host = out.to(at::kCPU, at::kFloat);
  EXPECT_TRUE(at::equal(host.narrow(1, 128, 16), behind.to(at::kCPU, at::kFloat)));
  EXPECT_TRUE(at::isnan(host.narrow(0, 5, 2).narrow(1, 0, 128)).all().item<bool>()) << "left as it was";
  EXPECT_TRUE(at::equal(host.narrow(0, 0, 5).narrow(1, 0, 128), decoded(group[0])));
  EXPECT_TRUE(at::equal(host.narrow(0, 7, 3).narrow(1, 0, 128), decoded(group[2])));
  const Tensor bf16_rounded = decoded(group[0]);
  EXPECT_TRUE(at::equal(bf16_rounded, bf16_rounded.to(at::kBFloat16).to(at::kFloat)));
  EXPECT_THROW(Nf4Matrix(2, 96, at::kCPU), Failure);
}

}  // namespace
}  // namespace ranktune::kernels
