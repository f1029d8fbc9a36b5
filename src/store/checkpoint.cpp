#include "store/checkpoint.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <regex>
#include <system_error>
#include <tuple>
#include <utility>

#include "base/error.hpp"
#include "base/file.hpp"
#include "store/atomic_directory.hpp"
#include "store/hdf5.hpp"
#include "store/posix_io.hpp"

namespace ranktune::store {
namespace fs = std::filesystem;
using nlohmann::json;
namespace {

constexpr const char* kFormat = "ranktune checkpoint";
constexpr std::int64_t kVersion = 1;
constexpr const char* kStateFile = "state.h5";
constexpr const char* kManifestFile = "manifest.json";
constexpr std::uint64_t kManifestBound = 1U << 20U;
constexpr int kJsonDepth = 64;
constexpr hsize_t kChunkValues = 1U << 20U;  // 4 MiB: one checksum each

// Deeper nesting than ours is refused while parsing: writing or comparing it later would be recursive.
json parse_json(const std::string& text, const std::string& context) {
  const auto bounded = [&](int depth, json::parse_event_t, json&) {
    if (depth > kJsonDepth) throw Failure(context + " is nested too deeply");
    return true;
  };
  try {
    return json::parse(text, bounded);
  } catch (const json::exception&) {
    throw Failure(context + " is damaged: it is no JSON");
  }
}

// ---- state.h5 ----

// A flat array, chunked so that each chunk carries a Fletcher-32 checksum.
void write_array(hid_t parent, const StateArray& array, const std::string& context) {
  const hsize_t count = array.values.size();
  const Hdf5Handle space(RT_HDF5(H5Screate_simple(1, &count, nullptr), context), H5Sclose);
  const Hdf5Handle creation(RT_HDF5(H5Pcreate(H5P_DATASET_CREATE), context), H5Pclose);
  if (count > 0) {
    const hsize_t chunk = std::min(count, kChunkValues);
    RT_HDF5(H5Pset_chunk(creation.id(), 1, &chunk), context);
    RT_HDF5(H5Pset_fletcher32(creation.id()), context);
    RT_HDF5(H5Pset_fill_time(creation.id(), H5D_FILL_TIME_NEVER), context);
  }
  Hdf5Handle dataset(RT_HDF5(H5Dcreate2(parent, array.name.c_str(), H5T_IEEE_F32LE, space.id(), H5P_DEFAULT,
                                        creation.id(), H5P_DEFAULT),
                             context),
                     H5Dclose);
  if (count > 0) {
    RT_HDF5(H5Dwrite(dataset.id(), H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, array.values.data()),
            context);
  }
  dataset.close(context);
}

void write_state(const fs::path& path, std::int64_t step, const json& recipe, const json& bits,
                 std::span<const StateArray> arrays) {
  const std::string context = "cannot write " + path.string();
  Hdf5Handle file = create_hdf5_file(path, FileFormat::portable);
  write_attribute(file.id(), "format", std::string(kFormat), context);
  write_attribute(file.id(), "version", kVersion, context);
  write_attribute(file.id(), "step", step, context);
  write_text_dataset(file.id(), "recipe", recipe.dump(), context);
  write_text_dataset(file.id(), "bits", bits.dump(), context);
  Hdf5Handle group(RT_HDF5(H5Gcreate2(file.id(), "arrays", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), context),
                   H5Gclose);
  for (const auto& array : arrays) write_array(group.id(), array, context);
  group.close(context);
  file.close(context);
}

// Names of the members of a group.
std::vector<std::string> member_names(hid_t group, const std::string& context) {
  std::vector<std::string> names;
  const auto add = [](hid_t, const char* name, const H5L_info_t*, void* data) -> herr_t {
    static_cast<std::vector<std::string>*>(data)->emplace_back(name);
    return 0;
  };
  RT_HDF5(H5Literate(group, H5_INDEX_NAME, H5_ITER_INC, nullptr, add, &names), context);
  return names;
}

// `left` is what the file can still hold: a claimed size beyond it is refused before memory is asked for.
std::vector<float> read_array(hid_t parent, const std::string& name, std::uint64_t& left,
                              const std::string& context) {
  const Hdf5Handle dataset = open_own_dataset(parent, name, context);
  const Hdf5Handle type(RT_HDF5(H5Dget_type(dataset.id()), context), H5Tclose);
  const Hdf5Handle space(RT_HDF5(H5Dget_space(dataset.id()), context), H5Sclose);
  if (H5Tequal(type.id(), H5T_IEEE_F32LE) <= 0 || H5Sget_simple_extent_ndims(space.id()) != 1) {
    throw Failure(fmt::format("{}: {} is not a flat array of float32", context, name));
  }
  hsize_t count = 0;
  RT_HDF5(H5Sget_simple_extent_dims(space.id(), &count, nullptr), context);
  if (count > left / sizeof(float)) {
    throw Failure(fmt::format("{}: {} claims {} values, more than the file holds", context, name, count));
  }
  left -= count * sizeof(float);
  std::vector<float> values(count);
  if (count > 0)
    RT_HDF5(H5Dread(dataset.id(), H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), context);
  return values;
}

json read_json(hid_t file, const std::string& name, std::uint64_t bound, const std::string& context) {
  return parse_json(read_text_dataset(file, name, bound, context), fmt::format("{}: {}", context, name));
}

Checkpoint read_state(const fs::path& path) {
  const std::string context = "cannot read " + path.string();
  std::uint64_t left = fs::file_size(path);
  const Hdf5Handle file = open_hdf5_file(path, H5F_ACC_RDONLY);
  if (integer_attribute(file.id(), "version", context) != kVersion) {
    throw Failure(fmt::format("{}: it is of another version of the format than {}", context, kVersion));
  }
  Checkpoint checkpoint;
  checkpoint.step = integer_attribute(file.id(), "step", context).value_or(-1);
  if (checkpoint.step < 0) throw Failure(context + ": it has no step");
  checkpoint.recipe = read_json(file.id(), "recipe", left, context);
  checkpoint.bits = read_json(file.id(), "bits", left, context);
  const Hdf5Handle group(RT_HDF5(H5Gopen2(file.id(), "arrays", H5P_DEFAULT), context), H5Gclose);
  for (const auto& name : member_names(group.id(), context)) {
    checkpoint.arrays.emplace_back(name, read_array(group.id(), name, left, context));
  }
  return checkpoint;
}

// ---- manifest.json ----

struct FileFacts {
  std::uint64_t bytes = 0;
  std::string hash;
};

FileFacts file_facts(const fs::path& path) {
  const MappedFile file(path);
  return {file.bytes().size(), content_hash(file.text())};
}

// The one spelling of a manifest: a reader that writes it again must get the same bytes, so that no bit of it
// is free.
std::string manifest_text(json manifest) {
  manifest.erase("manifest_xxh3_128");
  manifest["manifest_xxh3_128"] = content_hash(manifest.dump());
  return manifest.dump(2) + "\n";
}

void write_manifest(const fs::path& directory, std::int64_t step) {
  json files = json::object();
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (!entry.is_regular_file()) continue;
    const FileFacts facts = file_facts(entry.path());
    files[entry.path().lexically_relative(directory).generic_string()] = {{"bytes", facts.bytes},
                                                                          {"xxh3_128", facts.hash}};
  }
  const json manifest{{"format", kFormat}, {"version", kVersion}, {"step", step}, {"files", files}};
  write_file_durably(directory / kManifestFile, manifest_text(manifest));
}

// A name in the manifest stays inside the directory.
bool is_inside(const fs::path& relative) {
  return !relative.empty() && relative.is_relative() &&
         std::none_of(relative.begin(), relative.end(),
                      [](const fs::path& part) { return part == ".." || part == "."; });
}

bool is_plain_file(const fs::path& path) {
  std::error_code ignored;
  return fs::symlink_status(path, ignored).type() == fs::file_type::regular;
}

std::string describe(const std::string& name) {
  return name.substr(0, 200);
}

std::optional<std::string> verify_file(const fs::path& directory, const std::string& name,
                                       const json& expected) {
  if (!is_inside(name)) return fmt::format("its manifest names {}, outside the checkpoint", describe(name));
  if (!expected.is_object() || !expected.contains("bytes") || !expected["bytes"].is_number_unsigned() ||
      !expected.contains("xxh3_128") || !expected["xxh3_128"].is_string()) {
    return fmt::format("its manifest has no size and hash for {}", describe(name));
  }
  const fs::path path = directory / name;
  if (!is_plain_file(path)) return fmt::format("{} is missing", describe(name));
  const std::uint64_t size = fs::file_size(path);
  if (size != expected["bytes"].get<std::uint64_t>()) {
    return fmt::format("{} has {} bytes where the manifest says {}", describe(name), size,
                       expected["bytes"].get<std::uint64_t>());
  }
  if (file_facts(path).hash != expected["xxh3_128"].get<std::string>()) {
    return fmt::format("the checksum of {} differs from the manifest's: its content is damaged",
                       describe(name));
  }
  return std::nullopt;
}

std::optional<std::string> verify_manifest(const fs::path& directory) {
  const fs::path path = directory / kManifestFile;
  if (!is_plain_file(path)) return fmt::format("{} is missing", kManifestFile);
  if (fs::file_size(path) > kManifestBound) return fmt::format("{} is too long", kManifestFile);
  const std::string text = read_file(path);
  const json manifest = parse_json(text, kManifestFile);
  if (!manifest.is_object() || !manifest.contains("files") || !manifest["files"].is_object()) {
    return fmt::format("{} is damaged: it is not the JSON it should be", kManifestFile);
  }
  if (manifest_text(manifest) != text)
    return fmt::format("{} is damaged: its own checksum differs", kManifestFile);
  if (manifest.value("format", json()) != kFormat || manifest.value("version", json()) != kVersion) {
    return fmt::format("{} is of another format than {} {}", kManifestFile, kFormat, kVersion);
  }
  if (!manifest["files"].contains(kStateFile))
    return fmt::format("its manifest does not name {}", kStateFile);
  for (const auto& [name, expected] : manifest["files"].items()) {
    if (auto problem = verify_file(directory, name, expected)) return problem;
  }
  return std::nullopt;
}

// ---- directories ----

struct Listed {
  std::int64_t step = 0;
  bool replaced = false;  // .old-*
  fs::path path;
};

std::vector<Listed> listed_checkpoints(const fs::path& output_dir) {
  static const std::regex kName("checkpoint-([0-9]{1,18})(\\.old-.*)?");
  std::vector<Listed> found;
  if (!fs::is_directory(output_dir)) return found;
  for (const auto& entry : fs::directory_iterator(output_dir)) {
    const std::string name = entry.path().filename().string();
    std::smatch match;
    if (entry.is_directory() && std::regex_match(name, match, kName)) {
      found.push_back({std::stoll(match[1]), match[2].matched, entry.path()});
    }
  }
  std::sort(found.begin(), found.end(), [](const Listed& a, const Listed& b) {
    return std::tuple(-a.step, a.replaced, a.path) < std::tuple(-b.step, b.replaced, b.path);
  });
  return found;
}

std::uint64_t estimated_bytes(const json& recipe, const json& bits, std::span<const StateArray> arrays) {
  std::uint64_t total = 0;
  std::uint64_t largest = 0;
  for (const auto& array : arrays) {
    total += array.values.size_bytes();
    largest = std::max<std::uint64_t>(largest, array.values.size_bytes());
  }
  // The adapter beside the state is about one array more; the rest is for HDF5's own structures.
  return total + largest + total / 1000 + recipe.dump().size() + bits.dump().size() + 262'144;
}

void fill_checkpoint(const fs::path& directory, std::int64_t step, const json& recipe, const json& bits,
                     std::span<const StateArray> arrays, const std::function<void(const fs::path&)>& extra) {
  try {
    write_state(directory / kStateFile, step, recipe, bits, arrays);
    if (extra) extra(directory);
    write_manifest(directory, step);
  } catch (...) {
    // HDF5 keeps a file open whose last flush failed; empty, it holds no space until the program ends.
    std::error_code ignored;
    fs::resize_file(directory / kStateFile, 0, ignored);
    throw;
  }
}

}  // namespace

const std::vector<float>& Checkpoint::array(const std::string& name) const {
  for (const auto& [candidate, values] : arrays) {
    if (candidate == name) return values;
  }
  throw Failure("the checkpoint has no array " + name);
}

fs::path write_checkpoint(const fs::path& output_dir, std::int64_t step, const json& recipe, const json& bits,
                          std::span<const StateArray> arrays, const std::string& attempt,
                          const std::function<void(const fs::path&)>& extra) {
  const fs::path path = output_dir / fmt::format("checkpoint-{:06}", step);
  const std::uint64_t needed = estimated_bytes(recipe, bits, arrays);
  if (const auto problem = space_problem(output_dir, needed)) {
    throw Failure(
        fmt::format("no checkpoint of step {} was written, earlier ones are untouched: {}", step, *problem));
  }
  try {
    AtomicDirectory directory(path, attempt);
    fill_checkpoint(directory.path(), step, recipe, bits, arrays, extra);
    directory.commit();
  } catch (const std::exception& error) {
    throw Failure(fmt::format(
        "no checkpoint of step {} was written, earlier ones are untouched: {} (about {} bytes are "
        "needed, {} are free)",
        step, error.what(), needed, free_bytes(output_dir).value_or(0)));
  }
  return path;
}

std::optional<std::string> verify_checkpoint(const fs::path& directory) {
  try {
    return verify_manifest(directory);
  } catch (const std::exception& error) {
    return error.what();
  }
}

Checkpoint read_checkpoint(const fs::path& directory) {
  if (const auto problem = verify_checkpoint(directory)) {
    throw UserError(fmt::format("the checkpoint {} cannot be used: {}; resume from another one",
                                directory.string(), *problem));
  }
  try {
    return read_state(directory / kStateFile);
  } catch (const std::exception& error) {
    throw UserError(fmt::format("the checkpoint {} cannot be used: {}; resume from another one",
                                directory.string(), error.what()));
  }
}

std::vector<fs::path> list_checkpoints(const fs::path& output_dir) {
  std::vector<fs::path> paths;
  for (const auto& listed : listed_checkpoints(output_dir)) paths.push_back(listed.path);
  return paths;
}

std::optional<fs::path> latest_checkpoint(const fs::path& output_dir, std::vector<std::string>& rejected) {
  for (const auto& path : list_checkpoints(output_dir)) {
    const auto problem = verify_checkpoint(path);
    if (!problem) return path;
    rejected.push_back(fmt::format("{} is not used: {}", path.string(), *problem));
  }
  return std::nullopt;
}

void prune_checkpoints(const fs::path& output_dir, std::int64_t keep) {
  const auto paths = list_checkpoints(output_dir);
  if (keep <= 0 || paths.size() <= static_cast<std::size_t>(keep)) return;
  std::vector<std::string> rejected;
  const auto newest = latest_checkpoint(output_dir, rejected);
  for (auto path = paths.begin() + static_cast<std::ptrdiff_t>(keep); path != paths.end(); ++path) {
    if (*path == newest) continue;
    // Renamed first: what is half deleted must not look like a checkpoint.
    fs::path doomed = *path;
    doomed += ".tmp-deleted";
    try {
      fs::remove_all(doomed);
      rename_path(*path, doomed);
      fs::remove_all(doomed);
    } catch (const fs::filesystem_error& error) {
      throw Failure(fmt::format("cannot delete the old checkpoint {}: {}", path->string(), error.what()));
    }
  }
}

}  // namespace ranktune::store
