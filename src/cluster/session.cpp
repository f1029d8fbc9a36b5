#include "cluster/session.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <thread>

#include "base/error.hpp"
#include "cluster/mpi_call.hpp"

namespace ranktune::cluster {
namespace {

std::string host_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) {
    throw Failure(std::string("gethostname failed: ") + std::strerror(errno));
  }
  return name.data();
}

// The affinity mask as bytes, equal on two ranks exactly when they may use the same CPUs.
std::string affinity_mask() {
  for (std::size_t cpus = 1024; cpus <= 1024 * 1024; cpus *= 2) {
    std::string mask(CPU_ALLOC_SIZE(cpus), '\0');
    auto* set = reinterpret_cast<cpu_set_t*>(mask.data());
    if (sched_getaffinity(0, mask.size(), set) == 0) return mask;
    if (errno != EINVAL) break;  // EINVAL: the kernel's mask is longer
  }
  throw Failure(std::string("sched_getaffinity failed: ") + std::strerror(errno));
}

int count_set_bits(const std::string& mask) {
  int bits = 0;
  for (const char byte : mask) bits += __builtin_popcount(static_cast<unsigned char>(byte));
  return bits;
}

// Tells the observer, if there is one, of a collective for as long as it lives.
class Announced {
 public:
  Announced(CollectiveObserver* observer, const char* kind, std::size_t bytes) : observer_(observer) {
    if (observer_ != nullptr) observer_->collective_started(kind, bytes);
  }
  ~Announced() {
    if (observer_ != nullptr) observer_->collective_finished();
  }
  Announced(const Announced&) = delete;
  Announced& operator=(const Announced&) = delete;

 private:
  CollectiveObserver* observer_;
};

}  // namespace

Session::Session() : uncaught_(std::uncaught_exceptions()) {
  int initialized = 0;
  RT_MPI(MPI_Initialized(&initialized));
  RT_CHECK(initialized == 0, "MPI is initialised only once in a process");
  // MULTIPLE lets the watchdog call MPI_Abort while the main thread sits inside MPI.
  RT_MPI(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &thread_level_));
  if (thread_level_ < MPI_THREAD_SERIALIZED) {
    throw Failure("This MPI library (" + mpi_library() + ") provides thread level " +
                  std::to_string(thread_level_) + " where MPI_THREAD_SERIALIZED (" +
                  std::to_string(MPI_THREAD_SERIALIZED) + ") is needed");
  }
  RT_MPI(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
  RT_MPI(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
  RT_MPI(MPI_Comm_dup(MPI_COMM_WORLD, &world_));
  RT_MPI(MPI_Comm_set_errhandler(world_, MPI_ERRORS_RETURN));
  RT_MPI(MPI_Comm_dup(world_, &agreement_));
  RT_MPI(MPI_Comm_set_errhandler(agreement_, MPI_ERRORS_RETURN));
  RT_MPI(MPI_Comm_rank(world_, &rank_));
  RT_MPI(MPI_Comm_size(world_, &world_size_));
  find_neighbours();
  count_cpus();
}

void Session::find_neighbours() {
  RT_MPI(MPI_Comm_split_type(world_, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &node_comm_));
  RT_MPI(MPI_Comm_set_errhandler(node_comm_, MPI_ERRORS_RETURN));
  RT_MPI(MPI_Comm_rank(node_comm_, &local_rank_));
  RT_MPI(MPI_Comm_size(node_comm_, &local_size_));
  hosts_ = gather_all(host_name());

  int leader = rank_;
  RT_MPI(MPI_Bcast(&leader, 1, MPI_INT, 0, node_comm_));
  std::vector<int> leaders(static_cast<std::size_t>(world_size_));
  RT_MPI(MPI_Allgather(&leader, 1, MPI_INT, leaders.data(), 1, MPI_INT, world_));
  std::sort(leaders.begin(), leaders.end());
  leaders.erase(std::unique(leaders.begin(), leaders.end()), leaders.end());
  nodes_ = static_cast<int>(leaders.size());
  node_ = static_cast<int>(std::lower_bound(leaders.begin(), leaders.end(), leader) - leaders.begin());
}

void Session::count_cpus() {
  const auto mine = affinity_mask();
  const auto masks = detail::gather_all(node_comm_, mine);
  const bool shared = std::all_of(masks.begin(), masks.end(), [&](const auto& mask) { return mask == mine; });
  allowed_cpus_ = std::max(1, count_set_bits(mine) / (shared ? local_size_ : 1));
}

Session::~Session() {
  // MPI_Finalize is collective: with an exception under way on this rank alone it would wait for ever, so
  // main ends the job instead.
  if (std::uncaught_exceptions() > uncaught_) return;
  MPI_Comm_free(&node_comm_);
  MPI_Comm_free(&agreement_);
  MPI_Comm_free(&world_);
  MPI_Finalize();
}

void Session::barrier() const {
  const Announced announced(observer_, "barrier", 0);
  RT_MPI(MPI_Barrier(world_));
}

void Session::broadcast(std::string& bytes, int root) const {
  auto size = static_cast<std::int64_t>(bytes.size());
  broadcast_bytes(&size, sizeof size, root);
  bytes.resize(static_cast<std::size_t>(size));
  broadcast_bytes(bytes.data(), bytes.size(), root);
}

void Session::broadcast_bytes(void* data, std::size_t bytes, int root) const {
  const Announced announced(observer_, "broadcast", bytes);
  detail::broadcast_bytes(world_, data, bytes, root);
}

std::vector<std::string> Session::gather_all(std::string_view mine) const {
  const Announced announced(observer_, "gather_all", mine.size());
  return detail::gather_all(world_, mine);
}

std::int64_t Session::sum(std::int64_t mine) const {
  const Announced announced(observer_, "sum", sizeof mine);
  std::int64_t all = 0;
  RT_MPI(MPI_Allreduce(&mine, &all, 1, MPI_INT64_T, MPI_SUM, world_));
  return all;
}

std::int64_t Session::max(std::int64_t mine) const {
  const Announced announced(observer_, "max", sizeof mine);
  std::int64_t all = 0;
  RT_MPI(MPI_Allreduce(&mine, &all, 1, MPI_INT64_T, MPI_MAX, world_));
  return all;
}

// Whether any rank says true. Polled with short sleeps, since some ranks may wait here for minutes;
// `when_late` runs once after kSayAfterSeconds.
bool Session::anyone(bool mine, const std::function<void()>& when_late) const {
  const Announced announced(observer_, "agreement", sizeof(int));
  int all = 0;
  const int own = mine ? 1 : 0;
  MPI_Request request = MPI_REQUEST_NULL;
  RT_MPI(MPI_Iallreduce(&own, &all, 1, MPI_INT, MPI_MAX, agreement_, &request));
  const auto start = std::chrono::steady_clock::now();
  bool said = false;
  for (int done = 0, polls = 0;; ++polls) {
    RT_MPI(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
    if (done != 0) return all != 0;
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
    if (!said && waited.count() > kSayAfterSeconds) {
      when_late();
      said = true;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(std::min(polls, 1000)));
  }
}

std::string mpi_library() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  RT_MPI(MPI_Get_library_version(text.data(), &length));
  // "Open MPI v4.1.4, package: ..." or "MPICH Version:\t4.0.2\n..."
  std::string name(text.data(),
                   std::min<std::size_t>(static_cast<std::size_t>(length), std::strcspn(text.data(), ",\n")));
  if (const auto at = name.find("MPI v"); at != std::string::npos) name.erase(at + 4, 1);
  if (const auto at = name.find(" Version:"); at != std::string::npos) name.erase(at, 9);
  std::replace(name.begin(), name.end(), '\t', ' ');
  while (name.find("  ") != std::string::npos) name.erase(name.find("  "), 1);
  return name;
}

}  // namespace ranktune::cluster
