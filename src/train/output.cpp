#include "train/output.hpp"

#include <unistd.h>

#include <fmt/format.h>

#include <array>
#include <random>

#include "store/atomic_directory.hpp"

namespace ranktune::train {

std::string attempt_name() {
  static const std::string name = [] {
    std::array<char, 256> host{};
    ::gethostname(host.data(), host.size() - 1);
    return fmt::format("{}-{}-{:08x}", host.data(), ::getpid(), std::random_device{}());
  }();
  return name;
}

void save_adapter(const std::filesystem::path& folder, const exporting::Adapter& adapter,
                  const std::filesystem::path& tokenizer_folder) {
  store::AtomicDirectory directory(folder, attempt_name());
  exporting::write_adapter(directory.path(), adapter, tokenizer_folder);
  directory.commit();
}

}  // namespace ranktune::train
