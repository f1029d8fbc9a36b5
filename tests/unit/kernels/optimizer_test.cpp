// The reduction's tail, clipping, the sticky non-finite word, AdamW and the scatter of parameters.
#include "kernels/ops.hpp"
#include "support.hpp"

#include "base/error.hpp"

namespace ranktune::kernels {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

class Optimizer : public KernelTest {
 protected:
  Tensor scalar(double value) const {
    return at::full({1}, value, at::TensorOptions(at::kDouble).device(device()));
  }
  Tensor zeros(std::int64_t count) const {
    return at::zeros({count}, at::TensorOptions(at::kFloat).device(device()));
  }
  Tensor floats(const std::vector<float>& values) const {
    return at::tensor(at::ArrayRef<float>(values), at::kFloat).to(device());
  }
  float at_slot(const Tensor& tensor, std::int64_t slot) const { return tensor[slot].item<float>(); }
  Tensor scratch() const { return poisoned({1024}, at::kDouble); }
};
RT_INSTANTIATE(Optimizer, kFloatPlaces);

TEST_P(Optimizer, TailHoldsThisRanksPart) {
  for (const std::int64_t count : {0, 1, 1000, 100003, 3000001}) {
    const Tensor gradient = random({count});
    Tensor tail = poisoned({tail_nonfinite + 3}, at::kFloat);
    fill_tail(gradient, scalar(123.5), 42, 1, 99, 1, tail);
    EXPECT_TRUE(same_bits(tail, floats({123.5F, 42, 1, 99, 0, 0, 0})));
  }
}

TEST_P(Optimizer, AnyNonFiniteElementIsSeen) {
  const std::int64_t count = 200001;
  for (const std::int64_t where : {std::int64_t{0}, std::int64_t{77777}, count - 1}) {
    for (const float bad : {kNan, kInfinity, -kInfinity}) {
      Tensor gradient = random({count});
      gradient[where] = bad;
      Tensor tail = poisoned({tail_nonfinite + 3}, at::kFloat);
      fill_tail(gradient, scalar(1), 42, 0, 99, 2, tail);
      EXPECT_EQ(at_slot(tail, tail_nonfinite + 2), 1) << where << " " << bad;
      EXPECT_EQ(at_slot(tail, tail_nonfinite), 0);
    }
  }
  Tensor largest = at::full({count}, 3e38, at::TensorOptions(at::kFloat).device(device()));
  Tensor tail = poisoned({tail_nonfinite + 1}, at::kFloat);
  fill_tail(largest, scalar(1), 1, 0, 1, 0, tail);
  EXPECT_EQ(at_slot(tail, tail_nonfinite), 0) << "large but finite";
  fill_tail(random({10}), scalar(kNan), 1, 0, 1, 0, tail);
  EXPECT_EQ(at_slot(tail, tail_nonfinite), 1) << "the loss alone";
}

TEST_P(Optimizer, NormAndClipAsTorch) {
  for (const std::int64_t count : {1, 5, 70001, 2000003}) {
    for (const double max_norm : {0.5, 1e9, 0.0}) {
      const Tensor gradient = random({count});
      const Tensor tail = floats({840, 42, 2, 99, 0, 0});
      Tensor outcome = zeros(8);
      Tensor memory = scratch();
      finish_reduction(gradient, tail, max_norm, memory, outcome);
      const double norm = (to_double(gradient) / 42).norm().item<double>();
      const double clip = max_norm > 0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0;
      EXPECT_FLOAT_EQ(at_slot(outcome, outcome_loss), 20);
      EXPECT_NEAR(at_slot(outcome, outcome_grad_norm) / norm, 1, 1e-6);
      EXPECT_NEAR(at_slot(outcome, outcome_multiplier) / (clip / 42), 1, 1e-6);
      EXPECT_EQ(at_slot(outcome, outcome_targets), 42);
      EXPECT_EQ(at_slot(outcome, outcome_stop), 2);
      EXPECT_EQ(at_slot(outcome, outcome_tokens), 99);
      EXPECT_EQ(at_slot(outcome, outcome_bad), 0);
      EXPECT_EQ(at_slot(outcome, outcome_bad_rank), -1);
    }
  }
}

TEST_P(Optimizer, BadStepsAreStickyAndNamed) {
  struct Bad {
    std::vector<float> tail;
    float element, rank;
  };
  for (const Bad& bad :
       {Bad{{840, 42, 0, 99, 0, 0, 2, 1}, 1, 2}, Bad{{kNan, 42, 0, 99, 0, 0, 0, 0}, 1, -1},
        Bad{{840, 42, 0, 99, 0, 1, 1, 0}, kNan, 1}, Bad{{840, 42, 0, 99, 0, 0, 0, 0}, kInfinity, -1},
        Bad{{840, 0, 0, 99, 0, 0, 0, 0}, 1, -1}}) {
    Tensor outcome = zeros(8);
    Tensor memory = scratch();
    Tensor gradient = random({1001});
    const Tensor clean = gradient.clone();
    gradient[500] = bad.element;
    finish_reduction(gradient, floats(bad.tail), 1, memory, outcome);
    EXPECT_EQ(at_slot(outcome, outcome_bad), 1);
    EXPECT_EQ(at_slot(outcome, outcome_bad_rank), bad.rank);
    // A good step afterwards, and one that is bad on another rank, change nothing of it.
    finish_reduction(clean, floats({840, 42, 0, 99, 0, 0, 0, 0}), 1, memory, outcome);
    EXPECT_EQ(at_slot(outcome, outcome_bad), 1);
    finish_reduction(clean, floats({840, 42, 0, 99, 1, 0, 0, 0}), 1, memory, outcome);
    EXPECT_EQ(at_slot(outcome, outcome_bad_rank), bad.rank);

    Tensor master = random({1001}), exp_avg = random({1001}), exp_avg_sq = random({1001}).abs();
    const std::vector<Tensor> before{master.clone(), exp_avg.clone(), exp_avg_sq.clone()};
    adamw_step(AdamW{}, floats({0.1F, 0.1F, 0.001F}), outcome, clean, master, exp_avg, exp_avg_sq);
    EXPECT_TRUE(same_bits(master, before[0]) && same_bits(exp_avg, before[1]) &&
                same_bits(exp_avg_sq, before[2]));
  }
}

TEST_P(Optimizer, AdamWOverSteps) {
  for (const std::int64_t count : {1, 3, 1024, 100003}) {
    const AdamW settings{0.9, 0.95, 1e-6, 0.1};
    Tensor master = random({count}), exp_avg = zeros(count), exp_avg_sq = zeros(count);
    Tensor w = to_double(master), m = to_double(exp_avg), v = to_double(exp_avg_sq);
    Tensor outcome = zeros(8);
    outcome[outcome_multiplier] = 0.125;
    for (int t = 1; t <= 5; ++t) {
      const double lr = 0.01 * t;
      const Tensor gradient = random({count});
      const double correction1 = 1 - std::pow(settings.beta1, t);
      const double correction2 = 1 - std::pow(settings.beta2, t);
      adamw_step(
          settings,
          floats({static_cast<float>(lr), static_cast<float>(correction1), static_cast<float>(correction2)}),
          outcome, gradient, master, exp_avg, exp_avg_sq);
      const Tensor g = to_double(gradient) * 0.125;
      w = w * (1 - lr * settings.weight_decay);
      m = m + (1 - settings.beta1) * (g - m);
      v = settings.beta2 * v + (1 - settings.beta2) * g * g;
      w = w - lr / correction1 * m / (v.sqrt() / std::sqrt(correction2) + settings.eps);
    }
    EXPECT_LE(relative_error(master, w), 1e-6) << count;
    EXPECT_LE(relative_error(exp_avg, m), 1e-6) << count;
    EXPECT_LE(relative_error(exp_avg_sq, v), 1e-6) << count;
  }
}

TEST_P(Optimizer, SegmentsAreCopiedAndRounded) {
  const Tensor master = random({5000});
  const auto target = [&](std::int64_t rows, std::int64_t cols, at::ScalarType type, std::int64_t before) {
    return poisoned({rows, before + cols + 3}, type).narrow(1, before, cols);
  };
  const std::vector<Segment> segments{{0, target(16, 64, at::kBFloat16, 0)},
                                      {1024, target(7, 9, at::kBFloat16, 5)},
                                      {1087, target(3, 64, at::kFloat, 1)},
                                      {1280, target(32, 100, at::kFloat, 4)},
                                      {4480, target(8, 64, at::kBFloat16, 8)}};
  const SegmentScatter scatter(segments);
  scatter(master);
  for (const Segment& segment : segments) {
    const Tensor& to = segment.destination;
    const Tensor wanted = master.slice(0, segment.offset, segment.offset + to.numel()).view(to.sizes());
    EXPECT_TRUE(same_bits(to, wanted.to(to.scalar_type()))) << segment.offset;
    EXPECT_TRUE(surroundings_untouched(to)) << segment.offset;
  }
  EXPECT_THROW(scatter(random({4991})), Failure) << "a master that is too short";
}

}  // namespace
}  // namespace ranktune::kernels
