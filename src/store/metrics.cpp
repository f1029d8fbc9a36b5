#include "store/metrics.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <regex>
#include <span>
#include <utility>

#include "base/error.hpp"
#include "store/atomic_directory.hpp"
#include "store/metrics_schema.hpp"
#include "store/metrics_segment.hpp"
#include "store/posix_io.hpp"

namespace ranktune::store {
namespace fs = std::filesystem;
namespace {

// One file that rows come from: a segment, or the metrics.h5 that stands for all segments up to `number`.
struct Source {
  fs::path path;
  std::int64_t number = 0;
  std::int64_t resumed_from_step = 0;
  bool finished = false;
  bool is_merged = false;
  // Events behind these belong to a segment that is read again, or are about reading it.
  std::int64_t final_events = std::numeric_limits<std::int64_t>::max();
  std::int64_t last_step = std::numeric_limits<std::int64_t>::max();  // rows after it were superseded
};

// A segment, or a table of one, whose rows are missing.
struct Problem {
  std::int64_t number = 0;
  std::string sentence;
};

struct Sources {
  std::vector<Source> files;  // oldest first
  std::vector<Problem> problems;

  // The last segment up to which all rows are known and no process will add any.
  std::int64_t last_final() const {
    std::int64_t last = 0;
    for (std::size_t i = 0; i < files.size(); ++i) {
      if (i + 1 < files.size() || files[i].finished) last = files[i].number;
    }
    for (const auto& problem : problems) last = std::min(last, problem.number - 1);
    return last;
  }
};

fs::path merged_path(const fs::path& output_dir) {
  return output_dir / "metrics.h5";
}
fs::path segment_folder(const fs::path& output_dir) {
  return output_dir / "metrics";
}

// segment-NNNN.h5 by number.
std::vector<std::pair<std::int64_t, fs::path>> list_segments(const fs::path& output_dir) {
  static const std::regex kName("segment-([0-9]{4,9})\\.h5");
  std::vector<std::pair<std::int64_t, fs::path>> segments;
  if (!fs::is_directory(segment_folder(output_dir))) return segments;
  for (const auto& entry : fs::directory_iterator(segment_folder(output_dir))) {
    const std::string name = entry.path().filename().string();
    std::smatch match;
    if (entry.is_regular_file() && std::regex_match(name, match, kName)) {
      segments.emplace_back(std::stoll(match[1]), entry.path());
    }
  }
  std::sort(segments.begin(), segments.end());
  return segments;
}

// The number of the last segment that metrics.h5 holds for good; 0 without a readable one.
std::int64_t last_merged_segment(const fs::path& output_dir) {
  if (!fs::is_regular_file(merged_path(output_dir))) return 0;
  try {
    return MetricsReader(merged_path(output_dir)).integer("last_segment");
  } catch (const Failure&) {
    return 0;
  }
}

void mark_superseded(std::vector<Source>& files) {
  std::int64_t last = std::numeric_limits<std::int64_t>::max();
  for (auto source = files.rbegin(); source != files.rend(); ++source) {
    source->last_step = last;
    last = std::min(last, source->resumed_from_step);
  }
}

// Throws Failure where a table cannot be read to its end.
void read_all(const MetricsReader& reader) {
  for (const auto* schema : all_schemas()) reader.read(*schema, [](std::span<const std::byte>) {});
}

// The segments, or, where one of those that metrics.h5 holds is missing or damaged, metrics.h5 and the
// segments after it.
Sources gather(const fs::path& output_dir) {
  Sources sources;
  const std::int64_t merged = last_merged_segment(output_dir);
  std::int64_t in_a_row = 0;
  for (const auto& [number, path] : list_segments(output_dir)) {
    try {
      const MetricsReader reader(path);
      if (number <= merged) read_all(reader);
      sources.files.push_back(
          {path, number, reader.integer("resumed_from_step"), reader.integer("finished") != 0});
      if (number == in_a_row + 1) in_a_row = number;
    } catch (const Failure& failure) {
      if (number > merged) sources.problems.push_back({number, failure.what()});
    }
  }
  if (in_a_row < merged) {
    std::erase_if(sources.files, [&](const Source& source) { return source.number <= merged; });
    const std::int64_t final_events = MetricsReader(merged_path(output_dir)).integer("final_events");
    sources.files.insert(sources.files.begin(),
                         {merged_path(output_dir), merged, 0, true, true, final_events});
  }
  mark_superseded(sources.files);
  return sources;
}

// Hands over the valid records of one table of one file.
void read_valid(const Source& source, const TableSchema& schema,
                const std::function<void(std::span<const std::byte>)>& take) {
  const MetricsReader reader(source.path);
  const std::size_t size = schema.record_bytes();
  const std::size_t place = schema.offset("step");
  std::int64_t left = schema.superseded ? std::numeric_limits<std::int64_t>::max() : source.final_events;
  reader.read(schema, [&](std::span<const std::byte> block) {
    std::vector<std::byte> kept;
    kept.reserve(block.size());
    for (std::size_t at = 0; at < block.size() && left > 0; at += size, --left) {
      std::int64_t step = 0;
      std::memcpy(&step, block.data() + at + place, sizeof(step));
      if (step == kUnwrittenStep || (schema.superseded && step > source.last_step)) continue;
      const auto record = block.subspan(at, size);
      kept.insert(kept.end(), record.begin(), record.end());
    }
    take(kept);
  });
}

// A file that cannot be read becomes a problem; a failure of `take` stays a failure.
void read_or_report(const Source& source, const TableSchema& schema,
                    const std::function<void(std::span<const std::byte>)>& take,
                    std::vector<Problem>& problems) {
  std::exception_ptr take_failure;
  try {
    read_valid(source, schema, [&](std::span<const std::byte> records) {
      try {
        take(records);
      } catch (...) {
        take_failure = std::current_exception();
        throw;
      }
    });
  } catch (const Failure& failure) {
    if (take_failure) std::rethrow_exception(take_failure);
    problems.push_back({source.number, failure.what()});
  }
}

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::span<const std::byte> bytes_of(const auto& row) {
  return std::as_bytes(std::span(&row, 1));
}

bool is_merge_attribute(const std::string& name) {
  return name == "last_segment" || name == "final_events";
}

// Hands over number and attributes of each attempt, oldest first.
void read_attempts(const Sources& sources, const std::string& context,
                   const std::function<void(std::int64_t, const Provenance&)>& take) {
  for (const auto& source : sources.files) {
    const MetricsReader reader(source.path);
    if (!source.is_merged) {
      take(source.number, read_provenance(reader.file(), context));
      continue;
    }
    for (std::int64_t number = 1; number <= source.number; ++number) {
      const std::string name = fmt::format("attempts/{:04}", number);
      if (RT_HDF5(H5Lexists(reader.file(), name.c_str(), H5P_DEFAULT), context) == 0) continue;
      const Hdf5Handle from(RT_HDF5(H5Gopen2(reader.file(), name.c_str(), H5P_DEFAULT), context), H5Gclose);
      take(number, read_provenance(from.id(), context));
    }
  }
}

// A group of metrics.h5 for each attempt, with the attributes of its segment.
void write_attempts(hid_t file, const Sources& sources, const std::string& context) {
  const Hdf5Handle group(
      RT_HDF5(H5Gcreate2(file, "attempts", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), context), H5Gclose);
  read_attempts(sources, context, [&](std::int64_t number, const Provenance& provenance) {
    const std::string name = fmt::format("{:04}", number);
    const Hdf5Handle attempt(
        RT_HDF5(H5Gcreate2(group.id(), name.c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), context),
        H5Gclose);
    write_provenance(attempt.id(), provenance, context);
  });
}

// The root: what the last attempt said of itself, and what a later merge needs to know.
void write_root(hid_t file, const Sources& sources, std::int64_t final_events, const std::string& context) {
  Provenance provenance = read_provenance(MetricsReader(sources.files.back().path).file(), context);
  std::erase_if(provenance.integers, [](const auto& item) { return is_merge_attribute(item.first); });
  write_provenance(file, provenance, context);
  write_attribute(file, "last_segment", sources.last_final(), context);
  write_attribute(file, "final_events", final_events, context);
}

// All tables into an open metrics.h5. A table that turns out to be damaged on reading becomes a problem of
// `sources`.
void write_tables(hid_t file, Sources& sources, const std::string& context) {
  std::map<std::int64_t, std::int64_t> events;  // of each source
  for (const auto* schema : all_schemas()) {
    TableWriter table(file, *schema, context);
    for (const auto& source : sources.files) {
      const auto append = [&](std::span<const std::byte> records) {
        table.append(records);
        if (schema == &events_schema()) {
          events[source.number] += static_cast<std::int64_t>(records.size() / schema->record_bytes());
        }
      };
      read_or_report(source, *schema, append, sources.problems);
    }
    if (schema == &events_schema()) {
      for (const auto& problem : sources.problems)
        table.append(event_record({now(), 0, "warning", problem.sentence}));
    }
    table.close();
  }
  std::int64_t final_events = 0;
  for (const auto& [number, count] : events) final_events += number <= sources.last_final() ? count : 0;
  write_root(file, sources, final_events, context);
}

// The rows of a table of numbers, which lie in memory as in the file.
template <typename Row>
std::vector<Row> read_rows(Sources& sources, const TableSchema& schema) {
  std::vector<Row> rows;
  const auto take = [&](std::span<const std::byte> records) {
    const std::size_t before = rows.size();
    rows.resize(before + records.size() / sizeof(Row));
    if (!records.empty()) std::memcpy(rows.data() + before, records.data(), records.size());
  };
  for (const auto& source : sources.files) read_or_report(source, schema, take, sources.problems);
  return rows;
}

void read_events(Sources& sources, std::vector<EventRow>& events) {
  const std::size_t size = events_schema().record_bytes();
  const auto take = [&](std::span<const std::byte> records) {
    for (std::size_t at = 0; at < records.size(); at += size)
      events.push_back(event_of(records.subspan(at, size)));
  };
  for (const auto& source : sources.files) read_or_report(source, events_schema(), take, sources.problems);
}

// A metrics.h5, or a segment, away from the run that it belongs to. Throws UserError where it is neither.
Source file_alone(const fs::path& path) {
  try {
    const MetricsReader reader(path);
    const bool merged =
        integer_attribute(reader.file(), "last_segment", "cannot read " + path.string()).has_value();
    return {path, reader.integer("attempt"), 0, reader.integer("finished") != 0, merged};
  } catch (const Failure& failure) {
    throw UserError(
        fmt::format("{}: give the --output_dir of a training run, or its metrics.h5", failure.what()));
  }
}

}  // namespace

void merge_metrics(const fs::path& output_dir) {
  Sources sources = gather(output_dir);
  if (sources.files.empty()) return;
  const fs::path path = merged_path(output_dir);
  const std::string context = "cannot write " + path.string();
  fs::path temporary = path;
  temporary += fmt::format(".tmp-{}", ::getpid());
  Hdf5Handle file = create_hdf5_file(temporary, FileFormat::portable);
  write_tables(file.id(), sources, context);
  write_attempts(file.id(), sources, context);
  fsync_hdf5_file(file, context);
  file.close(context);
  rename_path(temporary, path);
  fsync_path(output_dir);
}

bool metrics_are_merged(const fs::path& output_dir) {
  const auto segments = list_segments(output_dir);
  if (segments.empty()) return true;
  if (!fs::is_regular_file(merged_path(output_dir))) return false;
  try {
    const MetricsReader merged(merged_path(output_dir));
    return merged.integer("attempt") >= segments.back().first && merged.integer("finished") != 0;
  } catch (const Failure&) {
    return false;
  }
}

std::vector<StepRow> read_steps(const fs::path& output_dir, std::vector<std::string>* problems) {
  Sources sources = gather(output_dir);
  std::vector<StepRow> rows = read_rows<StepRow>(sources, steps_schema());
  for (const auto& problem : sources.problems) {
    if (problems == nullptr) throw Failure(problem.sentence);
    problems->push_back(problem.sentence);
  }
  return rows;
}

RunRecord read_run(const fs::path& run) {
  Sources sources = fs::is_directory(run) ? gather(run) : Sources{};
  const fs::path file = fs::is_directory(run) ? merged_path(run) : run;
  if (sources.files.empty() && sources.problems.empty() && fs::is_regular_file(file))
    sources.files.push_back(file_alone(file));
  if (sources.files.empty()) {
    const std::string why = sources.problems.empty() ? "" : " (" + sources.problems.front().sentence + ")";
    throw UserError(fmt::format(
        "{} holds no metrics of a run{}: give the --output_dir of a training run, or its metrics.h5",
        run.string(), why));
  }
  RunRecord record;
  record.steps = read_rows<StepRow>(sources, steps_schema());
  record.ranks = read_rows<RankRow>(sources, ranks_schema());
  record.evaluations = read_rows<EvalRow>(sources, eval_schema());
  read_events(sources, record.events);
  read_attempts(sources, "cannot read " + run.string(),
                [&](std::int64_t, const Provenance& provenance) { record.attempts.push_back(provenance); });
  for (const auto& problem : sources.problems) record.problems.push_back(problem.sentence);
  return record;
}

struct MetricsWriter::Impl {
  fs::path output_dir;
  std::optional<SegmentWriter> segment;
  std::string fallback_reason;

  SegmentWriter& open_segment() {
    RT_CHECK(segment.has_value(), "the metrics file is closed");
    return *segment;
  }
};

MetricsWriter::MetricsWriter(const fs::path& output_dir, std::int64_t resumed_from_step,
                             const Provenance& provenance, bool swmr)
    : impl_(std::make_unique<Impl>()) {
  impl_->output_dir = output_dir;
  const fs::path folder = segment_folder(output_dir);
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw Failure(fmt::format("cannot make {}: {}", folder.string(), error.message()));
  remove_stale_temporaries(folder);
  merge_metrics(output_dir);

  const auto segments = list_segments(output_dir);
  const std::int64_t number =
      1 + std::max(segments.empty() ? 0 : segments.back().first, last_merged_segment(output_dir));
  const fs::path path = folder / fmt::format("segment-{:04}.h5", number);
  impl_->fallback_reason = swmr ? swmr_obstacle(folder) : "SWMR was not asked for";
  if (impl_->fallback_reason.empty()) {
    try {
      impl_->segment.emplace(path, SegmentMode::swmr, number, resumed_from_step, provenance);
    } catch (const Failure& failure) {
      impl_->fallback_reason = failure.what();
    }
  }
  if (!impl_->segment)
    impl_->segment.emplace(path, SegmentMode::plain, number, resumed_from_step, provenance);
}

MetricsWriter::~MetricsWriter() = default;

void MetricsWriter::write(const StepRow& row) {
  impl_->open_segment().append(steps_schema(), bytes_of(row));
}

void MetricsWriter::write(const std::vector<RankRow>& rows) {
  impl_->open_segment().append(ranks_schema(), std::as_bytes(std::span(rows)));
}

void MetricsWriter::write(const EvalRow& row) {
  impl_->open_segment().append(eval_schema(), bytes_of(row));
}

void MetricsWriter::write(const EventRow& row) {
  impl_->open_segment().append(events_schema(), event_record(row));
}

void MetricsWriter::sync() {
  impl_->open_segment().sync();
}

void MetricsWriter::close() {
  if (!impl_->segment) return;
  impl_->segment->close();
  impl_->segment.reset();
  merge_metrics(impl_->output_dir);
}

const std::string& MetricsWriter::fallback_reason() const {
  return impl_->fallback_reason;
}

}  // namespace ranktune::store
