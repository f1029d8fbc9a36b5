#include "cluster/watchdog.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <iterator>
#include <mutex>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "cluster/mpi_call.hpp"

namespace ranktune::cluster {
namespace {

using std::chrono::seconds;

constexpr std::uint64_t kRing = 256;
constexpr int kPrintedCollectives = 4;
constexpr int kPrintedRanks = 8;
constexpr auto kLastResort = seconds(10);
constexpr std::int64_t kShortestNapNs = 10'000'000;
constexpr std::int64_t kLongestNapNs = 1'000'000'000;
constexpr std::int64_t kLooksPerDeadline = 8;

// The monotonic clock, one for all processes of a node.
std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

double in_seconds(std::int64_t ns) {
  return static_cast<double>(ns) * 1e-9;
}

// Text that another process may read at any time; a reader can see half an old and half a new one, never
// beyond.
template <std::size_t Words>
class SharedText {
 public:
  void set(const char* text) {
    std::array<char, Words * sizeof(std::uint64_t)> bytes{};
    std::strncpy(bytes.data(), text, bytes.size() - 1);
    for (std::size_t i = 0; i < Words; ++i) {
      std::uint64_t word = 0;
      std::memcpy(&word, bytes.data() + i * sizeof word, sizeof word);
      words_[i].store(word, std::memory_order_relaxed);
    }
  }
  std::string text() const {
    std::array<char, Words * sizeof(std::uint64_t) + 1> bytes{};
    for (std::size_t i = 0; i < Words; ++i) {
      const auto word = words_[i].load(std::memory_order_relaxed);
      std::memcpy(bytes.data() + i * sizeof word, &word, sizeof word);
    }
    return bytes.data();
  }

 private:
  std::array<std::atomic<std::uint64_t>, Words> words_{};
};

struct Collective {
  SharedText<2> kind;
  std::atomic<std::uint64_t> bytes{0};
  std::atomic<std::int64_t> step{-1};
  std::atomic<std::int64_t> started_ns{0};
  std::atomic<std::int64_t> finished_ns{0};  // 0: not yet
};

// What a rank shows to the others of its node.
struct RankState {
  std::atomic<int> rank{-1};
  std::atomic<int> reporter{-1};  // of the node's first rank: the rank that prints
  std::atomic<bool> watching{true};
  std::atomic<std::int64_t> last_progress_ns{0};
  std::atomic<std::int64_t> deadline_ns{0};  // 0: not watched
  std::atomic<std::int64_t> step{-1};
  std::atomic<std::uint64_t> phases{0};
  SharedText<8> phase;
  std::atomic<std::uint64_t> started{0};  // collectives, finished or not
  std::array<Collective, kRing> ring;

  bool expired(std::int64_t now) const {
    const auto deadline = deadline_ns.load();
    return deadline > 0 && now - last_progress_ns.load() > deadline;
  }
  auto position() const { return std::make_pair(started.load(), phases.load()); }
};
static_assert(std::atomic<std::int64_t>::is_always_lock_free && std::atomic<bool>::is_always_lock_free,
              "shared between processes");

std::string describe_collective(const RankState& state, std::uint64_t number, std::int64_t now) {
  const auto& one = state.ring[number % kRing];
  const auto finished = one.finished_ns.load();
  return fmt::format("    collective {} {}, {} bytes, step {}: {}\n", number + 1, one.kind.text(),
                     one.bytes.load(), one.step.load(),
                     finished > 0
                         ? fmt::format("done {:.1f} s ago", in_seconds(now - finished))
                         : fmt::format("waiting for {:.1f} s", in_seconds(now - one.started_ns.load())));
}

std::string describe_rank(const RankState& state, const std::string& host, std::int64_t now) {
  const auto started = state.started.load();
  auto text =
      fmt::format("  rank {} on {}: phase \"{}\", step {}, no progress for {:.1f} s, {} collectives begun\n",
                  state.rank.load(), host, state.phase.text(), state.step.load(),
                  in_seconds(now - state.last_progress_ns.load()), started);
  for (int back = kPrintedCollectives; back > 0; --back) {
    const auto distance = static_cast<std::uint64_t>(back);
    if (started >= distance) text += describe_collective(state, started - distance, now);
  }
  return text;
}

}  // namespace

struct Watchdog::Impl {
  explicit Impl(const Session& of) : session(of), uncaught(std::uncaught_exceptions()) {}

  void share_states();
  void watch();
  bool waits_for_a_live_rank(std::int64_t now) const;
  std::string report(std::int64_t now) const;
  [[noreturn]] void end_the_job(std::int64_t now);

  const Session& session;
  int uncaught;
  MPI_Win window = MPI_WIN_NULL;
  RankState* mine = nullptr;
  std::vector<RankState*> states;  // of the node's ranks
  int depth = 0;                   // of collectives announced inside each other
  std::mutex mutex;
  std::condition_variable changed;
  bool stopping = false;
  std::thread thread;
};

void Watchdog::Impl::share_states() {
  // MPI promises no alignment, so there is room to find one; mappings start at pages, so all ranks find the
  // same.
  constexpr std::size_t kAlignment = 64;
  const auto aligned = [](void* base) {
    std::size_t space = sizeof(RankState) + kAlignment;
    return std::align(kAlignment, sizeof(RankState), base, space);
  };
  void* base = nullptr;
  RT_MPI(MPI_Win_allocate_shared(sizeof(RankState) + kAlignment, 1, MPI_INFO_NULL,
                                 session.node_communicator(), &base, &window));
  mine = new (aligned(base)) RankState;
  mine->rank = session.rank();
  mine->last_progress_ns = now_ns();
  for (int local = 0; local < session.local_size(); ++local) {
    MPI_Aint bytes = 0;
    int unit = 0;
    RT_MPI(MPI_Win_shared_query(window, local, &bytes, &unit, &base));
    states.push_back(static_cast<RankState*>(aligned(base)));
  }
  RT_MPI(MPI_Barrier(session.node_communicator()));  // all are constructed
}

void Watchdog::Impl::watch() {
  std::int64_t excused_ns = 0;  // when this rank was last seen to wait for a live one
  std::unique_lock lock(mutex);
  while (!stopping) {
    const auto now = now_ns();
    const auto deadline = mine->deadline_ns.load();
    auto nap_ns = deadline > 0 ? mine->last_progress_ns.load() + deadline - now : kLongestNapNs;
    if (mine->expired(now)) {
      // The slow one may have come a moment ago, so what they now do together gets a deadline of its own.
      if (waits_for_a_live_rank(now)) excused_ns = now;
      if (now - excused_ns > deadline) end_the_job(now);
      nap_ns = deadline / kLooksPerDeadline;
    }
    changed.wait_for(lock, std::chrono::nanoseconds(std::clamp(nap_ns, kShortestNapNs, kLongestNapNs)));
  }
}

bool Watchdog::Impl::waits_for_a_live_rank(std::int64_t now) const {
  return std::any_of(states.begin(), states.end(), [&](const RankState* other) {
    return other != mine && other->watching && other->position() < mine->position() && !other->expired(now);
  });
}

std::string Watchdog::Impl::report(std::int64_t now) const {
  const auto& host = session.hosts()[static_cast<std::size_t>(session.rank())];
  auto text = fmt::format(
      "ranktune: rank {} on {} has seen no progress for {:.1f} s in phase \"{}\" (the deadline is {:g} s), "
      "so the job "
      "ends. Furthest behind on this node:\n",
      session.rank(), host, in_seconds(now - mine->last_progress_ns.load()), mine->phase.text(),
      in_seconds(mine->deadline_ns.load()));
  std::vector<const RankState*> watched;
  std::copy_if(states.begin(), states.end(), std::back_inserter(watched),
               [](const auto* one) { return one->watching.load(); });
  const auto behind = [](const auto* a, const auto* b) { return a->position() < b->position(); };
  std::stable_sort(watched.begin(), watched.end(), behind);
  int printed = 0;
  for (const auto* one : watched) {
    if (printed++ == kPrintedRanks || behind(watched.front(), one)) break;
    text += describe_rank(*one, host, now);
  }
  return text;
}

void Watchdog::Impl::end_the_job(std::int64_t now) {
  // The main thread may sit inside MPI and MPI_Abort with it; this does not depend on either.
  std::thread([] {
    std::this_thread::sleep_for(kLastResort);
    _exit(1);
  }).detach();
  int nobody = -1;
  if (states.front()->reporter.compare_exchange_strong(nobody, session.rank())) {
    const auto text = report(now);
    if (write(STDERR_FILENO, text.data(), text.size()) < 0) _exit(1);
  } else {
    std::this_thread::sleep_for(kLastResort / 2);  // the one that prints ends the job
  }
  if (session.thread_level() == MPI_THREAD_MULTIPLE) MPI_Abort(MPI_COMM_WORLD, 1);
  _exit(1);
}

Watchdog::Watchdog(const Session& session) : impl_(std::make_unique<Impl>(session)) {
  impl_->share_states();
  impl_->thread = std::thread([this] { impl_->watch(); });
  session.observe(this);
}

Watchdog::~Watchdog() {
  stop();
  impl_->session.observe(nullptr);
  if (std::uncaught_exceptions() > impl_->uncaught) return;  // freeing needs the other ranks
  MPI_Win_free(&impl_->window);
}

void Watchdog::phase(const std::string& name, double deadline_seconds) {
  auto& mine = *impl_->mine;
  {
    // The thread must not meet the new deadline with the old mark.
    const std::lock_guard lock(impl_->mutex);
    mine.last_progress_ns = now_ns();
    mine.phase.set(name.c_str());
    mine.deadline_ns = deadline_seconds > 0 ? static_cast<std::int64_t>(deadline_seconds * 1e9) : 0;
    ++mine.phases;
  }
  impl_->changed.notify_one();
}

void Watchdog::progress(std::int64_t step) {
  if (step >= 0) impl_->mine->step.store(step, std::memory_order_relaxed);
  impl_->mine->last_progress_ns.store(now_ns(), std::memory_order_relaxed);
}

void Watchdog::collective_started(const char* kind, std::size_t bytes) {
  if (impl_->depth++ > 0) return;
  auto& mine = *impl_->mine;
  auto& one = mine.ring[mine.started.load() % kRing];
  const auto now = now_ns();
  one.kind.set(kind);
  one.bytes = bytes;
  one.step = mine.step.load();
  one.finished_ns = 0;
  one.started_ns = now;
  ++mine.started;
  mine.last_progress_ns = now;
}

void Watchdog::collective_finished() {
  if (--impl_->depth > 0) return;
  auto& mine = *impl_->mine;
  const auto now = now_ns();
  mine.ring[(mine.started.load() - 1) % kRing].finished_ns = now;
  mine.last_progress_ns = now;
}

void Watchdog::stop() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stopping = true;
    impl_->mine->watching = false;
  }
  impl_->changed.notify_one();
  if (impl_->thread.joinable()) impl_->thread.join();
}

}  // namespace ranktune::cluster
