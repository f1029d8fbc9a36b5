// The tokenised dataset on every rank: read from the cache, or tokenised once by all ranks together.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "cluster/session.hpp"
#include "data/records.hpp"
#include "data/token_store.hpp"
#include "data/tokenizer.hpp"

namespace ranktune::train {

struct DatasetResult {
  data::TokenStore store;
  bool from_cache = false;
  std::string warning;  // why the cache could not be written, if so
};

// Collective. Every rank tokenises its share of the rows; one rank of each node writes the cache. Where a
// chat template makes the texts, rank 0 has all of them rendered first. `progress` is called with the number
// of rows done out of all rows (estimated from this rank's share) and may throw to stop.
DatasetResult tokenised_dataset(const cluster::Session& session, const data::Records& records,
                                const data::Tokenizer& tokenizer, const data::TokenizeOptions& options,
                                const std::filesystem::path& cache,
                                const std::function<void(std::int64_t)>& progress);

}  // namespace ranktune::train
