#include "store/hdf5.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.hpp"

namespace ranktune::store {
namespace {

// HDF5's own words; of "write failed: time = (with a line break), filename = ..., error message = 'X', buf =
// ..." only the first and X, the system's.
std::string short_description(const std::string& text) {
  static const std::string kMessage = "error message = '";
  const auto message = text.find(kMessage);
  const auto time = text.find(": time = ");
  if (message == std::string::npos || time == std::string::npos) return text;
  const auto begin = message + kMessage.size();
  return text.substr(0, time) + ": " + text.substr(begin, text.find('\'', begin) - begin);
}

herr_t collect_error(unsigned depth, const H5E_error2_t* error, void* data) {
  auto& text = *static_cast<std::string*>(data);
  if (depth < 3 && error->desc != nullptr && *error->desc != '\0') {
    if (!text.empty()) text += "; ";
    text += short_description(error->desc);
  }
  return 0;
}

Hdf5Handle file_access(FileFormat format, const std::string& context) {
  Hdf5Handle access(RT_HDF5(H5Pcreate(H5P_FILE_ACCESS), context), H5Pclose);
  RT_HDF5(H5Pset_file_locking(access.id(), false, true), context);
  RT_HDF5(H5Pset_fclose_degree(access.id(), H5F_CLOSE_STRONG), context);
  if (format == FileFormat::newest) {
    RT_HDF5(H5Pset_libver_bounds(access.id(), H5F_LIBVER_LATEST, H5F_LIBVER_LATEST), context);
  }
  return access;
}

Hdf5Handle scalar_space(const std::string& context) {
  return {RT_HDF5(H5Screate(H5S_SCALAR), context), H5Sclose};
}

Hdf5Handle text_type(std::size_t size, const std::string& context) {
  Hdf5Handle type(RT_HDF5(H5Tcopy(H5T_C_S1), context), H5Tclose);
  RT_HDF5(H5Tset_size(type.id(), size), context);
  RT_HDF5(H5Tset_cset(type.id(), H5T_CSET_UTF8), context);
  return type;
}

// Opened only when it exists, is a scalar, and of the class wanted.
Hdf5Handle scalar_attribute(hid_t object, const std::string& name, H5T_class_t wanted,
                            const std::string& context) {
  if (RT_HDF5(H5Aexists(object, name.c_str()), context) == 0) return {};
  Hdf5Handle attribute(RT_HDF5(H5Aopen(object, name.c_str(), H5P_DEFAULT), context), H5Aclose);
  const Hdf5Handle type(RT_HDF5(H5Aget_type(attribute.id()), context), H5Tclose);
  const Hdf5Handle space(RT_HDF5(H5Aget_space(attribute.id()), context), H5Sclose);
  const bool fits = H5Tget_class(type.id()) == wanted && H5Sget_simple_extent_npoints(space.id()) == 1;
  return fits ? std::move(attribute) : Hdf5Handle{};
}

}  // namespace

void hdf5_prepare() noexcept {
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  H5PLset_loading_state(0);
}

void hdf5_failed(const char* call, const std::string& context) {
  std::string text;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, collect_error, &text);
  H5Eclear2(H5E_DEFAULT);
  const std::string name(call, std::strcspn(call, "("));
  throw Failure(fmt::format("{}: {} failed: {}", context, name, text.empty() ? "no reason given" : text));
}

Hdf5Handle::Hdf5Handle(Hdf5Handle&& other) noexcept
    : id_(std::exchange(other.id_, H5I_INVALID_HID)), closer_(other.closer_) {}

Hdf5Handle& Hdf5Handle::operator=(Hdf5Handle&& other) noexcept {
  if (this != &other) {
    reset();
    id_ = std::exchange(other.id_, H5I_INVALID_HID);
    closer_ = other.closer_;
  }
  return *this;
}

void Hdf5Handle::close(const std::string& context) {
  if (!is_open()) return;
  const auto closing = [this] { return closer_(std::exchange(id_, H5I_INVALID_HID)); };
  RT_HDF5(closing(), context);
}

void Hdf5Handle::reset() noexcept {
  if (!is_open()) return;
  hdf5_prepare();
  closer_(std::exchange(id_, H5I_INVALID_HID));
}

Hdf5Handle create_hdf5_file(const std::filesystem::path& path, FileFormat format) {
  const std::string context = "cannot create " + path.string();
  const Hdf5Handle access = file_access(format, context);
  const Hdf5Handle creation(RT_HDF5(H5Pcreate(H5P_FILE_CREATE), context), H5Pclose);
  // The root's attributes stay in its header, where SWMR allows to rewrite one.
  RT_HDF5(H5Pset_attr_phase_change(creation.id(), 1024, 0), context);
  return {RT_HDF5(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation.id(), access.id()), context), H5Fclose};
}

Hdf5Handle open_hdf5_file(const std::filesystem::path& path, unsigned flags) {
  const std::string context = "cannot open " + path.string();
  const bool swmr = (flags & H5F_ACC_SWMR_WRITE) != 0;
  const Hdf5Handle access = file_access(swmr ? FileFormat::newest : FileFormat::portable, context);
  return {RT_HDF5(H5Fopen(path.c_str(), flags, access.id()), context), H5Fclose};
}

void fsync_hdf5_file(const Hdf5Handle& file, const std::string& context) {
  RT_HDF5(H5Fflush(file.id(), H5F_SCOPE_GLOBAL), context);
  void* descriptor = nullptr;
  RT_HDF5(H5Fget_vfd_handle(file.id(), H5P_DEFAULT, &descriptor), context);
  if (::fsync(*static_cast<int*>(descriptor)) != 0) {
    throw Failure(fmt::format("{}: fsync failed: {}", context, std::strerror(errno)));
  }
}

void write_attribute(hid_t object, const std::string& name, const std::string& text,
                     const std::string& context) {
  const Hdf5Handle type = text_type(H5T_VARIABLE, context);
  const Hdf5Handle space = scalar_space(context);
  const Hdf5Handle attribute(
      RT_HDF5(H5Acreate2(object, name.c_str(), type.id(), space.id(), H5P_DEFAULT, H5P_DEFAULT), context),
      H5Aclose);
  const char* pointer = text.c_str();
  RT_HDF5(H5Awrite(attribute.id(), type.id(), &pointer), context);
}

void write_attribute(hid_t object, const std::string& name, std::int64_t value, const std::string& context) {
  const Hdf5Handle space = scalar_space(context);
  const Hdf5Handle attribute(
      RT_HDF5(H5Acreate2(object, name.c_str(), H5T_STD_I64LE, space.id(), H5P_DEFAULT, H5P_DEFAULT), context),
      H5Aclose);
  RT_HDF5(H5Awrite(attribute.id(), H5T_NATIVE_INT64, &value), context);
}

void rewrite_attribute(hid_t object, const std::string& name, std::int64_t value,
                       const std::string& context) {
  const Hdf5Handle attribute(RT_HDF5(H5Aopen(object, name.c_str(), H5P_DEFAULT), context), H5Aclose);
  RT_HDF5(H5Awrite(attribute.id(), H5T_NATIVE_INT64, &value), context);
}

std::optional<std::int64_t> integer_attribute(hid_t object, const std::string& name,
                                              const std::string& context) {
  const Hdf5Handle attribute = scalar_attribute(object, name, H5T_INTEGER, context);
  if (!attribute.is_open()) return std::nullopt;
  std::int64_t value = 0;
  RT_HDF5(H5Aread(attribute.id(), H5T_NATIVE_INT64, &value), context);
  return value;
}

std::optional<std::string> text_attribute(hid_t object, const std::string& name, const std::string& context) {
  const Hdf5Handle attribute = scalar_attribute(object, name, H5T_STRING, context);
  if (!attribute.is_open()) return std::nullopt;
  const Hdf5Handle stored(RT_HDF5(H5Aget_type(attribute.id()), context), H5Tclose);
  if (RT_HDF5(H5Tis_variable_str(stored.id()), context) == 0) return std::nullopt;
  const Hdf5Handle type = text_type(H5T_VARIABLE, context);
  RT_HDF5(H5Tset_cset(type.id(), H5Tget_cset(stored.id())), context);
  char* pointer = nullptr;
  RT_HDF5(H5Aread(attribute.id(), type.id(), &pointer), context);
  std::string text = pointer == nullptr ? "" : pointer;
  H5free_memory(pointer);
  return text;
}

std::vector<std::string> attribute_names(hid_t object, const std::string& context) {
  std::vector<std::string> names;
  const auto add = [](hid_t, const char* name, const H5A_info_t*, void* data) -> herr_t {
    static_cast<std::vector<std::string>*>(data)->emplace_back(name);
    return 0;
  };
  RT_HDF5(H5Aiterate2(object, H5_INDEX_NAME, H5_ITER_INC, nullptr, add, &names), context);
  return names;
}

void write_text_dataset(hid_t parent, const std::string& name, const std::string& text,
                        const std::string& context) {
  // One byte more keeps the text zero-terminated, and an empty one possible.
  const Hdf5Handle type = text_type(text.size() + 1, context);
  const Hdf5Handle space = scalar_space(context);
  Hdf5Handle dataset(
      RT_HDF5(H5Dcreate2(parent, name.c_str(), type.id(), space.id(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
              context),
      H5Dclose);
  RT_HDF5(H5Dwrite(dataset.id(), type.id(), H5S_ALL, H5S_ALL, H5P_DEFAULT, text.c_str()), context);
  dataset.close(context);
}

std::string read_text_dataset(hid_t parent, const std::string& name, std::uint64_t bound,
                              const std::string& context) {
  const Hdf5Handle dataset = open_own_dataset(parent, name, context);
  const Hdf5Handle type(RT_HDF5(H5Dget_type(dataset.id()), context), H5Tclose);
  const Hdf5Handle space(RT_HDF5(H5Dget_space(dataset.id()), context), H5Sclose);
  const std::size_t size = H5Tget_size(type.id());
  if (H5Tget_class(type.id()) != H5T_STRING || H5Tis_variable_str(type.id()) != 0 || size == 0 ||
      size > bound || H5Sget_simple_extent_npoints(space.id()) != 1) {
    throw Failure(fmt::format("{}: {} is not a text of at most {} bytes", context, name, bound));
  }
  std::string text(size, '\0');
  RT_HDF5(H5Dread(dataset.id(), type.id(), H5S_ALL, H5S_ALL, H5P_DEFAULT, text.data()), context);
  text.resize(std::strlen(text.c_str()));
  return text;
}

Hdf5Handle open_own_dataset(hid_t parent, const std::string& name, const std::string& context) {
  H5L_info_t link{};
  RT_HDF5(H5Lget_info(parent, name.c_str(), &link, H5P_DEFAULT), context);
  if (link.type != H5L_TYPE_HARD) throw Failure(fmt::format("{}: {} is a link to elsewhere", context, name));
  Hdf5Handle dataset(RT_HDF5(H5Dopen2(parent, name.c_str(), H5P_DEFAULT), context), H5Dclose);
  const Hdf5Handle creation(RT_HDF5(H5Dget_create_plist(dataset.id()), context), H5Pclose);
  const H5D_layout_t layout = H5Pget_layout(creation.id());
  if (layout == H5D_VIRTUAL || layout < 0 || H5Pget_external_count(creation.id()) != 0) {
    throw Failure(fmt::format("{}: the data of {} lies in other files", context, name));
  }
  return dataset;
}

}  // namespace ranktune::store
