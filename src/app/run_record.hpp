// What a run writes down about itself: its recipe (equal on resume), what its bits depend on, and its
// provenance.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "app/inputs.hpp"
#include "app/options.hpp"
#include "cluster/communicator.hpp"
#include "cluster/devices.hpp"
#include "cluster/session.hpp"
#include "store/metrics.hpp"

namespace ranktune::app {

// Library versions as the running process sees them, name -> version.
std::vector<std::pair<std::string, std::string>> library_versions();

// What must be equal on resume, by the names of the flags where there are such.
nlohmann::json recipe_of(const TrainOptions& options, const Inputs& inputs, const std::string& dataset_key,
                         const std::string& dtype, std::int64_t global_batch, std::int64_t total_steps);

// What the bits depend on besides; a difference is said and goes into /events.
nlohmann::json bits_of(const cluster::Session& session, const cluster::DeviceChoice& device,
                       const cluster::Communicator& communicator, const TrainOptions& options, int threads);

// Names and values that differ, one sentence each: "NAME was A, is B".
std::vector<std::string> differences(const nlohmann::json& was, const nlohmann::json& is);

// Root attributes of the metrics file.
store::Provenance provenance_of(const cluster::Session& session, const cluster::DeviceChoice& device,
                                const cluster::Communicator& communicator, const TrainOptions& options,
                                const std::vector<std::string>& gpus_of_ranks,
                                const std::string& dataset_digest, const std::string& command_line,
                                const nlohmann::json& recipe);

}  // namespace ranktune::app
