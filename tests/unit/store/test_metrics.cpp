#include <gtest/gtest.h>

#include <fstream>

#include "base/error.hpp"
#include "base/file.hpp"
#include "metrics_rows.hpp"
#include "small_disk.hpp"
#include "store/metrics.hpp"
#include "store/metrics_segment.hpp"
#include "temporary_folder.hpp"

// HDF5 1.10 loses a chunk's buffer when flushing it fails for want of space; asked by the leak sanitizer.
extern "C" const char* __lsan_default_suppressions();  // NOLINT(bugprone-reserved-identifier): its name
extern "C" const char* __lsan_default_suppressions() {
  return "leak:libhdf5";
}  // NOLINT(bugprone-reserved-identifier)

namespace ranktune::store {
namespace {

namespace fs = std::filesystem;
using namespace ranktune::testing;

void expect_steps(const std::vector<StepRow>& rows, std::int64_t last) {
  ASSERT_EQ(rows.size(), static_cast<std::size_t>(last));
  for (std::int64_t step = 1; step <= last; ++step) {
    EXPECT_TRUE(same(rows[static_cast<std::size_t>(step - 1)], step_row(step))) << "step " << step;
  }
}

// Records of a table of metrics.h5.
std::size_t count_rows(const fs::path& file, const TableSchema& schema) {
  std::size_t bytes = 0;
  MetricsReader(file).read(schema, [&](std::span<const std::byte> block) { bytes += block.size(); });
  return bytes / schema.record_bytes();
}

std::vector<std::string> event_messages(const fs::path& file) {
  std::vector<std::string> messages;
  const auto& schema = events_schema();
  MetricsReader(file).read(schema, [&](std::span<const std::byte> block) {
    for (std::size_t at = 0; at < block.size(); at += schema.record_bytes()) {
      const auto text = block.subspan(at + schema.offset("message"), 255);
      const std::string padded(reinterpret_cast<const char*>(text.data()), text.size());
      messages.push_back(padded.substr(0, padded.find('\0')));
    }
  });
  return messages;
}

// Steps [first, last] with a wrong loss where `last` exceeds what will be kept.
void write_attempt(const fs::path& output, std::int64_t resumed_from, std::int64_t last,
                   std::int64_t right_up_to, bool close, bool swmr = true) {
  MetricsWriter writer(output, resumed_from, provenance(), swmr);
  writer.write(EventRow{1.5, resumed_from, "start", "attempt from " + std::to_string(resumed_from)});
  for (std::int64_t step = resumed_from + 1; step <= last; ++step) {
    writer.write(step_row(step, step > right_up_to ? 100 : 0));
    writer.write(rank_rows(step));
  }
  writer.write(EvalRow{last, 2.0, 7.389, 1000, 0.5});
  if (close) writer.close();
}

TEST(Metrics, RoundTrip) {
  const TemporaryFolder folder;
  {
    MetricsWriter writer(folder.path(), 0, provenance());
    EXPECT_EQ(writer.fallback_reason(), "");
    for (std::int64_t step = 1; step <= 700; ++step) {  // more than two chunks
      writer.write(step_row(step));
      writer.write(rank_rows(step));
      if (step == 350) {
        writer.sync();
        expect_steps(read_steps(folder.path()), 350);  // by the writing process itself
      }
    }
    writer.write(EventRow{12.5, 700, "end", std::string(254, 'x') + "\xC3\xA9"});
    writer.write(std::vector<RankRow>{});
    writer.close();
    EXPECT_THROW(writer.write(step_row(701)), Failure);
    writer.close();
  }
  expect_steps(read_steps(folder.path()), 700);
  EXPECT_EQ(count_rows(folder / "metrics.h5", steps_schema()), 700U);
  EXPECT_EQ(count_rows(folder / "metrics.h5", ranks_schema()), 1400U);
  EXPECT_EQ(event_messages(folder / "metrics.h5"), std::vector<std::string>{std::string(254, 'x')});
  const MetricsReader reader(folder / "metrics.h5");
  EXPECT_EQ(reader.integer("seed"), 3407);
  EXPECT_EQ(reader.integer("finished"), 1);
  EXPECT_EQ(text_attribute(reader.file(), "command_line", "test"), "ranktune train --model_name=m");
}

TEST(Metrics, AResumeSupersedesLaterRowsAndKeepsAllEvents) {
  const TemporaryFolder folder;
  write_attempt(folder.path(), 0, 25, 20, false);   // dies after 25, its checkpoint is at 20
  write_attempt(folder.path(), 20, 28, 10, false);  // dies; its rows are useless: resumed from 10 later
  write_attempt(folder.path(), 10, 30, 30, true);
  expect_steps(read_steps(folder.path()), 30);
  EXPECT_EQ(count_rows(folder / "metrics.h5", ranks_schema()), 60U);
  EXPECT_EQ(count_rows(folder / "metrics.h5", eval_schema()), 1U);
  EXPECT_EQ(event_messages(folder / "metrics.h5"),
            (std::vector<std::string>{"attempt from 0", "attempt from 20", "attempt from 10"}));
  const MetricsReader reader(folder / "metrics.h5");
  EXPECT_EQ(reader.integer("attempt"), 3);
  for (const std::string attempt : {"0001", "0002", "0003"}) {
    const Hdf5Handle group(H5Gopen2(reader.file(), ("attempts/" + attempt).c_str(), H5P_DEFAULT), H5Gclose);
    ASSERT_TRUE(group.is_open()) << attempt;
    EXPECT_EQ(integer_attribute(group.id(), "finished", "test"), attempt == "0003" ? 1 : 0);
    EXPECT_EQ(integer_attribute(group.id(), "world_size", "test"), 2);
  }
}

TEST(Metrics, EachStartMergesWhatIsThere) {
  const TemporaryFolder folder;
  write_attempt(folder.path(), 0, 12, 12, false);
  EXPECT_FALSE(fs::exists(folder / "metrics.h5"));
  const MetricsWriter writer(folder.path(), 12, provenance());
  EXPECT_EQ(count_rows(folder / "metrics.h5", steps_schema()), 12U);
  EXPECT_TRUE(fs::exists(folder / "metrics/segment-0002.h5"));
}

TEST(Metrics, WithoutSegmentsTheMergedFileIsRead) {
  const TemporaryFolder folder;
  EXPECT_TRUE(read_steps(folder.path()).empty());
  write_attempt(folder.path(), 0, 12, 12, true);
  fs::remove_all(folder / "metrics");
  expect_steps(read_steps(folder.path()), 12);
  write_attempt(folder.path(), 12, 20, 20, true);
  EXPECT_TRUE(fs::exists(folder / "metrics/segment-0002.h5"));
  expect_steps(read_steps(folder.path()), 20);
  EXPECT_EQ(event_messages(folder / "metrics.h5"),
            (std::vector<std::string>{"attempt from 0", "attempt from 12"}));
}

TEST(Metrics, ARunIsReadWholeFromItsFolderOrItsFile) {
  const TemporaryFolder folder;
  write_attempt(folder.path(), 0, 25, 20, false);  // dies after 25, its checkpoint is at 20
  {
    const RunRecord killed = read_run(folder.path());
    EXPECT_EQ(killed.steps.size(), 25U);
    EXPECT_EQ(killed.events.size(), 1U);
    ASSERT_EQ(killed.attempts.size(), 1U);
    EXPECT_TRUE(killed.problems.empty());
  }
  const MetricsWriter live(folder.path(), 20, provenance());
  // A copy of metrics.h5 from the start of the second attempt knows of the first one.
  fs::copy_file(folder / "metrics.h5", folder / "copy.h5");
  const RunRecord copy = read_run(folder / "copy.h5");
  EXPECT_EQ(copy.steps.size(), 25U);
  EXPECT_EQ(copy.attempts.size(), 1U);
  EXPECT_EQ(copy.events.size(), 1U);
  EXPECT_EQ(read_run(folder.path()).steps.size(), 20U);  // the others are being repeated

  write_attempt(folder.path(), 20, 30, 30, true);
  for (const fs::path& run : {folder.path(), folder / "metrics.h5"}) {
    const RunRecord record = read_run(run);
    expect_steps(record.steps, 30);
    EXPECT_EQ(record.ranks.size(), 60U);
    ASSERT_EQ(record.evaluations.size(), 1U);
    EXPECT_EQ(record.evaluations[0].step, 30);
    ASSERT_EQ(record.events.size(), 2U);
    EXPECT_EQ(record.events[1].kind, "start");
    EXPECT_EQ(record.events[1].message, "attempt from 20");
    EXPECT_EQ(record.events[1].step, 20);
    EXPECT_EQ(record.attempts.size(), 3U);
  }
  EXPECT_THROW(read_run(folder / "nothing"), UserError);
  std::ofstream(folder / "text.h5") << "no HDF5";
  EXPECT_THROW(read_run(folder / "text.h5"), UserError);
}

TEST(Metrics, ADamagedSegmentIsReplacedByTheMergedFile) {
  const TemporaryFolder folder;
  write_attempt(folder.path(), 0, 12, 12, true);
  write_attempt(folder.path(), 12, 20, 20, false);
  write_attempt(folder.path(), 20, 25, 25, true);
  std::ofstream(folder / "metrics/segment-0002.h5") << "damaged";
  expect_steps(read_steps(folder.path()), 25);
  write_attempt(folder.path(), 25, 30, 30, true);
  expect_steps(read_steps(folder.path()), 30);
  EXPECT_EQ(
      event_messages(folder / "metrics.h5"),
      (std::vector<std::string>{"attempt from 0", "attempt from 12", "attempt from 20", "attempt from 25"}));
}

TEST(Metrics, AnUnfinishedLastSegmentIsNotCountedTwice) {
  const TemporaryFolder folder;
  write_attempt(folder.path(), 0, 12, 12, true);
  write_attempt(folder.path(), 12, 20, 20, false);
  merge_metrics(folder.path());
  fs::remove(folder / "metrics/segment-0001.h5");
  merge_metrics(folder.path());
  expect_steps(read_steps(folder.path()), 20);
  EXPECT_EQ(event_messages(folder / "metrics.h5"),
            (std::vector<std::string>{"attempt from 0", "attempt from 12"}));
}

TEST(Metrics, LostRowsAreSaid) {
  const TemporaryFolder folder;
  write_attempt(folder.path(), 0, 12, 12, false);
  fs::remove(folder / "metrics.h5");
  std::ofstream(folder / "metrics/segment-0001.h5") << "damaged";
  write_attempt(folder.path(), 12, 20, 20, true);
  EXPECT_THROW(read_steps(folder.path()), Failure);
  std::vector<std::string> problems;
  EXPECT_EQ(read_steps(folder.path(), &problems).size(), 8U);
  ASSERT_EQ(problems.size(), 1U);
  EXPECT_NE(problems[0].find("segment-0001.h5"), std::string::npos);
  EXPECT_EQ(read_run(folder.path()).problems, problems);
  const auto messages = event_messages(folder / "metrics.h5");
  ASSERT_EQ(messages.size(), 2U);
  EXPECT_NE(messages[1].find("segment-0001.h5"), std::string::npos) << messages[1];
}

TEST(Metrics, TheFallbackWritesTheSameTablesAndSaysSo) {
  const TemporaryFolder folder;
  EXPECT_NE(MetricsWriter(folder.path(), 0, provenance(), false).fallback_reason(), "");
  write_attempt(folder.path(), 0, 12, 12, false, false);
  write_attempt(folder.path(), 12, 20, 20, true, false);
  expect_steps(read_steps(folder.path()), 20);
}

TEST(Metrics, LongTextsSurviveTheMerge) {
  const TemporaryFolder folder;
  const std::string config(200'000, 'c');
  Provenance long_one = provenance();
  long_one.text.emplace_back("configuration", config);
  for (const std::int64_t resumed_from : {0, 1}) {
    MetricsWriter writer(folder.path(), resumed_from, long_one);
    writer.write(step_row(resumed_from + 1));
    writer.close();
  }
  const MetricsReader reader(folder / "metrics.h5");
  EXPECT_EQ(read_text_dataset(reader.file(), "provenance/configuration", 1U << 20U, "test"), config);
  EXPECT_EQ(read_text_dataset(reader.file(), "attempts/0001/provenance/configuration", 1U << 20U, "test"),
            config);
  EXPECT_EQ(text_attribute(reader.file(), "configuration", "test"), "see provenance/configuration");
}

TEST(Metrics, TemporariesOfAKilledStartAreRemoved) {
  const TemporaryFolder folder;
  fs::create_directory(folder / "metrics");
  std::ofstream(folder / "metrics/segment-0001.h5.tmp-77") << "half";
  const MetricsWriter writer(folder.path(), 0, provenance());
  EXPECT_FALSE(fs::exists(folder / "metrics/segment-0001.h5.tmp-77"));
}

TEST(Metrics, AFullDiskIsAFailureAndKeepsWhatWasWritten) {
  const SmallDisk disk;
  if (!disk.mounted()) GTEST_SKIP() << "mounting a tmpfs is not permitted here";
  std::int64_t written = 0;
  {
    MetricsWriter writer(disk.path(), 0, provenance());
    for (; written < 300; ++written) writer.write(step_row(written + 1));
    std::ofstream(disk.path() / "filler", std::ios::binary) << std::string(4U << 20U, 'x') << std::flush;
    try {
      for (; written < 100'000; ++written) writer.write(step_row(written + 1));
      ADD_FAILURE() << "the disk never became full";
    } catch (const Failure& failure) {
      EXPECT_NE(std::string(failure.what()).find("No space left"), std::string::npos) << failure.what();
    }
  }
  const auto rows = read_steps(disk.path());
  ASSERT_GE(static_cast<std::int64_t>(rows.size()), written);
  for (std::int64_t i = 0; i < written; ++i) {
    ASSERT_TRUE(same(rows[static_cast<std::size_t>(i)], step_row(i + 1))) << "row " << i << " of " << written;
  }
  fs::remove(disk.path() / "filler");
  MetricsWriter next(disk.path(), written, provenance());
  next.write(step_row(written + 1));
  next.close();
  expect_steps(read_steps(disk.path()), written + 1);
}

TEST(Metrics, AnOutputThatCannotBeWrittenIsAFailure) {
  const TemporaryFolder folder;
  std::ofstream(folder / "file") << "";
  EXPECT_THROW(MetricsWriter(folder / "file", 0, provenance()), Failure);
}

}  // namespace
}  // namespace ranktune::store
