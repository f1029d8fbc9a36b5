#include "store/atomic_directory.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "store/posix_io.hpp"

namespace ranktune::store {
namespace fs = std::filesystem;
namespace {

fs::path beside(const fs::path& path, const std::string& suffix) {
  fs::path result = path;
  result += suffix;
  return result;
}

fs::path parent_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

// Without a trailing slash, which would hide the name.
fs::path normal(fs::path path) {
  path = path.lexically_normal();
  return path.has_filename() ? path : path.parent_path();
}

// Files first, then the directories that hold them, the top last.
void fsync_tree(const fs::path& top) {
  for (const auto& entry : fs::directory_iterator(top)) {
    if (entry.is_symlink()) continue;
    if (entry.is_directory()) {
      fsync_tree(entry.path());
    } else if (entry.is_regular_file()) {
      fsync_path(entry.path());
    }
  }
  fsync_path(top);
}

// The part of a file name before `.tmp-` or `.old-`; empty when it has neither.
std::string stem_before(const std::string& name, const std::string& mark) {
  const auto position = name.find(mark);
  return position == std::string::npos ? "" : name.substr(0, position);
}

// Where a replacement was cut off, the newest of the replaced directories gets its name back; the others go.
void settle_replaced(const fs::path& path, std::vector<fs::path> olds) {
  std::sort(olds.begin(), olds.end(), [](const fs::path& a, const fs::path& b) {
    return fs::last_write_time(a) > fs::last_write_time(b);
  });
  for (const auto& old : olds) {
    if (fs::exists(path)) {
      fs::remove_all(old);
    } else {
      rename_path(old, path);
    }
  }
}

}  // namespace

AtomicDirectory::AtomicDirectory(fs::path final_path, std::string attempt)
    : final_(normal(std::move(final_path))), attempt_(std::move(attempt)) {
  temporary_ = beside(final_, ".tmp-" + attempt_);
  try {
    fs::remove_all(temporary_);
    fs::create_directories(temporary_);
  } catch (const fs::filesystem_error& error) {
    throw UserError(fmt::format("cannot make the directory {}: {}; choose a place that can be written to",
                                temporary_.string(), error.code().message()));
  }
}

AtomicDirectory::~AtomicDirectory() {
  std::error_code ignored;
  if (!committed_) fs::remove_all(temporary_, ignored);
}

void AtomicDirectory::commit() {
  const fs::path old = beside(final_, ".old-" + attempt_);
  const fs::path parent = parent_of(final_);
  try {
    fsync_tree(temporary_);
    const bool replaces = fs::exists(final_);
    if (replaces) rename_path(final_, old);
    move_in(old, replaces);
    committed_ = true;
    fsync_path(parent);
    if (replaces) fs::remove_all(old);
  } catch (const fs::filesystem_error& error) {
    throw Failure(fmt::format("cannot commit {}: {}", final_.string(), error.what()));
  }
}

// The new directory under its final name, or the old one back there.
void AtomicDirectory::move_in(const fs::path& old, bool replaces) {
  try {
    rename_path(temporary_, final_);
  } catch (const Failure&) {
    if (replaces) rename_path(old, final_);
    throw;
  }
}

void write_file_atomically(const fs::path& path, std::string_view content) {
  const fs::path temporary = beside(path, fmt::format(".tmp-{}-{}", ::getpid(), ::gettid()));
  try {
    write_file_durably(temporary, content);
    rename_path(temporary, path);
  } catch (...) {
    std::error_code ignored;
    fs::remove(temporary, ignored);
    throw;
  }
  fsync_path(parent_of(path));
}

void remove_stale_temporaries(const fs::path& directory) {
  if (!fs::is_directory(directory)) return;
  try {
    const std::vector<fs::directory_entry> entries(fs::directory_iterator(directory),
                                                   fs::directory_iterator{});
    std::map<std::string, std::vector<fs::path>> replaced;  // name -> its .old-*
    for (const auto& entry : entries) {
      const std::string name = entry.path().filename().string();
      if (!stem_before(name, ".tmp-").empty()) {
        fs::remove_all(entry.path());
      } else if (const std::string stem = stem_before(name, ".old-"); !stem.empty()) {
        replaced[stem].push_back(entry.path());
      }
    }
    for (const auto& [name, olds] : replaced) settle_replaced(directory / name, olds);
    fsync_path(directory);
  } catch (const fs::filesystem_error& error) {
    throw Failure(fmt::format("cannot clean {}: {}", directory.string(), error.what()));
  }
}

void require_free_space(const fs::path& path, std::uint64_t bytes) {
  if (const auto problem = space_problem(path, bytes)) throw UserError(*problem);
}

}  // namespace ranktune::store
