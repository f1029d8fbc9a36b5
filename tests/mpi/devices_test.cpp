#include "cluster/devices.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "base/error.hpp"
#include "mpi_test.hpp"

namespace ranktune::cluster {
namespace {

using ranktune::testing::session;

class NoDevice : public ::testing::Test {
 protected:
  void SetUp() override { setenv("CUDA_VISIBLE_DEVICES", "", 1); }
};

TEST_F(NoDevice, AutoIsTheCpu) {
  for (const char* wanted : {"auto", "cpu"}) {
    const auto choice = choose_device(session(), wanted, false);
    EXPECT_FALSE(choice.cuda);
    EXPECT_EQ(choice.index, -1);
    EXPECT_FALSE(choice.name.empty());
    EXPECT_GT(choice.memory_bytes, 0);
    EXPECT_TRUE(choice.uuid.empty());
  }
}

TEST_F(NoDevice, CudaIsRefused) {
  try {
    (void)choose_device(session(), "cuda", false);
    ADD_FAILURE() << "accepted";
  } catch (const AgreedUserError& error) {
    EXPECT_EQ(error.sentences().size(), 1U) << error.what();
    EXPECT_NE(std::string(error.what()).find("no rank sees an NVIDIA device"), std::string::npos)
        << error.what();
  }
}

TEST_F(NoDevice, UnknownChoiceIsRefusedWithItsValue) {
  try {
    (void)choose_device(session(), "gpu", false);
    ADD_FAILURE() << "accepted";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("\"gpu\""), std::string::npos) << error.what();
  }
}

TEST(Environment, IsPreparedAndKeepsWhatIsSet) {
  unsetenv("CUBLAS_WORKSPACE_CONFIG");
  unsetenv("NCCL_HOSTID");
  prepare_environment(session(), false);
  EXPECT_STREQ(std::getenv("CUBLAS_WORKSPACE_CONFIG"), ":4096:8");
  EXPECT_EQ(std::getenv("NCCL_HOSTID"), nullptr);

  setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8", 1);
  prepare_environment(session(), true);
  EXPECT_STREQ(std::getenv("CUBLAS_WORKSPACE_CONFIG"), ":16:8");
  ASSERT_NE(std::getenv("NCCL_HOSTID"), nullptr);
  const auto ids = session().gather_all(std::getenv("NCCL_HOSTID"));
  for (std::size_t i = 1; i < ids.size(); ++i) EXPECT_NE(ids[i], ids[i - 1]);
}

}  // namespace
}  // namespace ranktune::cluster
