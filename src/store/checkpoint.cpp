#include "store/checkpoint.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
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
constexpr std::uint64_t kManifestBound = 64U << 20U;
constexpr int kJsonDepth = 64;
constexpr const char* kCodes = "uint8";      // type of an array in the manifest; none is fp32
constexpr hsize_t kChunkValues = 1U << 20U;  // 4 MiB of fp32: one checksum each

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

// ---- state.h5: written by HDF5's library, read without it ----
//
// The library is not built for hostile files (a few flipped bits make HDF5 1.10 read freed memory), so the
// manifest says where in the file the chunks of each array lie, and reading is a bounds check and a copy.

// The places of the chunks of a dataset that has been flushed: {"count", "chunk" (both in values),
// "addresses"}.
json chunk_places(hid_t dataset, hsize_t count, hsize_t chunk, std::size_t width,
                  const std::string& context) {
  json addresses = json::array();
  for (hsize_t first = 0; first < count; first += chunk) {
    unsigned filters_skipped = 0;
    haddr_t address = HADDR_UNDEF;
    hsize_t bytes = 0;
    RT_HDF5(H5Dget_chunk_info_by_coord(dataset, &first, &filters_skipped, &address, &bytes), context);
    RT_CHECK(address != HADDR_UNDEF && filters_skipped == 0 && bytes >= chunk * width,
             "a chunk is in the file");
    addresses.push_back(address);
  }
  json places{{"count", count}, {"chunk", chunk}, {"addresses", addresses}};
  if (width == 1) places["type"] = kCodes;
  return places;
}

struct RawArray {
  const void* data;
  hsize_t count;
  std::size_t width;  // bytes of a value
};
RawArray raw(const StateArray& array) {
  return std::visit(
      [](const auto& values) {
        return RawArray{values.data(), values.size(), sizeof(*values.data())};
      },
      array.values);
}

// A flat array, chunked so that each chunk carries a Fletcher-32 checksum. Returns where its chunks lie.
json write_array(const Hdf5Handle& file, const StateArray& array, const std::string& context) {
  const auto [data, count, width] = raw(array);
  const bool codes = width == 1;
  if (count == 0) {
    json nothing{{"count", 0}, {"chunk", 1}, {"addresses", json::array()}};
    if (codes) nothing["type"] = kCodes;
    return nothing;
  }
  const hsize_t chunk = std::min(count, kChunkValues);
  const Hdf5Handle space(RT_HDF5(H5Screate_simple(1, &count, nullptr), context), H5Sclose);
  const Hdf5Handle creation(RT_HDF5(H5Pcreate(H5P_DATASET_CREATE), context), H5Pclose);
  RT_HDF5(H5Pset_chunk(creation.id(), 1, &chunk), context);
  RT_HDF5(H5Pset_fletcher32(creation.id()), context);
  const Hdf5Handle links(RT_HDF5(H5Pcreate(H5P_LINK_CREATE), context), H5Pclose);
  RT_HDF5(H5Pset_create_intermediate_group(links.id(), 1), context);
  Hdf5Handle dataset(
      RT_HDF5(H5Dcreate2(file.id(), ("arrays/" + array.name).c_str(), codes ? H5T_STD_U8LE : H5T_IEEE_F32LE,
                         space.id(), links.id(), creation.id(), H5P_DEFAULT),
              context),
      H5Dclose);
  RT_HDF5(H5Dwrite(dataset.id(), codes ? H5T_NATIVE_UINT8 : H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT,
                   data),
          context);
  RT_HDF5(H5Fflush(file.id(), H5F_SCOPE_LOCAL), context);
  json places = chunk_places(dataset.id(), count, chunk, width, context);
  dataset.close(context);
  return places;
}

// Returns the places of all arrays by name. Recipe and bits are there for readers with h5py.
json write_state(const fs::path& path, std::int64_t step, const json& recipe, const json& bits,
                 std::span<const StateArray> arrays) {
  const std::string context = "cannot write " + path.string();
  Hdf5Handle file = create_hdf5_file(path, FileFormat::portable);
  write_attribute(file.id(), "format", std::string(kFormat), context);
  write_attribute(file.id(), "version", kVersion, context);
  write_attribute(file.id(), "step", step, context);
  write_text_dataset(file.id(), "recipe", recipe.dump(), context);
  write_text_dataset(file.id(), "bits", bits.dump(), context);
  json places = json::object();
  for (const auto& array : arrays) {
    RT_CHECK(!places.contains(array.name), "two arrays are named " + array.name);
    places[array.name] = write_array(file, array, context);
  }
  file.close(context);
  return places;
}

[[noreturn]] void bad_array(const std::string& name, const char* what) {
  throw Failure(fmt::format("its array {} {}", name.substr(0, 200), what));
}

// One array out of the bytes of state.h5. Nothing is allocated or read before its size and places are
// checked.
template <class Value>
std::vector<Value> read_values(std::span<const std::byte> file, const std::string& name, const json& places) {
  const json addresses = places.is_object() ? places.value("addresses", json()) : json();
  const auto number = [&](const char* key) -> std::uint64_t {
    const json value = places.is_object() ? places.value(key, json()) : json();
    if (!value.is_number_unsigned()) bad_array(name, "has no size");
    return value;
  };
  const std::uint64_t count = number("count");
  const std::uint64_t chunk = number("chunk");
  if (count > file.size() / sizeof(Value)) bad_array(name, "claims more values than the file holds");
  const std::uint64_t chunks = chunk == 0 ? 0 : count / chunk + (count % chunk != 0 ? 1 : 0);
  if (chunk == 0 || !addresses.is_array() || addresses.size() != chunks)
    bad_array(name, "has the wrong number of chunks");
  std::vector<Value> values(count);
  for (std::uint64_t i = 0; i < chunks; ++i) {
    const std::uint64_t first = i * chunk;
    const std::uint64_t bytes = std::min(chunk, count - first) * sizeof(Value);
    const json& address = addresses[i];
    if (!address.is_number_unsigned() || address.get<std::uint64_t>() > file.size() - bytes) {
      bad_array(name, "lies outside of the file");
    }
    std::memcpy(values.data() + first, file.data() + address.get<std::uint64_t>(), bytes);
  }
  return values;
}

StateValues read_array(std::span<const std::byte> file, const std::string& name, const json& places) {
  const json type = places.is_object() ? places.value("type", json()) : json();
  if (type == kCodes) return read_values<std::uint8_t>(file, name, places);
  if (!type.is_null()) bad_array(name, "has a type that this version does not know");
  return read_values<float>(file, name, places);
}

Checkpoint read_state(const fs::path& path, const json& manifest) {
  static_assert(std::endian::native == std::endian::little, "state.h5 is little-endian");
  Checkpoint checkpoint;
  const json step = manifest.value("step", json());
  if (!step.is_number_unsigned() || step > std::uint64_t{std::numeric_limits<std::int64_t>::max()}) {
    throw Failure("its manifest has no step");
  }
  checkpoint.step = step;
  checkpoint.recipe = manifest.value("recipe", json());
  checkpoint.bits = manifest.value("bits", json());
  const json arrays = manifest.value("arrays", json());
  if (!arrays.is_object()) throw Failure("its manifest has no arrays");
  const MappedFile file(path);
  for (const auto& [name, places] : arrays.items()) {
    checkpoint.arrays.emplace_back(name, read_array(file.bytes(), name, places));
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

void write_manifest(const fs::path& directory, std::int64_t step, const json& recipe, const json& bits,
                    const json& arrays) {
  json files = json::object();
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (!entry.is_regular_file()) continue;
    const FileFacts facts = file_facts(entry.path());
    files[entry.path().lexically_relative(directory).generic_string()] = {{"bytes", facts.bytes},
                                                                          {"xxh3_128", facts.hash}};
  }
  const json manifest{{"format", kFormat}, {"version", kVersion}, {"step", step},  {"recipe", recipe},
                      {"bits", bits},      {"arrays", arrays},    {"files", files}};
  const std::string text = manifest_text(manifest);
  RT_CHECK(text.size() <= kManifestBound, "the manifest is longer than what is read");
  write_file_durably(directory / kManifestFile, text);
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

// The manifest, its own checksum verified. Throws Failure.
json read_manifest(const fs::path& directory) {
  const fs::path path = directory / kManifestFile;
  if (!is_plain_file(path)) throw Failure(fmt::format("{} is missing", kManifestFile));
  if (fs::file_size(path) > kManifestBound) throw Failure(fmt::format("{} is too long", kManifestFile));
  const std::string text = read_file(path);
  json manifest = parse_json(text, kManifestFile);
  if (!manifest.is_object() || !manifest.value("files", json()).is_object()) {
    throw Failure(fmt::format("{} is damaged: it is not the JSON it should be", kManifestFile));
  }
  if (manifest_text(manifest) != text) {
    throw Failure(fmt::format("{} is damaged: its own checksum differs", kManifestFile));
  }
  if (manifest.value("format", json()) != kFormat || manifest.value("version", json()) != kVersion) {
    throw Failure(fmt::format("{} is of another format than {} {}", kManifestFile, kFormat, kVersion));
  }
  return manifest;
}

std::optional<std::string> verify_files(const fs::path& directory, const json& files) {
  if (!files.contains(kStateFile)) return fmt::format("its manifest does not name {}", kStateFile);
  for (const auto& [name, expected] : files.items()) {
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
    const RawArray values = raw(array);
    total += values.count * values.width;
    largest = std::max<std::uint64_t>(largest, values.count * values.width);
  }
  // The adapter beside the state is about one array more; the rest is for HDF5's own structures.
  return total + largest + total / 1000 + 2 * (recipe.dump().size() + bits.dump().size()) + 262'144;
}

void fill_checkpoint(const fs::path& directory, std::int64_t step, const json& recipe, const json& bits,
                     std::span<const StateArray> arrays, const std::function<void(const fs::path&)>& extra) {
  try {
    const json places = write_state(directory / kStateFile, step, recipe, bits, arrays);
    if (extra) extra(directory);
    write_manifest(directory, step, recipe, bits, places);
  } catch (...) {
    // HDF5 keeps a file open whose last flush failed; empty, it holds no space until the program ends.
    std::error_code ignored;
    fs::resize_file(directory / kStateFile, 0, ignored);
    throw;
  }
}

}  // namespace

const StateValues& Checkpoint::values(const std::string& name) const {
  for (const auto& [candidate, found] : arrays) {
    if (candidate == name) return found;
  }
  throw Failure("the checkpoint has no array " + name);
}

const std::vector<float>& Checkpoint::array(const std::string& name) const {
  const auto* found = std::get_if<std::vector<float>>(&values(name));
  RT_CHECK(found != nullptr, "the checkpoint's array " + name + " is not fp32");
  return *found;
}

fs::path write_checkpoint(const fs::path& output_dir, std::int64_t step, const json& recipe, const json& bits,
                          std::span<const StateArray> arrays, const std::string& attempt,
                          const std::function<void(const fs::path&)>& extra) {
  fs::path path = output_dir / fmt::format("checkpoint-{:06}", step);
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
    return verify_files(directory, read_manifest(directory).at("files"));
  } catch (const std::exception& error) {
    return error.what();
  }
}

Checkpoint read_checkpoint(const fs::path& directory) {
  std::string problem;
  try {
    const json manifest = read_manifest(directory);
    problem = verify_files(directory, manifest.at("files")).value_or("");
    if (problem.empty()) return read_state(directory / kStateFile, manifest);
  } catch (const std::exception& error) {
    problem = error.what();
  }
  throw UserError(fmt::format("the checkpoint {} cannot be used: {}; resume from another one",
                              directory.string(), problem));
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
