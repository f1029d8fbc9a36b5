#include "app/run_directory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include "app/run_record.hpp"
#include "base/error.hpp"
#include "base/file.hpp"
#include "store/atomic_directory.hpp"
#include "store/metrics.hpp"

namespace ranktune::app {
namespace {

namespace fs = std::filesystem;

bool holds_a_run(const fs::path& directory) {
  std::error_code ignored;
  return fs::exists(directory / "metrics.h5", ignored) || fs::exists(directory / "metrics", ignored) ||
         fs::exists(directory / "adapter", ignored) || !store::list_checkpoints(directory).empty();
}

// Tries to make the directory and a file in it, and leaves nothing new behind; the sentence of what failed,
// or nothing.
std::optional<std::string> why_not_writable(const std::string& what, const fs::path& directory) {
  std::error_code error;
  const bool made = fs::create_directories(directory, error);
  if (error) return fmt::format("{} {} cannot be made: {}", what, directory.string(), error.message());
  const fs::path probe = directory / fmt::format(".ranktune-probe-{}", ::getpid());
  const int descriptor = ::open(probe.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
  const int problem = errno;
  if (descriptor >= 0) {
    ::close(descriptor);
    ::unlink(probe.c_str());
  }
  if (made) ::rmdir(directory.c_str());
  if (descriptor < 0) {
    return fmt::format("{} {} cannot be written to: {}", what, directory.string(), std::strerror(problem));
  }
  return std::nullopt;
}

fs::path exports_file(const TrainOptions& options) {
  return fs::path(options.output_dir) / "exports.json";
}

// Whether the run in the output directory has said that --save_path is its own to write.
bool owns_save_path(const TrainOptions& options) {
  if (!fs::exists(exports_file(options))) return false;
  const auto record = nlohmann::json::parse(read_file(exports_file(options)), nullptr, false);
  return record.is_object() && record.value("save_path", "") == fs::absolute(options.save_path).string();
}

StartPoint from_checkpoint(const fs::path& path, const nlohmann::json& recipe,
                           std::optional<store::Checkpoint>& loaded) {
  loaded = store::read_checkpoint(path);
  if (const auto different = differences(loaded->recipe, recipe); !different.empty()) {
    throw UserError(fmt::format("{} belongs to another recipe: {}; use those values, or another --output_dir",
                                path.string(), fmt::join(different, "; ")));
  }
  StartPoint start;
  start.kind = StartPoint::Kind::resume;
  start.step = loaded->step;
  start.checkpoint = path;
  return start;
}

}  // namespace

std::string to_text(const StartPoint& start) {
  return nlohmann::json{{"kind", static_cast<int>(start.kind)},
                        {"step", start.step},
                        {"checkpoint", start.checkpoint.string()},
                        {"notes", start.notes}}
      .dump();
}

StartPoint start_point(const std::string& text) {
  const auto object = nlohmann::json::parse(text);
  StartPoint start;
  start.kind = static_cast<StartPoint::Kind>(object.at("kind").get<int>());
  start.step = object.at("step").get<std::int64_t>();
  start.checkpoint = object.at("checkpoint").get<std::string>();
  start.notes = object.at("notes").get<std::vector<std::string>>();
  return start;
}

void check_directories(const TrainOptions& options, std::vector<std::string>& problems) {
  const fs::path output = options.output_dir;
  if (const auto problem = why_not_writable("--output_dir", output)) {
    problems.push_back(*problem);
  } else if (options.resume == "never" && holds_a_run(output)) {
    problems.push_back(
        fmt::format("--output_dir {} already holds a run; continue it with --resume auto, or name another "
                    "directory",
                    output.string()));
  }
  if (options.resume != "never" && options.resume != "auto") {
    const fs::path checkpoint = options.resume;
    std::error_code ignored;
    if (!fs::is_directory(checkpoint)) {
      problems.push_back(fmt::format(
          "--resume {}: no such checkpoint directory; use never, auto or the path of one", options.resume));
    } else if (holds_a_run(output) &&
               !fs::equivalent(fs::absolute(checkpoint).parent_path(), output, ignored)) {
      problems.push_back(
          fmt::format("--output_dir {} holds another run than --resume {}; name another directory",
                      output.string(), options.resume));
    }
  }
  if (!options.exports()) return;
  const fs::path save = fs::absolute(options.save_path);
  if (fs::exists(save) && !(options.resume != "never" && owns_save_path(options))) {
    problems.push_back(
        fmt::format("--save_path {} exists already; remove it or name another", options.save_path));
  } else if (const auto problem = why_not_writable("the folder of --save_path,", save.parent_path())) {
    problems.push_back(*problem);
  }
}

void record_save_path(const TrainOptions& options) {
  if (!options.exports()) return;
  const nlohmann::json record{{"save_path", fs::absolute(options.save_path).string()}};
  store::write_file_atomically(exports_file(options), record.dump(2) + "\n");
}

StartPoint find_start(const TrainOptions& options, const nlohmann::json& recipe, std::int64_t total_steps,
                      std::optional<store::Checkpoint>& loaded) {
  StartPoint start;
  if (options.resume == "never") return start;
  if (options.resume != "auto") return from_checkpoint(options.resume, recipe, loaded);

  std::vector<std::string> rejected;
  const auto latest = store::latest_checkpoint(options.output_dir, rejected);
  if (latest) {
    start = from_checkpoint(*latest, recipe, loaded);
    const bool finished = fs::exists(fs::path(options.output_dir) / "adapter") &&
                          (!options.exports() || fs::exists(options.save_path)) &&
                          store::metrics_are_merged(options.output_dir);
    if (start.step >= total_steps && finished) start.kind = StartPoint::Kind::all_done;
  } else if (holds_a_run(options.output_dir)) {
    start.notes.push_back("no checkpoint can be resumed; the run starts from the beginning");
  }
  start.notes.insert(start.notes.begin(), rejected.begin(), rejected.end());
  return start;
}

}  // namespace ranktune::app
