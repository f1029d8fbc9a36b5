// The NCCL communicator on real GPUs, with all ranks on one where there are fewer GPUs than ranks.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/philox.hpp"
#include "cluster/communicator.hpp"
#include "cluster/devices.hpp"
#include "mpi_test.hpp"

namespace ranktune::cluster {
namespace {

using ranktune::testing::session;

int visible_gpus() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

// Floats on the device.
class DeviceFloats {
 public:
  explicit DeviceFloats(const std::vector<float>& values) : count_(values.size()) {
    EXPECT_EQ(cudaMalloc(&data_, count_ * sizeof(float)), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(data_, values.data(), count_ * sizeof(float), cudaMemcpyHostToDevice), cudaSuccess);
  }
  ~DeviceFloats() { cudaFree(data_); }
  DeviceFloats(const DeviceFloats&) = delete;
  DeviceFloats& operator=(const DeviceFloats&) = delete;
  float* data() const { return data_; }
  std::vector<float> values() const {
    std::vector<float> host(count_);
    EXPECT_EQ(cudaMemcpy(host.data(), data_, count_ * sizeof(float), cudaMemcpyDeviceToHost), cudaSuccess);
    return host;
  }

 private:
  std::size_t count_;
  float* data_ = nullptr;
};

std::vector<float> ranks_values(int rank, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] =
        uniform_float(random_bits(1, RandomPurpose::sampling, static_cast<std::uint32_t>(rank), i).x) - 0.5F;
  }
  return values;
}

std::string bytes_of(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

class Nccl : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    prepare_environment(session(), true);
    if (session().max(visible_gpus()) == 0) return;
    device_ = choose_device(session(), "cuda", true);
    communicator_ = make_nccl_communicator(session(), 120);
    cudaStreamCreate(&stream_);
  }
  static void TearDownTestSuite() {
    if (communicator_ == nullptr) return;
    communicator_->close();
    communicator_.reset();
    cudaStreamDestroy(stream_);
  }
  void SetUp() override {
    if (communicator_ == nullptr) GTEST_SKIP() << "no GPU on this machine";
  }

  static std::optional<DeviceChoice> device_;
  static std::unique_ptr<Communicator> communicator_;
  static cudaStream_t stream_;
};
std::optional<DeviceChoice> Nccl::device_;
std::unique_ptr<Communicator> Nccl::communicator_;
cudaStream_t Nccl::stream_ = nullptr;

TEST_F(Nccl, DeviceIsDescribed) {
  EXPECT_TRUE(device_->cuda);
  EXPECT_EQ(device_->index, session().local_rank() % visible_gpus());
  EXPECT_EQ(device_->name.rfind("NVIDIA", 0), 0U) << device_->name;
  EXPECT_EQ(device_->uuid.size(), 40U) << device_->uuid;
  EXPECT_GT(device_->memory_bytes, std::int64_t{1} << 30);
  EXPECT_GT(device_->multiprocessors, 0);
  EXPECT_NE(device_->driver.find('.'), std::string::npos) << device_->driver;
  int current = -1;
  EXPECT_EQ(cudaGetDevice(&current), cudaSuccess);
  EXPECT_EQ(current, device_->index);
}

TEST_F(Nccl, AutoTakesTheGpu) {
  EXPECT_TRUE(choose_device(session(), "auto", true).cuda);
  EXPECT_FALSE(choose_device(session(), "cpu", true).cuda);
}

TEST_F(Nccl, TwoRanksOnOneGpuAreRefusedUnlessAllowed) {
  if (session().world_size() <= visible_gpus()) GTEST_SKIP() << "there is a GPU for each rank";
  EXPECT_THROW(choose_device(session(), "auto", false), UserError);
}

TEST_F(Nccl, Name) {
  EXPECT_EQ(communicator_->name().rfind("NCCL 2.", 0), 0U) << communicator_->name();
}

TEST_F(Nccl, SumsOverRanks) {
  for (const std::size_t count : {std::size_t{1}, std::size_t{1001}, std::size_t{3'000'001}}) {
    const DeviceFloats buffer(ranks_values(session().rank(), count));
    communicator_->all_reduce_sum(buffer.data(), count, stream_);
    communicator_->synchronize(stream_);
    const auto sum = buffer.values();
    std::vector<float> expected(count, 0.0F);
    for (int rank = 0; rank < session().world_size(); ++rank) {
      const auto part = ranks_values(rank, count);
      for (std::size_t i = 0; i < count; ++i) expected[i] += part[i];
    }
    for (std::size_t i = 0; i < count; ++i) ASSERT_NEAR(sum[i], expected[i], 1e-6) << i;
  }
}

TEST_F(Nccl, SumsHaveTheSameBitsOnAllRanksAndEveryTime) {
  constexpr std::size_t kCount = 100'003;
  std::string first;
  for (int repeat = 0; repeat < 4; ++repeat) {
    const DeviceFloats buffer(ranks_values(session().rank(), kCount));
    communicator_->all_reduce_sum(buffer.data(), kCount, stream_);
    communicator_->synchronize(stream_);
    const auto mine = bytes_of(buffer.values());
    if (repeat == 0) first = mine;
    EXPECT_TRUE(mine == first) << "repeat " << repeat;
    for (const auto& other : session().gather_all(mine)) EXPECT_TRUE(other == mine);
  }
}

TEST_F(Nccl, BroadcastsFromAnyRank) {
  for (int root = 0; root < session().world_size(); ++root) {
    const DeviceFloats buffer(ranks_values(session().rank(), 999));
    communicator_->broadcast(buffer.data(), 999 * sizeof(float), root, stream_);
    communicator_->synchronize(stream_);
    EXPECT_EQ(bytes_of(buffer.values()), bytes_of(ranks_values(root, 999)));
  }
}

// Several collectives in a row without waiting between them, in order.
TEST_F(Nccl, CallsQueueUp) {
  constexpr int kCalls = 20;
  const DeviceFloats one(std::vector<float>(1, 1.0F));
  const auto start = std::chrono::steady_clock::now();
  for (int call = 0; call < kCalls; ++call) communicator_->all_reduce_sum(one.data(), 1, stream_);
  const std::chrono::duration<double, std::micro> queued = std::chrono::steady_clock::now() - start;
  communicator_->synchronize(stream_);
  const std::chrono::duration<double, std::micro> done = std::chrono::steady_clock::now() - start;
  float expected = 1.0F;
  for (int call = 0; call < kCalls; ++call) expected *= static_cast<float>(session().world_size());
  EXPECT_EQ(one.values()[0], expected);
  if (session().is_root()) {
    std::printf("%d calls: queued in %.0f us, done after %.0f us\n", kCalls, queued.count(), done.count());
  }
}

TEST_F(Nccl, RefusesUseAfterClose) {
  if (session().world_size() == 1) GTEST_SKIP() << "a world of one needs nothing";
  const auto second = make_nccl_communicator(session(), 120);
  second->close();
  EXPECT_THROW(second->all_reduce_sum(nullptr, 1, stream_), Failure);
}

}  // namespace
}  // namespace ranktune::cluster
