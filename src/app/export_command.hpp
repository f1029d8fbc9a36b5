// `ranktune export`: what training writes at its end, made later from a run or an adapter. Without MPI.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "train/merge.hpp"

namespace ranktune::app {

struct ExportCommand {
  std::string source;  // an adapter, or a run's or a checkpoint's folder
  std::string to;      // merged_16bit, lora, gguf
  std::string save_path;
  std::optional<std::string> model_name;  // none: what the adapter names as its base
  std::vector<std::string> quantization = {"q8_0"};
  std::uint64_t shard_bytes = train::kShardBytes;
  std::vector<std::string> problems;
  bool help = false;
};
ExportCommand parse_export_options(const std::vector<std::string>& arguments);
std::string export_help();

// Bytes of "5GB", "300MB" or "20KB" (powers of ten); nothing where the text has another form.
std::optional<std::uint64_t> parse_size(const std::string& text);

// Returns the exit code; throws UserError where the input is wrong.
int run_export(const ExportCommand& command);

}  // namespace ranktune::app
