// The tables of a metrics file: their fields, units and meanings, and the bytes of one record.
// docs/metrics.md is the same for people.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "store/hdf5.hpp"
#include "store/metrics.hpp"

namespace ranktune::store {

constexpr std::int64_t kMetricsSchemaVersion = 1;
constexpr std::int64_t kUnwrittenStep =
    -1;  // the step of a row that a table has room for but that was never written

enum class FieldKind { integer, real, text };  // int64, float64, bytes padded with zeros

struct FieldSchema {
  std::string name;
  FieldKind kind;
  std::size_t bytes;
  std::string unit;
  std::string meaning;
};

// A one-dimensional table of records without padding, fields in order.
struct TableSchema {
  std::string path;  // "/train/steps"
  std::string meaning;
  hsize_t chunk_rows;  // a flush writes whole chunks, so they are small
  bool superseded;     // rows after a resumed step give way to the resumed attempt's
  std::vector<FieldSchema> fields;

  std::size_t record_bytes() const;
  std::size_t offset(const std::string& field) const;  // throws Failure when absent
};

const TableSchema& steps_schema();
const TableSchema& ranks_schema();
const TableSchema& eval_schema();
const TableSchema& events_schema();
std::vector<const TableSchema*> all_schemas();

// The compound type of a record; the same in memory and in the file on a little-endian machine.
Hdf5Handle record_type(const TableSchema& schema, const std::string& context);

// Makes an empty table of `schema` with its attributes (`<field>.unit`, `<field>.meaning`) and returns it.
Hdf5Handle create_table(hid_t file, const TableSchema& schema, const std::string& context);

// The bytes of an event's record: texts cut at a character boundary.
std::vector<std::byte> event_record(const EventRow& row);
EventRow event_of(std::span<const std::byte> record);

}  // namespace ranktune::store
