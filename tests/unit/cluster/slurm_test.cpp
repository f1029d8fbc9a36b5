#include <gtest/gtest.h>

#include <cstdlib>

#include "base/error.hpp"
#include "cluster/session.hpp"

namespace ranktune::cluster {
namespace {

class Launch : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name :
         {"SLURM_NTASKS", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_ID", "SLURM_PROCID", "PMIX_RANK", "PMI_RANK",
          "OMPI_COMM_WORLD_SIZE", "SLURM_JOB_ID", "SLURM_RESTART_COUNT"}) {
      unsetenv(name);
    }
  }
  static void set(const char* name, const char* value) { setenv(name, value, 1); }
};

TEST_F(Launch, OutsideSlurmIsFine) {
  EXPECT_NO_THROW(refuse_launch_without_mpi());
}

TEST_F(Launch, StepOfSeveralTasksWithoutMpiIsRefused) {
  set("SLURM_NTASKS", "4");
  set("SLURM_STEP_ID", "0");
  set("SLURM_PROCID", "0");
  try {
    refuse_launch_without_mpi();
    ADD_FAILURE() << "accepted";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("4 tasks"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("srun --mpi=pmix"), std::string::npos) << error.what();
  }
}

TEST_F(Launch, OtherTasksAreQuiet) {
  set("SLURM_NTASKS", "4");
  set("SLURM_STEP_ID", "0");
  set("SLURM_PROCID", "3");
  try {
    refuse_launch_without_mpi();
    ADD_FAILURE() << "accepted";
  } catch (const AgreedFailure& failure) {
    EXPECT_EQ(failure.exit_code, 2);
  }
}

TEST_F(Launch, AnyKindOfMpiSupportIsFine) {
  for (const char* name : {"PMIX_RANK", "PMI_RANK", "OMPI_COMM_WORLD_SIZE"}) {
    SetUp();
    set("SLURM_NTASKS", "4");
    set("SLURM_STEP_ID", "0");
    set(name, "0");
    EXPECT_NO_THROW(refuse_launch_without_mpi()) << name;
  }
}

TEST_F(Launch, BatchStepAndNoStepAreFine) {
  set("SLURM_NTASKS", "4");
  EXPECT_NO_THROW(refuse_launch_without_mpi()) << "in a job but no step";
  for (const char* step : {"4294967291", "4294967294", "4294967290", "batch"}) {
    set("SLURM_STEP_ID", step);
    EXPECT_NO_THROW(refuse_launch_without_mpi()) << step;
  }
}

TEST_F(Launch, StepOfOneTaskInALargerJobIsFine) {
  set("SLURM_NTASKS", "4");
  set("SLURM_STEP_NUM_TASKS", "1");
  set("SLURM_STEP_ID", "2");
  EXPECT_NO_THROW(refuse_launch_without_mpi());
}

TEST_F(Launch, FactsAreEmptyWithoutSlurm) {
  EXPECT_EQ(slurm_facts().job_id, "");
  set("SLURM_JOB_ID", "77");
  set("SLURM_RESTART_COUNT", "2");
  EXPECT_EQ(slurm_facts().job_id, "77");
  EXPECT_EQ(slurm_facts().restart_count, "2");
}

}  // namespace
}  // namespace ranktune::cluster
