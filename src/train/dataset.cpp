#include "train/dataset.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "data/chat.hpp"

namespace ranktune::train {
namespace {

// On every rank, the rows as their chat template writes them.
std::string rendered_chats(const cluster::Session& session, const data::Records& records,
                           const data::TokenizeOptions& options,
                           const std::function<void(std::int64_t)>& progress) {
  std::string lines;
  session.together("rendering the chat template", [&] {
    if (!session.is_root()) return;
    data::ChatRendering how;
    how.python = options.python;
    how.spans = options.responses_only;
    how.progress = progress;
    lines = data::render_chats(records.rows, options.prompt_template.chat, how);
  });
  session.broadcast(lines);
  return lines;
}

}  // namespace

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

  const bool is_chat = options.prompt_template.form == data::PromptTemplate::chat;
  const auto rows = static_cast<std::int64_t>(records.rows.size());
  // Rendering is the first half of the way.
  const auto report = [&](std::int64_t done, bool second) {
    if (!progress) return;
    done = std::min(rows, done);
    progress(!is_chat ? done : second ? (rows + done) / 2 : done / 2);
  };
  std::string chats;
  if (is_chat)
    chats = rendered_chats(session, records, options, [&](std::int64_t done) { report(done, false); });

  const std::int64_t begin = rows * session.rank() / session.world_size();
  const std::int64_t end = rows * (session.rank() + 1) / session.world_size();
  std::string mine;
  session.together("tokenising", [&] {
    data::TokenizeOptions own = options;
    own.first_row = begin;
    own.progress = [&](std::int64_t done) { report(done * session.world_size(), true); };
    const auto share = std::span(records.rows)
                           .subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
    const data::TokenStore store =
        is_chat ? data::tokenize(data::parse_rendered(chats, begin, end), tokenizer, own)
                : data::tokenize(share, tokenizer, own);
    mine = store.serialize();
  });
  for (const std::string& part : session.gather_all(mine)) result.store.append(data::TokenStore::parse(part));
  if (session.local_rank() == 0) {
    if (const auto problem = data::save_cached_tokens(cache, key, result.store)) result.warning = *problem;
  }
  return result;
}

}  // namespace ranktune::train
