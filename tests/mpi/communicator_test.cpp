#include "cluster/communicator.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "base/error.hpp"
#include "base/philox.hpp"
#include "mpi_test.hpp"

namespace ranktune::cluster {
namespace {

using ranktune::testing::session;

// Different on every rank and with sums that round, so that another order of summation shows.
std::vector<float> ranks_values(int rank, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto bits = random_bits(1, RandomPurpose::sampling, static_cast<std::uint32_t>(rank), i);
    values[i] = (uniform_float(bits.x) - 0.5F) * (bits.y % 2 == 0 ? 1.0F : 1e-3F);
  }
  return values;
}

std::string bytes_of(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

TEST(MpiCommunicator, KnowsRankWorldAndName) {
  const auto communicator = make_mpi_communicator(session());
  EXPECT_EQ(communicator->rank(), session().rank());
  EXPECT_EQ(communicator->world_size(), session().world_size());
  EXPECT_EQ(communicator->name(), "MPI (" + mpi_library() + ")");
  EXPECT_EQ(mpi_library().find(','), std::string::npos);
  EXPECT_NE(mpi_library().find('.'), std::string::npos) << mpi_library();
  communicator->close();
}

TEST(MpiCommunicator, SumsOverRanks) {
  for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{1000}, std::size_t{100'003}}) {
    const auto communicator = make_mpi_communicator(session(), 4096);
    auto sum = ranks_values(session().rank(), count);
    std::vector<double> expected(count, 0.0);
    for (int rank = 0; rank < session().world_size(); ++rank) {
      const auto part = ranks_values(rank, count);
      for (std::size_t i = 0; i < count; ++i) expected[i] += part[i];
    }
    communicator->all_reduce_sum(sum.data(), count, nullptr);
    communicator->synchronize(nullptr);
    for (std::size_t i = 0; i < count; ++i) ASSERT_NEAR(sum[i], expected[i], 1e-6) << i;
    communicator->close();
  }
}

TEST(MpiCommunicator, SumsHaveTheSameBitsOnAllRanksAndEveryTime) {
  constexpr std::size_t kCount = 50'000;
  std::string first;
  for (int repeat = 0; repeat < 5; ++repeat) {
    const auto communicator = make_mpi_communicator(session(), 7000);
    auto sum = ranks_values(session().rank(), kCount);
    communicator->all_reduce_sum(sum.data(), sum.size(), nullptr);
    const auto mine = bytes_of(sum);
    if (repeat == 0) first = mine;
    EXPECT_TRUE(mine == first) << "repeat " << repeat;
    for (const auto& other : session().gather_all(mine)) EXPECT_TRUE(other == mine);
    communicator->close();
  }
}

TEST(MpiCommunicator, BroadcastsFromAnyRank) {
  const auto communicator = make_mpi_communicator(session());
  for (int root = 0; root < session().world_size(); ++root) {
    auto values = ranks_values(session().rank(), 999);
    communicator->broadcast(values.data(), values.size() * sizeof(float), root, nullptr);
    EXPECT_EQ(bytes_of(values), bytes_of(ranks_values(root, 999)));
  }
  communicator->close();
}

TEST(MpiCommunicator, RefusesUseAfterClose) {
  if (session().world_size() == 1) GTEST_SKIP() << "a world of one needs nothing";
  const auto communicator = make_mpi_communicator(session());
  communicator->close();
  float value = 1;
  EXPECT_THROW(communicator->all_reduce_sum(&value, 1, nullptr), Failure);
}

}  // namespace
}  // namespace ranktune::cluster
