#include "app/console.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "base/version.hpp"

namespace ranktune::app {
namespace {

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

StepView a_step() {
  return {.step = 148,
          .total_steps = 400,
          .epoch = 0.24,
          .loss = 1.23456,
          .learning_rate = 1.98e-4,
          .grad_norm = 0.512,
          .it_per_s = 23.1,
          .tokens_per_s = 16'200,
          .eta_seconds = 3725,
          .gpu_memory_bytes = std::int64_t{19} << 30};
}

TEST(Format, Bytes) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(999), "999 B");
  EXPECT_EQ(human_bytes(1023), "1.00 KiB");
  EXPECT_EQ(human_bytes(12.3 * (1 << 30)), "12.3 GiB");
  EXPECT_EQ(human_bytes(139.0 * (1 << 30)), "139 GiB");
  EXPECT_EQ(human_bytes(1000.0 * (1 << 30)), "0.98 TiB");
}

TEST(Format, Counts) {
  EXPECT_EQ(human_count(0), "0");
  EXPECT_EQ(human_count(950), "950");
  EXPECT_EQ(human_count(4'100), "4.1k");
  EXPECT_EQ(human_count(999.7), "1.0k");
  EXPECT_EQ(human_count(162'000), "162k");
  EXPECT_EQ(human_count(43'646'976), "43.6M");
  EXPECT_EQ(human_count(8.19e9), "8.2G");
  EXPECT_EQ(human_count(5e13), "50000G");
  EXPECT_EQ(grouped(7), "7");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(51'760), "51,760");
  EXPECT_EQ(grouped(1'000'000), "1,000,000");
}

TEST(Format, Durations) {
  EXPECT_EQ(human_duration(0.84), "0.8s");
  EXPECT_EQ(human_duration(9.96), "10s");
  EXPECT_EQ(human_duration(42), "42s");
  EXPECT_EQ(human_duration(59.7), "1m00s");
  EXPECT_EQ(human_duration(185), "3m05s");
  EXPECT_EQ(human_duration(3720), "1h02m");
  EXPECT_EQ(human_duration(2 * 86'400 + 3 * 3600), "2d03h");
  EXPECT_EQ(human_duration(-1), "0.0s");
  EXPECT_EQ(human_duration(1e300), human_duration(1e9));
}

TEST(Format, Rates) {
  EXPECT_EQ(human_rate(23.12, "it"), "23.1 it/s");
  EXPECT_EQ(human_rate(0.763, "it"), "0.76 it/s");
  EXPECT_EQ(human_rate(0.08, "it"), "12.5 s/it");
  EXPECT_EQ(human_rate(0, "it"), "0 it/s");
}

TEST(RateMeter, IsExactForASteadyPace) {
  RateMeter meter(30);
  EXPECT_EQ(meter.steps_per_second(), 0);
  EXPECT_FALSE(meter.seconds_for(10));
  for (int i = 0; i < 50; ++i) meter.add(1, 700, 0.25);
  EXPECT_NEAR(meter.steps_per_second(), 4, 1e-12);
  EXPECT_NEAR(meter.tokens_per_second(), 2800, 1e-9);
  EXPECT_NEAR(meter.seconds_for(100).value(), 25, 1e-9);
}

TEST(RateMeter, ForgetsThePastByItsWindow) {
  RateMeter meter(10);
  meter.add(1, 100, 60);  // a slow first step
  EXPECT_NEAR(meter.steps_per_second(), 1.0 / 60, 1e-12);
  for (int i = 0; i < 100; ++i) meter.add(1, 100, 1);  // ten windows
  EXPECT_NEAR(meter.steps_per_second(), 1.0, 0.01);
  // One step later the weight of what was before is exp(-1/10).
  RateMeter two(10);
  two.add(1, 0, 2);
  two.add(1, 0, 1);
  const double kept = std::exp(-0.1);
  EXPECT_NEAR(two.steps_per_second(), (kept + 1) / (2 * kept + 1), 1e-12);
}

TEST(RateMeter, IgnoresStepsOfNoTime) {
  RateMeter meter;
  meter.add(1, 1, 0);
  EXPECT_EQ(meter.steps_per_second(), 0);
}

TEST(Bar, HasItsWidthAtEveryFraction) {
  for (const bool unicode : {true, false}) {
    for (int i = -5; i <= 105; ++i) EXPECT_EQ(columns(bar(i / 100.0, 13, unicode)), 13U) << i;
  }
  EXPECT_EQ(bar(0.5, 4, true), "██  ");
  EXPECT_EQ(bar(0.5, 4, false), "==> ");
  EXPECT_EQ(bar(0, 4, false), "    ");
  EXPECT_EQ(bar(1, 4, false), "====");
}

TEST(StepLine, HoldsEverythingWhereThereIsRoom) {
  const std::string line = step_line(a_step(), {.width = 160, .unicode = true});
  for (const char* part : {" 37% ", "148/400", "epoch 0.24", "loss 1.2346", "lr 1.98e-04", "norm 0.512",
                           "23.1 it/s", "16.2k tok/s", "ETA 1h02m", "19.0 GiB", "█"}) {
    EXPECT_TRUE(has(line, part)) << part << " in " << line;
  }
}

TEST(StepLine, FitsEveryWidthAndKeepsWhatMattersMost) {
  std::size_t fields_before = 0;
  for (std::size_t width = 20; width <= 200; ++width) {
    for (const bool unicode : {true, false}) {
      const std::string line = step_line(a_step(), {.width = width, .unicode = unicode});
      EXPECT_LE(columns(line), width) << line;
      EXPECT_TRUE(has(line, "148/400")) << line;
    }
    const std::string line = step_line(a_step(), {.width = width, .unicode = true});
    std::size_t fields = 1;
    for (std::size_t at = line.find("·"); at != std::string::npos; at = line.find("·", at + 1)) ++fields;
    EXPECT_GE(fields, fields_before) << "more room never shows less";
    fields_before = fields;
    EXPECT_TRUE(width < 40 || has(line, "loss 1.2346")) << line;
    EXPECT_TRUE(width < 79 || (has(line, "it/s") && has(line, "tok/s") && has(line, "ETA"))) << line;
  }
}

TEST(StepLine, IsFullOnlyWhenDone) {
  StepView view = a_step();
  view.total_steps = 1000;
  view.step = 999;
  EXPECT_TRUE(has(step_line(view, {.width = 100}), " 99% "));
  view.step = 1000;
  const std::string line = step_line(view, {.width = 100});
  EXPECT_TRUE(has(line, "100% ")) << line;
  EXPECT_FALSE(has(line, "ETA")) << line;
}

TEST(StepLogLine, IsPlainAndAligned) {
  StepView view = a_step();
  EXPECT_EQ(step_log_line(view),
            "step 148/400  epoch 0.240  loss 1.2346  lr 1.980e-04  grad_norm 0.5120  23.1 it/s  16.2k tok/s  "
            "ETA 1h02m"
            "  19.0 GiB");
  view.step = 7;
  view.gpu_memory_bytes.reset();
  EXPECT_EQ(step_log_line(view).find("step   7/400  "), 0U);
  EXPECT_FALSE(has(step_log_line(view), "GiB"));
}

// A console on strings, with a clock that the test moves.
class ConsoleTest : public testing::Test {
 protected:
  ConsoleSettings settings(bool terminal, std::size_t width = 80) {
    ConsoleSettings made;
    made.out = &out_;
    made.err = &err_;
    made.terminal = terminal;
    made.width = [width] { return width; };
    made.now = [this] { return now_; };
    return made;
  }

  // What a terminal of one line memory shows: of each line, what is left after the last clearing.
  static std::string shown(const std::string& written) {
    std::string result;
    std::istringstream lines(written);
    for (std::string line; std::getline(lines, line);) {
      const std::size_t clear = line.rfind("\r\x1b[K");
      result += (clear == std::string::npos ? line : line.substr(clear + 4)) + "\n";
    }
    return result;
  }

  std::ostringstream out_, err_;
  double now_ = 100;
};

TEST_F(ConsoleTest, BannerIsATableAndWrapsOnATerminal) {
  {
    Console console(settings(true, 40));
    console.banner({{"model", "a model"}, {"targets", "q_proj k_proj v_proj o_proj gate_proj up_proj"}});
  }
  EXPECT_EQ(out_.str(), std::string("ranktune ") + kVersion +
                            "\n  model    a model\n"
                            "  targets  q_proj k_proj v_proj o_proj\n"
                            "           gate_proj up_proj\n\n");
}

TEST_F(ConsoleTest, ALogIsNeverRedrawn) {
  {
    Console console(settings(false));
    console.phase("Loading weights", 0, std::uint64_t{4} << 30, "bytes");
    now_ += 1;
    console.phase("Loading weights", std::uint64_t{1} << 30, std::uint64_t{4} << 30, "bytes");
    now_ += 30;
    console.phase("Loading weights", std::uint64_t{2} << 30, std::uint64_t{4} << 30, "bytes");
    now_ += 9;
    console.phase("Loading weights", std::uint64_t{4} << 30, std::uint64_t{4} << 30, "bytes");
    console.phase("Loading weights", std::uint64_t{4} << 30, std::uint64_t{4} << 30,
                  "bytes");  // once more, unheard
    console.step(a_step());
    console.note("checkpoint written");
  }
  EXPECT_EQ(out_.str(),
            "Loading weights: 4.00 GiB ...\n"
            "Loading weights: 2.00 GiB of 4.00 GiB after 31s\n"
            "Loading weights: 4.00 GiB in 40s (102 MiB/s)\n" +
                step_log_line(a_step()) + "\ncheckpoint written\n");
  EXPECT_FALSE(has(out_.str(), "\r"));
  EXPECT_FALSE(has(out_.str(), "\x1b"));
}

TEST_F(ConsoleTest, ANewPhaseEndsTheOneBefore) {
  {
    Console console(settings(false));
    console.phase("Reading", 10, 20, "rows");
    now_ += 2;
    console.phase("Tokenising", 0, 0, "rows");
    now_ += 2;
    console.phase("Tokenising", 1500, 0, "rows");
    console.end_phase();
  }
  EXPECT_EQ(out_.str(),
            "Reading: 20 rows ...\n"
            "Reading: 10 rows of 20 rows in 2.0s (5 rows/s)\n"
            "Tokenising ...\n"
            "Tokenising: 1,500 rows in 2.0s (750 rows/s)\n");
}

TEST_F(ConsoleTest, ATerminalShowsOneLineThatIsRedrawn) {
  Console console(settings(true));
  StepView view = a_step();
  for (view.step = 1; view.step <= 400; ++view.step) {
    now_ += 0.01;
    console.step(view);
  }
  console.finish();
  const std::string written = out_.str();
  EXPECT_EQ(std::count(written.begin(), written.end(), '\n'), 1);
  // Four seconds at ten a second, the first and the last.
  EXPECT_LE(std::count(written.begin(), written.end(), '\r'), 43);
  EXPECT_GE(std::count(written.begin(), written.end(), '\r'), 35);
  EXPECT_TRUE(has(shown(written), "400/400"));
}

TEST_F(ConsoleTest, NotesStandAboveTheProgressLine) {
  Console console(settings(true));
  console.step(a_step());
  console.note("checkpoint written");
  console.warning("a row was skipped");
  console.finish();
  EXPECT_EQ(shown(out_.str()).find("checkpoint written\n"), 0U) << shown(out_.str());
  EXPECT_TRUE(has(shown(out_.str()), "148/400"));
  EXPECT_EQ(err_.str(), "ranktune: warning: a row was skipped\n");
}

TEST_F(ConsoleTest, TheLastLineIsTheNewest) {
  Console console(settings(true));
  StepView view = a_step();
  console.step(view);
  view.step = 149;  // too soon to be drawn at once
  console.step(view);
  console.finish();
  EXPECT_TRUE(has(shown(out_.str()), "149/400"));
}

TEST_F(ConsoleTest, PhasesFitTheTerminal) {
  for (const std::size_t width : {20U, 30U, 40U, 60U, 80U, 200U}) {
    out_.str("");
    Console console(settings(true, width));
    console.phase("Loading weights", 0, 16'381'470'720, "bytes");
    now_ += 10;
    console.phase("Loading weights", 8'000'000'000, 16'381'470'720, "bytes");
    const std::string line = shown(out_.str());
    EXPECT_LE(columns(line) - 1, width - 1) << line;
    EXPECT_EQ(line.find("Loading"), 0U);
  }
}

TEST_F(ConsoleTest, ErrorsAreASentenceALine) {
  Console console(settings(false));
  console.error({"one thing", "another"});
  EXPECT_EQ(err_.str(), "ranktune: error: one thing\nranktune: error: another\n");
  EXPECT_EQ(out_.str(), "");
}

TEST_F(ConsoleTest, ColorIsOnlyWhereAskedFor) {
  ConsoleSettings made = settings(true);
  {
    Console plain(made);
    plain.step(a_step());
    plain.warning("w");
  }
  EXPECT_FALSE(has(out_.str(), "\x1b[0m"));
  EXPECT_FALSE(has(err_.str(), "\x1b["));
  out_.str("");
  made.color = made.error_color = true;
  {
    Console colored(made);
    colored.step(a_step());
    colored.warning("w");
  }
  EXPECT_TRUE(has(out_.str(), "\x1b[36m"));
  EXPECT_TRUE(has(err_.str(), "\x1b[1;33mranktune: warning:\x1b[0m w\n"));
}

TEST_F(ConsoleTest, AMutedConsoleSaysNothing) {
  ConsoleSettings made = settings(true);
  made.muted = true;
  {
    Console console(made);
    console.banner({{"a", "b"}});
    console.phase("p", 0, 1, "rows");
    console.step(a_step());
    console.note("n");
    console.warning("w");
    console.error({"e"});
    console.finish();
  }
  EXPECT_EQ(out_.str() + err_.str(), "");
}

TEST(ConsoleSettings, APipeIsNoTerminal) {
  // Under ctest stdout is a pipe; by hand on a terminal there is nothing to see.
  const ConsoleSettings settings = ConsoleSettings::of_process();
  if (settings.width() > 0) GTEST_SKIP() << "stdout is a terminal";
  EXPECT_FALSE(settings.terminal);
  EXPECT_FALSE(settings.color);
  EXPECT_FALSE(settings.unicode);
}

}  // namespace
}  // namespace ranktune::app
