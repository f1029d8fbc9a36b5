#include "train/schedule.hpp"

#include <gtest/gtest.h>

namespace ranktune::train {
namespace {

// Reference values: Transformers' get_scheduler with 5 warm-up steps of 30, peak 2e-4.
TEST(Schedule, Linear) {
  const ScheduleSettings settings{Schedule::linear, 2e-4, 5, 30};
  EXPECT_DOUBLE_EQ(learning_rate(settings, 0), 0.0);
  EXPECT_DOUBLE_EQ(learning_rate(settings, 1), 4e-5);
  EXPECT_DOUBLE_EQ(learning_rate(settings, 5), 2e-4);
  EXPECT_NEAR(learning_rate(settings, 29), 2e-4 / 25, 1e-12);
  EXPECT_DOUBLE_EQ(learning_rate(settings, 40), 0.0);
}

TEST(Schedule, Cosine) {
  const ScheduleSettings settings{Schedule::cosine, 1.0, 0, 100};
  EXPECT_DOUBLE_EQ(learning_rate(settings, 0), 1.0);
  EXPECT_NEAR(learning_rate(settings, 50), 0.5, 1e-12);
  EXPECT_NEAR(learning_rate(settings, 100), 0.0, 1e-12);
}

TEST(Schedule, Constant) {
  EXPECT_DOUBLE_EQ(learning_rate({Schedule::constant, 0.1, 5, 30}, 0), 0.1);
  const ScheduleSettings warm{Schedule::constant_with_warmup, 0.1, 4, 30};
  EXPECT_DOUBLE_EQ(learning_rate(warm, 2), 0.05);
  EXPECT_DOUBLE_EQ(learning_rate(warm, 29), 0.1);
}

TEST(Schedule, NamesAreChecked) {
  EXPECT_EQ(parse_schedule("cosine"), Schedule::cosine);
  EXPECT_ANY_THROW(parse_schedule("polynomial"));
}

}  // namespace
}  // namespace ranktune::train
