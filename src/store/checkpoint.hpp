// Checkpoints: checkpoint-000500/ holds state.h5 (parameters, optimizer moments, step, what the bits depend
// on), and manifest.json with the size and XXH3-128 of every other file of the directory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace ranktune::store {

// A named flat array of the state ("parameters", "exp_avg", "exp_avg_sq"): fp32, or the codes of 8-bit
// moments.
struct StateArray {
  std::string name;
  std::variant<std::span<const float>, std::span<const std::uint8_t>> values;
};
using StateValues = std::variant<std::vector<float>, std::vector<std::uint8_t>>;

// NOLINTNEXTLINE(bugprone-exception-escape): nlohmann::json moves without throwing
struct Checkpoint {
  std::int64_t step = 0;  // optimizer steps done
  nlohmann::json recipe;  // what must be equal on resume (model, dataset digest, hyperparameters, ...)
  nlohmann::json bits;    // what the bits depend on (world size, GPU, library versions, plan, ...)
  std::vector<std::pair<std::string, StateValues>> arrays;  // by name

  const StateValues& values(const std::string& name) const;        // throws Failure when absent
  const std::vector<float>& array(const std::string& name) const;  // the same, also when it is not fp32
};

// Writes OUTPUT_DIR/checkpoint-<step, 6 digits or more> atomically. `extra` may write more files (the
// adapter) into the directory given before the manifest is made. HDF5: chunked, Fletcher-32 per chunk. Free
// space is checked first. Returns the final path. Throws Failure; the previous checkpoints are untouched
// then.
std::filesystem::path write_checkpoint(const std::filesystem::path& output_dir, std::int64_t step,
                                       const nlohmann::json& recipe, const nlohmann::json& bits,
                                       std::span<const StateArray> arrays, const std::string& attempt,
                                       const std::function<void(const std::filesystem::path&)>& extra = {});

// Verifies sizes and hashes against the manifest. Returns an error text, or nullopt when whole.
std::optional<std::string> verify_checkpoint(const std::filesystem::path& directory);

// Reads a checkpoint that verifies; throws UserError naming what is wrong otherwise.
Checkpoint read_checkpoint(const std::filesystem::path& directory);

// Directories checkpoint-<number> (and .old-* of a replaced one) in `output_dir`, newest step first, not
// verified.
std::vector<std::filesystem::path> list_checkpoints(const std::filesystem::path& output_dir);

// The newest that verifies; `rejected` gets a sentence for each newer one that did not.
std::optional<std::filesystem::path> latest_checkpoint(const std::filesystem::path& output_dir,
                                                       std::vector<std::string>& rejected);

// Deletes all but the newest `keep` (keep <= 0: none is deleted). Never deletes the only one that verifies.
void prune_checkpoints(const std::filesystem::path& output_dir, std::int64_t keep);

}  // namespace ranktune::store
