// Per-step metrics of a run in HDF5. While running: metrics/segment-NNNN.h5, SWMR, one per attempt, flushed
// per row. At every start and every agreed end: metrics.h5, default format, all segments as one table (see
// docs/metrics.md).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace ranktune::store {

struct StepRow {                 // /train/steps
  std::int64_t step;             // 1-based, the optimizer step this row describes
  double epoch;                  // epochs done after it (fraction)
  std::int64_t samples;          // samples in the step, all ranks
  std::int64_t tokens;           // real tokens in the step, all ranks
  std::int64_t target_tokens;    // tokens with a target, all ranks
  double loss;                   // nats per target token
  double learning_rate;          // used in this step
  double grad_norm;              // before clipping
  double step_seconds;           // wall time of the step, rank 0
  double data_seconds;           // of it: assembling and copying the batch
  double compute_seconds;        // of it: forward, backward, optimizer
  double communication_seconds;  // of it: all-reduce, waiting included
};

struct RankRow {  // /train/ranks
  std::int64_t step;
  std::int64_t rank;
  std::int64_t tokens;
  double compute_seconds;
  double waiting_seconds;
  std::int64_t memory_bytes;  // peak held by the program on its device so far
};

struct EvalRow {               // /eval
  std::int64_t step;           // optimizer steps done before the evaluation
  double loss;                 // nats per target token of the evaluation set
  double perplexity;           // exp(loss)
  std::int64_t target_tokens;  // tokens with a target in the evaluation set
  double seconds;              // wall time of the evaluation
};

struct EventRow {  // /events
  double time;     // seconds since 1970, UTC
  std::int64_t step;
  std::string kind;     // start, checkpoint, resume, signal, skipped_samples, warning, end
  std::string message;  // at most 255 bytes kept
};

// Root attributes: name -> value (all text; numbers as text are given typed by the second list).
struct Provenance {
  std::vector<std::pair<std::string, std::string>> text;
  std::vector<std::pair<std::string, std::int64_t>> integers;
};

// Owned by rank 0, used from one thread at a time.
class MetricsWriter {
 public:
  // Makes OUTPUT_DIR/metrics/segment-NNNN.h5 with the next free number; rows up to `resumed_from_step` of
  // older segments stay valid, later ones are superseded. Rewrites metrics.h5 from the closed segments first.
  // Falls back to the default format with a flush per row where SWMR cannot be started and says so:
  // fallback_reason(). `swmr` false takes the default format from the start. Throws Failure.
  MetricsWriter(const std::filesystem::path& output_dir, std::int64_t resumed_from_step,
                const Provenance& provenance, bool swmr = true);
  ~MetricsWriter();
  MetricsWriter(const MetricsWriter&) = delete;
  MetricsWriter& operator=(const MetricsWriter&) = delete;

  void write(const StepRow& row);
  void write(const std::vector<RankRow>& rows);
  void write(const EvalRow& row);
  void write(const EventRow& row);
  void sync();   // flush and fsync, before a checkpoint commits
  void close();  // closes the segment and rewrites metrics.h5; throws Failure
  const std::string& fallback_reason() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Rebuilds OUTPUT_DIR/metrics.h5 from all segments that can be read (tmp + rename); one that cannot gets a
// row in /events, and its rows come from the metrics.h5 that is there where that has them. Does nothing
// without a segment.
void merge_metrics(const std::filesystem::path& output_dir);

// Whether metrics.h5 holds the last attempt, which closed it; also where there is no segment to put into it.
bool metrics_are_merged(const std::filesystem::path& output_dir);

// All step rows of a run as one table, superseded ones left out; from segments, live or closed, else
// metrics.h5. `problems` gets a sentence for each segment that could not be read; without it such a segment
// throws Failure.
std::vector<StepRow> read_steps(const std::filesystem::path& output_dir,
                                std::vector<std::string>* problems = nullptr);

// All that is known of a run, from its output directory or a metrics.h5.
struct RunRecord {
  std::vector<Provenance> attempts;  // root attributes of each attempt, oldest first
  std::vector<StepRow> steps;        // as of read_steps()
  std::vector<RankRow> ranks;
  std::vector<EvalRow> evaluations;
  std::vector<EventRow> events;
  std::vector<std::string> problems;  // a sentence for each segment that could not be read
};

// `run`: an output directory, whose run may be going on or have been killed, or a metrics.h5 or segment
// alone. Throws UserError where there are no metrics.
RunRecord read_run(const std::filesystem::path& run);

}  // namespace ranktune::store
