// The vectorised exponential of the CPU paths against double.
#include "kernels/cpu.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace ranktune::kernels {
namespace {

TEST(VectorExp, OneUlp) {
  double worst = 0;
  for (int i = 0; i <= 1750000; ++i) {
    const float x = -87.0F + 1e-4F * static_cast<float>(i);
    const double wanted = std::exp(static_cast<double>(x));
    worst = std::max(worst, std::abs(static_cast<double>(vector_exp(x)) - wanted) / wanted);
  }
  EXPECT_LE(worst, std::exp2(-23.0));
}

TEST(VectorExp, Limits) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(vector_exp(0.0F), 1.0F);
  EXPECT_EQ(vector_exp(-infinity), 0.0F);
  EXPECT_EQ(vector_exp(-88.0F), 0.0F);
  EXPECT_EQ(vector_exp(89.0F), infinity);
  EXPECT_EQ(vector_exp(infinity), infinity);
  EXPECT_TRUE(std::isnan(vector_exp(std::numeric_limits<float>::quiet_NaN())));
}

}  // namespace
}  // namespace ranktune::kernels
