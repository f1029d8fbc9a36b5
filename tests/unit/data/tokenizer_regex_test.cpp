#include "data/tokenizer_regex.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.hpp"

namespace ranktune::data::tokenizing {
namespace {

std::vector<std::string> matches(std::string_view pattern, std::string_view text) {
  const Pattern compiled{Regex(pattern)};
  RegexScratch scratch;
  std::vector<std::string> found;
  compiled.for_each_part(text, scratch, [&](Span span, bool is_match) {
    if (is_match) found.emplace_back(text.substr(span.begin, span.end - span.begin));
  });
  return found;
}

using Texts = std::vector<std::string>;

TEST(TokenizerRegexTest, MeansWhatOnigurumaMeans) {
  EXPECT_EQ(matches(R"(\s)", "a \u00A0\u180E\u3000\v"), (Texts{" ", "\u00A0", "\u3000", "\v"}));
  EXPECT_EQ(matches(R"(\h+)", "xyz09afAF "), (Texts{"09afAF"}));
  EXPECT_EQ(matches(R"(\v)", "\n\v\f"), (Texts{"\v"}));
  EXPECT_EQ(matches(R"(\p{N}{1,3}+)", "12345"), (Texts{"12345"}));
  EXPECT_EQ(matches(R"(\p{N}{1,3})", "12345"), (Texts{"123", "45"}));
  EXPECT_EQ(matches("a{,2}b", "aaab"), (Texts{"aab"}));
  EXPECT_EQ(matches("x{1", "x{1"), (Texts{"x{1"}));
  EXPECT_EQ(matches("^a|b$", "a\nab\nb"), (Texts{"a", "a", "b", "b"}));
  EXPECT_EQ(matches(".", "a\r\n"), (Texts{"a", "\r"}));
  EXPECT_EQ(matches(R"((?i:'s|'ll))", "'S 'lL 'ſ"), (Texts{"'S", "'lL", "'ſ"}));
  EXPECT_EQ(matches(R"([^\S\n]+)", "a \n\tb"), (Texts{" ", "\t"}));
  EXPECT_EQ(matches(R"([\W\d]+)", "a 1b"), (Texts{" 1"}));
  EXPECT_EQ(matches(R"(\w+)", "a\u0301_1-²½"), (Texts{"a\u0301_1", "²½"}));
  EXPECT_EQ(matches(R"([\w]+)", "a²b"), (Texts{"a", "b"}));
  EXPECT_EQ(matches(R"(\bx\b)", "x xx x"), (Texts{"x", "x"}));
  EXPECT_EQ(matches("[a\\-z]+|[-c]", "a-zc"), (Texts{"a-z", "c"}));
}

TEST(TokenizerRegexTest, KnowsYoungCharacters) {
  EXPECT_EQ(matches(R"(\p{L}+)", "a\U00031350\U0001E030!"), (Texts{"a\U00031350\U0001E030"}));
  EXPECT_EQ(matches(R"([^\s\p{L}\p{N}]+)", "\U00031350+\U00010D40"), (Texts{"+"}));
  EXPECT_EQ(matches(R"(\P{L}+)", "\U00031350+"), (Texts{"+"}));
  EXPECT_EQ(matches(R"(\p{Han}+)", "的\U00031350あ\u3001"), (Texts{"的\U00031350"}));
  EXPECT_EQ(matches(R"(\p{Cn}|\p{C})", "\U00031350\u0378\x01"), (Texts{"\u0378", "\x01"}));
}

TEST(TokenizerRegexTest, EmptyMatchesNeverLoop) {
  EXPECT_EQ(matches("x*", "axxb"), (Texts{"", "xx", ""}));
  EXPECT_EQ(matches("", "é"), (Texts{"", ""}));
}

TEST(TokenizerRegexTest, WhatDiffersBeyondRepairIsRefused) {
  for (const auto* pattern : {"[a&&b]",
                              "[[a]b]",
                              "[[:alpha:]]",
                              "a{2}?",
                              "(?m:.)",
                              "(?s).",
                              "a(?i)b|c",
                              R"(\p{Letters})",
                              R"(\pL)",
                              R"((a)\1)",
                              R"(\R)",
                              R"(\X)",
                              R"(\K)",
                              R"(\G)",
                              R"(\xFF)",
                              R"(\uD800)",
                              R"(\x{110000})",
                              "(?i:é)",
                              "(?i:ss)",
                              "(?i:[é])",
                              R"((?i:\p{Lu}))",
                              "a**",
                              "*a",
                              "(",
                              ")",
                              "[a",
                              "[]",
                              "[b-a]",
                              R"([a-\d])",
                              "\\",
                              "(?<n>a)",
                              "(?#c)",
                              "a{3,1}",
                              "(?=a)*",
                              "a{1,2}+?"}) {
    EXPECT_THROW(Regex{pattern}, UserError) << pattern;
  }
}

// Ten megabytes through lazy, greedy and backtracking constructs.
TEST(TokenizerRegexTest, LongTextsStayLinear) {
  const std::string spaces(10'000'000, ' ');
  EXPECT_EQ(matches(R"(\s*[\r\n]+|\s+(?!\S)|\s+)", spaces + "x").size(), 2U);
  EXPECT_EQ(matches(R"(\p{L}+|(?:ab)+)", std::string(10'000'000, 'a')).size(), 1U);
}

}  // namespace
}  // namespace ranktune::data::tokenizing
