#include <cuda_runtime.h>
#include <fmt/format.h>
#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/error.hpp"
#include "cluster/communicator.hpp"

namespace ranktune::cluster {
namespace {

using Clock = std::chrono::steady_clock;

// Waits that grow: a collective's end is met within microseconds, a slow peer costs no core.
class Pause {
 public:
  void operator()() {
    if (++turns_ < kSpins) return std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::microseconds(std::min(turns_ - kSpins, 200)));
  }

 private:
  static constexpr int kSpins = 2000;
  int turns_ = 0;
};

void check_cuda(cudaError_t code, const char* call) {
  if (code == cudaSuccess) return;
  (void)cudaGetLastError();
  throw Failure(fmt::format("{} failed: {}", call, cudaGetErrorString(code)));
}

int loaded_version() {
  int version = 0;
  if (ncclGetVersion(&version) != ncclSuccess) throw Failure("ncclGetVersion failed");
  return version;
}

void check_version() {
  const int loaded = loaded_version();
  if (loaded / 100 == NCCL_VERSION_CODE / 100) return;
  throw Failure(fmt::format("NCCL {}.{} is loaded where the program was built for {}.{}; see LD_LIBRARY_PATH",
                            loaded / 10000, loaded / 100 % 100, NCCL_MAJOR, NCCL_MINOR));
}

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(const Session& session, double timeout_seconds)
      : Communicator(session.rank(), session.world_size()), timeout_seconds_(timeout_seconds) {
    session.together("checking NCCL", check_version);
    if (world_size_ == 1) return;
    ncclUniqueId id{};
    session.together("ncclGetUniqueId", [&] {
      if (rank_ == 0) check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    });
    session.broadcast_bytes(&id, sizeof id);
    session.barrier();  // from here until all are connected nobody is inside MPI
    session.together("starting NCCL", [&] { start(id); });
  }

  void all_reduce_sum(float* data, std::size_t count, void* stream) override {
    if (world_size_ == 1 || count == 0) return;
    check_open();
    enqueue(ncclAllReduce(data, data, count, ncclFloat, ncclSum, communicator_,
                          static_cast<cudaStream_t>(stream)),
            "ncclAllReduce");
  }

  void broadcast(void* data, std::size_t bytes, int root, void* stream) override {
    if (world_size_ == 1 || bytes == 0) return;
    check_open();
    enqueue(
        ncclBroadcast(data, data, bytes, ncclUint8, root, communicator_, static_cast<cudaStream_t>(stream)),
        "ncclBroadcast");
  }

  void synchronize(void* stream) override { drain(stream, 0); }

  std::string name() const override {
    const int version = loaded_version();
    return fmt::format("NCCL {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
  }

  void close() override {
    if (communicator_ == nullptr) return;
    check(ncclCommFinalize(communicator_), "ncclCommFinalize");
    wait("ncclCommFinalize", timeout_seconds_);
    check(ncclCommDestroy(communicator_), "ncclCommDestroy");
    communicator_ = nullptr;
  }

 private:
  void check_open() const { RT_CHECK(communicator_ != nullptr, "the communicator is open"); }

  void check(ncclResult_t code, const char* call) const {
    if (code == ncclSuccess || code == ncclInProgress) return;
    const char* more = ncclGetLastError(communicator_);
    throw Failure(fmt::format("{} failed: {}{}{}", call, ncclGetErrorString(code),
                              more == nullptr || *more == '\0' ? "" : ": ", more == nullptr ? "" : more));
  }

  // Throws what the communicator has met since.
  bool in_progress(const char* call) const {
    auto state = ncclSuccess;
    check(ncclCommGetAsyncError(communicator_, &state), "ncclCommGetAsyncError");
    check(state, call);
    return state == ncclInProgress;
  }

  void check_time(Clock::time_point start, double timeout, const char* call) const {
    if (timeout <= 0 || std::chrono::duration<double>(Clock::now() - start).count() <= timeout) return;
    throw Failure(
        fmt::format("{} did not end within {:g} s on rank {} of {}", call, timeout, rank_, world_size_));
  }

  // Until the call is through on the host; timeout 0: for ever, which the watchdog bounds.
  void wait(const char* call, double timeout) const {
    Pause pause;
    for (const auto start = Clock::now(); in_progress(call); pause()) check_time(start, timeout, call);
  }

  // Until the stream is empty.
  void drain(void* stream, double timeout) const {
    Pause pause;
    for (const auto start = Clock::now();; pause()) {
      const auto state = cudaStreamQuery(static_cast<cudaStream_t>(stream));
      if (state == cudaSuccess) return;
      if (state != cudaErrorNotReady) check_cuda(state, "cudaStreamQuery");
      if (communicator_ != nullptr) (void)in_progress("a collective");
      check_time(start, timeout, "a collective");
    }
  }

  void enqueue(ncclResult_t code, const char* call) const {
    check(code, call);
    if (code == ncclInProgress) wait(call, 0);
  }

  void start(const ncclUniqueId& id) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    check(ncclCommInitRankConfig(&communicator_, world_size_, id, rank_, &config), "ncclCommInitRankConfig");
    wait("ncclCommInitRankConfig", timeout_seconds_);
    connect();
  }

  // NCCL connects at the first collective; it happens here, under the time limit.
  void connect() {
    float* value = nullptr;
    check_cuda(cudaMalloc(&value, sizeof(float)), "cudaMalloc");
    check_cuda(cudaMemset(value, 0, sizeof(float)), "cudaMemset");
    check(ncclAllReduce(value, value, 1, ncclFloat, ncclSum, communicator_, nullptr), "ncclAllReduce");
    wait("the first ncclAllReduce", timeout_seconds_);
    drain(nullptr, timeout_seconds_);
    check_cuda(cudaFree(value), "cudaFree");
  }

  double timeout_seconds_;
  ncclComm_t communicator_ = nullptr;
};

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(const Session& session, double timeout_seconds) {
  return std::make_unique<NcclCommunicator>(session, timeout_seconds);
}

}  // namespace ranktune::cluster
