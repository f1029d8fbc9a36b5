#include "data/chat.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/child_process.hpp"
#include "temporary_folder.hpp"

namespace ranktune::data {
namespace {

using test::user_error;

constexpr const char* kPlain =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}";

Row chat(const std::vector<std::pair<const char*, const char*>>& turns) {
  nlohmann::json messages = nlohmann::json::array();
  for (const auto& [role, content] : turns) messages.push_back({{"role", role}, {"content", content}});
  Row row;
  row.messages = messages.dump();
  return row;
}

ChatRendering with_spans(bool spans = true) {
  ChatRendering how;
  const char* python = std::getenv("RANKTUNE_PYTHON");  // NOLINT(concurrency-mt-unsafe)
  if (python != nullptr && *python != '\0') how.python = python;
  how.spans = spans;
  return how;
}

std::vector<TrainingText> texts_of(const std::vector<Row>& rows, const ChatTemplate& form,
                                   bool spans = true) {
  return parse_rendered(render_chats(rows, form, with_spans(spans)), 0,
                        static_cast<std::int64_t>(rows.size()));
}

// The responses of the only row.
std::vector<std::string> responses(const Row& row, const char* form) {
  const TrainingText text = texts_of({row}, {form, "{}"}).front();
  std::vector<std::string> found;
  for (const TextSpan& span : text.responses)
    found.push_back(text.text.substr(span.begin, span.end - span.begin));
  return found;
}

using Strings = std::vector<std::string>;

TEST(Chat, RowsBecomeTurns) {
  const auto texts = texts_of(
      {{"Add.", "1 2", "3"}, {"Say ü.", "", "Hi"}, chat({{"system", "s"}, {"user", "u"}})}, {kPlain, "{}"});
  EXPECT_EQ(texts[0].text, "<user>Add.\n\n1 2</><assistant>3</>");
  EXPECT_EQ(texts[1].text, "<user>Say ü.</><assistant>Hi</>");
  ASSERT_EQ(texts[1].responses.size(), 1U);
  EXPECT_EQ(texts[1].text.substr(texts[1].responses[0].begin), "Hi</>");  // in bytes
  EXPECT_EQ(texts[2].text, "<system>s</><user>u</>");
  EXPECT_TRUE(texts[2].responses.empty());
}

TEST(Chat, EveryAnswerIsAResponse) {
  const Row row = chat({{"user", "a"}, {"assistant", "b"}, {"user", "c"}, {"assistant", "d"}, {"user", "e"}});
  EXPECT_EQ(responses(row, kPlain), (Strings{"b</>", "d</>"}));
  // Answers that are written in another way where they are not the last, as thinking models' templates do.
  constexpr const char* kForgetful =
      "{% for m in messages %}<{{ m.role }}>{% if loop.last and m.role == 'assistant' %}~{% endif %}{{ "
      "m.content }}</>"
      "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
  EXPECT_EQ(responses(row, kForgetful), (Strings{"b</>", "d</>"}));
  EXPECT_EQ(responses(chat({{"user", "a"}, {"assistant", "b"}}), kForgetful), (Strings{"~b</>"}));
  // A prompt that ends as no earlier answer begins.
  constexpr const char* kNoThinking =
      "{% for m in messages %}<{{ m.role }}>{% if loop.last and m.role == 'assistant' %}~{% endif %}{{ "
      "m.content }}</>"
      "{% endfor %}{% if add_generation_prompt %}<assistant>~{% endif %}";
  EXPECT_EQ(responses(row, kNoThinking), (Strings{"b</>", "d</>"}));
  EXPECT_EQ(responses(chat({{"user", "a"}, {"assistant", "b"}}), kNoThinking), (Strings{"b</>"}));
  EXPECT_EQ(responses(chat({{"assistant", "hello"}, {"user", "a"}, {"assistant", "b"}}), kPlain),
            (Strings{"hello</>", "b</>"}));
}

TEST(Chat, GenerationBlocksGoBeforeAll) {
  EXPECT_EQ(
      responses(chat({{"user", "a"}, {"assistant", "b"}}),
                "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}.{% endfor %}"),
      (Strings{"a", "b"}));
}

TEST(Chat, WhatIsWrongIsSaid) {
  const Row row = chat({{"user", "a"}, {"assistant", "b"}, {"user", "c"}, {"assistant", "d"}});
  const auto refusal = [&](const char* form) {
    return user_error([&] { texts_of({chat({{"user", "x"}}), row}, {form, "{}"}); });
  };
  EXPECT_EQ(refusal("{% if messages|length > 1 %}{{ raise_exception('only one') }}{% endif %}"),
            "dataset row 2: the chat template refuses it: only one");
  EXPECT_CONTAINS(refusal("{% for %}"), "the chat template is not valid Jinja2: ");
  EXPECT_CONTAINS(refusal("{{ messages[1].content + 1 }}"), "dataset row 1: the chat template");
  EXPECT_CONTAINS(refusal("{{ strftime_now('%Y') }}"), "as in --chat_date 2");
  // The answers depend on each other.
  EXPECT_CONTAINS(refusal("{% for m in messages|reverse %}{{ loop.index }}{{ m.content }}{% endfor %}"),
                  "dataset row 2: where the answer of message 2 begins and ends");
}

TEST(Chat, TheDateIsTheOneGiven) {
  EXPECT_EQ(texts_of({chat({{"user", "x"}})}, {"{{ strftime_now('%d %b %Y') }}", "{}", "2024-07-26"})[0].text,
            "26 Jul 2024");
}

TEST(Chat, PythonHasToBeThere) {
  ChatRendering how;
  how.python = "no-such-python";
  const auto render = [&] { render_chats(std::vector<Row>{{"a", "", "b"}}, {kPlain, "{}"}, how); };
  EXPECT_CONTAINS(user_error(render),
                  "cannot run 'no-such-python': No such file or directory; install python3");
  how.python = "false";  // takes the place, and does nothing
  EXPECT_CONTAINS(user_error(render), "with false ended with code 1 after 0 of 1 rows");
}

TEST(Chat, ManyRowsAndAStop) {
  const std::vector<Row> rows(20000, chat({{"user", std::string(100, 'x').c_str()}}));
  std::int64_t seen = 0;
  ChatRendering how = with_spans(false);
  how.progress = [&](std::int64_t done) { seen = done; };
  const std::string lines = render_chats(rows, {kPlain, "{}"}, how);
  EXPECT_EQ(seen, 20000);
  EXPECT_EQ(parse_rendered(lines, 19998, 20000).size(), 2U);
  how.progress = [](std::int64_t) { throw Failure("stop"); };
  EXPECT_THROW(render_chats(rows, {kPlain, "{}"}, how), Failure);
}

class TemplateOfAFolder : public ::testing::Test {
 protected:
  ChatTemplate read() { return read_chat_template(folder_.path(), {}); }
  test::TemporaryFolder folder_;
};

TEST_F(TemplateOfAFolder, TheFileGoesBeforeTheConfiguration) {
  EXPECT_CONTAINS(user_error([&] { read(); }), "the model has no chat template");
  folder_.write("tokenizer_config.json", R"({"eos_token": {"content": "</s>"}, "pad_token": null,
    "chat_template": [{"name": "rag", "template": "r"}, {"name": "tools", "template": "t"}]})");
  EXPECT_CONTAINS(user_error([&] { read(); }), "of the chat templates rag, tools none is the default");
  folder_.write("tokenizer_config.json",
                R"({"added_tokens_decoder": {}, "eos_token": {"content": "</s>"}, "chat_template": "one"})");
  folder_.write("special_tokens_map.json", R"({"eos_token": "old", "bos_token": "<s>"})");
  EXPECT_EQ(read().text, "one");
  EXPECT_EQ(read().variables, R"({"eos_token":"</s>"})");
  folder_.write("tokenizer_config.json", R"({"eos_token": "</s>", "chat_template": "one"})");
  EXPECT_EQ(read().variables, R"({"bos_token":"<s>","eos_token":"old"})");
  folder_.write("chat_template.jinja", "two");
  EXPECT_EQ(read().text, "two");
  const auto other = folder_.write("other.jinja", "three");
  EXPECT_EQ(read_chat_template(folder_.path(), other).text, "three");
  folder_.write("other.jinja", "\xff");
  EXPECT_CONTAINS(user_error([&] { read_chat_template(folder_.path(), other); }), "a chat template is UTF-8");
}

TEST(ChildProcess, TalksBothWaysAndEnds) {
  int pieces = 0;
  std::string out;
  const auto result = run_child({"sh", "-c", "cat; echo why >&2; exit 7"},
                                {[&] { return ++pieces > 100 ? std::string() : std::string(100000, 'a'); },
                                 [&](std::string_view piece) { out += piece; }});
  EXPECT_EQ(result.exit_code, 7);
  EXPECT_EQ(result.errors, "why\n");
  EXPECT_EQ(out.size(), 10000000U);
  const auto killed =
      run_child({"sh", "-c", "kill -9 $$"}, {[] { return std::string(1000, 'b'); }, [](auto) {}});
  EXPECT_EQ(killed.exit_code, 137);
}

}  // namespace
}  // namespace ranktune::data
