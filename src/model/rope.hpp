// Rotary position embedding (Su et al. 2021) and how its frequencies are stretched beyond the trained
// context, with the numbers of Transformers' modeling_rope_utils.py.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "model/config_keys.hpp"

namespace ranktune::model {

struct RopeConfig {
  // standard ("default") and linear: Chen et al. 2023; dynamic: NTK-aware, by the sample's length; llama3:
  // Grattafiori et al. 2024; yarn: Peng et al. 2023.
  enum class Type { standard, linear, dynamic, llama3, yarn };
  Type type = Type::standard;
  double theta = 10000.0;
  double factor = 1.0;
  double low_freq_factor = 1.0;             // llama3
  double high_freq_factor = 4.0;            // llama3
  std::int64_t original_max_positions = 0;  // llama3, yarn; dynamic: the longest sample that is not stretched
  double beta_fast = 32.0;                  // yarn
  double beta_slow = 1.0;                   // yarn
  bool truncate = true;                     // yarn: the ramp begins and ends at whole dimensions
  double attention_factor = 1.0;            // of cosines and sines (yarn)
};

// Both spellings: `rope_theta` beside `rope_scaling` {"rope_type" or "type"}, and `rope_parameters` with all
// of it. max_positions: max_position_embeddings. Throws UserError naming the key.
RopeConfig parse_rope(const ConfigKeys& keys, std::int64_t max_positions);

// Inverse frequencies [head_dim / 2] after scaling; of `dynamic` those of a sample that is not stretched.
std::vector<float> rope_inverse_frequencies(const RopeConfig& rope, std::int64_t head_dim);

// Cosine and sine of each rotary angle times the attention factor, fp32 [rows, head_dim / 2], and the row
// that each token of a pass takes, int32 [tokens].
struct RopeTable {
  at::Tensor cosines, sines, rows;
};

// A row for each position; `rows` is left to be the positions of a pass. Not for `dynamic`.
RopeTable rope_table(const RopeConfig& rope, std::int64_t head_dim, std::int64_t positions,
                     at::Device device);

// `dynamic` takes its frequencies from the length of each sequence (last position + 1), so each token of a
// pass has a row of its own. Fills the first `tokens` rows of a table made by empty_dynamic_table, on the
// device.
RopeTable empty_dynamic_table(std::int64_t head_dim, std::int64_t tokens, at::Device device);
void fill_dynamic_table(const RopeConfig& rope, const at::Tensor& positions, const at::Tensor& cu_seqlens,
                        RopeTable& table);

}  // namespace ranktune::model
