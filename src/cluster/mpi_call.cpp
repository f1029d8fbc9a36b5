#include "cluster/mpi_call.hpp"

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/error.hpp"

namespace ranktune::cluster::detail {

void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  const std::string_view text = call;
  std::array<char, MPI_MAX_ERROR_STRING> reason{};
  int length = 0;
  if (MPI_Error_string(code, reason.data(), &length) != MPI_SUCCESS) length = 0;
  throw Failure(std::string(text.substr(0, text.find('('))) +
                " failed: " + std::string(reason.data(), static_cast<std::size_t>(length)) + " (code " +
                std::to_string(code) + ")");
}

void broadcast_bytes(MPI_Comm communicator, void* data, std::size_t bytes, int root,
                     std::size_t message_bytes) {
  auto* at = static_cast<std::byte*>(data);
  for (std::size_t done = 0; done < bytes; done += message_bytes) {
    const int count = static_cast<int>(std::min(message_bytes, bytes - done));
    RT_MPI(MPI_Bcast(at + done, count, MPI_BYTE, root, communicator));
  }
}

namespace {
// All strings in one message, for totals that an int can count.
std::vector<std::string> gather_small(MPI_Comm communicator, std::string_view mine,
                                      const std::vector<std::int64_t>& sizes, std::size_t total) {
  std::vector<int> counts(sizes.size());
  std::vector<int> offsets(sizes.size());
  int offset = 0;
  for (std::size_t rank = 0; rank < sizes.size(); ++rank) {
    counts[rank] = static_cast<int>(sizes[rank]);
    offsets[rank] = offset;
    offset += counts[rank];
  }
  std::string all(total, '\0');
  RT_MPI(MPI_Allgatherv(mine.data(), static_cast<int>(mine.size()), MPI_BYTE, all.data(), counts.data(),
                        offsets.data(), MPI_BYTE, communicator));
  std::vector<std::string> strings;
  strings.reserve(sizes.size());
  for (std::size_t rank = 0; rank < sizes.size(); ++rank) {
    strings.emplace_back(all, static_cast<std::size_t>(offsets[rank]),
                         static_cast<std::size_t>(counts[rank]));
  }
  return strings;
}
}  // namespace

std::vector<std::string> gather_all(MPI_Comm communicator, std::string_view mine, std::size_t message_bytes) {
  int ranks = 0;
  int self = 0;
  RT_MPI(MPI_Comm_size(communicator, &ranks));
  RT_MPI(MPI_Comm_rank(communicator, &self));
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(ranks));
  const auto my_size = static_cast<std::int64_t>(mine.size());
  RT_MPI(MPI_Allgather(&my_size, 1, MPI_INT64_T, sizes.data(), 1, MPI_INT64_T, communicator));
  std::size_t total = 0;
  for (const auto size : sizes) total += static_cast<std::size_t>(size);
  if (total <= message_bytes) return gather_small(communicator, mine, sizes, total);

  std::vector<std::string> strings(sizes.size());
  for (int rank = 0; rank < ranks; ++rank) {
    auto& string = strings[static_cast<std::size_t>(rank)];
    if (rank == self) string = mine;
    string.resize(static_cast<std::size_t>(sizes[static_cast<std::size_t>(rank)]));
    broadcast_bytes(communicator, string.data(), string.size(), rank, message_bytes);
  }
  return strings;
}

}  // namespace ranktune::cluster::detail
