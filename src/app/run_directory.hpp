// What an output directory holds and what follows for where a run starts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "app/options.hpp"
#include "store/checkpoint.hpp"

namespace ranktune::app {

struct StartPoint {
  enum class Kind : int {
    fresh,
    resume,   // from `checkpoint`; with step == all steps only the export is left
    all_done  // trained, exported, and metrics.h5 written
  };
  Kind kind = Kind::fresh;
  std::int64_t step = 0;
  std::filesystem::path checkpoint;
  std::vector<std::string> notes;  // to be said and written to /events
  bool plan_adopted = false;
  bool resumes() const { return kind == Kind::resume; }
};

std::string to_text(const StartPoint& start);
StartPoint start_point(const std::string& text);

// Checks that cost nothing, for the report before anything is loaded: a run that is there already without
// --resume, a
// --save_path that exists, directories that cannot be written. Adds sentences to `problems`.
void check_directories(const TrainOptions& options, std::vector<std::string>& problems);

// Writes down in the output directory that --save_path, which did not exist when the run began, is this run's
// to write and to replace when it is resumed. Throws Failure.
void record_save_path(const TrainOptions& options);

// Rank 0: decides by --resume and what is there; `loaded` gets the checkpoint. Throws UserError when a
// checkpoint of another recipe is found, listing the differences.
StartPoint find_start(const TrainOptions& options, const nlohmann::json& recipe, std::int64_t total_steps,
                      std::optional<store::Checkpoint>& loaded);

}  // namespace ranktune::app
