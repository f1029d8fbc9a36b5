// 8-bit moments beside AdamW in float64 whose moments are rounded to the nearest of the map's values.
#include "kernels/adamw_8bit.hpp"

#include "base/error.hpp"
#include "kernels/dynamic_map.hpp"
#include "support.hpp"

namespace ranktune::kernels {
namespace {

class Adamw8bit : public KernelTest {
 protected:
  Tensor zeros(std::int64_t count) const {
    return at::zeros({count}, at::TensorOptions(at::kFloat).device(device()));
  }
  Tensor floats(const std::vector<float>& values) const {
    return at::tensor(at::ArrayRef<float>(values), at::kFloat).to(device());
  }
};
RT_INSTANTIATE(Adamw8bit, kFloatPlaces);

// Values from the paper's construction, as bitsandbytes' create_dynamic_map gives them.
TEST(DynamicMap, IsThePapers) {
  for (const bool both : {true, false}) {
    const float* map = dynamic_map(both);
    for (int i = 1; i < 256; ++i) EXPECT_LT(map[i - 1], map[i]) << i;
    EXPECT_EQ(map[255], 1.0F);
  }
  EXPECT_EQ(dynamic_map(true)[0], -1.0F);
  EXPECT_EQ(dynamic_map(true)[127], 0.0F);
  EXPECT_FLOAT_EQ(dynamic_map(true)[1], -0.97890625F);
  EXPECT_FLOAT_EQ(dynamic_map(true)[128], 5.5e-7F);
  EXPECT_FLOAT_EQ(dynamic_map(true)[254], 0.99296875F);
  EXPECT_EQ(dynamic_map(false)[0], 0.0F);
  EXPECT_FLOAT_EQ(dynamic_map(false)[1], 3.25e-7F);
  EXPECT_FLOAT_EQ(dynamic_map(false)[254], 0.996484375F);
}

TEST(DynamicMap, NearestCode) {
  for (const bool both : {true, false}) {
    const float* map = dynamic_map(both);
    for (int i = 0; i < 20000; ++i) {
      const float x = -1.1F + 2.2F * static_cast<float>(i) / 20000;
      const float got = std::abs(map[nearest_code(map, x)] - x);
      float least = 10;
      for (int c = 0; c < 256; ++c) least = std::min(least, std::abs(map[c] - x));
      ASSERT_EQ(got, least) << x;
    }
  }
  const float* map = dynamic_map(true);
  EXPECT_EQ(moment_code(map, -1e-9F, 1.0F), 126) << "keeps its sign";
  EXPECT_EQ(moment_code(map, 0.0F, 0.0F), 127);
  EXPECT_EQ(map[moment_code(map, -3.0F, 3.0F)], -1.0F);
}

// The state of one tensor, decoded.
Tensor decoded(const Tensor& codes, const Tensor& absmax, bool both_signs, std::int64_t offset,
               std::int64_t count, std::int64_t first_block) {
  Tensor result = at::zeros({count}, at::kDouble);
  const Tensor c = codes.cpu();
  const Tensor a = absmax.cpu();
  for (std::int64_t i = 0; i < count; ++i) {
    result.mutable_data_ptr<double>()[i] =
        static_cast<double>(dynamic_map(both_signs)[c.const_data_ptr<std::uint8_t>()[offset + i]]) *
        static_cast<double>(a.const_data_ptr<float>()[first_block + i / kDynamicBlock]);
  }
  return result;
}

// Each step starts from the decoded state, so that the only freedom is a value that lies between two codes.
TEST_P(Adamw8bit, FollowsTheRoundedMoments) {
  const AdamW settings{0.9, 0.95, 1e-6, 0.1};
  constexpr std::int64_t kGap = 13;
  const std::vector<FlatSpan> tensors{{3, 4095}, {3 + 4095 + kGap, 4096}, {8207 + kGap, 70001}};
  const std::int64_t elements = 8207 + kGap + 70001 + 5;
  AdamW8bit optimizer(tensors, elements, device());
  Tensor master = random({elements});
  const Tensor first = master.cpu();
  Tensor outcome = zeros(8);
  outcome[outcome_multiplier] = 0.125;
  Tensor small_m = at::zeros({4095}, at::kDouble), small_v = at::zeros({4095}, at::kDouble);
  for (int t = 1; t <= 4; ++t) {
    const double lr = 0.01 * t;
    const Tensor gradient = random({elements});
    gradient.slice(0, 9000, 9300).zero_();
    const double correction1 = 1 - std::pow(settings.beta1, t);
    const double correction2 = 1 - std::pow(settings.beta2, t);
    const auto before = optimizer.state();
    const Tensor before_master = to_double(master);
    std::vector<Tensor> m{small_m}, v{small_v};
    std::int64_t block = 16;
    for (std::size_t k = 1; k < tensors.size(); ++k) {
      m.push_back(
          decoded(before[0].second, before[2].second, true, tensors[k].offset, tensors[k].elements, block));
      v.push_back(
          decoded(before[1].second, before[3].second, false, tensors[k].offset, tensors[k].elements, block));
      block += (tensors[k].elements + 255) / 256;
    }
    optimizer.step(
        settings,
        floats({static_cast<float>(lr), static_cast<float>(correction1), static_cast<float>(correction2)}),
        outcome, gradient, master);
    const auto after = optimizer.state();
    block = 16;
    for (std::size_t k = 0; k < tensors.size(); ++k) {
      const FlatSpan& tensor = tensors[k];
      const auto part = [&](const Tensor& flat) {
        return flat.slice(0, tensor.offset, tensor.offset + tensor.elements);
      };
      const Tensor g = to_double(part(gradient)) * 0.125;
      const Tensor wanted_m = m[k] + (1 - settings.beta1) * (g - m[k]);
      const Tensor wanted_v = settings.beta2 * v[k] + (1 - settings.beta2) * g * g;
      const Tensor w =
          part(before_master) * (1 - lr * settings.weight_decay) -
          lr / correction1 * wanted_m / (wanted_v.sqrt() / std::sqrt(correction2) + settings.eps);
      EXPECT_LE(relative_error(part(master), w), 2e-6) << t << " " << k;
      if (k == 0) {
        small_m = wanted_m;
        small_v = wanted_v;
        EXPECT_LE(relative_error(after[4].second, small_m), 1e-6);
        EXPECT_LE(relative_error(after[5].second, small_v), 1e-6);
        continue;
      }
      std::int64_t other = 0;
      for (const bool first_moment : {true, false}) {
        const Tensor wanted = first_moment ? wanted_m : wanted_v;
        const float* map = dynamic_map(first_moment);
        const Tensor codes = after[first_moment ? 0 : 1].second.cpu();
        const Tensor absmax = after[first_moment ? 2 : 3].second.cpu();
        for (std::int64_t i = 0; i < tensor.elements; ++i) {
          const std::int64_t begin = i / 256 * 256;
          const double largest =
              wanted.slice(0, begin, std::min(begin + 256, tensor.elements)).abs().max().item<double>();
          const std::int64_t own = block + i / 256;
          if (i == begin) {
            ASSERT_NEAR(absmax[own].item<float>(), largest, 1e-6 * largest);
          }
          const int code = codes.const_data_ptr<std::uint8_t>()[tensor.offset + i];
          const int best = moment_code(map, static_cast<float>(wanted.const_data_ptr<double>()[i]),
                                       static_cast<float>(largest));
          ASSERT_LE(std::abs(code - best), 1) << t << " " << i;
          other += code != best ? 1 : 0;
          if (i == begin + 3) i = std::min(begin + 251, tensor.elements);  // a part of each block is enough
        }
      }
      EXPECT_LE(other, tensor.elements / 1000) << "codes that are not the nearest";
      block += (tensor.elements + 255) / 256;
    }
  }
  for (const auto& [from, to] :
       {std::pair<std::int64_t, std::int64_t>{0, 3}, {4098, 4111}, {elements - 5, elements}}) {
    EXPECT_TRUE(same_bits(master.slice(0, from, to), first.slice(0, from, to))) << "gaps stay as they are";
  }
}

TEST_P(Adamw8bit, DoesNothingInABadStep) {
  AdamW8bit optimizer({{0, 5000}, {5120, 100}}, 5220, device());
  Tensor master = random({5220});
  Tensor outcome = zeros(8);
  outcome[outcome_multiplier] = 1;
  const Tensor hyper = floats({0.1F, 0.1F, 0.001F});
  optimizer.step(AdamW{}, hyper, outcome, random({5220}), master);
  std::vector<Tensor> before{master.clone()};
  for (const auto& [name, tensor] : optimizer.state()) before.push_back(tensor.clone());
  outcome[outcome_bad] = 1;
  optimizer.step(AdamW{}, hyper, outcome, random({5220}), master);
  EXPECT_TRUE(same_bits(master, before[0]));
  std::size_t i = 1;
  for (const auto& [name, tensor] : optimizer.state()) EXPECT_TRUE(same_bits(tensor, before[i++])) << name;
  Tensor short_master = random({5219});
  EXPECT_THROW(optimizer.step(AdamW{}, hyper, outcome, random({5220}), short_master), Failure);
}

}  // namespace
}  // namespace ranktune::kernels
