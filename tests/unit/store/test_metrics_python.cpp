// h5py is the analyst's reader: it must see what docs/metrics.md promises.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "base/file.hpp"
#include "metrics_rows.hpp"
#include "store/metrics.hpp"
#include "temporary_folder.hpp"

namespace ranktune::store {
namespace {

namespace fs = std::filesystem;
using namespace ranktune::testing;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

class MetricsPython : public ::testing::Test {
 protected:
  void SetUp() override {
    if (environment("RANKTUNE_PYTHON").empty()) GTEST_SKIP() << "RANKTUNE_PYTHON is not set";
    if (run("import h5py, numpy") != 0) GTEST_SKIP() << "RANKTUNE_PYTHON has no h5py";
  }

  // Runs a script in the folder of the test, as its own process.
  int run(const std::string& script) {
    std::ofstream(folder_ / "script.py") << script;
    const std::string command = "cd '" + folder_.path().string() + "' && LD_PRELOAD= '" +
                                environment("RANKTUNE_PYTHON") + "' script.py > output.txt 2>&1";
    const int status = std::system(command.c_str());
    output_ = read_file(folder_ / "output.txt");
    return status;
  }

  // Two attempts, the first without an end.
  void write_run() const {
    for (const std::int64_t resumed_from : {0, 20}) {
      MetricsWriter writer(folder_ / "outputs", resumed_from, provenance());
      writer.write(EventRow{1.7e9, resumed_from, "start", "two ranks on n1 and n2"});
      for (std::int64_t step = resumed_from + 1; step <= resumed_from + 25; ++step) {
        writer.write(step_row(step));
        writer.write(rank_rows(step));
      }
      writer.write(EvalRow{resumed_from + 25, 2.0, 7.389, 1000, 0.5});
      if (resumed_from > 0) writer.close();
    }
  }

  TemporaryFolder folder_;
  std::string output_;
};

TEST_F(MetricsPython, ReadsTheMergedFile) {
  write_run();
  EXPECT_EQ(run(R"(
import h5py, numpy as np
with h5py.File('outputs/metrics.h5', 'r') as f:
    rows = f['/train/steps'][:]
    assert rows.dtype.names == ('step', 'epoch', 'samples', 'tokens', 'target_tokens', 'loss', 'learning_rate',
        'grad_norm', 'step_seconds', 'data_seconds', 'compute_seconds', 'communication_seconds'), rows.dtype
    assert (rows['step'] == np.arange(1, 46)).all(), rows['step']
    assert (rows['loss'] == 2.0 + 1 / rows['step']).all()
    assert (rows['target_tokens'] == 90 * rows['step']).all()
    ranks = f['/train/ranks'][:]
    assert len(ranks) == 90 and (ranks['rank'] == np.tile([0, 1], 45)).all()
    events = f['/events'][:]
    assert [bytes(k) for k in events['kind']] == [b'start', b'start'], events
    assert events['message'][0] == b'two ranks on n1 and n2'
    assert len(f['/eval']) == 1 and f['/eval']['loss'][0] == 2.0
    attributes = dict(f.attrs)
    assert attributes['software'] == 'ranktune' and attributes['world_size'] == 2 and attributes['finished'] == 1
    assert attributes['resumed_from_step'] == 20 and attributes['attempt'] == 2
    assert f['/attempts/0001'].attrs['finished'] == 0
    for table in ('/train/steps', '/train/ranks', '/eval', '/events'):
        for name in f[table].dtype.names:
            assert f[table].attrs[name + '.unit'] and f[table].attrs[name + '.meaning'], (table, name)
)"),
            0)
      << output_;
}

TEST_F(MetricsPython, FollowsALiveSegment) {
  MetricsWriter writer(folder_ / "outputs", 0, provenance());
  ASSERT_EQ(writer.fallback_reason(), "");
  for (std::int64_t step = 1; step <= 300; ++step) {
    writer.write(step_row(step));
    if (step != 10 && step != 300) continue;
    EXPECT_EQ(run("import h5py\n"
                  "with h5py.File('outputs/metrics/segment-0001.h5', 'r', swmr=True) as f:\n"
                  "    steps = f['/train/steps']\n"
                  "    steps.refresh()\n"
                  "    rows = steps[:]\n"
                  "    assert len(rows) == " +
                  std::to_string(step) +
                  ", len(rows)\n"
                  "    assert (rows['loss'] == 2.0 + 1 / rows['step']).all()\n"
                  "    assert f.attrs['finished'] == 0\n"),
              0)
        << output_;
  }
}

// Every ```python block of the documentation for h5py alone, run in a folder that holds a run in `outputs`.
TEST_F(MetricsPython, TheDocumentedExamplesRun) {
  const std::string source = environment("RANKTUNE_SOURCE_DIR");
  if (source.empty()) GTEST_SKIP() << "RANKTUNE_SOURCE_DIR is not set";
  write_run();
  const std::string page = read_file(fs::path(source) / "docs/metrics.md");
  const std::string open = "```python\n";
  int examples = 0;
  for (auto at = page.find(open); at != std::string::npos; at = page.find(open, at)) {
    at += open.size();
    const std::string example = page.substr(at, page.find("```", at) - at);
    if (example.find("import ranktune_report") != std::string::npos) continue;  // run.metrics has runs for it
    EXPECT_EQ(run(example), 0) << example << output_;
    ++examples;
  }
  EXPECT_GE(examples, 2);
}

// The documentation names every field of every table with its unit.
TEST_F(MetricsPython, TheDocumentationNamesEveryField) {
  const std::string source = environment("RANKTUNE_SOURCE_DIR");
  if (source.empty()) GTEST_SKIP() << "RANKTUNE_SOURCE_DIR is not set";
  write_run();
  EXPECT_EQ(run("import h5py\n"
                "page = open('" +
                source +
                "/docs/metrics.md').read()\n"
                R"(
with h5py.File('outputs/metrics.h5', 'r') as f:
    for table in ('/train/steps', '/train/ranks', '/eval', '/events'):
        section = page.split('## `' + table + '`')[1].split('## ')[0]
        for name in f[table].dtype.names:
            lines = [line for line in section.splitlines() if line.startswith('| `' + name + '` |')]
            assert len(lines) == 1, (table, name)
            assert '| ' + f[table].attrs[name + '.unit'] + ' |' in lines[0], (lines[0], f[table].attrs[name + '.unit'])
)"),
            0)
      << output_;
}

}  // namespace
}  // namespace ranktune::store
