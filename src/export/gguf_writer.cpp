#include "export/gguf_writer.hpp"

#include <bit>
#include <concepts>

#include "base/error.hpp"
#include "export/output_file.hpp"

namespace ranktune::exporting {
namespace {

constexpr std::uint64_t kAlignment = 32;  // what holds where no general.alignment is said

// Types of values.
constexpr std::uint32_t kUint32 = 4;
constexpr std::uint32_t kInt32 = 5;
constexpr std::uint32_t kFloat32 = 6;
constexpr std::uint32_t kBool = 7;
constexpr std::uint32_t kString = 8;
constexpr std::uint32_t kArray = 9;

template <std::unsigned_integral Number>
void append(std::string& bytes, Number value) {
  for (unsigned shift = 0; shift < 8 * sizeof(value); shift += 8)
    bytes += static_cast<char>((value >> shift) & 0xFFU);
}

void append(std::string& bytes, std::string_view text) {
  append(bytes, std::uint64_t{text.size()});
  bytes += text;
}

std::uint64_t aligned(std::uint64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

std::uint64_t GgufTensor::bytes() const {
  std::uint64_t elements = 1;
  for (const std::int64_t extent : shape) elements *= static_cast<std::uint64_t>(extent);
  switch (type) {
    case GgufType::f32:
      return 4 * elements;
    case GgufType::f16:
    case GgufType::bf16:
      return 2 * elements;
    case GgufType::q8_0:
      RT_CHECK(shape.back() % kQ8Block == 0, "rows of " + name + " are whole blocks");
      return elements / kQ8Block * (2 + kQ8Block);
  }
  throw Failure("unknown GGUF type of " + name);
}

void GgufFile::begin(std::string_view key, std::uint32_t type) {
  append(pairs_, key);
  append(pairs_, type);
  ++pair_count_;
}

void GgufFile::add_count(std::string_view key, std::uint32_t value) {
  begin(key, kUint32);
  append(pairs_, value);
}

void GgufFile::add_number(std::string_view key, float value) {
  begin(key, kFloat32);
  append(pairs_, std::bit_cast<std::uint32_t>(value));
}

void GgufFile::add_flag(std::string_view key, bool value) {
  begin(key, kBool);
  append(pairs_, std::uint8_t{value});
}

void GgufFile::add_text(std::string_view key, std::string_view value) {
  begin(key, kString);
  append(pairs_, value);
}

void GgufFile::add_texts(std::string_view key, const std::vector<std::string>& values) {
  begin(key, kArray);
  append(pairs_, kString);
  append(pairs_, std::uint64_t{values.size()});
  for (const std::string& value : values) append(pairs_, std::string_view(value));
}

void GgufFile::add_integers(std::string_view key, const std::vector<std::int32_t>& values) {
  begin(key, kArray);
  append(pairs_, kInt32);
  append(pairs_, std::uint64_t{values.size()});
  for (const std::int32_t value : values) append(pairs_, static_cast<std::uint32_t>(value));
}

std::uint64_t GgufFile::tensor_bytes() const {
  std::uint64_t total = 0;
  for (const GgufTensor& tensor : tensors_) total += aligned(tensor.bytes());
  return total;
}

void GgufFile::write(const std::filesystem::path& path, const Fill& fill) const {
  std::string head = "GGUF";
  append(head, std::uint32_t{3});
  append(head, std::uint64_t{tensors_.size()});
  append(head, pair_count_);
  head += pairs_;
  std::uint64_t offset = 0;
  for (const GgufTensor& tensor : tensors_) {
    append(head, std::string_view(tensor.name));
    append(head, static_cast<std::uint32_t>(tensor.shape.size()));
    for (auto extent = tensor.shape.rbegin(); extent != tensor.shape.rend(); ++extent)
      append(head, static_cast<std::uint64_t>(*extent));
    append(head, static_cast<std::uint32_t>(tensor.type));
    append(head, offset);
    offset += aligned(tensor.bytes());
  }
  head.resize(aligned(head.size()), '\0');

  OutputFile file(path, head.size() + offset);
  file.write(head);
  for (const GgufTensor& tensor : tensors_) {
    std::uint64_t left = tensor.bytes();
    fill(tensor, [&](std::span<const std::byte> bytes) {
      RT_CHECK(bytes.size() <= left, "no more bytes than " + tensor.name + " has");
      left -= bytes.size();
      file.write(bytes);
    });
    RT_CHECK(left == 0, "all bytes of " + tensor.name);
    file.write(std::string(aligned(tensor.bytes()) - tensor.bytes(), '\0'));
  }
  file.close();
}

}  // namespace ranktune::exporting
