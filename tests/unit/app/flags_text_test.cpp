#include "app/flags_text.hpp"

#include <gtest/gtest.h>

#include <array>

namespace ranktune::app {
namespace {

TEST(ParseInteger, TakesWholeDecimalNumbersOnly) {
  EXPECT_EQ(parse_integer("400"), 400);
  EXPECT_EQ(parse_integer("-1"), -1);
  for (const char* text : {"", " 4", "4 ", "4x", "4.0", "0x10", "ten", "+4", "99999999999999999999", "1e3"}) {
    EXPECT_FALSE(parse_integer(text)) << text;
  }
}

TEST(ParseNumber, TakesFiniteNumbersOnly) {
  EXPECT_DOUBLE_EQ(parse_number("2e-5").value(), 2e-5);
  EXPECT_DOUBLE_EQ(parse_number(".5").value(), 0.5);
  EXPECT_DOUBLE_EQ(parse_number("3").value(), 3.0);
  for (const char* text : {"", "inf", "-inf", "nan", "1e999", "2e-5x", "1,5", "0x1p3"}) {
    EXPECT_FALSE(parse_number(text)) << text;
  }
}

TEST(ParseDuration, TakesSecondsAndSlurmsForm) {
  EXPECT_EQ(parse_duration("90"), 90);
  EXPECT_EQ(parse_duration("00:01:30"), 90);
  EXPECT_EQ(parse_duration("48:00:00"), 172'800);
  EXPECT_EQ(parse_duration("1-02:03:04"), 86'400 + 7'384);
  for (const char* text : {"0", "-5", "", "1:2", "00:60:00", "00:00:60", "1-", "x-00:00:01", "-1-00:00:01",
                           "00:00:00", "1:2:3:4", "100:00:00", "00:-1:00"}) {
    EXPECT_FALSE(parse_duration(text)) << text;
  }
}

TEST(ParseSwitch, TakesTrueAndFalse) {
  EXPECT_EQ(parse_switch("True"), true);
  EXPECT_EQ(parse_switch("false"), false);
  EXPECT_FALSE(parse_switch("1"));
  EXPECT_FALSE(parse_switch(""));
}

TEST(EditDistance, CountsSwapsOnce) {
  EXPECT_EQ(edit_distance("", ""), 0U);
  EXPECT_EQ(edit_distance("", "abc"), 3U);
  EXPECT_EQ(edit_distance("lerning", "learning"), 1U);
  EXPECT_EQ(edit_distance("dtpye", "dtype"), 1U);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3U);
  EXPECT_EQ(edit_distance("abcd", "dcba"), edit_distance("dcba", "abcd"));
}

TEST(Nearest, FindsSlipsAndParts) {
  constexpr std::array<std::string_view, 4> names = {"learning_rate", "per_device_train_batch_size", "seed",
                                                     "r"};
  EXPECT_EQ(nearest("lerning_rate", names), "learning_rate");
  EXPECT_EQ(nearest("batch_size", names), "per_device_train_batch_size");
  EXPECT_EQ(nearest("sede", names), "seed");
  EXPECT_EQ(nearest("quux", names), "");
}

}  // namespace
}  // namespace ranktune::app
