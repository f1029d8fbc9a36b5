#include "data/tokenizer.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "data/unicode.hpp"

namespace ranktune::data {
namespace {

using nlohmann::json;
using Ids = std::vector<std::int32_t>;

// A tokenizer with a handful of tokens, to be changed by each test.
json small_tokenizer() {
  return json::parse(R"({
    "version": "1.0", "truncation": null, "padding": null, "added_tokens": [
      {"id": 8, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true},
      {"id": 9, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
    "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": null,
    "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
      "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
      "vocab": {"a": 0, "b": 1, "c": 2, " ": 3, "ab": 4, "bc": 5, "abc": 6, "é": 7},
      "merges": ["b c", "a b", "ab c"]}})");
}

class TokenizerTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "ranktune-tokenizer-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    write("tokenizer_config.json", R"({"eos_token": "</s>"})");
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void write(const std::string& name, const std::string& content) const {
    std::ofstream(folder_ / name, std::ios::binary) << content;
  }
  Tokenizer load(const json& content) const { return load_text(content.dump()); }
  Tokenizer load_text(const std::string& content) const {
    write("tokenizer.json", content);
    return Tokenizer::from_folder(folder_);
  }
  // What the UserError says, or "" where none is thrown.
  std::string refusal(const std::string& content) const {
    try {
      load_text(content);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  }
  std::string refusal(const json& content) const { return refusal(content.dump()); }

  std::filesystem::path folder_;
};

void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "\"" << text << "\" should hold \"" << part << "\"";
}

TEST_F(TokenizerTest, MergesTheLowestRankFirst) {
  const Tokenizer tokenizer = load(small_tokenizer());
  EXPECT_EQ(tokenizer.encode("abc"), (Ids{0, 5}));  // "b c" ranks before "a b", so "ab c" never comes up
  EXPECT_EQ(tokenizer.encode("ab c"), (Ids{4, 3, 2}));
  EXPECT_EQ(tokenizer.encode(""), Ids{});
}

TEST_F(TokenizerTest, IgnoreMergesTakesWholeWords) {
  json content = small_tokenizer();
  content["model"]["ignore_merges"] = true;
  EXPECT_EQ(load(content).encode("abc"), (Ids{6}));
  EXPECT_EQ(load(content).encode("abcabc"), (Ids{0, 5, 0, 5}));
}

TEST_F(TokenizerTest, SpecialTokensAreFoundInTexts) {
  const Tokenizer tokenizer = load(small_tokenizer());
  EXPECT_EQ(tokenizer.encode("a<s>ab</s></s>c"), (Ids{0, 8, 4, 9, 9, 2}));
  EXPECT_EQ(tokenizer.encode("<s"), Ids{});  // no unk_token: unknown characters vanish
  EXPECT_EQ(tokenizer.decode({0, 8, 4}), "a <s> ab");
  EXPECT_EQ(tokenizer.decode({0, 8, 4}, true), "a ab");
  EXPECT_EQ(tokenizer.vocab_size(), 10);
  EXPECT_EQ(tokenizer.token_id("</s>"), 9);
  EXPECT_EQ(tokenizer.token_id("abc"), 6);
  EXPECT_EQ(tokenizer.token_id("x"), std::nullopt);
}

TEST_F(TokenizerTest, PostProcessorOnlyWithSpecialTokens) {
  json content = small_tokenizer();
  content["post_processor"] = json::parse(R"({"type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}], "pair": [],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [8], "tokens": ["<s>"]}}})");
  const Tokenizer tokenizer = load(content);
  EXPECT_EQ(tokenizer.encode("a"), (Ids{8, 0}));
  EXPECT_EQ(tokenizer.encode("a", false), (Ids{0}));
  EXPECT_EQ(tokenizer.encode(""), (Ids{8}));
}

TEST_F(TokenizerTest, EndTokenMayBeAnObjectOrInTheMap) {
  write("tokenizer_config.json", R"({"eos_token": {"content": "</s>", "lstrip": false}, "bos_token": null})");
  EXPECT_EQ(load(small_tokenizer()).eos_token(), "</s>");
  EXPECT_EQ(load(small_tokenizer()).bos_token(), std::nullopt);
  write("tokenizer_config.json", "{}");
  EXPECT_EQ(load(small_tokenizer()).eos_token(), std::nullopt);
  write("special_tokens_map.json", R"({"eos_token": "<s>", "bos_token": "</s>"})");
  EXPECT_EQ(load(small_tokenizer()).eos_token(), "<s>");
  EXPECT_EQ(load(small_tokenizer()).bos_token(), "</s>");
  write("tokenizer_config.json", R"({"eos_token": "<end>"})");
  expect_contains(refusal(small_tokenizer()), "no token \"<end>\"");
  write("tokenizer_config.json", R"({"eos_token": 3})");
  expect_contains(refusal(small_tokenizer()), "tokenizer_config.json: eos_token must be a string");
  write("tokenizer_config.json", "{");
  expect_contains(refusal(small_tokenizer()), "tokenizer_config.json is not valid JSON");
}

TEST_F(TokenizerTest, EndTokenOfTheVocabularyBecomesOneId) {
  json content = small_tokenizer();
  content["added_tokens"] = json::array();
  content["model"]["vocab"]["</s>"] = 8;
  EXPECT_EQ(load(content).encode("ab</s>"), (Ids{4, 8}));
}

TEST_F(TokenizerTest, DigestFollowsWhatIdsDependOn) {
  const std::string digest = load(small_tokenizer()).digest();
  EXPECT_EQ(digest.size(), 32U);
  EXPECT_EQ(load(small_tokenizer()).digest(), digest);
  write("tokenizer_config.json", R"({"eos_token": "<s>"})");
  EXPECT_NE(load(small_tokenizer()).digest(), digest);
  write("tokenizer_config.json", R"({"eos_token": "</s>"})");
  json content = small_tokenizer();
  content["normalizer"] = {{"type", "NFC"}};
  EXPECT_NE(load(content).digest(), digest);
}

TEST_F(TokenizerTest, InvalidUtf8IsRefusedWithItsOffset) {
  const Tokenizer tokenizer = load(small_tokenizer());
  const std::pair<std::string, int> cases[] = {
      {"abc\xFF", 3},       {"\x80", 0},         {"ab\xC3", 2},           {"\xC0\x80", 0},
      {"a\xE0\x80\x80", 1}, {"\xED\xA0\x80", 0}, {"\xF4\x90\x80\x80", 0}, {"0123456789\xE2\x82", 10},
      {"\xC3\xA9\xF5zz", 2}};
  for (const auto& [text, offset] : cases) {
    try {
      tokenizer.encode(text);
      ADD_FAILURE() << "accepted " << json(text).dump(-1, ' ', true, json::error_handler_t::replace);
    } catch (const UserError& error) {
      expect_contains(error.what(), "at byte " + std::to_string(offset) + " ");
    }
  }
  EXPECT_EQ(tokenizer.encode("\xC3\xA9"), (Ids{7}));
}

TEST_F(TokenizerTest, PartsNotUnderstoodAreNamed) {
  struct Case {
    const char* pointer;
    const char* value;
    const char* message;
  };
  const Case cases[] = {
      {"/normalizer", R"({"type": "BertNormalizer"})", "tokenizer.normalizer is a BertNormalizer normalizer"},
      {"/normalizer", R"({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Nmt"}]})",
       "tokenizer.normalizer.normalizers[1] is a Nmt"},
      {"/normalizer", R"({"type": "Replace", "content": "x"})", "tokenizer.normalizer has no \"pattern\""},
      {"/normalizer", R"({"type": "Replace", "pattern": {"Regex": "[a&&b]"}, "content": ""})", "&&"},
      {"/normalizer", R"([])", "tokenizer.normalizer must be a JSON object"},
      {"/pre_tokenizer", R"({"type": "UnicodeScripts"})", "is a UnicodeScripts pre-tokenizer"},
      {"/pre_tokenizer",
       R"({"type": "Split", "pattern": {"String": "a"}, "behavior": "Sideways", "invert": false})",
       "\"Sideways\""},
      {"/pre_tokenizer", R"({"type": "Metaspace", "replacement": "__"})", "not one character: \"__\""},
      {"/pre_tokenizer", R"({"type": "Digits"})", "has no \"individual_digits\""},
      {"/post_processor", R"({"type": "BertProcessing"})", "is a BertProcessing post-processor"},
      {"/post_processor", R"({"type": "TemplateProcessing", "single": [], "special_tokens": {}})",
       "without the text"},
      {"/post_processor",
       R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<x>"}}], "special_tokens": {}})",
       "lacks \"<x>\""},
      {"/decoder", R"({"type": "CTC"})", "is a CTC decoder"},
      {"/model/type", R"("Unigram")", "is a Unigram model"},
      {"/model/dropout", R"(0.1)", "dropout 0.1"},
      {"/model/vocab", R"({"a": -1})", "the id -1"},
      {"/model/vocab", R"({"a": 16777217})", "the id 16777217"},
      {"/model/vocab", R"({"a": 1.5})", "the id 1.5"},
      {"/model/vocab", R"({"a": "b"})", "\"a\""},
      {"/model/vocab", R"({"a": 1, "b": 1})", "have the same id 1"},
      {"/model/vocab", R"({})", "empty \"vocab\""},
      {"/model/vocab", R"([])", "no \"vocab\" object"},
      {"/model/merges", R"(["a b c"])", "model.merges[0] is \"a b c\""},
      {"/model/merges", R"([["a"]])", "an array of 1 strings"},
      {"/model/merges", R"(["b c", 7])", "model.merges[1]"},
      {"/model/merges", R"(["a q"])", "\"q\", which is not in the vocabulary"},
      {"/model/merges", R"(["c a"])", "\"ca\", which is not in the vocabulary"},
      {"/model/merges", R"({})", "no \"merges\" array"},
      {"/added_tokens/0/id", R"(11)", "gives \"<s>\" the id 11, where it should be 8"},
      {"/added_tokens/0/id", R"(99999999999)", "above the largest supported"},
      {"/added_tokens/0/lstrip", R"(1)", "\"lstrip\" that is neither true nor false"},
      {"/added_tokens", R"({})", "not an array"},
      {"/version", R"("2.0")", "the version \"2.0\""},
      {"/surprise", R"(1)", "the part \"surprise\""},
  };
  for (const Case& wrong : cases) {
    json content = small_tokenizer();
    content[json::json_pointer(wrong.pointer)] = json::parse(wrong.value);
    SCOPED_TRACE(std::string(wrong.pointer) + " = " + wrong.value);
    const std::string message = refusal(content);
    expect_contains(message, wrong.message);
    expect_contains(message, (folder_ / "tokenizer.json").string());
  }
}

TEST_F(TokenizerTest, BrokenFilesAreRefused) {
  EXPECT_THROW(Tokenizer::from_folder(folder_), UserError);
  expect_contains(refusal(std::string()), "not valid JSON");
  expect_contains(refusal(std::string("[1, 2]")), "not a JSON object");
  expect_contains(refusal(std::string("{}")), "no \"model\"");
  expect_contains(refusal(std::string("{\"model\": {\"vocab\": {\"\xFF\": 1}}}")), "not valid JSON");
  expect_contains(refusal(std::string(100000, '[')), "nested too deep");
  json content = small_tokenizer();
  json nested = {{"type", "NFC"}};
  for (int i = 0; i < 25; ++i) nested = {{"type", "Sequence"}, {"normalizers", json::array({nested})}};
  content["normalizer"] = nested;
  expect_contains(refusal(content), "nested too deep");
}

// Whatever is cut off or overwritten, the answer is a tokenizer or a UserError.
TEST_F(TokenizerTest, DamagedFilesNeverCrash) {
  json content = small_tokenizer();
  content["pre_tokenizer"] = json::parse(R"json({"type": "Split",
    "pattern": {"Regex": "(?i:'s)|\\p{N}{1,3}|[^\\s\\p{L}]+|\\s+(?!\\S)"},
    "behavior": "Isolated", "invert": false})json");
  const std::string whole = content.dump();
  std::mt19937 random(7);
  int accepted = 0;
  for (int trial = 0; trial < 1500; ++trial) {
    std::string text = whole;
    if (trial % 3 == 0) text.resize(random() % text.size());
    for (unsigned i = 0; i < 1 + random() % 3 && !text.empty(); ++i) {
      constexpr std::string_view kBytes = "\"\\{}[]:,0129-.eEtnfuab()?*+|^$ \xC3\xFF";
      text[random() % text.size()] = kBytes[random() % kBytes.size()];
    }
    try {
      load_text(text).encode("ab'S 123 \xC3\xA9 <s>");
      ++accepted;
    } catch (const UserError&) {
    }
  }
  EXPECT_LT(accepted, 1500);
}

TEST_F(TokenizerTest, ManyThreadsAgree) {
  json content = small_tokenizer();
  content["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", " "}, {"prepend_scheme", "never"}};
  const Tokenizer tokenizer = load(content);
  std::vector<std::string> texts;
  std::vector<Ids> expected;
  std::mt19937 random(3);
  for (int i = 0; i < 200; ++i) {
    std::string text;
    for (unsigned n = random() % 200; n > 0; --n) text += "abc "[random() % 4];
    texts.push_back(text);
    expected.push_back(load(content).encode(text));
  }
  std::vector<int> wrong(4, 0);
  {
    std::vector<std::jthread> threads;
    for (std::size_t t = 0; t < wrong.size(); ++t) {
      threads.emplace_back([&, t] {
        for (std::size_t i = 0; i < texts.size(); ++i) wrong[t] += tokenizer.encode(texts[i]) != expected[i];
      });
    }
  }
  EXPECT_EQ(std::ranges::count(wrong, 0), 4);
}

// More distinct words than the cache of words holds, twice over.
TEST_F(TokenizerTest, FullWordCacheStaysRight) {
  json content = small_tokenizer();
  content["pre_tokenizer"] = {
      {"type", "Split"}, {"pattern", {{"String", " "}}}, {"behavior", "Removed"}, {"invert", false}};
  const Tokenizer tokenizer = load(content);
  const auto word = [](int number) {
    std::string text;
    for (int i = 0; i < 12; ++i, number /= 3) text += "abc"[number % 3];
    return text;
  };
  std::string text;
  for (int i = 0; i < 200000; ++i) text += word(i) + " ";
  const Ids once = tokenizer.encode(text);
  EXPECT_EQ(tokenizer.encode(text), once);
  for (const int i : {0, 1, 77777, 199999}) {
    EXPECT_EQ(tokenizer.encode(word(i)), load(content).encode(word(i)));
  }
}

// A queue and a scan must merge alike: long words against the same text cut where no merge can cross.
TEST_F(TokenizerTest, LongWordsMergeAsShortOnes) {
  const Tokenizer tokenizer = load(small_tokenizer());
  std::mt19937 random(11);
  for (int trial = 0; trial < 50; ++trial) {
    std::string text;
    Ids expected;
    for (int i = 0; i < 300; ++i) {
      std::string part;
      for (unsigned n = 1 + random() % 6; n > 0; --n) part += "abc"[random() % 3];
      text += part + " ";
      const Ids ids = tokenizer.encode(part + " ");
      expected.insert(expected.end(), ids.begin(), ids.end());
    }
    EXPECT_EQ(tokenizer.encode(text), expected);
  }
}

TEST_F(TokenizerTest, MillionsOfCharactersInOneWord) {
  json content = small_tokenizer();
  content["model"]["vocab"] = {{"a", 0}, {"aa", 1}, {"aaaa", 2}};
  content["model"]["merges"] = {"a a", "aa aa"};
  content["added_tokens"] = json::array();
  write("tokenizer_config.json", "{}");
  const Tokenizer tokenizer = load(content);
  const Ids ids = tokenizer.encode(std::string(1'000'003, 'a'));
  EXPECT_EQ(std::ranges::count(ids, 2), 250'000);
  EXPECT_EQ(Ids(ids.end() - 2, ids.end()), (Ids{1, 0}));
}

TEST(UnicodeTest, NormalForms) {
  using namespace tokenizing;
  const auto normalized = [](const std::string& text, NormalForm form) {
    std::string out;
    append_normalized(out, text, form);
    return out;
  };
  EXPECT_EQ(normalized("e\u0301", NormalForm::nfc), "é");
  EXPECT_EQ(normalized("é", NormalForm::nfd), "e\u0301");
  EXPECT_EQ(normalized("ﬁ①", NormalForm::nfkc), "fi1");
  EXPECT_EQ(normalized("ﬁé", NormalForm::nfkd), "fie\u0301");
  EXPECT_EQ(normalized("a\u0301\u0323", NormalForm::nfd), "a\u0323\u0301");
  EXPECT_EQ(normalized("\u1100\u1161\u11A8", NormalForm::nfc), "각");
  EXPECT_EQ(normalized(std::string("a\0é", 4), NormalForm::nfd), std::string("a\0e\u0301", 5));
}

// Sorting the marks must not be quadratic.
TEST(UnicodeTest, LongRunsOfMarks) {
  std::string text = "a";
  for (int i = 0; i < 150000; ++i) text += "\u0301\u0323";
  std::string out;
  tokenizing::append_normalized(out, text, tokenizing::NormalForm::nfc);
  EXPECT_EQ(out.size(), text.size());  // "a" and the first dot below become one character of three bytes
  EXPECT_TRUE(out.starts_with("ạ\u0323"));
}

TEST(UnicodeTest, LossyText) {
  const auto lossy = [](std::string_view bytes) {
    std::string out;
    tokenizing::append_utf8_lossy(out, bytes);
    return out;
  };
  EXPECT_EQ(lossy("a\xE2\x82z"), "a\uFFFDz");
  EXPECT_EQ(lossy("\xF0\x80\xFF"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(lossy("é\xE2\x82\xAC"), "é€");
}

TEST(UnicodeTest, Lowercase) {
  std::string out;
  for (const char32_t c : U"AÉΣİẞ\u1C89") {
    if (c != 0) tokenizing::append_lowercase(out, c);
  }
  EXPECT_EQ(out, "aéσi\u0307ß\u1C8A");
}

}  // namespace
}  // namespace ranktune::data
