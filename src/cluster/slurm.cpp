// The little that Slurm's environment has to say.
#include <fmt/format.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.hpp"
#include "cluster/session.hpp"

namespace ranktune::cluster {
namespace {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::int64_t number_or(const std::string& text, std::int64_t otherwise) {
  char* end = nullptr;
  const auto value = std::strtoll(text.c_str(), &end, 10);
  return text.empty() || *end != '\0' ? otherwise : value;
}

// Steps that srun made have small numbers; batch, extern and interactive steps have ones just below 2^32.
bool inside_srun_step() {
  constexpr std::int64_t kFirstSpecialStep = 0xfffffff0;
  const auto step = number_or(environment("SLURM_STEP_ID"), -1);
  return step >= 0 && step < kFirstSpecialStep;
}

}  // namespace

void refuse_launch_without_mpi() {
  if (!inside_srun_step()) return;
  const auto job_tasks = number_or(environment("SLURM_NTASKS"), 1);
  const auto tasks = number_or(environment("SLURM_STEP_NUM_TASKS"), job_tasks);
  if (tasks <= 1) return;
  for (const char* name : {"PMIX_RANK", "PMI_RANK", "OMPI_COMM_WORLD_SIZE"}) {
    if (std::getenv(name) != nullptr) return;
  }
  if (number_or(environment("SLURM_PROCID"), 0) != 0) throw AgreedFailure{2};
  throw UserError(fmt::format(
      "This Slurm step has {} tasks but was launched without MPI support, so each would run alone; "
      "start it with `srun --mpi=pmix ranktune ...`.",
      tasks));
}

SlurmFacts slurm_facts() {
  return {environment("SLURM_JOB_ID"),        environment("SLURM_STEP_ID"),
          environment("SLURM_RESTART_COUNT"), environment("SLURM_JOB_NODELIST"),
          environment("SLURM_ARRAY_JOB_ID"),  environment("SLURM_ARRAY_TASK_ID")};
}

}  // namespace ranktune::cluster
