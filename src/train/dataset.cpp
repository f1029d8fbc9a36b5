#include "train/dataset.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace ranktune::train {

DatasetResult tokenised_dataset(const cluster::Session& session, const data::Records& records,
                                const data::Tokenizer& tokenizer, const data::TokenizeOptions& options,
                                const std::filesystem::path& cache,
                                const std::function<void(std::int64_t)>& progress) {
  DatasetResult result;
  const std::string key = data::token_cache_key(records, tokenizer, options);
  auto cached = data::load_cached_tokens(cache, key);
  result.from_cache = session.sum(cached ? 1 : 0) == session.world_size();
  if (result.from_cache) {
    result.store = std::move(*cached);
    return result;
  }

  const auto rows = static_cast<std::int64_t>(records.rows.size());
  const std::int64_t begin = rows * session.rank() / session.world_size();
  const std::int64_t end = rows * (session.rank() + 1) / session.world_size();
  std::string mine;
  session.together("tokenising", [&] {
    data::TokenizeOptions own = options;
    own.first_row = begin;
    own.progress = [&](std::int64_t done) {
      if (progress) progress(std::min(rows, done * session.world_size()));
    };
    const std::span<const data::Row> all(records.rows);
    mine = data::tokenize(all.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)),
                          tokenizer, own)
               .serialize();
  });
  for (const std::string& part : session.gather_all(mine)) result.store.append(data::TokenStore::parse(part));
  if (session.local_rank() == 0) {
    if (const auto problem = data::save_cached_tokens(cache, key, result.store)) result.warning = *problem;
  }
  return result;
}

}  // namespace ranktune::train
