// The "added_tokens" of tokenizer.json: texts that become one id each before anything else looks at them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/bpe.hpp"
#include "data/normalizer.hpp"
#include "data/tokenizer_regex.hpp"
#include "data/unicode.hpp"

namespace ranktune::data::tokenizing {

struct AddedToken {
  std::string content;
  std::string decoded;  // what the id decodes to: the content, normalised where `normalized` says so
  std::int32_t id = 0;
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // and behind it
  bool normalized = false;   // looked for in the normalised text
  bool special = false;
};

class AddedTokens {
 public:
  AddedTokens() = default;
  // `parts`: the entries of "added_tokens". Throws UserError where an id is not the one that the reference
  // would give: the vocabulary's where the content is a token there, otherwise counted on from its end.
  AddedTokens(const std::vector<JsonPart>& parts, const TokenTable& vocabulary);

  // A special token which the vocabulary holds but the file does not list.
  void add_special(std::string content, std::int32_t id);
  // Makes the lists to search; call once, after the last token. Throws UserError.
  void finish(const Normalizer& normalizer);

  // Calls text(string_view piece, bool at_begin) and token(id) in the order of `text`; no piece is empty.
  // `normalized` selects which tokens are looked for.
  template <typename OnText, typename OnToken>
  void split(std::string_view text, bool normalized, OnText&& on_text, OnToken&& on_token) const;

  const AddedToken* find(std::string_view content) const;
  const AddedToken* find(std::int32_t id) const;
  std::int32_t largest_id() const;

 private:
  // Contents sorted, to be narrowed down byte by byte: the longest that begins at a place is found.
  struct Searcher {
    struct Entry {
      std::string text;
      std::int32_t id;
    };
    std::vector<Entry> entries;
    std::array<std::pair<std::uint32_t, std::uint32_t>, 256> begins{};  // entries by their first byte
    void sort();
    const Entry* longest_at(std::string_view text, std::size_t at) const;
    std::size_t next_candidate(std::string_view text, std::size_t from) const;
    std::optional<unsigned char> only_begin;  // where all begin with the same byte
  };

  void put(AddedToken token);
  bool touches_word(std::string_view text, Span match) const;

  std::vector<AddedToken> tokens_;  // in the order of the file
  std::unordered_map<std::string, std::size_t> by_content_;
  std::unordered_map<std::int32_t, std::size_t> by_id_;
  Searcher plain_, normalized_;
};

template <typename OnText, typename OnToken>
void AddedTokens::split(std::string_view text, bool normalized, OnText&& on_text, OnToken&& on_token) const {
  const Searcher& searcher = normalized ? normalized_ : plain_;
  std::size_t done = 0;
  std::size_t from = searcher.next_candidate(text, 0);
  while (from < text.size()) {
    const Searcher::Entry* entry = searcher.longest_at(text, from);
    if (entry == nullptr) {
      from = searcher.next_candidate(text, from + 1);
      continue;
    }
    Span match{from, from + entry->text.size()};
    from = searcher.next_candidate(text, match.end);
    const AddedToken& token = tokens_[by_id_.at(entry->id)];
    if (token.single_word && touches_word(text, match)) continue;
    if (token.lstrip) {
      while (match.begin > done) {
        std::size_t position = previous_character(text, match.begin);
        const std::size_t begin = position;
        if (!is_white_space(next_code_point(text, position))) break;
        match.begin = begin;
      }
    }
    if (token.rstrip) {
      for (std::size_t end = match.end; end < text.size(); match.end = end) {
        if (!is_white_space(next_code_point(text, end))) break;
      }
    }
    if (done < match.begin) on_text(text.substr(done, match.begin - done), done == 0);
    on_token(entry->id);
    done = match.end;
  }
  if (done < text.size()) on_text(text.substr(done), done == 0);
}

}  // namespace ranktune::data::tokenizing
