// Byte-pair encoding (Sennrich et al., "Neural machine translation of rare words with subword units", ACL
// 2016): a word's characters, merged pair by pair, lowest rank first and leftmost among equals.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ranktune::data::tokenizing {

// The largest id that is accepted: far above any vocabulary, far below what would exhaust memory.
constexpr std::int32_t kLargestId = 1 << 24;

// Token texts and their ids, both ways. Texts lie in one arena.
class TokenTable {
 public:
  // A text that is there already gets the new id.
  void set(std::string_view text, std::int32_t id);
  // Sorts for text(); throws UserError (without file name) where two texts share an id.
  void finish();

  std::optional<std::int32_t> find(std::string_view text) const;
  std::optional<std::string_view> text(std::int32_t id) const;
  std::size_t size() const { return entries_.size(); }
  std::int32_t largest_id() const { return by_id_.empty() ? -1 : entries_[by_id_.back()].id; }

  template <typename Visit>
  void for_each(Visit&& visit) const {
    for (const Entry& entry : entries_) visit(text_of(entry), entry.id);
  }

 private:
  struct Entry {
    std::uint64_t offset;
    std::uint32_t length;
    std::int32_t id;
  };
  std::string_view text_of(const Entry& entry) const {
    return std::string_view(arena_).substr(entry.offset, entry.length);
  }
  std::size_t slot_of(std::string_view text) const;
  void grow();

  std::string arena_;
  std::vector<Entry> entries_;
  std::vector<std::uint32_t> slots_;  // open addressing: index into entries_ plus one, 0 where free
  std::vector<std::uint32_t> by_id_;  // indices into entries_, sorted by id
};

struct BpeOptions {
  std::optional<std::string> unk_token;
  std::string continuing_subword_prefix;
  std::string end_of_word_suffix;
  bool fuse_unk = false;
  bool byte_fallback = false;
  bool ignore_merges = false;
};

// (left, right) of every merge, in rank order, as places in one arena.
class MergeList {
 public:
  void add(std::string_view left, std::string_view right);
  std::size_t size() const { return lengths_.size(); }

  template <typename Visit>
  void for_each(Visit&& visit) const {
    std::size_t at = 0;
    for (const auto& [left, right] : lengths_) {
      const std::string_view text(arena_);
      visit(text.substr(at, left), text.substr(at + left, right));
      at += left + right;
    }
  }

 private:
  std::string arena_;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> lengths_;
};

class Bpe {
 public:
  // Words encoded before, bounded in size.
  class WordCache {
   public:
    // Ids of a word seen before; empty when it was not.
    std::span<const std::int32_t> find(std::string_view word, std::uint64_t hash) const;
    void insert(std::string_view word, std::uint64_t hash, std::span<const std::int32_t> ids);

   private:
    struct Slot {
      std::uint64_t hash = 0;
      std::uint32_t offset = 0;
      std::uint16_t bytes = 0;  // of the word; 0 where free
      std::uint16_t count = 0;  // of ids
    };
    Slot& free_slot(std::uint64_t hash);
    void grow();
    std::vector<Slot> slots_;
    std::vector<std::int32_t> data_;  // for each word its ids, then its bytes
    std::size_t used_ = 0;
  };

  // What encoding writes to; one per thread.
  struct Scratch {
    WordCache cache;
    std::vector<std::int32_t> symbols;
    std::vector<std::uint32_t> ranks, next, previous;
    std::vector<std::uint64_t> queue;  // rank << 32 | position
    std::string text;
  };

  // Throws UserError (without file name) for a merge of tokens that the vocabulary does not hold.
  Bpe(TokenTable vocabulary, const MergeList& merges, BpeOptions options);

  // True when every byte's stand-in is a token, so that encode_bytes() works.
  bool knows_all_bytes() const { return knows_all_bytes_; }

  // Appends the ids of a word. encode_bytes takes it before the bytes are mapped to their stand-ins.
  // Throws UserError when an unknown character needs an unk_token which is not in the vocabulary.
  void encode(std::string_view word, Scratch& scratch, std::vector<std::int32_t>& out) const;
  void encode_bytes(std::string_view word, Scratch& scratch, std::vector<std::int32_t>& out) const;

  const TokenTable& vocabulary() const { return vocabulary_; }

 private:
  struct Merge {
    std::uint64_t pair = kNoPair;
    std::uint32_t rank = 0;
    std::int32_t merged = 0;
  };
  static constexpr std::uint64_t kNoPair = ~std::uint64_t{0};
  static constexpr std::uint32_t kNoRank = ~std::uint32_t{0};

  static std::uint64_t pair_of(std::int32_t left, std::int32_t right) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
           static_cast<std::uint32_t>(right);
  }
  void find_characters();
  void add_merges(const MergeList& merges);
  void add_junctions(const std::vector<std::uint64_t>& joined);
  const Merge* find_merge(std::int32_t left, std::int32_t right) const;
  std::uint32_t rank_of(std::int32_t left, std::int32_t right) const;
  std::int32_t character_id(char32_t c) const { return c < character_ids_.size() ? character_ids_[c] : -1; }

  // In the kBytes variants a word is raw bytes, otherwise text.
  template <bool kBytes>
  void encode_word(std::string_view word, Scratch& scratch, std::vector<std::int32_t>& out) const;
  template <bool kBytes>
  std::optional<std::int32_t> whole_word(std::string_view word, Scratch& scratch) const;
  template <bool kBytes>
  void encode_segments(std::string_view word, Scratch& scratch, std::vector<std::int32_t>& out) const;
  template <bool kBytes>
  void encode_by_merges(std::string_view text, Scratch& scratch, std::vector<std::int32_t>& out) const;
  template <bool kBytes>
  std::size_t segment_end(std::string_view word, std::size_t begin) const;

  bool is_junction(char32_t left, char32_t right) const;
  void add_symbols(std::string_view word, Scratch& scratch) const;
  std::int32_t symbol_of(std::string_view word, std::size_t begin, std::size_t end, std::string& text) const;
  bool add_byte_symbols(std::string_view text, std::vector<std::int32_t>& symbols) const;
  std::int32_t unknown_id() const;
  void merge_short(Scratch& scratch) const;
  void merge_long(Scratch& scratch) const;
  void merge_at(std::uint32_t position, Scratch& scratch) const;
  void set_rank(std::uint32_t position, Scratch& scratch) const;

  TokenTable vocabulary_;
  BpeOptions options_;
  std::vector<Merge> merges_;  // open addressing by pair
  int merge_shift_ = 0;
  std::vector<std::int32_t> merged_ids_;     // [merges], by rank
  std::vector<std::int32_t> character_ids_;  // [largest code point + 1] token of one character, -1 where none
  std::int32_t byte_ids_[256];               // token of a byte's stand-in
  std::int32_t fallback_ids_[256];           // token <0xNN>
  bool knows_all_bytes_ = false;
  // Character pairs at which some merge joins its two parts. No merge ever crosses other pairs, so a word may
  // be cut there, and its parts be encoded (and remembered) one by one.
  bool may_cut_ = false;
  std::vector<std::uint64_t> junctions_;  // open addressing: left << 32 | right code point
  int junction_shift_ = 0;
  std::vector<bool> byte_junctions_;  // [256 * 256]
};

}  // namespace ranktune::data::tokenizing
