// One way to call MPI: the failing call is named, and messages of any size are split.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace ranktune::cluster::detail {

// Throws Failure "MPI_Bcast failed: <MPI's own text>" unless `code` is MPI_SUCCESS. `call` is the text of the
// call.
void check_mpi(int code, const char* call);

// Bytes in one MPI call at most: counts are int, and 1 GiB leaves room for implementations that multiply.
inline constexpr std::size_t kMessageBytes = std::size_t{1} << 30;

// Broadcast of any size from `root`, in place, in messages of at most `message_bytes`. Collective.
void broadcast_bytes(MPI_Comm communicator, void* data, std::size_t bytes, int root,
                     std::size_t message_bytes = kMessageBytes);

// One string of each rank, in rank order, on all ranks; any size. Collective.
std::vector<std::string> gather_all(MPI_Comm communicator, std::string_view mine,
                                    std::size_t message_bytes = kMessageBytes);

}  // namespace ranktune::cluster::detail

#define RT_MPI(call) ::ranktune::cluster::detail::check_mpi((call), #call)
