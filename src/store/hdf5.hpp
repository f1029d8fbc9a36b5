// HDF5's C library with handles that close themselves and failures that carry the library's own error text.
// Serial HDF5; used from one thread at a time.
#pragma once

#include <hdf5.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ranktune::store {

// Turns off HDF5's own printing of errors (it is kept per thread) and the loading of filter plugins.
void hdf5_prepare() noexcept;

// Throws Failure "CONTEXT: CALL failed: what HDF5 says, innermost cause first".
[[noreturn]] void hdf5_failed(const char* call, const std::string& context);

// Runs an HDF5 call and returns its result; a negative one becomes a Failure that names the call. `context`
// is evaluated only then.
#define RT_HDF5(call, context)                                             \
  ([&] {                                                                   \
    ::ranktune::store::hdf5_prepare();                                     \
    const auto hdf5_result = (call);                                       \
    if (hdf5_result < 0) ::ranktune::store::hdf5_failed(#call, (context)); \
    return hdf5_result;                                                    \
  }())

// Owns one HDF5 identifier. The destructor closes quietly; close() where its error matters.
class Hdf5Handle {
 public:
  using Closer = herr_t (*)(hid_t);
  Hdf5Handle() = default;
  Hdf5Handle(hid_t id, Closer closer) : id_(id), closer_(closer) {}
  ~Hdf5Handle() { reset(); }
  Hdf5Handle(Hdf5Handle&& other) noexcept;
  Hdf5Handle& operator=(Hdf5Handle&& other) noexcept;
  Hdf5Handle(const Hdf5Handle&) = delete;
  Hdf5Handle& operator=(const Hdf5Handle&) = delete;

  hid_t id() const { return id_; }
  bool is_open() const { return id_ >= 0; }
  void close(const std::string& context);  // throws Failure
  void reset() noexcept;

 private:
  hid_t id_ = H5I_INVALID_HID;
  Closer closer_ = nullptr;
};

// newest: what SWMR needs. portable: the oldest format that holds the content, for every reader.
enum class FileFormat { newest, portable };

// Files are opened without HDF5's own file locks: they fail on file systems that have none, and run.lock
// guards the directory. Throw Failure.
Hdf5Handle create_hdf5_file(const std::filesystem::path& path, FileFormat format);  // truncates
Hdf5Handle open_hdf5_file(const std::filesystem::path& path, unsigned flags);       // H5F_ACC_...
void fsync_hdf5_file(const Hdf5Handle& file, const std::string& context);           // H5Fflush first

// One attribute of an object: UTF-8 text of variable length, or a 64-bit integer.
void write_attribute(hid_t object, const std::string& name, const std::string& text,
                     const std::string& context);
void write_attribute(hid_t object, const std::string& name, std::int64_t value, const std::string& context);
void rewrite_attribute(hid_t object, const std::string& name, std::int64_t value, const std::string& context);
std::optional<std::int64_t> integer_attribute(hid_t object, const std::string& name,
                                              const std::string& context);
std::optional<std::string> text_attribute(hid_t object, const std::string& name, const std::string& context);
std::vector<std::string> attribute_names(hid_t object, const std::string& context);

// A scalar dataset of fixed-length UTF-8 text, for texts that may outgrow an attribute (64 KiB in the
// portable format). `bound` limits what is read.
void write_text_dataset(hid_t parent, const std::string& name, const std::string& text,
                        const std::string& context);
std::string read_text_dataset(hid_t parent, const std::string& name, std::uint64_t bound,
                              const std::string& context);

// Opens a dataset whose data lies in this very file: no soft or external link, no external or virtual
// storage.
Hdf5Handle open_own_dataset(hid_t parent, const std::string& name, const std::string& context);

}  // namespace ranktune::store
