#include "data/tokenizer_added_tokens.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/error.hpp"

namespace ranktune::data::tokenizing {
namespace {

constexpr std::size_t kLongestContent = 4096;

AddedToken read_added_token(const JsonPart& part) {
  AddedToken token;
  token.content = part.text("content");
  const std::size_t id = part.count("id");
  if (id > static_cast<std::size_t>(kLargestId)) {
    part.refuse(fmt::format("has the id {}, above the largest supported, {}", id, kLargestId));
  }
  if (token.content.size() > kLongestContent) {
    part.refuse(fmt::format("has a content of more than {} bytes", kLongestContent));
  }
  token.id = static_cast<std::int32_t>(id);
  token.single_word = part.flag("single_word");
  token.lstrip = part.flag("lstrip");
  token.rstrip = part.flag("rstrip");
  token.normalized = part.flag("normalized");
  token.special = part.flag("special");
  return token;
}

}  // namespace

AddedTokens::AddedTokens(const std::vector<JsonPart>& parts, const TokenTable& vocabulary) {
  std::int64_t largest = -1;  // of the added tokens
  const auto size = static_cast<std::int64_t>(vocabulary.size());
  for (const JsonPart& part : parts) {
    AddedToken token = read_added_token(part);
    if (token.content.empty()) continue;  // as the reference does
    const AddedToken* known = find(token.content);
    const auto in_vocabulary = vocabulary.find(token.content);
    const std::int64_t expected = known != nullptr ? known->id
                                  : in_vocabulary  ? *in_vocabulary
                                                   : std::max(largest + 1, size);
    if (token.id != expected) {
      part.refuse(
          fmt::format("gives \"{}\" the id {}, where it should be {}", token.content, token.id, expected));
    }
    if (!in_vocabulary && vocabulary.text(token.id)) {
      part.refuse(fmt::format("gives \"{}\" the id {}, which is that of the vocabulary's \"{}\"",
                              token.content, token.id, *vocabulary.text(token.id)));
    }
    largest = std::max<std::int64_t>(largest, token.id);
    put(std::move(token));
  }
}

void AddedTokens::put(AddedToken token) {
  const auto known = by_content_.find(token.content);
  if (known != by_content_.end()) {
    tokens_[known->second] = std::move(token);
    return;
  }
  by_content_.emplace(token.content, tokens_.size());
  by_id_.emplace(token.id, tokens_.size());
  tokens_.push_back(std::move(token));
}

void AddedTokens::add_special(std::string content, std::int32_t id) {
  AddedToken token;
  token.content = std::move(content);
  token.id = id;
  token.special = true;
  put(std::move(token));
}

void AddedTokens::finish(const Normalizer& normalizer) {
  RegexScratch scratch;
  // Special ones first: of two that normalise to the same text the earlier is found.
  for (const bool special : {true, false}) {
    for (AddedToken& token : tokens_) {
      if (token.special != special) continue;
      std::string text = token.content;
      bool at_origin = true;
      if (token.normalized) normalizer.apply(text, at_origin, scratch);
      if (text.empty()) {
        throw UserError(fmt::format("the added token \"{}\" is empty once normalised", token.content));
      }
      token.decoded = text;
      (token.normalized ? normalized_ : plain_).entries.push_back({std::move(text), token.id});
    }
  }
  plain_.sort();
  normalized_.sort();
}

void AddedTokens::Searcher::sort() {
  const auto text_of = [](const Entry& entry) -> const std::string& { return entry.text; };
  std::ranges::stable_sort(entries, {}, text_of);
  const auto twins = std::ranges::unique(entries, {}, text_of);
  entries.erase(twins.begin(), twins.end());
  for (std::uint32_t i = 0; i < entries.size(); ++i) {
    auto& [begin, end] = begins[static_cast<unsigned char>(entries[i].text[0])];
    if (end == 0) begin = i;
    end = i + 1;
  }
  if (!entries.empty() && entries.front().text[0] == entries.back().text[0]) {
    only_begin = static_cast<unsigned char>(entries.front().text[0]);
  }
}

std::size_t AddedTokens::Searcher::next_candidate(std::string_view text, std::size_t from) const {
  if (entries.empty() || from >= text.size()) return text.size();
  if (only_begin) {
    const void* found = std::memchr(text.data() + from, *only_begin, text.size() - from);
    return found == nullptr ? text.size()
                            : static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
  }
  while (from < text.size() && begins[static_cast<unsigned char>(text[from])].second == 0) ++from;
  return from;
}

const AddedTokens::Searcher::Entry* AddedTokens::Searcher::longest_at(std::string_view text,
                                                                      std::size_t at) const {
  auto [begin, end] = begins[static_cast<unsigned char>(text[at])];
  const Entry* longest = nullptr;
  for (std::size_t length = 1; begin < end; ++length) {
    // Entries [begin, end) agree with the text in their first `length` bytes; the shortest comes first.
    if (entries[begin].text.size() == length) longest = &entries[begin++];
    if (begin == end || at + length >= text.size()) break;
    const auto byte_at = [&](const Entry& entry) { return static_cast<unsigned char>(entry.text[length]); };
    const auto range = std::ranges::equal_range(entries.begin() + begin, entries.begin() + end,
                                                static_cast<unsigned char>(text[at + length]), {}, byte_at);
    begin = static_cast<std::uint32_t>(range.begin() - entries.begin());
    end = static_cast<std::uint32_t>(range.end() - entries.begin());
  }
  return longest;
}

bool AddedTokens::touches_word(std::string_view text, Span match) const {
  if (match.begin > 0) {
    std::size_t position = previous_character(text, match.begin);
    if (is_word(next_code_point(text, position))) return true;
  }
  return match.end < text.size() && is_word(next_code_point(text, match.end));
}

const AddedToken* AddedTokens::find(std::string_view content) const {
  const auto found = by_content_.find(std::string(content));
  return found == by_content_.end() ? nullptr : &tokens_[found->second];
}

const AddedToken* AddedTokens::find(std::int32_t id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &tokens_[found->second];
}

std::int32_t AddedTokens::largest_id() const {
  std::int32_t largest = -1;
  for (const AddedToken& token : tokens_) largest = std::max(largest, token.id);
  return largest;
}

}  // namespace ranktune::data::tokenizing
