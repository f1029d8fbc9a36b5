#include "base/safetensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "base/error.hpp"

namespace ranktune {
namespace {

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kHeaderBound = 100'000'000;  // the format's own
constexpr std::size_t kDimensionBound = 16;

std::optional<std::uint64_t> known_dtype_bytes(std::string_view dtype) {
  static const std::map<std::string_view, std::uint64_t> kBytes{
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"F8_E8M0", 1},
      {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},     {"U32", 4},
      {"F32", 4},  {"I64", 8}, {"U64", 8}, {"F64", 8},     {"C64", 8}};
  const auto found = kBytes.find(dtype);
  return found == kBytes.end() ? std::nullopt : std::optional(found->second);
}

// A name from the file as it may be printed: short, no control characters.
std::string printable(std::string_view name) {
  std::string text;
  for (const char character : name.substr(0, 120)) {
    text += static_cast<unsigned char>(character) < 0x20 || character == 0x7F ? '?' : character;
  }
  return name.size() > 120 ? text + "..." : text;
}

// Takes the header event by event, so that a hostile one is refused at its first odd token instead of being
// built in memory. Depth 1 is the object of tensors, depth 2 one tensor or the metadata, depth 3 its arrays.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderReader(std::map<std::string, SafetensorsEntry>& entries, std::map<std::string, std::string>& metadata)
      : entries_(entries), metadata_(metadata) {}

  const std::string& problem() const { return problem_; }

  bool null() override { return refuse("null"); }
  bool boolean(bool) override { return refuse("a boolean"); }
  bool number_integer(number_integer_t) override { return refuse("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    return refuse("a number that is not an integer");
  }
  bool binary(binary_t&) override { return refuse("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (depth_ != 3) return refuse("a number");
    std::vector<std::uint64_t>& list = field_ == "shape" ? shape_ : offsets_;
    if (list.size() >= (field_ == "shape" ? kDimensionBound : 2)) return refuse("a list that is too long");
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
      return refuse("a number that is too large");
    list.push_back(value);
    return true;
  }

  bool string(string_t& value) override {
    if (depth_ != 2) return refuse("a text");
    if (in_metadata_) return metadata_.emplace(field_, value).second || refuse("a duplicate entry");
    if (field_ != "dtype") return refuse("a text");
    dtype_ = value;
    return true;
  }

  bool start_object(std::size_t) override {
    if (depth_ >= 2) return refuse("an object");
    ++depth_;
    seen_.clear();
    return true;
  }

  bool key(string_t& name) override {
    if (depth_ == 1) {
      in_metadata_ = name == "__metadata__";
      tensor_ = name;
      dtype_.clear();
      shape_.clear();
      offsets_.clear();
      if (in_metadata_ ? std::exchange(metadata_seen_, true) : entries_.contains(name))
        return refuse("a duplicate name");
      return true;
    }
    field_ = name;
    if (in_metadata_) return true;
    if (field_ != "dtype" && field_ != "shape" && field_ != "data_offsets") return refuse("an unknown field");
    if (std::find(seen_.begin(), seen_.end(), field_) != seen_.end()) return refuse("a duplicate field");
    seen_.push_back(field_);
    return true;
  }

  bool end_object() override {
    --depth_;
    if (depth_ == 0 || in_metadata_) return true;
    if (seen_.size() != 3 || offsets_.size() != 2 || dtype_.empty()) {
      problem_ = fmt::format("tensor {} lacks dtype, shape or data_offsets", printable(tensor_));
      return false;
    }
    entries_.emplace(tensor_,
                     SafetensorsEntry{dtype_, {shape_.begin(), shape_.end()}, offsets_[0], offsets_[1]});
    return true;
  }

  bool start_array(std::size_t) override {
    if (depth_ != 2 || in_metadata_ || field_ == "dtype") return refuse("a list");
    ++depth_;
    return true;
  }

  bool end_array() override {
    --depth_;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    problem_ = fmt::format("its header is no valid JSON at byte {}", position);
    return false;
  }

 private:
  bool refuse(const char* what) {
    problem_ = tensor_.empty() ? fmt::format("its header holds {} where tensors are expected", what)
                               : fmt::format("its header holds {} in the entry {}", what, printable(tensor_));
    return false;
  }

  std::map<std::string, SafetensorsEntry>& entries_;
  std::map<std::string, std::string>& metadata_;
  std::string problem_;
  int depth_ = 0;
  bool in_metadata_ = false;
  bool metadata_seen_ = false;
  std::string tensor_;
  std::string field_;
  std::string dtype_;
  std::vector<std::string> seen_;
  std::vector<std::uint64_t> shape_;
  std::vector<std::uint64_t> offsets_;
};

[[noreturn]] void refuse_file(const std::filesystem::path& path, const std::string& why) {
  throw UserError(
      fmt::format("{} is not a usable safetensors file: {}; download or write it again", path.string(), why));
}

std::uint64_t header_length(std::span<const std::byte> bytes, const std::filesystem::path& path) {
  if (bytes.size() < kLengthBytes) refuse_file(path, fmt::format("it has only {} bytes", bytes.size()));
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i)
    length |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * i);
  if (length > kHeaderBound) {
    refuse_file(path,
                fmt::format("its header claims {} bytes, more than the {} allowed", length, kHeaderBound));
  }
  if (length > bytes.size() - kLengthBytes) {
    refuse_file(path, fmt::format("its header claims {} bytes but the file has {}", length, bytes.size()));
  }
  return length;
}

// Bytes that shape and dtype ask for, or nullopt on overflow.
std::optional<std::uint64_t> bytes_needed(const SafetensorsEntry& entry, std::uint64_t element) {
  std::uint64_t total = element;
  for (const auto extent : entry.shape) {
    if (__builtin_mul_overflow(total, static_cast<std::uint64_t>(extent), &total)) return std::nullopt;
  }
  return total;
}

void check_entry(const std::string& name, const SafetensorsEntry& entry, std::uint64_t section,
                 const std::filesystem::path& path) {
  const auto element = known_dtype_bytes(entry.dtype);
  if (!element)
    refuse_file(path,
                fmt::format("tensor {} has the unknown dtype {}", printable(name), printable(entry.dtype)));
  if (entry.begin > entry.end || entry.end > section) {
    refuse_file(path, fmt::format("tensor {} claims bytes {} to {} of a data section of {} bytes",
                                  printable(name), entry.begin, entry.end, section));
  }
  const auto needed = bytes_needed(entry, *element);
  if (!needed || *needed != entry.end - entry.begin) {
    refuse_file(path, fmt::format("tensor {} has {} bytes, which its shape and dtype {} contradict",
                                  printable(name), entry.end - entry.begin, entry.dtype));
  }
}

void check_overlaps(const std::map<std::string, SafetensorsEntry>& entries,
                    const std::filesystem::path& path) {
  std::vector<const std::pair<const std::string, SafetensorsEntry>*> order;
  for (const auto& item : entries) {
    if (item.second.begin < item.second.end) order.push_back(&item);
  }
  std::sort(order.begin(), order.end(), [](auto* a, auto* b) { return a->second.begin < b->second.begin; });
  for (std::size_t i = 1; i < order.size(); ++i) {
    if (order[i]->second.begin < order[i - 1]->second.end) {
      refuse_file(path, fmt::format("tensors {} and {} overlap", printable(order[i - 1]->first),
                                    printable(order[i]->first)));
    }
  }
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : file_(path) {
  const auto bytes = file_.bytes();
  const std::uint64_t length = header_length(bytes, path);
  const std::string_view header = file_.text().substr(kLengthBytes, length);
  section_ = bytes.subspan(kLengthBytes + length);
  if (header.empty() || header.front() != '{') refuse_file(path, "its header does not start with {");
  HeaderReader reader(entries_, metadata_);
  if (!nlohmann::json::sax_parse(header.begin(), header.end(), &reader)) refuse_file(path, reader.problem());
  for (const auto& [name, entry] : entries_) check_entry(name, entry, section_.size(), path);
  check_overlaps(entries_, path);
}

std::span<const std::byte> SafetensorsFile::data(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    throw UserError(fmt::format("{} has no tensor named {}", path().string(), printable(name)));
  }
  return section_.subspan(found->second.begin, found->second.end - found->second.begin);
}

std::uint64_t dtype_bytes(const std::string& dtype) {
  const auto bytes = known_dtype_bytes(dtype);
  if (!bytes) throw UserError(fmt::format("the tensor dtype {} is not known", printable(dtype)));
  return *bytes;
}

}  // namespace ranktune
