// adapter_config.json: PEFT's LoraConfig as far as this program carries it.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "export/adapter.hpp"

namespace ranktune::exporting {

// The seven projections in the order of the forward pass, each with the block that it belongs to.
struct Projection {
  std::string_view name;   // "q_proj"
  std::string_view block;  // "self_attn" or "mlp"
};
const std::vector<Projection>& projections();

// The file's text, keys sorted as PEFT sorts them.
std::string config_text(const AdapterConfig& config);

}  // namespace ranktune::exporting
