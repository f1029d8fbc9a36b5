// The few POSIX calls of durable writing, with failures that name path and cause.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace ranktune::store {

// Flushes a file or a directory to the disk. File systems that cannot fsync a directory are tolerated. Throws
// Failure.
void fsync_path(const std::filesystem::path& path);

// Writes, fsyncs and closes a new or truncated file. Throws Failure; with the disk full it says what was
// needed.
void write_file_durably(const std::filesystem::path& path, std::string_view content);

// rename(2) with a Failure that names both paths.
void rename_path(const std::filesystem::path& from, const std::filesystem::path& to);

// Bytes free to this user where `path` (or its nearest existing ancestor) lies; nullopt when that is not
// known.
std::optional<std::uint64_t> free_bytes(const std::filesystem::path& path);

// A sentence when fewer than `bytes` are free where `path` lies, else nullopt.
std::optional<std::string> space_problem(const std::filesystem::path& path, std::uint64_t bytes);

}  // namespace ranktune::store
