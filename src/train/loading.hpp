// Base weights into the decoder: from files, each tensor read by one rank and broadcast, or seeded random
// ones.
#pragma once

#include <cstdint>
#include <functional>

#include "cluster/communicator.hpp"
#include "export/adapter.hpp"
#include "model/decoder.hpp"
#include "model/weights.hpp"

namespace ranktune::train {

// With weights that bitsandbytes quantised: enters the modules that the files hold whole.
void find_whole_modules(model::ModelConfig& config, const model::WeightFiles& files);

// Whether the files hold every tensor with the shape and a type that the model needs; nothing is read yet.
// Throws UserError that names what is missing or does not fit.
void check_weights(const model::ModelConfig& config, const model::WeightFiles& files);

// Called after each tensor with the bytes of base weights loaded so far; may throw to stop.
using LoadProgress = std::function<void(std::uint64_t)>;

// Collective: tensor i is read by rank i % world_size and broadcast in the type of its file.
void load_weights(model::Decoder& decoder, const model::WeightFiles& files,
                  cluster::Communicator& communicator, const LoadProgress& progress);

// Norms 1, everything else normal with config.initializer_range; the same on every rank.
void fill_dummy_weights(model::Decoder& decoder, std::uint64_t seed, const LoadProgress& progress);

// An adapter as the flat parameters of the layout: fp32 [elements] on the host, gaps zero. Throws UserError
// where a tensor is missing, has another shape or no place.
at::Tensor adapter_parameters(const model::FlatLayout& layout, const exporting::Adapter& adapter);

}  // namespace ranktune::train
