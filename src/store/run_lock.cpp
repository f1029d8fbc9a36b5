#include "store/run_lock.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <sstream>

#include "base/error.hpp"
#include "store/posix_io.hpp"

namespace ranktune::store {
namespace fs = std::filesystem;
using nlohmann::json;
namespace {

constexpr double kStaleSeconds = 120;
constexpr int kTries = 20;

std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string variable(const char* name) {
  const char* value =
      std::getenv(name);  // NOLINT(concurrency-mt-unsafe): nobody writes the environment by then
  return value == nullptr ? "" : value;
}

// State letter and start time of a process; nullopt when there is none. The name in parentheses may hold
// anything.
struct ProcessFacts {
  char state = 0;
  std::int64_t started = 0;
};

std::optional<ProcessFacts> process_facts(std::int64_t pid) {
  const std::string line = first_line(fmt::format("/proc/{}/stat", pid));
  const auto end_of_name = line.rfind(')');
  if (end_of_name == std::string::npos) return std::nullopt;
  std::istringstream rest(line.substr(end_of_name + 1));
  ProcessFacts facts;
  rest >> facts.state;
  std::string skipped;
  for (int field = 4; field < 22; ++field) rest >> skipped;
  rest >> facts.started;
  return facts;
}

std::string random_token() {
  std::random_device device;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", device(), device(), device(), device());
}

std::string lock_text(const LockOwner& owner, const std::string& token) {
  return json{{"job_id", owner.job_id},
              {"restart_count", owner.restart_count},
              {"host", owner.host},
              {"boot_id", owner.boot_id},
              {"pid_namespace", owner.pid_namespace},
              {"pid", owner.pid},
              {"process_started", owner.process_started},
              {"token", token}}
             .dump(2) +
         "\n";
}

// What a lock file says, and how long ago it was touched.
struct Held {
  LockOwner owner;
  std::string token;  // empty when the file is not what we write
  double seconds_unchanged = 0;
};

double modified(const struct stat& info) {
  return static_cast<double>(info.st_mtim.tv_sec) + 1e-9 * static_cast<double>(info.st_mtim.tv_nsec);
}

std::string read_small(const fs::path& path) {
  std::ifstream file(path);
  std::string text(4096, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  return text;
}

// nullopt when there is no lock file. `now` is the file system's time.
std::optional<Held> read_lock(const fs::path& path, double now) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return std::nullopt;
  Held held;
  held.seconds_unchanged = now - modified(info);
  const json content = json::parse(read_small(path), nullptr, false);
  try {
    held.owner = {content.at("job_id"),         content.at("restart_count"), content.at("host"),
                  content.at("boot_id"),        content.at("pid_namespace"), content.at("pid"),
                  content.at("process_started")};
    held.token = content.at("token");
  } catch (const json::exception&) {
    held.token.clear();  // half-written or foreign: respected until it is old
  }
  return held;
}

bool is_dead(const LockOwner& owner, const LockOwner& self) {
  const bool comparable = owner.host == self.host && owner.boot_id == self.boot_id &&
                          !owner.boot_id.empty() && owner.pid_namespace == self.pid_namespace;
  if (!comparable) return false;
  const auto facts = process_facts(owner.pid);
  return !facts || facts->state == 'Z' || facts->state == 'X' || facts->started != owner.process_started;
}

bool may_take_over(const Held& held, const LockOwner& self) {
  if (held.seconds_unchanged > kStaleSeconds) return true;
  if (held.token.empty()) return false;
  const bool restarted = !self.job_id.empty() && held.owner.job_id == self.job_id &&
                         held.owner.restart_count < self.restart_count;
  return restarted || is_dead(held.owner, self);
}

[[noreturn]] void refuse(const fs::path& path, const Held& held) {
  const std::string job = held.owner.job_id.empty() ? "" : fmt::format("Slurm job {}, ", held.owner.job_id);
  const std::string owner = held.token.empty()
                                ? "an owner that cannot be read"
                                : fmt::format("{}process {} on {}", job, held.owner.pid, held.owner.host);
  throw UserError(fmt::format(
      "the output directory {} is in use by {} ({} refreshed {:.0f} s ago); wait until it ends or "
      "choose another --output_dir",
      path.parent_path().string(), owner, path.filename().string(), std::max(0.0, held.seconds_unchanged)));
}

// Makes `path` with the content of `prepared` unless it exists. Hard links are atomic on NFS too.
bool create_lock(const fs::path& prepared, const fs::path& path) {
  if (::link(prepared.c_str(), path.c_str()) == 0) return true;
  if (errno == EEXIST) return false;
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor < 0 && errno == EEXIST) return false;
  if (descriptor < 0) throw UserError(fmt::format("cannot make {}: {}", path.string(), std::strerror(errno)));
  ::close(descriptor);
  rename_path(prepared, path);
  return true;
}

// Replaces a lock that may be taken over. Two contenders are kept apart by an flock on the old file, where
// the file system has that; where not, the later one wins and the other finds its token gone.
void replace_lock(const fs::path& prepared, const fs::path& path, const Held& held) {
  const int old = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (old < 0) return;
  const bool busy = ::flock(old, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  const auto unchanged = read_lock(path, 0);
  try {
    if (!busy && unchanged && unchanged->token == held.token) rename_path(prepared, path);
  } catch (...) {
    ::close(old);
    throw;
  }
  ::close(old);
}

// Writes our content beside the lock and returns the file system's time at that moment.
double prepare(const fs::path& prepared, const std::string& content) {
  try {
    write_file_durably(prepared, content);
  } catch (const Failure& failure) {
    throw UserError(fmt::format("the output directory cannot be used: {}", failure.what()));
  }
  struct stat info {};
  return ::stat(prepared.c_str(), &info) == 0 ? modified(info) : 0;
}

}  // namespace

LockOwner LockOwner::self() {
  LockOwner owner;
  owner.job_id = variable("SLURM_JOB_ID");
  owner.restart_count = std::strtoll(variable("SLURM_RESTART_COUNT").c_str(), nullptr, 10);
  char name[HOST_NAME_MAX + 1] = {};
  if (::gethostname(name, HOST_NAME_MAX) == 0) owner.host = name;
  owner.boot_id = first_line("/proc/sys/kernel/random/boot_id");
  std::error_code ignored;
  owner.pid_namespace = fs::read_symlink("/proc/self/ns/pid", ignored).string();
  owner.pid = ::getpid();
  if (const auto facts = process_facts(owner.pid)) owner.process_started = facts->started;
  return owner;
}

RunLock::RunLock(const fs::path& output_dir, const LockOwner& owner)
    : path_(output_dir / "run.lock"), token_(random_token()) {
  std::error_code error;
  fs::create_directories(output_dir, error);
  if (error)
    throw UserError(
        fmt::format("cannot make the output directory {}: {}", output_dir.string(), error.message()));
  fs::path prepared = path_;
  prepared += ".tmp-" + token_;
  for (int tries = 0; tries < kTries && !still_ours(); ++tries) {
    const double now = prepare(prepared, lock_text(owner, token_));
    if (create_lock(prepared, path_)) continue;
    const auto held = read_lock(path_, now);
    if (!held) continue;  // gone since
    if (!may_take_over(*held, owner)) {
      fs::remove(prepared, error);
      refuse(path_, *held);
    }
    replace_lock(prepared, path_, *held);
  }
  fs::remove(prepared, error);
  if (!still_ours())
    throw UserError(fmt::format("cannot take {}: other jobs keep taking it", path_.string()));
}

RunLock::~RunLock() {
  try {
    if (still_ours()) fs::remove(path_);
  } catch (...) {  // left behind, it is taken over once this process is gone
  }
}

void RunLock::refresh() {
  if (!still_ours()) {
    throw Failure(
        fmt::format("lost {} to another job; this run stops so that two do not write there", path_.string()));
  }
  if (::utimensat(AT_FDCWD, path_.c_str(), nullptr, 0) != 0) {
    throw Failure(fmt::format("cannot refresh {}: {}", path_.string(), std::strerror(errno)));
  }
}

bool RunLock::still_ours() const {
  const json content = json::parse(read_small(path_), nullptr, false);
  return content.is_object() && content.value("token", json()) == token_;
}

}  // namespace ranktune::store
