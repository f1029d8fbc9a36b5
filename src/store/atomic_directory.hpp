// A directory that appears under its final name only when it is whole.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace ranktune::store {

// Writes go into NAME.tmp-<attempt>/; commit() fsyncs every file and the directory, replaces NAME (an
// existing one is first renamed to NAME.old-<attempt>, deleted last), and fsyncs the parent. Destroyed
// without commit, it removes the temporary directory and never throws.
class AtomicDirectory {
 public:
  // `attempt` tells this writer's leftovers from others', for example "<pid>-<random>". Throws UserError when
  // it cannot be made.
  AtomicDirectory(std::filesystem::path final_path, std::string attempt);
  ~AtomicDirectory();
  AtomicDirectory(const AtomicDirectory&) = delete;
  AtomicDirectory& operator=(const AtomicDirectory&) = delete;

  const std::filesystem::path& path() const { return temporary_; }  // write here
  void commit();                                                    // throws Failure

 private:
  void move_in(const std::filesystem::path& old, bool replaces);

  std::filesystem::path final_;
  std::filesystem::path temporary_;
  std::string attempt_;
  bool committed_ = false;
};

// Writes a whole file: temporary name beside it, fsync, rename, fsync of the parent. Throws Failure (ENOSPC:
// says how much was needed).
void write_file_atomically(const std::filesystem::path& path, std::string_view content);

// Removes leftovers NAME.tmp-* in `directory` and finishes or removes NAME.old-*: where NAME is gone, .old-*
// is renamed back.
void remove_stale_temporaries(const std::filesystem::path& directory);

// Throws UserError when fewer than `bytes` are free where `path` lies, saying both figures.
void require_free_space(const std::filesystem::path& path, std::uint64_t bytes);

}  // namespace ranktune::store
