// One file of metrics: the segment that a running attempt writes, and reading any segment or metrics.h5.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "store/hdf5.hpp"
#include "store/metrics.hpp"
#include "store/metrics_schema.hpp"

namespace ranktune::store {

// Appends records to one table of an open file.
class TableWriter {
 public:
  TableWriter(hid_t file, const TableSchema& schema, const std::string& context);  // makes the table
  static TableWriter open(hid_t file, const TableSchema& schema, const std::string& context);  // an empty one
  void append(std::span<const std::byte> records);  // a whole number of records; throws Failure
  void close();

 private:
  TableWriter(Hdf5Handle table, const TableSchema& schema, std::string context);
  std::string context_;
  std::size_t record_bytes_;
  Hdf5Handle type_;
  Hdf5Handle table_;
  hsize_t rows_ = 0;
};

// Attributes of a file's root or of a group; texts too long for an attribute go into datasets of its group
// `provenance`.
void write_provenance(hid_t object, const Provenance& provenance, const std::string& context);
Provenance read_provenance(hid_t object, const std::string& context);

enum class SegmentMode { swmr, plain };  // plain: default format, flushed per row

// Why the file system of `folder` cannot carry SWMR, or empty. HDF5 asks for POSIX write order, which NFS and
// SMB lack.
std::string swmr_obstacle(const std::filesystem::path& folder);

// A new segment with its empty tables. It gets its final name when it is complete and closed, and is then
// opened for appending, so that a segment is readable at any instant. Throws Failure.
class SegmentWriter {
 public:
  SegmentWriter(const std::filesystem::path& path, SegmentMode mode, std::int64_t number,
                std::int64_t resumed_from_step, const Provenance& provenance);
  void append(const TableSchema& schema, std::span<const std::byte> records);  // and flushes
  void sync();
  void close();  // marks it finished; fsynced

 private:
  std::string context_;
  Hdf5Handle file_;
  std::map<std::string, TableWriter> tables_;
};

// A segment, closed or not, or a metrics.h5, open for reading.
class MetricsReader {
 public:
  explicit MetricsReader(const std::filesystem::path& path);  // throws Failure
  hid_t file() const { return file_.id(); }
  std::int64_t integer(const std::string& attribute) const;  // throws Failure when absent
  // Hands over all records of a table in pieces, in the layout of `schema`; fields that the file lacks are
  // zero.
  void read(const TableSchema& schema, const std::function<void(std::span<const std::byte>)>& take) const;

 private:
  std::string context_;
  std::filesystem::path path_;
  Hdf5Handle file_;
};

}  // namespace ranktune::store
