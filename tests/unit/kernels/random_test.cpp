// Dropout, LoRA's initial values and the dummy weights.
#include "kernels/lora_init.hpp"
#include "kernels/ops.hpp"
#include "support.hpp"

#include <span>

#include "base/error.hpp"

namespace ranktune::kernels {
namespace {

class Dropout : public KernelTest {
 protected:
  Tensor longs(const std::vector<std::int64_t>& values) const {
    return at::tensor(at::ArrayRef<std::int64_t>(values), at::kLong).to(device());
  }
  Tensor mask(const DropoutKey& key, std::int64_t step, const std::vector<std::int64_t>& samples,
              const std::vector<std::int32_t>& positions, std::int64_t width) const {
    const auto rows = static_cast<std::int64_t>(samples.size());
    Tensor out = wide(rows, width, 0, 8);
    dropout(at::ones({rows, width}, at::TensorOptions(GetParam().type).device(device())), key, longs({step}),
            longs(samples), ints(positions), out);
    EXPECT_TRUE(surroundings_untouched(out));
    return out;
  }
};
RT_INSTANTIATE(Dropout, kPlaces);

TEST_P(Dropout, KeepsAndScales) {
  const DropoutKey key{0.25, 42, 17};
  const Tensor out = mask(key, 3, {5, 5, 6, 7}, {0, 1, 0, 0}, 10007);
  const Tensor kept = out > 0;
  EXPECT_NEAR(kept.to(at::kDouble).mean().item<double>(), 0.75, 0.01);
  const Tensor scale = at::full({1}, 1 / 0.75).to(GetParam().type);
  EXPECT_TRUE(same_bits(out, kept.to(GetParam().type) * scale.to(device())));
  // Neighbouring channels are independent: both kept in 0.75^2 of the cases.
  const Tensor both = kept.slice(1, 0, 10006).logical_and(kept.slice(1, 1, 10007));
  EXPECT_NEAR(both.to(at::kDouble).mean().item<double>(), 0.5625, 0.015);
}

TEST_P(Dropout, MaskDependsOnNothingElse) {
  const DropoutKey key{0.5, 42, 17};
  const Tensor base = mask(key, 3, {5, 6, 8}, {0, 1, 9}, 130);
  const Tensor moved = mask(key, 3, {8, 5}, {9, 0}, 130);  // the same tokens elsewhere in another batch
  EXPECT_TRUE(same_bits(moved[0], base[2]));
  EXPECT_TRUE(same_bits(moved[1], base[0]));
  EXPECT_TRUE(same_bits(mask(key, 3, {5}, {0}, 67)[0], base[0].slice(0, 0, 67)));
}

TEST_P(Dropout, MaskDependsOnEachPart) {
  const DropoutKey key{0.5, 42, 17};
  const Tensor base = mask(key, 3, {5}, {0}, 130);
  EXPECT_FALSE(same_bits(base, mask(key, 4, {5}, {0}, 130)));
  EXPECT_FALSE(same_bits(base, mask(key, 3, {6}, {0}, 130)));
  EXPECT_FALSE(same_bits(base, mask(key, 3, {5}, {1}, 130)));
  EXPECT_FALSE(same_bits(base, mask({0.5, 43, 17}, 3, {5}, {0}, 130)));
  EXPECT_FALSE(same_bits(base, mask({0.5, 42, 18}, 3, {5}, {0}, 130)));
}

TEST_P(Dropout, SameMaskAsOnTheCpu) {
  const DropoutKey key{0.1, 1234567890123, 5};
  const std::vector<std::int64_t> samples{5, 4000000000, 8};
  const std::vector<std::int32_t> positions{0, 1, 2047};
  for (const std::int64_t width : {1, 7, 576}) {
    Tensor reference = at::full({3, width}, std::numeric_limits<double>::quiet_NaN(), at::kFloat);
    dropout(at::ones({3, width}, at::kFloat), key, at::full({1}, 9, at::kLong),
            at::tensor(at::ArrayRef<std::int64_t>(samples), at::kLong),
            at::tensor(at::ArrayRef<std::int32_t>(positions), at::kInt), reference);
    EXPECT_TRUE(same_bits(mask(key, 9, samples, positions, width), reference.to(GetParam().type))) << width;
  }
}

TEST_P(Dropout, ZeroIsTheIdentityAndOneIsRefused) {
  EXPECT_EQ(mask({0, 1, 1}, 1, {1}, {1}, 99).min().item<double>(), 1);
  EXPECT_THROW(mask({1, 1, 1}, 1, {1}, {1}, 99), Failure);
}

TEST(LoraInit, UniformInTheOpenInterval) {
  std::vector<float> values(100003);
  const float bound = 0.25F;
  lora_uniform(values, bound, 3407, 11);
  double sum = 0, squares = 0;
  for (const float value : values) {
    ASSERT_LT(std::abs(value), bound);
    sum += static_cast<double>(value);
    squares += static_cast<double>(value) * static_cast<double>(value);
  }
  const auto count = static_cast<double>(values.size());
  EXPECT_NEAR(sum / count, 0, 0.002);
  EXPECT_NEAR(squares / count, 0.25 * 0.25 / 3, 0.0003);
  std::vector<float> again(7), other(7);
  lora_uniform(again, bound, 3407, 11);
  lora_uniform(other, bound, 3407, 12);
  EXPECT_TRUE(std::equal(again.begin(), again.end(), values.begin()));
  EXPECT_FALSE(std::equal(again.begin(), again.end(), other.begin()));
}

class Dummy : public KernelTest {};
RT_INSTANTIATE(Dummy, (std::vector<Place>{{at::kCPU, at::kFloat},
                                          {at::kCPU, at::kBFloat16},
                                          {at::kCUDA, at::kFloat},
                                          {at::kCUDA, at::kBFloat16}}));

TEST_P(Dummy, LooksNormalAndIsSeeded) {
  Tensor weight = wide(301, 1003, 0, 5);
  dummy_normal(weight, 0.02F, 9, 4);
  EXPECT_TRUE(surroundings_untouched(weight));
  const Tensor x = to_double(weight) / 0.02;
  EXPECT_NEAR(x.mean().item<double>(), 0, 0.01);
  EXPECT_NEAR(x.square().mean().item<double>(), 1, 0.01);
  EXPECT_NEAR((x.abs() < 1).to(at::kDouble).mean().item<double>(), 0.683, 0.03);  // uniform: 0.577
  Tensor flat = poisoned({301 * 1003});
  dummy_normal(flat, 0.02F, 9, 4);
  EXPECT_TRUE(same_bits(weight.reshape({-1}), flat)) << "strides do not change the values";
  Tensor host = at::empty({301 * 1003}, GetParam().type);
  dummy_normal(host, 0.02F, 9, 4);
  EXPECT_TRUE(same_bits(host, flat)) << "the same on every device";
  dummy_normal(flat, 0.02F, 9, 5);
  EXPECT_FALSE(same_bits(host, flat));
}

}  // namespace
}  // namespace ranktune::kernels
