// A program whose rank 1 goes wrong on purpose, for tests of how a job ends: mpirun -np N stall MODE
//   sleeps   rank 1 stops marking progress
//   stopped  rank 1's whole process is stopped, its watchdog with it
//   throws   rank 1 alone has an exception, which main ends as the program does
//   agrees   rank 1's error is agreed on; all end with 2, MPI finalised
//   hidden   as sleeps, but the others' deadlines are long: rank 1 says so itself
#include <csignal>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>

#include <chrono>
#include <thread>

#include "base/error.hpp"
#include "cluster/session.hpp"
#include "cluster/watchdog.hpp"

namespace {

using ranktune::cluster::Session;
using ranktune::cluster::Watchdog;

void go_wrong(const std::string& mode) {
  if (mode == "stopped") std::raise(SIGSTOP);
  if (mode == "throws") throw std::runtime_error("something broke on one rank");
  std::this_thread::sleep_for(std::chrono::minutes(10));
}

void run(const Session& session, const std::string& mode) {
  Watchdog watchdog(session);
  watchdog.phase("warming up", 5);
  session.barrier();
  const bool patient = mode == "throws" || (mode == "hidden" && session.rank() != 1);
  session.together("starting", [&] {
    if (mode == "agrees" && session.rank() == 1) throw ranktune::UserError("rank 1 has a wrong input");
  });
  watchdog.phase("going in circles", patient ? 60 : 1.0);
  for (int step = 0; step < 5; ++step) {
    watchdog.progress(step);
    if (step == 3 && session.rank() == 1) go_wrong(mode);
    (void)session.sum(step);
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Session session;
    try {
      run(session, argc > 1 ? argv[1] : "");
    } catch (const ranktune::cluster::AgreedUserError& error) {
      if (session.is_root()) std::fprintf(stderr, "agreed: %s\n", error.what());
      return 2;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d: %s\n", session.rank(), error.what());
      MPI_Abort(MPI_COMM_WORLD, 1);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
