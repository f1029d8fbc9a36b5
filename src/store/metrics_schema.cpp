#include "store/metrics_schema.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/error.hpp"

namespace ranktune::store {
namespace {

constexpr std::size_t kFieldBytes = 8;  // of a number

static_assert(std::endian::native == std::endian::little, "records are written as they lie in memory");
static_assert(sizeof(StepRow) == 12 * kFieldBytes && sizeof(RankRow) == 6 * kFieldBytes &&
                  sizeof(EvalRow) == 5 * kFieldBytes,
              "rows without padding are records");

constexpr std::size_t kKindBytes = 32;
constexpr std::size_t kMessageBytes = 255;

FieldSchema integer(std::string name, std::string unit, std::string meaning) {
  return {std::move(name), FieldKind::integer, kFieldBytes, std::move(unit), std::move(meaning)};
}

FieldSchema real(std::string name, std::string unit, std::string meaning) {
  return {std::move(name), FieldKind::real, kFieldBytes, std::move(unit), std::move(meaning)};
}

FieldSchema text(std::string name, std::size_t bytes, std::string meaning) {
  return {std::move(name), FieldKind::text, bytes, "UTF-8", std::move(meaning)};
}

Hdf5Handle field_type(const FieldSchema& field, const std::string& context) {
  if (field.kind == FieldKind::text) {
    Hdf5Handle type(RT_HDF5(H5Tcopy(H5T_C_S1), context), H5Tclose);
    RT_HDF5(H5Tset_size(type.id(), field.bytes), context);
    RT_HDF5(H5Tset_strpad(type.id(), H5T_STR_NULLPAD), context);
    RT_HDF5(H5Tset_cset(type.id(), H5T_CSET_UTF8), context);
    return type;
  }
  const hid_t base = field.kind == FieldKind::integer ? H5T_STD_I64LE : H5T_IEEE_F64LE;
  return {RT_HDF5(H5Tcopy(base), context), H5Tclose};
}

// What a row reads as between the growth of its table and its writing.
std::vector<std::byte> unwritten_record(const TableSchema& schema) {
  std::vector<std::byte> record(schema.record_bytes());
  std::memcpy(record.data() + schema.offset("step"), &kUnwrittenStep, sizeof(kUnwrittenStep));
  return record;
}

// Copies at most `size` bytes, never half a UTF-8 character.
void put_text(std::byte* place, std::size_t size, std::string_view value) {
  std::size_t length = std::min(size, value.size());
  const auto continues = [&](std::size_t i) {
    return (static_cast<unsigned char>(value[i]) & 0xC0U) == 0x80U;
  };
  while (length > 0 && length < value.size() && continues(length)) --length;
  std::memcpy(place, value.data(), length);
}

}  // namespace

std::size_t TableSchema::record_bytes() const {
  std::size_t total = 0;
  for (const auto& field : fields) total += field.bytes;
  return total;
}

std::size_t TableSchema::offset(const std::string& field) const {
  std::size_t position = 0;
  for (const auto& candidate : fields) {
    if (candidate.name == field) return position;
    position += candidate.bytes;
  }
  throw Failure("the table " + path + " has no field " + field);
}

const TableSchema& steps_schema() {
  static const TableSchema schema{
      "/train/steps",
      "one row per optimizer step, written by rank 0",
      256,
      true,
      {integer("step", "1", "optimizer step that the row describes, from 1"),
       real("epoch", "1", "passes over the dataset done after the step, with fraction"),
       integer("samples", "samples", "samples in the step, all ranks"),
       integer("tokens", "tokens", "real tokens in the step without padding, all ranks"),
       integer("target_tokens", "tokens",
               "tokens with a target in the step, all ranks; the loss is divided by them"),
       real("loss", "nat/token", "mean negative log-likelihood per target token"),
       real("learning_rate", "1", "learning rate used in the step"),
       real("grad_norm", "1", "L2 norm of the gradient of all trained parameters, before clipping"),
       real("step_seconds", "s", "wall time of the step on rank 0"),
       real("data_seconds", "s", "of it: assembling the batch and copying it to the device"),
       real("compute_seconds", "s", "of it: forward, backward and optimizer"),
       real("communication_seconds", "s", "of it: all-reduce, waiting for other ranks included")}};
  return schema;
}

const TableSchema& ranks_schema() {
  static const TableSchema schema{
      "/train/ranks",
      "one row per logged step and rank",
      512,
      true,
      {integer("step", "1", "optimizer step that the row describes, from 1"),
       integer("rank", "1", "MPI rank, from 0"),
       integer("tokens", "tokens", "real tokens of this rank in the step"),
       real("compute_seconds", "s", "time this rank computed in the step"),
       real("waiting_seconds", "s", "time this rank waited for others in the step"),
       integer("memory_bytes", "B", "largest memory that the program has held on the rank's device so far")}};
  return schema;
}

const TableSchema& eval_schema() {
  static const TableSchema schema{
      "/eval",
      "one row per evaluation",
      64,
      true,
      {integer("step", "1", "optimizer steps done before the evaluation"),
       real("loss", "nat/token", "mean negative log-likelihood per target token of the evaluation set"),
       real("perplexity", "1", "exp(loss)"),
       integer("target_tokens", "tokens", "tokens with a target in the evaluation set"),
       real("seconds", "s", "wall time of the evaluation")}};
  return schema;
}

const TableSchema& events_schema() {
  static const TableSchema schema{
      "/events",
      "what happened in the run, all attempts",
      64,
      false,
      {real("time", "s", "seconds since 1970-01-01T00:00:00 UTC"),
       integer("step", "1", "optimizer steps done then"),
       text("kind", kKindBytes, "start, checkpoint, resume, signal, skipped_samples, warning, end"),
       text("message", kMessageBytes, "one sentence, cut at 255 bytes")}};
  return schema;
}

std::vector<const TableSchema*> all_schemas() {
  return {&steps_schema(), &ranks_schema(), &eval_schema(), &events_schema()};
}

Hdf5Handle record_type(const TableSchema& schema, const std::string& context) {
  Hdf5Handle type(RT_HDF5(H5Tcreate(H5T_COMPOUND, schema.record_bytes()), context), H5Tclose);
  for (const auto& field : schema.fields) {
    const Hdf5Handle member = field_type(field, context);
    RT_HDF5(H5Tinsert(type.id(), field.name.c_str(), schema.offset(field.name), member.id()), context);
  }
  return type;
}

Hdf5Handle create_table(hid_t file, const TableSchema& schema, const std::string& context) {
  const Hdf5Handle type = record_type(schema, context);
  const hsize_t none = 0;
  const hsize_t unlimited = H5S_UNLIMITED;
  const Hdf5Handle space(RT_HDF5(H5Screate_simple(1, &none, &unlimited), context), H5Sclose);
  const Hdf5Handle creation(RT_HDF5(H5Pcreate(H5P_DATASET_CREATE), context), H5Pclose);
  RT_HDF5(H5Pset_chunk(creation.id(), 1, &schema.chunk_rows), context);
  const std::vector<std::byte> unwritten = unwritten_record(schema);
  RT_HDF5(H5Pset_fill_value(creation.id(), type.id(), unwritten.data()), context);
  // All attributes stay in the object header: nothing that SWMR would have to keep consistent elsewhere.
  RT_HDF5(H5Pset_attr_phase_change(creation.id(), 128, 0), context);
  const Hdf5Handle links(RT_HDF5(H5Pcreate(H5P_LINK_CREATE), context), H5Pclose);
  RT_HDF5(H5Pset_create_intermediate_group(links.id(), 1), context);
  Hdf5Handle table(RT_HDF5(H5Dcreate2(file, schema.path.c_str(), type.id(), space.id(), links.id(),
                                      creation.id(), H5P_DEFAULT),
                           context),
                   H5Dclose);
  write_attribute(table.id(), "meaning", schema.meaning, context);
  for (const auto& field : schema.fields) {
    write_attribute(table.id(), field.name + ".unit", field.unit, context);
    write_attribute(table.id(), field.name + ".meaning", field.meaning, context);
  }
  return table;
}

std::vector<std::byte> event_record(const EventRow& row) {
  const TableSchema& schema = events_schema();
  std::vector<std::byte> record(schema.record_bytes());
  std::memcpy(record.data() + schema.offset("time"), &row.time, sizeof(row.time));
  std::memcpy(record.data() + schema.offset("step"), &row.step, sizeof(row.step));
  put_text(record.data() + schema.offset("kind"), kKindBytes, row.kind);
  put_text(record.data() + schema.offset("message"), kMessageBytes, row.message);
  return record;
}

EventRow event_of(std::span<const std::byte> record) {
  const TableSchema& schema = events_schema();
  const auto text = [&](const char* field, std::size_t bytes) {
    const std::span<const std::byte> padded = record.subspan(schema.offset(field), bytes);
    const auto end = std::find(padded.begin(), padded.end(), std::byte{0});
    return std::string(reinterpret_cast<const char*>(padded.data()),
                       static_cast<std::size_t>(end - padded.begin()));
  };
  EventRow row{0, 0, text("kind", kKindBytes), text("message", kMessageBytes)};
  std::memcpy(&row.time, record.data() + schema.offset("time"), sizeof(row.time));
  std::memcpy(&row.step, record.data() + schema.offset("step"), sizeof(row.step));
  return row;
}

}  // namespace ranktune::store
