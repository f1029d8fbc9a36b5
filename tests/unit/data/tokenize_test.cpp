#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "data/prompt.hpp"
#include "data/token_store.hpp"
#include "data/tokenizer.hpp"
#include "temporary_folder.hpp"

namespace ranktune::data {
namespace {

using Ints = std::vector<std::int32_t>;
using test::user_error;

constexpr std::int32_t kBos = 256;
constexpr std::int32_t kEos = 257;

// UTF-8 of a code point below 0x800.
std::string utf8(unsigned codepoint) {
  if (codepoint < 0x80) return {static_cast<char>(codepoint)};
  return {static_cast<char>(0xC0U | (codepoint >> 6U)), static_cast<char>(0x80U | (codepoint & 0x3FU))};
}

// GPT-2's visible stand-in for a byte: printable ones stand for themselves, the others for 256, 257, ...
std::vector<std::string> byte_symbols() {
  std::vector<std::string> symbols;
  unsigned next = 256;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool visible = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    symbols.push_back(utf8(visible ? byte : next++));
  }
  return symbols;
}

// A byte-level tokenizer without merges: each byte is its own id, a BOS in front, EOS text is one id.
class Tokenize : public testing::Test {
 protected:
  Tokenize() : tokenizer_(make("<eos>")) {}

  Tokenizer make(const char* eos) {
    using Json = nlohmann::json;
    Json vocabulary = Json::object();
    const auto symbols = byte_symbols();
    for (std::size_t i = 0; i < symbols.size(); ++i) vocabulary[symbols[i]] = i;
    Json added = Json::array();
    for (const auto& [content, id] : {std::pair{"<bos>", kBos}, std::pair{"<eos>", kEos}}) {
      added.push_back({{"id", id},
                       {"content", content},
                       {"single_word", false},
                       {"lstrip", false},
                       {"rstrip", false},
                       {"normalized", false},
                       {"special", true}});
    }
    const Json byte_level = {
        {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
    const Json sequence_a = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
    const Json bos = {{"SpecialToken", {{"id", "<bos>"}, {"type_id", 0}}}};
    const Json post = {
        {"type", "TemplateProcessing"},
        {"single", Json::array({bos, sequence_a})},
        {"pair", Json::array({bos, sequence_a})},
        {"special_tokens", {{"<bos>", {{"id", "<bos>"}, {"ids", {kBos}}, {"tokens", {"<bos>"}}}}}}};
    const Json model = {{"type", "BPE"},
                        {"dropout", nullptr},
                        {"unk_token", nullptr},
                        {"continuing_subword_prefix", nullptr},
                        {"end_of_word_suffix", nullptr},
                        {"fuse_unk", false},
                        {"byte_fallback", false},
                        {"vocab", vocabulary},
                        {"merges", Json::array()}};
    const Json tokenizer = {{"version", "1.0"},       {"truncation", nullptr}, {"padding", nullptr},
                            {"added_tokens", added},  {"normalizer", nullptr}, {"pre_tokenizer", byte_level},
                            {"post_processor", post}, {"decoder", byte_level}, {"model", model}};
    folder_.write("tokenizer.json", tokenizer.dump());
    Json config = {{"bos_token", "<bos>"}};
    if (eos != nullptr) config["eos_token"] = eos;
    folder_.write("tokenizer_config.json", config.dump());
    return Tokenizer::from_folder(folder_.path());
  }

  // What must come out of a row, from the text alone.
  static Ints expected_ids(const Row& row, PromptTemplate form) {
    Ints ids{kBos};
    for (const char c : render_text(form, row, "").text) ids.push_back(static_cast<unsigned char>(c));
    ids.push_back(kEos);
    return ids;
  }
  static Ints ids_of(const TokenStore& store, std::int64_t index) {
    const auto ids = store.sample(index);
    return {ids.begin(), ids.end()};
  }
  static std::vector<Row> many_rows(int count) {
    std::vector<Row> rows;
    for (int i = 0; i < count; ++i) {
      rows.push_back({"Count to " + std::to_string(i), i % 3 == 0 ? "" : "ünd", std::string(i % 50, 'x')});
    }
    return rows;
  }

  test::TemporaryFolder folder_;
  Tokenizer tokenizer_;
};

TEST_F(Tokenize, BosOncePromptOutputEos) {
  const std::vector<Row> rows = {{"Add.", "1 2", "3"}, {"Say ü.", "", "Hi"}};
  for (const auto form : {PromptTemplate::unsloth, PromptTemplate::alpaca}) {
    TokenizeOptions options;
    options.prompt_template = form;
    const auto store = tokenize(rows, tokenizer_, options);
    ASSERT_EQ(store.samples(), 2);
    EXPECT_EQ(ids_of(store, 0), expected_ids(rows[0], form));
    EXPECT_EQ(ids_of(store, 1), expected_ids(rows[1], form));
    EXPECT_EQ(store.truncated, 0);
    EXPECT_EQ(store.skipped, 0);
  }
}

TEST_F(Tokenize, CutsAtMaxSeqLengthFromTheEnd) {
  const std::vector<Row> rows = {{"a", "", "b"}, {"a", "", std::string(100, 'b')}};
  const auto full = expected_ids(rows[0], PromptTemplate::unsloth);
  TokenizeOptions options;
  options.max_seq_length = static_cast<std::int64_t>(full.size());
  const auto store = tokenize(rows, tokenizer_, options);
  EXPECT_EQ(ids_of(store, 0), full);  // just fits
  auto cut = expected_ids(rows[1], PromptTemplate::unsloth);
  cut.resize(full.size());
  EXPECT_EQ(ids_of(store, 1), cut);
  EXPECT_EQ(store.truncated, 1);
}

TEST_F(Tokenize, AMaxSeqLengthWithoutATargetIsRefused) {
  for (const std::int64_t length : {1, 0, -5}) {
    TokenizeOptions options;
    options.max_seq_length = length;
    const auto sentence = user_error([&] { tokenize(many_rows(1), tokenizer_, options); });
    EXPECT_CONTAINS(sentence, "max_seq_length " + std::to_string(length));
  }
  TokenizeOptions options;
  options.max_seq_length = 2;
  EXPECT_EQ(tokenize(many_rows(3), tokenizer_, options).tokens(), 6);
}

TEST_F(Tokenize, DoesNotDependOnThreads) {
  const auto rows = many_rows(1500);
  TokenizeOptions options;
  options.max_seq_length = 280;
  const auto one = tokenize(rows, tokenizer_, options);
  EXPECT_EQ(one.samples(), 1500);
  EXPECT_GT(one.truncated, 0);
  options.threads = 5;
  const auto five = tokenize(rows, tokenizer_, options);
  EXPECT_EQ(one.ids, five.ids);
  EXPECT_EQ(one.offsets, five.offsets);
  EXPECT_EQ(one.truncated, five.truncated);
}

TEST_F(Tokenize, ResponsesAloneAreTargets) {
  TokenizeOptions options;
  options.responses_only = true;
  const std::vector<Row> rows = {{"Add.", "1 2", "3\u00fc"}};
  const auto store = tokenize(rows, tokenizer_, options);
  ASSERT_EQ(store.trained.size(), store.ids.size());
  const auto trained = std::count(store.trained.begin(), store.trained.end(), 1);
  EXPECT_EQ(trained, 1 + 2 + 1) << "the bytes of the output and EOS";
  EXPECT_TRUE(std::all_of(store.trained.end() - 4, store.trained.end(), [](auto mark) { return mark == 1; }));
  TokenizeOptions all;
  EXPECT_EQ(tokenize(rows, tokenizer_, all).ids, store.ids) << "the mask never changes the ids";
  // Cut within the response, and before it: nothing to train on is left.
  options.max_seq_length = store.tokens() - 3;
  EXPECT_EQ(tokenize(rows, tokenizer_, options).trained.back(), 1);
  options.max_seq_length = store.tokens() - 4;
  const auto nothing = tokenize(rows, tokenizer_, options);
  EXPECT_EQ(nothing.samples(), 0);
  EXPECT_EQ(nothing.skipped, 1);
}

TEST_F(Tokenize, PlainTextBecomesChunksThatOverlap) {
  Row text;
  text.output = "abcdefghij";
  TokenizeOptions options;
  options.chunk_size = 4;
  options.stride = 1;
  const auto chunks = [&](const std::vector<Row>& rows) {
    std::vector<Ints> found;
    const TokenStore store = tokenize(rows, tokenizer_, options);
    EXPECT_EQ(store.truncated + store.skipped, 0);
    for (std::int64_t i = 0; i < store.samples(); ++i) found.push_back(ids_of(store, i));
    return found;
  };
  const std::vector<Ints> expected = {
      {'a', 'b', 'c', 'd', kEos}, {'d', 'e', 'f', 'g', kEos}, {'g', 'h', 'i', 'j', kEos}};
  EXPECT_EQ(chunks({text}), expected);
  options.max_seq_length = 4;  // leaves no room for EOS
  EXPECT_EQ(chunks({text})[1], (Ints{'d', 'e', 'f', 'g'}));
  options.max_seq_length = 100;
  options.chunk_size = 10;
  EXPECT_EQ(chunks({text}).size(), 1U);
  const Records records{{text}, RowFormat::raw_text, "digest"};
  const std::string key = token_cache_key(records, tokenizer_, options);
  options.stride = 2;
  EXPECT_NE(token_cache_key(records, tokenizer_, options), key);
}

TEST_F(Tokenize, SharesJoinToTheWhole) {
  const auto rows = many_rows(700);
  const TokenizeOptions options;
  auto joined = tokenize(std::span(rows).first(301), tokenizer_, options);
  joined.append(tokenize(std::span(rows).subspan(301), tokenizer_, options));
  EXPECT_EQ(joined.serialize(), tokenize(rows, tokenizer_, options).serialize());
  EXPECT_EQ(tokenize(std::span<const Row>(), tokenizer_, options).samples(), 0);
}

TEST_F(Tokenize, ABadRowIsNamed) {
  auto rows = many_rows(600);
  rows[400].output = "\xFF";
  rows[590].output = "\xFF";
  TokenizeOptions options;
  options.threads = 3;
  EXPECT_CONTAINS(user_error([&] { tokenize(rows, tokenizer_, options); }), "dataset row 401 ");
  options.first_row = 1000;
  EXPECT_CONTAINS(user_error([&] { tokenize(rows, tokenizer_, options); }), "dataset row 1401 ");
}

TEST_F(Tokenize, WithoutEosItIsRefused) {
  const auto no_eos = make(nullptr);
  EXPECT_CONTAINS(user_error([&] { tokenize(many_rows(1), no_eos, {}); }), "eos_token");
}

TEST_F(Tokenize, ProgressIsSaidAndMayStop) {
  const auto caller = std::this_thread::get_id();
  TokenizeOptions options;
  options.threads = 2;
  std::int64_t last = -1;
  options.progress = [&](std::int64_t done) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    EXPECT_GE(done, last);
    last = done;
  };
  tokenize(many_rows(700), tokenizer_, options);
  EXPECT_EQ(last, 700);
  options.progress = [](std::int64_t) { throw std::runtime_error("stop"); };
  EXPECT_THROW(tokenize(many_rows(700), tokenizer_, options), std::runtime_error);
}

TEST_F(Tokenize, TheCacheKeyIsWhatTheIdsDependOn) {
  Records records;
  records.digest = "d";
  const TokenizeOptions options;
  const auto key = token_cache_key(records, tokenizer_, options);
  auto same = options;
  same.threads = 7;
  same.first_row = 3;
  EXPECT_EQ(token_cache_key(records, tokenizer_, same), key);

  auto shorter = options;
  shorter.max_seq_length = 100;
  auto alpaca = options;
  alpaca.prompt_template = PromptTemplate::alpaca;
  Records others;
  others.digest = "e";
  auto responses = options;
  responses.responses_only = true;
  EXPECT_NE(token_cache_key(records, tokenizer_, responses), key);
  auto more = records;
  more.rows.emplace_back();
  EXPECT_NE(token_cache_key(more, tokenizer_, options), key);
  EXPECT_NE(token_cache_key(records, tokenizer_, shorter), key);
  EXPECT_NE(token_cache_key(records, tokenizer_, alpaca), key);
  EXPECT_NE(token_cache_key(others, tokenizer_, options), key);
  EXPECT_NE(token_cache_key(records, make("<bos>"), options), key);
  EXPECT_EQ(key.find('/'), std::string::npos);
}

}  // namespace
}  // namespace ranktune::data
