#include "data/prompt.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "base/file.hpp"
#include "temporary_folder.hpp"

namespace ranktune::data {
namespace {

const Row kRow{"Add them.\nShow each step.", "1 and {2}", "3"};
const Row kBareRow{"Say hello.", "", "Hello!"};

TEST(Prompt, UnslothIsIndentedAsInItsScript) {
  EXPECT_EQ(
      render_text(PromptTemplate::unsloth, kRow, "</s>").text,
      "Below is an instruction that describes a task, paired with an input that provides further context. "
      "Write a response that appropriately completes the request.\n"
      "\n"
      "    ### Instruction:\n"
      "    Add them.\nShow each step.\n"
      "\n"
      "    ### Input:\n"
      "    1 and {2}\n"
      "\n"
      "    ### Response:\n"
      "    3</s>");
}

TEST(Prompt, UnslothKeepsTheInputBlockOfAnEmptyInput) {
  EXPECT_EQ(
      render_text(PromptTemplate::unsloth, kBareRow, "<|im_end|>").text,
      "Below is an instruction that describes a task, paired with an input that provides further context. "
      "Write a response that appropriately completes the request.\n"
      "\n"
      "    ### Instruction:\n"
      "    Say hello.\n"
      "\n"
      "    ### Input:\n"
      "    \n"
      "\n"
      "    ### Response:\n"
      "    Hello!<|im_end|>");
}

TEST(Prompt, AlpacaHasTwoForms) {
  EXPECT_EQ(
      render_text(PromptTemplate::alpaca, kRow, "</s>").text,
      "Below is an instruction that describes a task, paired with an input that provides further context. "
      "Write a response that appropriately completes the request.\n\n"
      "### Instruction:\nAdd them.\nShow each step.\n\n"
      "### Input:\n1 and {2}\n\n"
      "### Response:\n3</s>");
  EXPECT_EQ(render_text(PromptTemplate::alpaca, kBareRow, "</s>").text,
            "Below is an instruction that describes a task. "
            "Write a response that appropriately completes the request.\n\n"
            "### Instruction:\nSay hello.\n\n"
            "### Response:\nHello!</s>");
}

TEST(Prompt, TextIsPromptThenOutputThenEos) {
  for (const auto form : {PromptTemplate::unsloth, PromptTemplate::alpaca}) {
    for (const auto& row : {kRow, kBareRow}) {
      EXPECT_EQ(render_text(form, row, "<eos>").text, render_prompt(form, row) + row.output + "<eos>");
    }
  }
}

void replace(std::string& text, const std::string& what, const std::string& by) {
  const auto at = text.find(what);
  ASSERT_NE(at, std::string::npos) << what;
  text.replace(at, what.size(), by);
}

TEST(Prompt, TheResponseIsOutputAndEos) {
  for (const auto form : {PromptTemplate::unsloth, PromptTemplate::alpaca, PromptTemplate::plain}) {
    const auto rendered = render_text(form, kRow, "</s>");
    ASSERT_EQ(rendered.responses.size(), 1U);
    const auto [begin, end] = rendered.responses[0];
    EXPECT_EQ(rendered.text.substr(0, begin), render_prompt(form, kRow));
    EXPECT_EQ(rendered.text.substr(begin, end - begin), kRow.output + "</s>");
  }
  EXPECT_EQ(render_text(PromptTemplate::plain, {"Q", "unused", "A"}, "$").text, "QA$");
}

TEST(Prompt, AFileIsFilledOnce) {
  const test::TemporaryFolder folder;
  const auto file =
      folder.write("form.txt", "{input}|{instruction}|{other} {instruction}{\n> {output} <end>\n\n");
  const auto form = read_prompt_file(file);
  const auto rendered = render_text(form, {"{input}", "{output}", "{instruction}"}, "$");
  EXPECT_EQ(rendered.text, "{output}|{input}|{other} {input}{\n> {instruction} <end>\n$");
  EXPECT_EQ(rendered.text.substr(rendered.responses.at(0).begin), "{instruction} <end>\n$");
  EXPECT_EQ(rendered.responses[0].end, rendered.text.size());

  const std::pair<const char*, const char*> wrong[] = {{"{instruction}", "{output} in it once"},
                                                       {"{instruction}{output}{output}", "more than once"},
                                                       {"{input}{output}", "{instruction} in it"},
                                                       {"{instruction}{output}\xff", "is UTF-8"}};
  for (const auto& [text, what] : wrong) {
    const auto bad = folder.write("bad.txt", text);
    const auto sentence = test::user_error([&] { read_prompt_file(bad); });
    EXPECT_TRUE(sentence.starts_with(bad.string() + ": ")) << sentence;
    EXPECT_CONTAINS(sentence, what);
  }
}

TEST(Prompt, AlpacaEqualsThePublishedTemplate) {
  const char* data = std::getenv("RANKTUNE_TEST_DATA");
  const auto file = std::filesystem::path(data == nullptr ? "" : data) / "templates/alpaca_prompt.json";
  if (!std::filesystem::exists(file))
    GTEST_SKIP() << "RANKTUNE_TEST_DATA holds no templates/alpaca_prompt.json";
  const auto published = nlohmann::json::parse(read_file(file));

  auto with_input = published.at("prompt_input").get<std::string>();
  replace(with_input, "{instruction}", kRow.instruction);
  replace(with_input, "{input}", kRow.input);
  EXPECT_EQ(render_prompt(PromptTemplate::alpaca, kRow), with_input);

  auto without_input = published.at("prompt_no_input").get<std::string>();
  replace(without_input, "{instruction}", kBareRow.instruction);
  EXPECT_EQ(render_prompt(PromptTemplate::alpaca, kBareRow), without_input);
}

}  // namespace
}  // namespace ranktune::data
