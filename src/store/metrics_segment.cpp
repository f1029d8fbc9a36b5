#include "store/metrics_segment.hpp"

#include <fmt/format.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "store/posix_io.hpp"

namespace ranktune::store {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kAttributeBytes = 32'000;  // the portable format ends at 64 KiB
constexpr hsize_t kBlockRows = 4096;
constexpr std::uint64_t kTextBound = 1U << 30U;
const std::string kElsewhere = "see provenance/";

void write_text(hid_t object, const std::string& name, const std::string& text, const std::string& context) {
  if (text.size() <= kAttributeBytes) {
    write_attribute(object, name, text, context);
    return;
  }
  const bool exists = RT_HDF5(H5Lexists(object, "provenance", H5P_DEFAULT), context) > 0;
  const Hdf5Handle group(
      exists ? RT_HDF5(H5Gopen2(object, "provenance", H5P_DEFAULT), context)
             : RT_HDF5(H5Gcreate2(object, "provenance", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), context),
      H5Gclose);
  write_text_dataset(group.id(), name, text, context);
  write_attribute(object, name, kElsewhere + name, context);
}

// The complete, closed file under a temporary name, then under its own.
void make_segment(const fs::path& path, SegmentMode mode, std::int64_t number, std::int64_t resumed_from_step,
                  const Provenance& provenance) {
  fs::path temporary = path;
  temporary += fmt::format(".tmp-{}", ::getpid());
  const std::string context = "cannot make " + path.string();
  Hdf5Handle file =
      create_hdf5_file(temporary, mode == SegmentMode::swmr ? FileFormat::newest : FileFormat::portable);
  write_provenance(file.id(), provenance, context);
  write_attribute(file.id(), "schema_version", kMetricsSchemaVersion, context);
  write_attribute(file.id(), "attempt", number, context);
  write_attribute(file.id(), "resumed_from_step", resumed_from_step, context);
  write_attribute(file.id(), "finished", std::int64_t{0}, context);
  for (const auto* schema : all_schemas()) create_table(file.id(), *schema, context).close(context);
  fsync_hdf5_file(file, context);
  file.close(context);
  rename_path(temporary, path);
  fsync_path(path.parent_path());
}

}  // namespace

TableWriter::TableWriter(Hdf5Handle table, const TableSchema& schema, std::string context)
    : context_(std::move(context)),
      record_bytes_(schema.record_bytes()),
      type_(record_type(schema, context_)),
      table_(std::move(table)) {}

TableWriter::TableWriter(hid_t file, const TableSchema& schema, const std::string& context)
    : TableWriter(create_table(file, schema, context), schema, context) {}

TableWriter TableWriter::open(hid_t file, const TableSchema& schema, const std::string& context) {
  return {Hdf5Handle(RT_HDF5(H5Dopen2(file, schema.path.c_str(), H5P_DEFAULT), context), H5Dclose), schema,
          context};
}

void TableWriter::append(std::span<const std::byte> records) {
  RT_CHECK(records.size() % record_bytes_ == 0, "whole records");
  const hsize_t count = records.size() / record_bytes_;
  if (count == 0) return;
  const hsize_t rows = rows_ + count;
  RT_HDF5(H5Dset_extent(table_.id(), &rows), context_);
  const Hdf5Handle space(RT_HDF5(H5Dget_space(table_.id()), context_), H5Sclose);
  RT_HDF5(H5Sselect_hyperslab(space.id(), H5S_SELECT_SET, &rows_, nullptr, &count, nullptr), context_);
  const Hdf5Handle memory(RT_HDF5(H5Screate_simple(1, &count, nullptr), context_), H5Sclose);
  RT_HDF5(H5Dwrite(table_.id(), type_.id(), memory.id(), space.id(), H5P_DEFAULT, records.data()), context_);
  rows_ = rows;
}

void TableWriter::close() {
  table_.close(context_);
}

void write_provenance(hid_t object, const Provenance& provenance, const std::string& context) {
  for (const auto& [name, text] : provenance.text) write_text(object, name, text, context);
  for (const auto& [name, value] : provenance.integers) write_attribute(object, name, value, context);
}

Provenance read_provenance(hid_t object, const std::string& context) {
  Provenance provenance;
  for (const auto& name : attribute_names(object, context)) {
    if (const auto value = integer_attribute(object, name, context)) {
      provenance.integers.emplace_back(name, *value);
    } else if (const auto text = text_attribute(object, name, context)) {
      const bool elsewhere = *text == kElsewhere + name;
      provenance.text.emplace_back(
          name, elsewhere ? read_text_dataset(object, "provenance/" + name, kTextBound, context) : *text);
    }
  }
  return provenance;
}

std::string swmr_obstacle(const fs::path& folder) {
  static const std::map<std::uint64_t, std::string> kKinds{
      {0x6969, "NFS"}, {0x517B, "SMB"}, {0xFF534D42, "CIFS"}, {0xFE534D42, "SMB2"}, {0x01021997, "9p"}};
  struct statfs info {};
  if (::statfs(folder.c_str(), &info) != 0) return {};
  const auto found = kKinds.find(static_cast<std::uint32_t>(info.f_type));
  return found == kKinds.end() ? "" : found->second + " does not keep the order of writes";
}

SegmentWriter::SegmentWriter(const fs::path& path, SegmentMode mode, std::int64_t number,
                             std::int64_t resumed_from_step, const Provenance& provenance)
    : context_("cannot write " + path.string()) {
  make_segment(path, mode, number, resumed_from_step, provenance);
  file_ = open_hdf5_file(path, mode == SegmentMode::swmr ? H5F_ACC_RDWR | H5F_ACC_SWMR_WRITE : H5F_ACC_RDWR);
  for (const auto* schema : all_schemas()) {
    tables_.emplace(schema->path, TableWriter::open(file_.id(), *schema, context_));
  }
}

void SegmentWriter::append(const TableSchema& schema, std::span<const std::byte> records) {
  tables_.at(schema.path).append(records);
  RT_HDF5(H5Fflush(file_.id(), H5F_SCOPE_GLOBAL), context_);
}

void SegmentWriter::sync() {
  fsync_hdf5_file(file_, context_);
}

void SegmentWriter::close() {
  if (!file_.is_open()) return;
  rewrite_attribute(file_.id(), "finished", 1, context_);
  fsync_hdf5_file(file_, context_);
  for (auto& [path, table] : tables_) table.close();
  file_.close(context_);
}

MetricsReader::MetricsReader(const fs::path& path) : context_("cannot read " + path.string()), path_(path) {
  try {
    file_ = open_hdf5_file(path, H5F_ACC_RDONLY);
  } catch (const Failure&) {
    // A segment that is being written, or was when its process died, opens in this way only.
    file_ = open_hdf5_file(path, H5F_ACC_RDONLY | H5F_ACC_SWMR_READ);
  }
}

std::int64_t MetricsReader::integer(const std::string& attribute) const {
  const auto value = integer_attribute(file_.id(), attribute, context_);
  if (!value) throw Failure(fmt::format("{}: it has no attribute {}", context_, attribute));
  return *value;
}

void MetricsReader::read(const TableSchema& schema,
                         const std::function<void(std::span<const std::byte>)>& take) const {
  const Hdf5Handle table = open_own_dataset(file_.id(), schema.path, context_);
  const Hdf5Handle space(RT_HDF5(H5Dget_space(table.id()), context_), H5Sclose);
  const Hdf5Handle stored(RT_HDF5(H5Dget_type(table.id()), context_), H5Tclose);
  const Hdf5Handle type = record_type(schema, context_);
  hsize_t rows = 0;
  if (H5Tget_class(stored.id()) != H5T_COMPOUND || H5Sget_simple_extent_ndims(space.id()) != 1) {
    throw Failure(fmt::format("{}: {} is not a table", context_, schema.path));
  }
  RT_HDF5(H5Sget_simple_extent_dims(space.id(), &rows, nullptr), context_);
  if (rows > fs::file_size(path_) / H5Tget_size(stored.id())) {
    throw Failure(
        fmt::format("{}: {} claims {} rows, more than the file holds", context_, schema.path, rows));
  }
  std::vector<std::byte> block;
  for (hsize_t first = 0; first < rows; first += kBlockRows) {
    const hsize_t count = std::min(kBlockRows, rows - first);
    block.assign(count * schema.record_bytes(), std::byte{0});
    const Hdf5Handle memory(RT_HDF5(H5Screate_simple(1, &count, nullptr), context_), H5Sclose);
    RT_HDF5(H5Sselect_hyperslab(space.id(), H5S_SELECT_SET, &first, nullptr, &count, nullptr), context_);
    RT_HDF5(H5Dread(table.id(), type.id(), memory.id(), space.id(), H5P_DEFAULT, block.data()), context_);
    take(block);
  }
}

}  // namespace ranktune::store
