// Cross-entropy in place against float64 and its autograd.
#include "kernels/ops.hpp"
#include "support.hpp"

#include <ATen/Parallel.h>

#include "base/error.hpp"

namespace ranktune::kernels {
namespace {

class Loss : public KernelTest {};
RT_INSTANTIATE(Loss, kPlaces);

TEST_P(Loss, ValueAndGradient) {
  for (const std::int64_t vocab : {2, 33, 512, 4099, 49152, 151936}) {
    const std::int64_t rows = 6;
    Tensor logits = random_wide(rows, vocab, 0, 3);
    logits.mul_(5);
    const Tensor targets =
        ints({0, static_cast<std::int32_t>(vocab - 1), -1, 1, static_cast<std::int32_t>(vocab / 2), -1});
    const Tensor x = leaf(logits);
    const Tensor wanted = x.log_softmax(-1)
                              .gather(1, targets.cpu().to(at::kLong).clamp_min(0).unsqueeze(1))
                              .squeeze(1)
                              .neg()
                              .masked_fill(targets.cpu() < 0, 0);
    wanted.sum().backward();
    Tensor nll_rows = poisoned({rows}, at::kFloat);
    Tensor nll_sum = at::full({1}, 2.5, at::TensorOptions(at::kDouble).device(device()));
    cross_entropy_in_place(logits, targets, nll_rows, nll_sum);
    EXPECT_LE(relative_error(nll_rows, wanted), 1e-6) << vocab;
    EXPECT_NEAR(nll_sum.item<double>(), 2.5 + wanted.sum().item<double>(),
                1e-6 * wanted.sum().item<double>());
    EXPECT_LE(relative_error(logits, x.grad()), tolerance(1e-6)) << vocab;
    EXPECT_EQ(logits[2].abs().max().item<double>(), 0) << "a row without a target has no gradient";
    EXPECT_TRUE(surroundings_untouched(logits));
  }
}

TEST_P(Loss, LargeLogitsDoNotOverflow) {
  Tensor logits = (random({3, 40}) * 2e4).to(GetParam().type);
  const Tensor x = leaf(logits);
  const Tensor wanted = x.log_softmax(-1).slice(1, 7, 8).neg().sum();
  wanted.backward();
  Tensor nll_rows = poisoned({3}, at::kFloat);
  Tensor nll_sum = at::zeros({1}, at::TensorOptions(at::kDouble).device(device()));
  cross_entropy_in_place(logits, ints({7, 7, 7}), nll_rows, nll_sum);
  EXPECT_NEAR(nll_sum.item<double>() / wanted.item<double>(), 1, 1e-6);
  EXPECT_LE(relative_error(logits, x.grad()), tolerance(1e-6));
}

TEST_P(Loss, ANonFiniteLogitShowsInTheSum) {
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    Tensor logits = random({3, 40});
    logits[1][5] = bad;
    Tensor nll_rows = poisoned({3}, at::kFloat);
    Tensor nll_sum = at::zeros({1}, at::TensorOptions(at::kDouble).device(device()));
    cross_entropy_in_place(logits, ints({7, 7, 7}), nll_rows, nll_sum);
    EXPECT_FALSE(std::isfinite(nll_sum.item<double>())) << bad;
  }
}

TEST_P(Loss, SameInputsSameBits) {
  const Tensor logits = random({37, 1000});
  std::vector<std::int32_t> target;
  for (std::int32_t i = 0; i < 37; ++i) target.push_back(i % 5 == 0 ? -1 : i * 11);
  std::vector<Tensor> first;
  const int threads = at::get_num_threads();
  for (const int count : {1, 2, 3}) {
    at::set_num_threads(count);
    Tensor gradient = logits.clone();
    Tensor nll_rows = poisoned({37}, at::kFloat);
    Tensor nll_sum = at::zeros({1}, at::TensorOptions(at::kDouble).device(device()));
    cross_entropy_in_place(gradient, ints(target), nll_rows, nll_sum);
    if (first.empty()) first = {gradient, nll_rows, nll_sum};
    EXPECT_TRUE(same_bits(gradient, first[0]));
    EXPECT_TRUE(same_bits(nll_rows, first[1]));
    EXPECT_TRUE(same_bits(nll_sum, first[2]));
  }
  at::set_num_threads(threads);
}

}  // namespace
}  // namespace ranktune::kernels
