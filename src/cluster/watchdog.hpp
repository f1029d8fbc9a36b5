// Ends a job in which a rank has stopped making progress.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "cluster/session.hpp"

namespace ranktune::cluster {

// A thread that watches this rank's progress marks. When the current phase has seen none for its deadline, it
// prints rank, host, phase, step and the last collectives of the ranks of its node that are furthest behind
// (each rank's state lies in a node-shared window), calls MPI_Abort(1) and, if that does not return within 10
// s, _exit(1). Where MPI provides less than MPI_THREAD_MULTIPLE it is _exit(1) after the print.
//
// A rank is not ended while another one of its node that is behind it (in a collective fewer, or a phase)
// still marks progress: it waits for that one. So every wait for other ranks is announced by
// collective_started; Session's own are announced to the watchdog by themselves. Ranks of other nodes are not
// seen (an exchange between the nodes' leaders is not built): a rank that waits for one there is ended by its
// own deadline, which must therefore be longer than what the other node may take.
class Watchdog final : public CollectiveObserver {
 public:
  explicit Watchdog(const Session& session);  // collective; throws Failure
  ~Watchdog();                                // collective, unless an exception is under way
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // Enters a phase; `deadline_seconds` runs from the last progress mark, not from the phase's start. <= 0:
  // not watched. All ranks enter the same phases in the same order; entering one is progress. Names longer
  // than 63 bytes are cut.
  void phase(const std::string& name, double deadline_seconds);
  void progress(std::int64_t step = -1);  // cheap, any thread

  // Around each collective, by the thread that runs them; both are progress. The last 256 are kept. Inside
  // one that is announced already nothing is noted. `kind` is cut after 15 bytes.
  void collective_started(const char* kind, std::size_t bytes) override;
  void collective_finished() override;

  void stop();  // watches no more; the others no longer count this rank as behind

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ranktune::cluster
