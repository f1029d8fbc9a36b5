// The only place that decides between a clean end and MPI_Abort.

#include <fmt/format.h>
#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "app/bench_command.hpp"
#include "app/console.hpp"
#include "app/eval_command.hpp"
#include "app/export_command.hpp"
#include "app/generate_command.hpp"
#include "app/options.hpp"
#include "app/report_command.hpp"
#include "app/run_record.hpp"
#include "app/train_command.hpp"
#include "base/error.hpp"
#include "cluster/session.hpp"
#include "cluster/signals.hpp"

namespace {

using namespace ranktune;

constexpr int kFailed = 1;
constexpr int kWrongInput = 2;

void print_error(const std::vector<std::string>& sentences) {
  app::Console().error(sentences);
}

// The command under MPI. What all ranks agreed on is said by rank 0 and ends with a common code; what went
// wrong here alone is said here, and MPI_Abort ends the others, which may be waiting for this rank.
int run_under_mpi(const std::function<int(const cluster::Session&)>& command) {
  const cluster::Session session;
  const auto abort = [&](int code, const std::string& text) -> int {
    print_error({fmt::format("rank {} on {}: {}", session.rank(),
                             session.hosts()[static_cast<std::size_t>(session.rank())], text)});
    MPI_Abort(session.world(), code);
    std::_Exit(code);
  };
  try {
    return command(session);
  } catch (const cluster::AgreedUserError& error) {
    if (session.is_root()) print_error(error.sentences());
    return kWrongInput;
  } catch (const cluster::AgreedError& error) {
    if (session.is_root()) print_error({error.what()});
    return kFailed;
  } catch (const cluster::StopRequested& stop) {
    if (session.is_root())
      app::Console().note(fmt::format("stopped by {} before the first step", cluster::describe(stop.reason)));
    return cluster::exit_code(stop.reason);
  } catch (const UserError& error) {
    return abort(kWrongInput, error.what());
  } catch (const std::exception& error) {
    return abort(kFailed, error.what());
  }
}

void print_version() {
  std::puts(app::version_text().c_str());
  for (const auto& [name, version] : app::library_versions()) {
    if (name != "ranktune" && name != "git_revision") fmt::print("{:<14}{}\n", name, version);
  }
}

void print_help_or_version(const app::ParseResult& parsed, const std::string& help) {
  if (parsed.help) {
    std::puts(help.c_str());
  } else {
    print_version();
  }
}

int report(const std::vector<std::string>& arguments) {
  const app::ReportCommand command = app::parse_report_options(arguments);
  if (!command.problems.empty()) {
    print_error(command.problems);
    return kWrongInput;
  }
  if (command.version) {
    print_version();
    return 0;
  }
  if (command.help) {
    std::puts(app::report_help().c_str());
    return 0;
  }
  cluster::release_signals();
  return app::run_report(command);
}

int dispatch(const std::vector<std::string>& arguments, const std::string& command_line) {
  const app::CommandLine command = app::parse_command_line(arguments);
  if (!command.problems.empty()) {
    print_error(command.problems);
    return kWrongInput;
  }
  if (command.subcommand == "version") {
    print_version();
    return 0;
  }
  if (command.subcommand == "help") {
    std::puts(app::program_help().c_str());
    return 0;
  }
  if (command.subcommand == "export") {
    cluster::release_signals();
    const app::ExportCommand wanted = app::parse_export_options(command.arguments);
    if (!wanted.help) return app::run_export(wanted);
    std::puts(app::export_help().c_str());
    return 0;
  }
  if (command.subcommand == "generate") {
    const app::GenerateCommand wanted = app::parse_generate_options(command.arguments);
    if (wanted.help) {
      std::puts(app::generate_help().c_str());
      return 0;
    }
    cluster::refuse_launch_without_mpi();
    return run_under_mpi([&](const cluster::Session& session) { return app::run_generate(session, wanted); });
  }
  if (command.subcommand == "report") return report(command.arguments);
  if (command.subcommand == "bench") {
    const app::BenchCommand bench = app::parse_bench_options(command.arguments);
    if (bench.help) {
      std::puts(app::bench_help().c_str());
      return 0;
    }
    cluster::refuse_launch_without_mpi();
    return run_under_mpi([&](const cluster::Session& session) { return app::run_bench(session, bench); });
  }
  // Help needs no MPI, and works where MPI cannot start.
  if (command.subcommand == "eval") {
    const app::ParseResult parsed = app::parse_eval_options(command.arguments);
    if (parsed.help || parsed.version) {
      print_help_or_version(parsed, app::eval_help());
      return 0;
    }
    cluster::refuse_launch_without_mpi();
    return run_under_mpi([&](const cluster::Session& session) { return app::run_eval(session, parsed); });
  }
  const app::ParseResult parsed = app::parse_train_options(command.arguments);
  if (parsed.help || parsed.version) {
    print_help_or_version(parsed, app::train_help());
    return 0;
  }
  cluster::refuse_launch_without_mpi();
  return run_under_mpi([&](const cluster::Session& session) {
    return app::run_train(session, command.arguments, command_line);
  });
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  cluster::block_signals();
  std::string command_line = argv[0];
  for (const std::string& argument : arguments) command_line += " " + argument;
  int code = kFailed;
  try {
    code = dispatch(arguments, command_line);
  } catch (const cluster::AgreedFailure& failure) {
    code = failure.exit_code;
  } catch (const UserError& error) {
    print_error(error.sentences());
    code = kWrongInput;
  } catch (const std::exception& error) {
    print_error({error.what()});
  }
  // Static destructors of the libraries are skipped: everything of ours is closed, and theirs may wait for
  // devices.
  std::fflush(nullptr);
  std::_Exit(code);
}
