#include "data/bpe.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>

#include "base/error.hpp"
#include "data/normalizer.hpp"
#include "data/unicode.hpp"

namespace ranktune::data::tokenizing {
namespace {

constexpr std::size_t kLongestCached = 64;       // bytes of a word worth remembering
constexpr std::size_t kShortMerge = 48;          // symbols up to which scanning beats a queue
constexpr std::size_t kMaxCacheSlots = 1 << 17;  // 16 bytes each
constexpr std::size_t kMaxCacheData = 1 << 20;   // 4 bytes each
constexpr std::size_t kLargestKept = 1 << 20;    // symbols; larger scratch space is given back after use

std::uint64_t hash_of(std::string_view text) {
  return XXH3_64bits(text.data(), text.size());
}

// Multiplicative hashing of an integer key into 2^(64 - shift) slots.
std::size_t spread(std::uint64_t key, int shift) {
  key ^= key >> 29;
  return static_cast<std::size_t>((key * 0x9E3779B97F4A7C15U) >> shift);
}

int shift_for(std::size_t count) {
  const std::size_t slots = std::bit_ceil(std::max<std::size_t>(count + count / 2, 16));
  return 64 - std::countr_zero(slots);
}

std::size_t slots_of(int shift) {
  return std::size_t{1} << (64 - shift);
}

std::uint64_t junction_of(char32_t left, char32_t right) {
  return static_cast<std::uint64_t>(left) << 32 | right;
}

// Room for large words is not kept for the rest of the run.
template <typename T>
void shrink(std::vector<T>& values) {
  if (values.capacity() > kLargestKept) std::vector<T>().swap(values);
}

}  // namespace

std::size_t TokenTable::slot_of(std::string_view text) const {
  const std::size_t mask = slots_.size() - 1;
  std::size_t slot = hash_of(text) & mask;
  while (slots_[slot] != 0 && text_of(entries_[slots_[slot] - 1]) != text) slot = (slot + 1) & mask;
  return slot;
}

void TokenTable::grow() {
  slots_.assign(std::max<std::size_t>(slots_.size() * 2, 64), 0);
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    slots_[slot_of(text_of(entries_[i]))] = static_cast<std::uint32_t>(i + 1);
  }
}

void TokenTable::set(std::string_view text, std::int32_t id) {
  if (2 * (entries_.size() + 1) > slots_.size()) grow();
  std::uint32_t& slot = slots_[slot_of(text)];
  if (slot != 0) {
    entries_[slot - 1].id = id;
    return;
  }
  entries_.push_back({arena_.size(), static_cast<std::uint32_t>(text.size()), id});
  arena_ += text;
  slot = static_cast<std::uint32_t>(entries_.size());
}

void TokenTable::finish() {
  by_id_.resize(entries_.size());
  for (std::size_t i = 0; i < by_id_.size(); ++i) by_id_[i] = static_cast<std::uint32_t>(i);
  const auto id_of = [&](std::uint32_t i) { return entries_[i].id; };
  if (!std::ranges::is_sorted(by_id_, {}, id_of)) std::ranges::sort(by_id_, {}, id_of);
  const auto twin = std::ranges::adjacent_find(by_id_, {}, id_of);
  if (twin != by_id_.end()) {
    throw UserError(fmt::format("the tokens \"{}\" and \"{}\" have the same id {}", text_of(entries_[*twin]),
                                text_of(entries_[*std::next(twin)]), id_of(*twin)));
  }
}

std::optional<std::int32_t> TokenTable::find(std::string_view text) const {
  if (slots_.empty()) return std::nullopt;
  const std::uint32_t found = slots_[slot_of(text)];
  if (found == 0) return std::nullopt;
  return entries_[found - 1].id;
}

std::optional<std::string_view> TokenTable::text(std::int32_t id) const {
  const auto found =
      std::ranges::lower_bound(by_id_, id, {}, [&](std::uint32_t i) { return entries_[i].id; });
  if (found == by_id_.end() || entries_[*found].id != id) return std::nullopt;
  return text_of(entries_[*found]);
}

void MergeList::add(std::string_view left, std::string_view right) {
  lengths_.emplace_back(static_cast<std::uint32_t>(left.size()), static_cast<std::uint32_t>(right.size()));
  arena_.append(left).append(right);
}

std::span<const std::int32_t> Bpe::WordCache::find(std::string_view word, std::uint64_t hash) const {
  if (slots_.empty()) return {};
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t at = hash & mask; slots_[at].bytes != 0; at = (at + 1) & mask) {
    const Slot& slot = slots_[at];
    if (slot.hash != hash || slot.bytes != word.size()) continue;
    const std::int32_t* ids = data_.data() + slot.offset;
    if (std::memcmp(ids + slot.count, word.data(), word.size()) == 0) return {ids, slot.count};
  }
  return {};
}

Bpe::WordCache::Slot& Bpe::WordCache::free_slot(std::uint64_t hash) {
  const std::size_t mask = slots_.size() - 1;
  std::size_t at = hash & mask;
  while (slots_[at].bytes != 0) at = (at + 1) & mask;
  return slots_[at];
}

// Twice the slots; at the limit everything is forgotten, which is cheaper than keeping track of use.
void Bpe::WordCache::grow() {
  std::vector<Slot> old;
  old.swap(slots_);
  if (old.size() >= kMaxCacheSlots || data_.size() >= kMaxCacheData) {
    slots_.resize(old.size());
    data_.clear();
    used_ = 0;
    return;
  }
  slots_.resize(std::max<std::size_t>(old.size() * 2, 1024));
  for (const Slot& slot : old) {
    if (slot.bytes != 0) free_slot(slot.hash) = slot;
  }
}

void Bpe::WordCache::insert(std::string_view word, std::uint64_t hash, std::span<const std::int32_t> ids) {
  if (ids.empty()) return;
  if (2 * (used_ + 1) > slots_.size() || data_.size() >= kMaxCacheData) grow();
  Slot& slot = free_slot(hash);
  slot = {hash, static_cast<std::uint32_t>(data_.size()), static_cast<std::uint16_t>(word.size()),
          static_cast<std::uint16_t>(ids.size())};
  data_.insert(data_.end(), ids.begin(), ids.end());
  const std::size_t bytes_at = data_.size();
  data_.resize(bytes_at + (word.size() + sizeof(std::int32_t) - 1) / sizeof(std::int32_t));
  std::memcpy(data_.data() + bytes_at, word.data(), word.size());
  ++used_;
}

Bpe::Bpe(TokenTable vocabulary, const MergeList& merges, BpeOptions options)
    : vocabulary_(std::move(vocabulary)), options_(std::move(options)) {
  find_characters();
  may_cut_ = options_.continuing_subword_prefix.empty() && options_.end_of_word_suffix.empty();
  add_merges(merges);
}

void Bpe::find_characters() {
  vocabulary_.for_each([&](std::string_view text, std::int32_t id) {
    if (text.empty() || utf8_length(static_cast<unsigned char>(text[0])) != text.size()) return;
    std::size_t position = 0;
    const char32_t c = next_code_point(text, position);
    if (c >= character_ids_.size()) character_ids_.resize(c + 1, -1);
    character_ids_[c] = id;
  });
  knows_all_bytes_ = options_.continuing_subword_prefix.empty() && options_.end_of_word_suffix.empty();
  for (int byte = 0; byte < 256; ++byte) {
    const char32_t c = byte_level_character(static_cast<unsigned char>(byte));
    byte_ids_[byte] = c < character_ids_.size() ? character_ids_[c] : -1;
    knows_all_bytes_ = knows_all_bytes_ && byte_ids_[byte] >= 0;
    fallback_ids_[byte] = vocabulary_.find(fmt::format("<0x{:02X}>", byte)).value_or(-1);
  }
}

void Bpe::add_merges(const MergeList& merges) {
  merge_shift_ = shift_for(merges.size());
  merges_.resize(slots_of(merge_shift_));
  merged_ids_.reserve(merges.size());
  const std::size_t prefix = options_.continuing_subword_prefix.size();
  std::vector<std::uint64_t> joined;
  std::string text;
  merges.for_each([&](std::string_view left, std::string_view right) {
    const auto rank = static_cast<std::uint32_t>(merged_ids_.size());
    const auto id_of = [&](std::string_view token) {
      const auto id = vocabulary_.find(token);
      if (!id) {
        throw UserError(fmt::format(
            "merge {} (\"{}\" with \"{}\") needs the token \"{}\", which is not in the vocabulary", rank,
            left, right, token));
      }
      return *id;
    };
    const std::uint64_t pair = pair_of(id_of(left), id_of(right));
    if (right.size() < prefix) {
      throw UserError(fmt::format("merge {} (\"{}\" with \"{}\") lacks the continuing_subword_prefix", rank,
                                  left, right));
    }
    text.assign(left).append(right.substr(prefix));
    merged_ids_.push_back(id_of(text));
    std::size_t slot = spread(pair, merge_shift_);
    while (merges_[slot].pair != kNoPair && merges_[slot].pair != pair)
      slot = (slot + 1) & (merges_.size() - 1);
    merges_[slot] = {pair, rank, merged_ids_.back()};
    if (may_cut_ && !left.empty() && !right.empty()) {
      std::size_t begin = previous_character(left, left.size());
      std::size_t zero = 0;
      const char32_t before = next_code_point(left, begin);
      joined.push_back(junction_of(before, next_code_point(right, zero)));
    }
  });
  add_junctions(joined);
}

void Bpe::add_junctions(const std::vector<std::uint64_t>& joined) {
  std::vector<std::uint64_t> distinct = joined;
  std::ranges::sort(distinct);
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  junction_shift_ = shift_for(2 * distinct.size());
  junctions_.assign(slots_of(junction_shift_), kNoPair);
  byte_junctions_.assign(256 * 256, false);
  for (const std::uint64_t junction : distinct) {
    std::size_t slot = spread(junction, junction_shift_);
    while (junctions_[slot] != kNoPair) slot = (slot + 1) & (junctions_.size() - 1);
    junctions_[slot] = junction;
    const auto left = byte_of_byte_level(static_cast<char32_t>(junction >> 32));
    const auto right = byte_of_byte_level(static_cast<char32_t>(junction & 0xFFFFFFFFU));
    if (left && right) byte_junctions_[*left * 256U + *right] = true;
  }
}

bool Bpe::is_junction(char32_t left, char32_t right) const {
  const std::uint64_t junction = junction_of(left, right);
  std::size_t slot = spread(junction, junction_shift_);
  while (junctions_[slot] != kNoPair) {
    if (junctions_[slot] == junction) return true;
    slot = (slot + 1) & (junctions_.size() - 1);
  }
  return false;
}

const Bpe::Merge* Bpe::find_merge(std::int32_t left, std::int32_t right) const {
  const std::uint64_t pair = pair_of(left, right);
  std::size_t slot = spread(pair, merge_shift_);
  while (merges_[slot].pair != kNoPair) {
    if (merges_[slot].pair == pair) return &merges_[slot];
    slot = (slot + 1) & (merges_.size() - 1);
  }
  return nullptr;
}

std::uint32_t Bpe::rank_of(std::int32_t left, std::int32_t right) const {
  const Merge* merge = find_merge(left, right);
  return merge == nullptr ? kNoRank : merge->rank;
}

std::int32_t Bpe::unknown_id() const {
  const auto id = vocabulary_.find(*options_.unk_token);
  if (!id) {
    throw UserError(
        fmt::format("the tokenizer's unk_token \"{}\" is not in its vocabulary", *options_.unk_token));
  }
  return *id;
}

// The token of one character, with the prefix and suffix it takes within the word; -1 where there is none.
// `text` is left holding what was looked up.
std::int32_t Bpe::symbol_of(std::string_view word, std::size_t begin, std::size_t end,
                            std::string& text) const {
  text.clear();
  if (begin > 0) text += options_.continuing_subword_prefix;
  text += word.substr(begin, end - begin);
  if (end == word.size()) text += options_.end_of_word_suffix;
  return vocabulary_.find(text).value_or(-1);
}

// Adds one <0xNN> token per byte, all or none.
bool Bpe::add_byte_symbols(std::string_view text, std::vector<std::int32_t>& symbols) const {
  const auto id_of = [&](char byte) { return fallback_ids_[static_cast<unsigned char>(byte)]; };
  if (std::ranges::any_of(text, [&](char byte) { return id_of(byte) < 0; })) return false;
  for (const char byte : text) symbols.push_back(id_of(byte));
  return true;
}

// As in the reference, an unknown character waits until a known one follows (so that fuse_unk can join it
// with the next), and byte tokens do not end that waiting.
void Bpe::add_symbols(std::string_view word, Scratch& scratch) const {
  constexpr std::int32_t kNothing = -1;
  std::int32_t waiting = kNothing;
  const bool plain = options_.continuing_subword_prefix.empty() && options_.end_of_word_suffix.empty();
  for (std::size_t end = 0; end < word.size();) {
    const std::size_t begin = end;
    const char32_t c = next_code_point(word, end);
    const std::int32_t id = plain ? character_id(c) : symbol_of(word, begin, end, scratch.text);
    if (id >= 0) {
      if (waiting != kNothing) scratch.symbols.push_back(waiting);
      waiting = kNothing;
      scratch.symbols.push_back(id);
      continue;
    }
    const std::string_view text = plain ? word.substr(begin, end - begin) : std::string_view(scratch.text);
    if (options_.byte_fallback && add_byte_symbols(text, scratch.symbols)) continue;
    if (!options_.unk_token) continue;  // without one, unknown characters vanish
    if (waiting != kNothing && !options_.fuse_unk) scratch.symbols.push_back(waiting);
    waiting = unknown_id();
  }
  if (waiting != kNothing) scratch.symbols.push_back(waiting);
}

// Few symbols: look for the lowest rank by scanning.
void Bpe::merge_short(Scratch& scratch) const {
  auto& symbols = scratch.symbols;
  auto& ranks = scratch.ranks;  // of the pair that begins at each symbol
  ranks.resize(symbols.size());
  for (std::size_t i = 0; i + 1 < symbols.size(); ++i) ranks[i] = rank_of(symbols[i], symbols[i + 1]);
  while (symbols.size() > 1) {
    const auto lowest =
        std::min_element(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(symbols.size()) - 1);
    if (*lowest == kNoRank) return;
    const std::ptrdiff_t at = lowest - ranks.begin();
    symbols[at] = merged_ids_[*lowest];
    symbols.erase(symbols.begin() + at + 1);
    ranks.erase(ranks.begin() + at + 1);
    if (at > 0) ranks[at - 1] = rank_of(symbols[at - 1], symbols[at]);
    if (at + 1 < static_cast<std::ptrdiff_t>(symbols.size()))
      ranks[at] = rank_of(symbols[at], symbols[at + 1]);
  }
}

// Ranks the pair that begins at `position`, and queues it.
void Bpe::set_rank(std::uint32_t position, Scratch& scratch) const {
  const std::uint32_t right = scratch.next[position];
  const bool last = right == scratch.symbols.size();
  scratch.ranks[position] = last ? kNoRank : rank_of(scratch.symbols[position], scratch.symbols[right]);
  if (scratch.ranks[position] == kNoRank) return;
  scratch.queue.push_back(static_cast<std::uint64_t>(scratch.ranks[position]) << 32 | position);
  std::ranges::push_heap(scratch.queue, std::greater{});
}

void Bpe::merge_at(std::uint32_t position, Scratch& scratch) const {
  const auto count = static_cast<std::uint32_t>(scratch.symbols.size());
  const std::uint32_t right = scratch.next[position];
  scratch.symbols[position] = merged_ids_[scratch.ranks[position]];
  scratch.symbols[right] = -1;
  scratch.ranks[right] = kNoRank;
  scratch.next[position] = scratch.next[right];
  if (scratch.next[position] < count) scratch.previous[scratch.next[position]] = position;
  set_rank(position, scratch);
  if (position > 0) set_rank(scratch.previous[position], scratch);
}

// Many symbols: a queue by (rank, position) over a linked list. An entry whose rank is no longer that of its
// position is out of date.
void Bpe::merge_long(Scratch& scratch) const {
  const auto count = static_cast<std::uint32_t>(scratch.symbols.size());
  scratch.ranks.assign(count, kNoRank);
  scratch.next.resize(count);
  scratch.previous.resize(count);
  scratch.queue.clear();
  for (std::uint32_t i = 0; i < count; ++i) {
    scratch.next[i] = i + 1;
    scratch.previous[i] = i - 1;
    if (i + 1 == count) break;
    scratch.ranks[i] = rank_of(scratch.symbols[i], scratch.symbols[i + 1]);
    if (scratch.ranks[i] != kNoRank)
      scratch.queue.push_back(static_cast<std::uint64_t>(scratch.ranks[i]) << 32 | i);
  }
  std::ranges::make_heap(scratch.queue, std::greater{});
  while (!scratch.queue.empty()) {
    std::ranges::pop_heap(scratch.queue, std::greater{});
    const std::uint64_t entry = scratch.queue.back();
    scratch.queue.pop_back();
    const auto position = static_cast<std::uint32_t>(entry & 0xFFFFFFFFU);
    if (scratch.ranks[position] == entry >> 32) merge_at(position, scratch);
  }
  std::erase(scratch.symbols, -1);
}

template <bool kBytes>
void Bpe::encode_by_merges(std::string_view text, Scratch& scratch, std::vector<std::int32_t>& out) const {
  auto& symbols = scratch.symbols;
  symbols.clear();
  if constexpr (kBytes) {
    for (const char byte : text) symbols.push_back(byte_ids_[static_cast<unsigned char>(byte)]);
  } else {
    add_symbols(text, scratch);
  }
  symbols.size() <= kShortMerge ? merge_short(scratch) : merge_long(scratch);
  out.insert(out.end(), symbols.begin(), symbols.end());
  if (symbols.capacity() > kLargestKept) {
    shrink(symbols);
    shrink(scratch.ranks);
    shrink(scratch.next);
    shrink(scratch.previous);
    shrink(scratch.queue);
  }
}

// The next place behind `begin` which no merge crosses. Unknown characters are never cut off, since they may
// fuse.
template <bool kBytes>
std::size_t Bpe::segment_end(std::string_view word, std::size_t begin) const {
  if constexpr (kBytes) {
    for (std::size_t at = begin + 1; at < word.size(); ++at) {
      const auto left = static_cast<unsigned char>(word[at - 1]);
      const auto right = static_cast<unsigned char>(word[at]);
      if (!byte_junctions_[left * 256U + right]) return at;
    }
  } else {
    std::size_t at = begin;
    char32_t left = next_code_point(word, at);
    while (at < word.size()) {
      const std::size_t cut = at;
      const char32_t right = next_code_point(word, at);
      if (character_id(left) >= 0 && character_id(right) >= 0 && !is_junction(left, right)) return cut;
      left = right;
    }
  }
  return word.size();
}

template <bool kBytes>
void Bpe::encode_segments(std::string_view word, Scratch& scratch, std::vector<std::int32_t>& out) const {
  for (std::size_t begin = 0; begin < word.size();) {
    const std::size_t end = may_cut_ ? segment_end<kBytes>(word, begin) : word.size();
    const std::string_view segment = word.substr(begin, end - begin);
    begin = end;
    // With ignore_merges a part's ids may differ from those of the same text as a whole word.
    if (segment.size() > kLongestCached || options_.ignore_merges) {
      encode_by_merges<kBytes>(segment, scratch, out);
      continue;
    }
    const std::uint64_t hash = hash_of(segment);
    const auto known = scratch.cache.find(segment, hash);
    if (!known.empty()) {
      out.insert(out.end(), known.begin(), known.end());
      continue;
    }
    const std::size_t before = out.size();
    encode_by_merges<kBytes>(segment, scratch, out);
    scratch.cache.insert(segment, hash, std::span(out).subspan(before));
  }
}

// The token that is the word as it stands.
template <bool kBytes>
std::optional<std::int32_t> Bpe::whole_word(std::string_view word, Scratch& scratch) const {
  if constexpr (!kBytes) return vocabulary_.find(word);
  scratch.text.clear();
  append_byte_level(scratch.text, word);
  return vocabulary_.find(scratch.text);
}

template <bool kBytes>
void Bpe::encode_word(std::string_view word, Scratch& scratch, std::vector<std::int32_t>& out) const {
  constexpr std::size_t kWhole = kBytes ? kLongestCached : 16;  // up to here a word is not worth cutting
  const bool cached = word.size() <= kWhole;
  const std::uint64_t hash = cached ? hash_of(word) : 0;
  if (cached) {
    const auto known = scratch.cache.find(word, hash);
    if (!known.empty()) {
      out.insert(out.end(), known.begin(), known.end());
      return;
    }
  }
  const std::size_t before = out.size();
  if (const auto id = options_.ignore_merges ? whole_word<kBytes>(word, scratch) : std::nullopt) {
    out.push_back(*id);
  } else if (cached) {
    encode_by_merges<kBytes>(word, scratch, out);
  } else {
    encode_segments<kBytes>(word, scratch, out);
  }
  if (cached) scratch.cache.insert(word, hash, std::span(out).subspan(before));
}

void Bpe::encode(std::string_view word, Scratch& scratch, std::vector<std::int32_t>& out) const {
  encode_word<false>(word, scratch, out);
}

void Bpe::encode_bytes(std::string_view word, Scratch& scratch, std::vector<std::int32_t>& out) const {
  encode_word<true>(word, scratch, out);
}

}  // namespace ranktune::data::tokenizing
