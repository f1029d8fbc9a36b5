// Blocks of rows worked on by a few threads, with the error that a single thread would have met first.
#pragma once

#include <cstddef>
#include <functional>

namespace ranktune::data {

struct ParallelOptions {
  std::size_t threads = 1;
  std::size_t block = 256;  // rows that a thread takes at a time
  // Called on the calling thread about ten times a second with the number of rows done, and at the end. It
  // may throw to stop.
  std::function<void(std::size_t)> progress;
};

// Calls work(block_index, begin, end) for [0, count) cut into blocks. Blocks are handed out in order and
// always finished, so when several of them throw, the exception of the lowest block is the one rethrown here.
void for_each_block(std::size_t count, const ParallelOptions& options,
                    const std::function<void(std::size_t, std::size_t, std::size_t)>& work);

// How many blocks for_each_block makes of `count` rows.
std::size_t block_count(std::size_t count, const ParallelOptions& options);

}  // namespace ranktune::data
