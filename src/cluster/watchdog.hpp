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
// s, _exit(1).
class Watchdog {
 public:
  explicit Watchdog(const Session& session);
  ~Watchdog();
  // Enters a phase; `deadline_seconds` runs from the last progress mark, not from the phase's start. <= 0:
  // not watched.
  void phase(const std::string& name, double deadline_seconds);
  void progress(std::int64_t step = -1);  // cheap, any thread
  void collective_started(const char* kind, std::size_t bytes);
  void collective_finished();
  void stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ranktune::cluster
