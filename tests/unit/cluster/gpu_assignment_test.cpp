#include "cluster/gpu_assignment.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"

namespace ranktune::cluster::detail {
namespace {

using Uuids = std::vector<std::string>;

RankGpus on(int node, int rank, int local_rank, Uuids uuids) {
  return {rank, node, local_rank, std::string("n").append(std::to_string(node)), std::move(uuids)};
}

std::string refusal(const std::vector<RankGpus>& ranks) {
  try {
    (void)assign_gpus(ranks, false);
  } catch (const UserError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(AssignGpus, LocalRankWhereAllAreVisible) {
  const Uuids a{"A", "B"};
  const Uuids b{"C", "D"};
  EXPECT_EQ(assign_gpus({on(0, 0, 0, a), on(0, 1, 1, a), on(1, 2, 0, b), on(1, 3, 1, b)}, false),
            (std::vector{0, 1, 0, 1}));
}

TEST(AssignGpus, RanksNeedNotLieNodeByNode) {
  const Uuids a{"A", "B"};
  const Uuids b{"C", "D"};
  EXPECT_EQ(assign_gpus({on(0, 0, 0, a), on(1, 1, 0, b), on(0, 2, 1, a), on(1, 3, 1, b)}, false),
            (std::vector{0, 0, 1, 1}));
}

TEST(AssignGpus, DeviceZeroWhereOneIsVisiblePerTask) {
  EXPECT_EQ(assign_gpus({on(0, 0, 0, {"A"}), on(0, 1, 1, {"B"})}, false), (std::vector{0, 0}));
  EXPECT_EQ(assign_gpus({on(0, 0, 0, {"A", "B"}), on(0, 1, 1, {"C", "D"})}, false), (std::vector{0, 0}));
}

TEST(AssignGpus, MoreGpusThanRanks) {
  EXPECT_EQ(assign_gpus({on(0, 0, 0, {"A", "B", "C"})}, false), (std::vector{0}));
}

TEST(AssignGpus, TooFewIsRefusedWithTheNumbers) {
  const auto text = refusal({on(0, 0, 0, {"A"}), on(0, 1, 1, {"A"})});
  EXPECT_NE(text.find("n0 has 2 ranks (0, 1) but only 1 visible GPU;"), std::string::npos) << text;
}

TEST(AssignGpus, TwoRanksOnOneGpuAreNamed) {
  const auto text = refusal({on(0, 0, 0, {"A"}), on(1, 1, 0, {"A"}), on(1, 2, 1, {"B"}), on(1, 3, 2, {"B"})});
  EXPECT_NE(text.find("Ranks 2 and 3 on n1 have the same GPU B"), std::string::npos) << text;
  EXPECT_EQ(text.find("Ranks 0 and 1"), std::string::npos) << "other hosts are other GPUs: " << text;
}

TEST(AssignGpus, EveryNodesProblemIsSaid) {
  const auto text = refusal({on(0, 0, 0, {"A"}), on(0, 1, 1, {"A"}), on(1, 2, 0, {"B"}), on(1, 3, 1, {"B"})});
  EXPECT_NE(text.find("n0 has 2 ranks"), std::string::npos) << text;
  EXPECT_NE(text.find("n1 has 2 ranks"), std::string::npos) << text;
}

TEST(AssignGpus, ARankWithoutAnyIsNamed) {
  EXPECT_EQ(refusal({on(0, 0, 0, {"A"}), on(0, 1, 1, {})}), "Rank 1 on n0 sees no usable GPU.");
}

TEST(AssignGpus, SharedOnesAreDealtRound) {
  const Uuids a{"A", "B"};
  EXPECT_EQ(assign_gpus({on(0, 0, 0, a), on(0, 1, 1, a), on(0, 2, 2, a)}, true), (std::vector{0, 1, 0}));
  EXPECT_EQ(assign_gpus({on(0, 0, 0, {"A"}), on(0, 1, 1, {"A"})}, true), (std::vector{0, 0}));
}

TEST(DriverVersion, IsFoundInBothKindsOfText) {
  EXPECT_EQ(driver_version(
                "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23\nGCC version: 12.2\n"),
            "580.95.05");
  EXPECT_EQ(
      driver_version("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.03  Release Build"),
      "580.159.03");
  EXPECT_EQ(driver_version(""), "");
  EXPECT_EQ(driver_version("nothing here"), "");
}

}  // namespace
}  // namespace ranktune::cluster::detail
