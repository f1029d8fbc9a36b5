// Writes GGUF files, version 3 (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md): keys with values,
// then tensors at multiples of 32 bytes. Little-endian.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ranktune::exporting {

// Numbers as in ggml.h.
enum class GgufType : std::uint32_t { f32 = 0, f16 = 1, q8_0 = 8, bf16 = 30 };
inline constexpr std::int64_t kQ8Block = 32;  // elements of a row that share a scale in q8_0

struct GgufTensor {
  std::string name;
  std::vector<std::int64_t> shape;  // outermost first; the file has it the other way round
  GgufType type = GgufType::f32;
  std::uint64_t bytes() const;
};

class GgufFile {
 public:
  void add_count(std::string_view key, std::uint32_t value);
  void add_number(std::string_view key, float value);
  void add_flag(std::string_view key, bool value);
  void add_text(std::string_view key, std::string_view value);
  void add_texts(std::string_view key, const std::vector<std::string>& values);
  void add_integers(std::string_view key, const std::vector<std::int32_t>& values);
  void add_tensor(GgufTensor tensor) { tensors_.push_back(std::move(tensor)); }

  // Bytes of the tensors.
  std::uint64_t tensor_bytes() const;
  // Calls fill(tensor, sink) for each tensor in order; fill hands tensor.bytes() bytes over. Holds no tensor.
  using Sink = std::function<void(std::span<const std::byte>)>;
  using Fill = std::function<void(const GgufTensor&, const Sink&)>;
  void write(const std::filesystem::path& path, const Fill& fill) const;

 private:
  void begin(std::string_view key, std::uint32_t type);

  std::string pairs_;  // as in the file
  std::uint64_t pair_count_ = 0;
  std::vector<GgufTensor> tensors_;
};

}  // namespace ranktune::exporting
