#include "cluster/devices.hpp"

#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>

#include "base/error.hpp"
#include "cluster/gpu_assignment.hpp"

namespace ranktune::cluster {
namespace {

namespace fs = std::filesystem;

constexpr int kOldestCudaOfDriver = 13000;
constexpr const char* kOldestDriver = "580";
constexpr int kOldestMajor = 8;  // compute capability

std::string text_of(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<fs::path> entries(const char* directory) {
  std::error_code ignored;  // absent or unreadable: nothing to see
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(directory, ignored)) found.push_back(entry.path());
  return found;
}

bool is_gpu_node(const fs::path& path) {
  const auto name = path.filename().string();
  return name.rfind("nvidia", 0) == 0 && name.size() > 6 &&
         std::all_of(name.begin() + 6, name.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
}

// Slurm's device cgroup answers EPERM for a GPU that was not given to this job.
bool may_open(const fs::path& path) {
  const int descriptor = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) return errno != EPERM;
  close(descriptor);
  return true;
}

bool hidden_by_environment() {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (visible == nullptr) return false;
  const std::string value = visible;
  return value.empty() || value == "-1" || value == "NoDevFiles";
}

// Whether this machine has an NVIDIA GPU for this job, asked without the driver.
bool machine_has_gpu() {
  bool any_node = false;
  for (const auto& path : entries("/dev")) {
    if (!is_gpu_node(path)) continue;
    any_node = true;
    if (may_open(path)) return true;
  }
  return !any_node && !entries("/proc/driver/nvidia/gpus").empty();
}

struct Seen {
  bool device = false;
  int count = 0;
  cudaError_t error = cudaSuccess;
};

Seen look() {
  Seen seen;
  if (hidden_by_environment()) return seen;
  seen.error = cudaGetDeviceCount(&seen.count);
  if (seen.error != cudaSuccess) {
    seen.count = 0;
    (void)cudaGetLastError();
  }
  seen.device = seen.count > 0 || machine_has_gpu();
  return seen;
}

std::string driver_in_use() {
  auto version = detail::driver_version(text_of("/proc/driver/nvidia/version"));
  if (!version.empty()) return version;
  int cuda = 0;
  if (cudaDriverGetVersion(&cuda) != cudaSuccess || cuda == 0) return "none";
  return fmt::format("for CUDA {}.{}", cuda / 1000, cuda % 1000 / 10);
}

void check_cuda(cudaError_t code, const char* call, const std::string& where) {
  if (code == cudaSuccess) return;
  (void)cudaGetLastError();
  throw UserError(
      fmt::format("{}: the GPU cannot be used, {} says \"{}\"; run nvidia-smi there, or use --device cpu.",
                  where, call, cudaGetErrorString(code)));
}

void check_driver(const Seen& seen, const std::string& where) {
  int cuda = 0;
  (void)cudaDriverGetVersion(&cuda);
  if (seen.error == cudaErrorInsufficientDriver || (seen.count > 0 && cuda < kOldestCudaOfDriver)) {
    throw UserError(
        fmt::format("{}: the NVIDIA driver found is {}, CUDA 13 needs {} or newer; update it, or use "
                    "--device cpu.",
                    where, driver_in_use(), kOldestDriver));
  }
  check_cuda(seen.error, "cudaGetDeviceCount", where);
}

std::string uuid_text(const cudaUUID_t& uuid) {
  std::string text = "GPU-";
  for (std::size_t i = 0; i < sizeof uuid.bytes; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

cudaDeviceProp properties(int index, const std::string& where) {
  cudaDeviceProp found{};
  check_cuda(cudaGetDeviceProperties(&found, index), "cudaGetDeviceProperties", where);
  return found;
}

DeviceChoice cpu_choice() {
  DeviceChoice choice;
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; choice.name.empty() && std::getline(info, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    const auto colon = line.find(": ");
    if (colon != std::string::npos) choice.name = line.substr(colon + 2);
  }
  if (choice.name.empty()) {  // Arm's cpuinfo names no model
    utsname system{};
    uname(&system);
    choice.name = std::string(system.machine) + " CPU";
  }
  choice.memory_bytes = std::int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  return choice;
}

// The UUIDs of all visible devices joined by spaces, as they travel.
std::string visible_uuids(const Seen& seen, const std::string& where) {
  std::string joined;
  for (int index = 0; index < seen.count; ++index) {
    joined += uuid_text(properties(index, where).uuid) + " ";
  }
  return joined;
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> words;
  for (std::size_t at = 0; at < text.size();) {
    const auto end = std::min(text.find(' ', at), text.size());
    if (end > at) words.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

// What every rank sees, known to all.
std::vector<detail::RankGpus> gather_gpus(const Session& session, const std::string& uuids) {
  const auto mine = fmt::format("{} {} {}", session.node(), session.local_rank(), uuids);
  std::vector<detail::RankGpus> ranks;
  for (const auto& text : session.gather_all(mine)) {
    const auto words = split(text);
    const auto rank = static_cast<int>(ranks.size());
    ranks.push_back({rank,
                     std::stoi(words.at(0)),
                     std::stoi(words.at(1)),
                     session.hosts()[static_cast<std::size_t>(rank)],
                     {words.begin() + 2, words.end()}});
  }
  return ranks;
}

DeviceChoice take_gpu(int index, const std::string& where) {
  const auto found = properties(index, where);
  if (found.major < kOldestMajor) {
    throw UserError(
        fmt::format("{}: {} has compute capability {}.{}, {}.0 or newer is needed; use --device cpu.", where,
                    found.name, found.major, found.minor, kOldestMajor));
  }
  check_cuda(cudaSetDevice(index), "cudaSetDevice", where);
  check_cuda(cudaFree(nullptr), "making the context", where);  // a GPU in exclusive use says so here
  DeviceChoice choice;
  choice.cuda = true;
  choice.index = index;
  choice.name = found.name;
  choice.uuid = uuid_text(found.uuid);
  choice.memory_bytes = static_cast<std::int64_t>(found.totalGlobalMem);
  choice.multiprocessors = found.multiProcessorCount;
  choice.driver = driver_in_use();
  return choice;
}

}  // namespace

DeviceChoice choose_device(const Session& session, const std::string& wanted, bool allow_shared_gpu) {
  if (wanted != "auto" && wanted != "cuda" && wanted != "cpu") {
    throw AgreedUserError("--device is \"" + wanted + "\"; it must be auto, cuda or cpu.");
  }
  if (wanted == "cpu") return cpu_choice();
  const auto where =
      fmt::format("Rank {} on {}", session.rank(), session.hosts()[static_cast<std::size_t>(session.rank())]);
  const auto seen = look();
  const bool anyone_sees = session.max(seen.device ? 1 : 0) != 0;
  if (wanted == "auto" && !anyone_sees) return cpu_choice();

  std::string uuids;
  session.together("looking at the GPUs", [&] {
    if (!seen.device) {
      throw UserError(
          anyone_sees
              ? where + " sees no NVIDIA device while other ranks do; all ranks need one, or --device cpu."
              : "--device cuda was asked for but no rank sees an NVIDIA device; use --device cpu.");
    }
    check_driver(seen, where);
    uuids = visible_uuids(seen, where);
  });
  const auto ranks = gather_gpus(session, uuids);
  DeviceChoice choice;
  session.together("choosing the GPU", [&] {
    const auto indices = detail::assign_gpus(ranks, allow_shared_gpu);
    choice = take_gpu(indices[static_cast<std::size_t>(session.rank())], where);
  });
  return choice;
}

void prepare_environment(const Session& session, bool allow_shared_gpu) {
  constexpr int kKeep = 0;
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", kKeep);
  if (allow_shared_gpu) {
    // Ranks of one host must not share a GPU for NCCL; under different host names it does not see that they
    // do.
    const auto id =
        fmt::format("{}-rank{}", session.hosts()[static_cast<std::size_t>(session.rank())], session.rank());
    setenv("NCCL_HOSTID", id.c_str(), kKeep);
  }
}

}  // namespace ranktune::cluster
