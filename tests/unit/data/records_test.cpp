#include "data/records.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "base/file.hpp"
#include "temporary_folder.hpp"

namespace ranktune::data {
namespace {

namespace fs = std::filesystem;
using test::user_error;

const std::string kGood = R"({"instruction": "i", "input": "n", "output": "o"})";

class ReadRecords : public testing::Test {
 protected:
  Records read(std::string_view content, const std::string& name = "rows.json") {
    return read_records({folder_.write(name, content)});
  }
  // The sentence, without the file it must start with.
  std::string error(std::string_view content, const std::string& name = "rows.json") {
    const auto file = folder_.write(name, content);
    const auto sentence = user_error([&] { read_records({file}); });
    EXPECT_TRUE(sentence.starts_with(file.string() + ": ")) << sentence;
    return sentence.substr(std::min(sentence.size(), file.string().size() + 2));
  }
  test::TemporaryFolder folder_;
};

TEST_F(ReadRecords, Array) {
  const auto records = read(R"([
{"instruction": "a", "input": "b", "output": "c"},
{"output": "\u00e9 \"]},{[\" \\", "instruction": "ü", "input": null, "other": [{"x": [1, 2]}, "]"]},
  {"instruction": "", "output": ""}
])");
  ASSERT_EQ(records.rows.size(), 3U);
  EXPECT_EQ(records.rows[0].instruction, "a");
  EXPECT_EQ(records.rows[0].input, "b");
  EXPECT_EQ(records.rows[0].output, "c");
  EXPECT_EQ(records.rows[1].instruction, "ü");
  EXPECT_EQ(records.rows[1].input, "");
  EXPECT_EQ(records.rows[1].output, "é \"]},{[\" \\");
  EXPECT_EQ(records.rows[2].output, "");
}

TEST_F(ReadRecords, LinesByNameAndByContent) {
  for (const std::string name : {"rows.jsonl", "rows.json"}) {
    const auto records = read(kGood + "\r\n\n" + kGood + "\n  \n" + kGood, name);
    ASSERT_EQ(records.rows.size(), 3U);
    EXPECT_EQ(records.rows[2].output, "o");
  }
  EXPECT_EQ(read("[" + kGood + "," + kGood + "]", "rows.jsonl").rows.size(), 2U);  // an array all the same
}

TEST_F(ReadRecords, ObjectWithData) {
  const auto records = read("{\"version\": {\"data\": [1]},\n \"data\": [" + kGood + ",\n" + kGood + "]}\n");
  EXPECT_EQ(records.rows.size(), 2U);
  EXPECT_EQ(read("{\n\"data\": [" + kGood + "]}").rows.size(), 1U);
  EXPECT_EQ(read(kGood).rows.size(), 1U);  // one row alone
}

TEST_F(ReadRecords, ByteOrderMarkIsTolerated) {
  EXPECT_EQ(read("\xEF\xBB\xBF[" + kGood + "]").rows.size(), 1U);
  EXPECT_EQ(read("\xEF\xBB\xBF" + kGood + "\n" + kGood, "rows.jsonl").rows.size(), 2U);
}

TEST_F(ReadRecords, DigestIsThatOfTheContent) {
  const auto one = read("[" + kGood + "]", "one.json").digest;
  EXPECT_EQ(one, content_hash("[" + kGood + "]"));
  EXPECT_EQ(read("[" + kGood + "]", "two.json").digest, one);
  EXPECT_NE(read("[" + kGood + " ]", "two.json").digest, one);
}

TEST_F(ReadRecords, MalformedRowsAreNamedByRowAndLine) {
  EXPECT_CONTAINS(error("[\n" + kGood + ",\n{\"instruction\": \"i\",\n\n \"output\": tru}\n]"),
                  "row 2, line 5: not valid JSON: ");
  EXPECT_CONTAINS(error("[\n" + kGood + ",\n{\"instruction\" \"i\"}]"), "row 2, line 3: not valid JSON: ");
  EXPECT_CONTAINS(error("[" + kGood + ",\n\n{\"instruction\": \"i\n\"}]"),
                  "row 2, line 3: the line ends inside a string");
  EXPECT_CONTAINS(error("[" + kGood + "\n" + kGood + "]"),
                  "row 1, line 2: expected ',' or ']' after the row, found an object");
  EXPECT_CONTAINS(error("[" + kGood + ",\n]"), "row 2, line 2: expected a value, found ']'");
  EXPECT_CONTAINS(error("[" + kGood + ",\n{\"instruction\": [}]"), "row 2, line 2: expected ']', found '}'");
  EXPECT_CONTAINS(error("[" + kGood + ",\n{\"instruction\": \"i\",\n"),
                  "row 2, line 2: what starts here is not closed before the file ends");
  EXPECT_CONTAINS(error("[" + kGood + ",\n\n{\"instruction\": \"i"),
                  "row 2, line 3: the file ends inside a string");
  EXPECT_CONTAINS(error("[" + kGood + ",\n"), "row 2, line 2: expected a value, found the end");
  EXPECT_CONTAINS(error("[" + kGood + "\n"),
                  "row 1, line 2: expected ',' or ']' after the row, found the end");
  EXPECT_CONTAINS(error("[" + kGood + "]\n\n[]"), "line 3: expected the end of the file, found an array");
  EXPECT_CONTAINS(error("[{\"instruction\": \"\\ud800\", \"output\": \"o\"}]"),
                  "row 1, line 1: not valid JSON: ");
  EXPECT_CONTAINS(error("[{\"instruction\": \"i\", \"output\": \"o\", \"x\": 1e999}]"),
                  "row 1, line 1: not readable: ");
}

TEST_F(ReadRecords, MalformedLinesAreNamedByRowAndLine) {
  EXPECT_CONTAINS(error(kGood + "\n\n{\"instruction\": nul}\n", "rows.jsonl"),
                  "row 2, line 3: not valid JSON: ");
  EXPECT_CONTAINS(error(kGood + "\n{\"instruction\": \"i\",\n\"output\": \"o\"}\n", "rows.jsonl"),
                  "row 2, line 2: what starts here is not closed before the line ends");
  EXPECT_CONTAINS(error(kGood + "\n" + kGood + " " + kGood, "rows.jsonl"),
                  "row 2, line 2: expected the end of the line");
  EXPECT_CONTAINS(error(kGood + "\n" + kGood + ",\n", "rows.jsonl"),
                  "row 2, line 2: expected the end of the line");
  EXPECT_CONTAINS(error(kGood + "\n7\n", "rows.jsonl"), "row 2, line 2: expected an object, found a number");
  // The same under the name .json.
  EXPECT_CONTAINS(error("{\"instruction\": nul}\n" + kGood), "row 1, line 1: not valid JSON: ");
  EXPECT_CONTAINS(error(kGood + "\n" + kGood + "]\n"), "row 2, line 2: expected the end of the line");
  EXPECT_CONTAINS(error("{\"instruction\": [}\n" + kGood), "line 1: expected ']', found '}'");
}

// The library's own positions count from the row's start and would mislead.
TEST_F(ReadRecords, OnlyOneLineNumberIsSaid) {
  const auto sentence = error("[\n\n\n{\"instruction\": x}]");
  EXPECT_CONTAINS(sentence, "row 1, line 4: ");
  EXPECT_FALSE(test::contains(sentence, "line 1")) << sentence;
  EXPECT_FALSE(test::contains(sentence, "json.exception")) << sentence;
}

TEST_F(ReadRecords, WrongColumnsAreNamed) {
  auto sentence = error("[" + kGood + ",\n{\"prompt\": \"i\", \"completion\": \"o\"}]");
  EXPECT_CONTAINS(sentence,
                  R"(row 2, line 2: no column "instruction"; columns found: "completion", "prompt")");
  EXPECT_CONTAINS(error("[{}]"), "no known format; columns found: none; known are alpaca (");
  EXPECT_CONTAINS(error(R"([{"instruction": "i"}])"), R"(no column "output"; columns found: "instruction")");
  EXPECT_CONTAINS(error(R"([{"instruction": "i", "output": 3}])"),
                  R"(column "output" must be a string, but is 3)");
  EXPECT_CONTAINS(error(R"([{"instruction": "i", "output": null}])"),
                  R"(column "output" must be a string, but is null)");
  EXPECT_CONTAINS(error(R"([{"instruction": ["i"], "output": "o"}])"),
                  R"(column "instruction" must be a string, but is array)");
  EXPECT_CONTAINS(error(R"([{"instruction": "i", "input": {}, "output": "o"}])"),
                  R"(column "input" must be a string or null, but is object)");
  EXPECT_CONTAINS(error("[" + kGood + ",\n\n[1]]"), "row 2, line 3: expected an object, found an array");
  EXPECT_CONTAINS(error("{\"train\": [" + kGood + "]}"), "columns found: \"train\"");
}

TEST_F(ReadRecords, ColumnNamesInAMessageStayShort) {
  std::string row = "[{\"" + std::string(5000, 'x') + "\": 1, \"line\\nbreak\": 1";
  for (int i = 0; i < 500; ++i) row += ", \"c" + std::to_string(i) + "\": 1";
  const auto sentence = error(row + "}]");
  EXPECT_LT(sentence.size(), 1000U);
  EXPECT_EQ(sentence.find('\n'), std::string::npos);
  EXPECT_CONTAINS(error("[{\"line\\nbreak\": 1}]"), "\"line\\nbreak\"");
}

TEST_F(ReadRecords, NothingToRead) {
  EXPECT_EQ(error(""), "is empty");
  EXPECT_EQ(error(" \n\t\n"), "is empty");
  EXPECT_EQ(error("\xEF\xBB\xBF"), "is empty");
  EXPECT_EQ(error("\n", "rows.jsonl"), "is empty");
  EXPECT_EQ(error("[ ]"), "holds no rows");
  EXPECT_EQ(error("{\"data\": []}"), "holds no rows");
}

TEST_F(ReadRecords, WhatIsNotJson) {
  EXPECT_CONTAINS(error("instruction,output\n"),
                  "line 1: expected an array of rows, found something that is not JSON");
  EXPECT_CONTAINS(error("\n\"text\""), "line 2: expected an array of rows, found a string");
  EXPECT_CONTAINS(error(std::string("\0[", 2)), "line 1: expected an array of rows, found a zero byte");
  EXPECT_CONTAINS(error("}"), "line 1: expected an array of rows, found '}'");
}

TEST_F(ReadRecords, InvalidUtf8IsNamedByLine) {
  const std::string start = "[\n" + kGood + ",\n{\"instruction\": \"";
  for (const std::string bad : {"\xFF", "\xC0\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xE2\x82", "\x80"}) {
    EXPECT_CONTAINS(error(start + bad + "\", \"output\": \"o\"}]"), "line 3: invalid UTF-8: byte 0x");
  }
  EXPECT_CONTAINS(error("[" + kGood + "]\n\xE2\x82"), "line 2: invalid UTF-8: byte 0xe2");  // cut at the end
  EXPECT_CONTAINS(error("\xFF\xFE[\0"), "UTF-16");
}

TEST_F(ReadRecords, DeepNestingIsBounded) {
  for (const std::string open : {"[", "{\"a\":"}) {
    std::string deep;
    for (int i = 0; i < 1'000'000; ++i) deep += open;
    EXPECT_CONTAINS(error(deep), "nested more than 128 levels deep");
    EXPECT_CONTAINS(error("[{\"instruction\": " + deep), "row 1, line 1: nested more than 128 levels deep");
    EXPECT_CONTAINS(error(kGood + "\n{\"instruction\": " + deep, "rows.jsonl"),
                    "row 2, line 2: nested more than");
  }
  const std::string allowed = std::string(120, '[') + std::string(120, ']');
  EXPECT_EQ(read("[{\"x\": " + allowed + ", \"instruction\": \"i\", \"output\": \"o\"}]").rows.size(), 1U);
}

// Cut or mutated anywhere, a file gives rows or one sentence, never anything else.
TEST_F(ReadRecords, DamagedFilesGiveASentence) {
  const std::string array =
      "{\"data\": [" + kGood + ",\n{\"instruction\": \"\\u00e9\\\"\", \"output\": \"ü\", \"x\": [1, {}]}]}";
  const auto attempt = [&](const std::string& content, const std::string& name) {
    const auto file = folder_.write(name, content);
    try {
      EXPECT_FALSE(read_records({file}).rows.empty());
    } catch (const UserError& sentence) {
      EXPECT_TRUE(std::string_view(sentence.what()).starts_with(file.string())) << sentence.what();
    }
  };
  for (std::size_t length = 0; length < array.size(); ++length) {
    attempt(array.substr(0, length), "rows.json");
    attempt(array.substr(array.size() - length), "rows.jsonl");
  }
  std::mt19937 random(1);  // NOLINT(cert-msc51-cpp): the same mutations in every run
  const std::string bytes("{}[]\",:\\\n\0 nt1\xFFx", 17);
  for (int i = 0; i < 2000; ++i) {
    std::string mutated = array;
    for (int j = 0; j < 3; ++j) mutated[random() % mutated.size()] = bytes[random() % bytes.size()];
    attempt(mutated, i % 2 == 0 ? "rows.json" : "rows.jsonl");
  }
}

TEST_F(ReadRecords, TheFirstBadRowIsReported) {
  std::string rows = "[";
  for (int i = 1; i <= 20'000; ++i)
    rows += (i == 3000 || i > 9000 ? "{}" : kGood) + (i < 20'000 ? ",\n" : "]");
  EXPECT_CONTAINS(error(rows), "row 3000, line 3000: no column");
}

TEST_F(ReadRecords, MissingFile) {
  EXPECT_CONTAINS(user_error([&] { read_records({folder_.path() / "none.json"}); }),
                  "none.json: No such file");
}

TEST_F(ReadRecords, AFolderIsItsFiles) {
  folder_.write("set/dataset_infos.json", "{}");
  folder_.write("set/README.md", "text");
  folder_.write("set/.hidden.json", "{}");
  folder_.write("blob", "[" + kGood + "]");
  fs::create_symlink("../blob",
                     folder_.path() / "set/alpaca_data_cleaned.json");  // as the Hub's cache has it
  EXPECT_EQ(read_records({folder_.path() / "set"}).rows.size(), 1U);

  folder_.write("set/more.jsonl", kGood + "\n" + kGood);
  EXPECT_EQ(read_records({folder_.path() / "set"}).rows.size(), 3U) << "in the order of the names";
  folder_.write("set/eval_2.jsonl", kGood);
  const auto sentence = user_error([&] { read_records({folder_.path() / "set"}); });
  EXPECT_CONTAINS(sentence,
                  "3 data files, and not all seem to be for training (alpaca_data_cleaned.json, eval_2");
}

TEST_F(ReadRecords, AFolderThatKeepsItsFileInData) {
  folder_.write("set/README.md", "text");
  folder_.write("set/data/train.json", "[" + kGood + "]");
  EXPECT_EQ(read_records({folder_.path() / "set"}).rows.size(), 1U);
}

TEST_F(ReadRecords, AFolderWithoutRows) {
  folder_.write("set/dataset_infos.json", "{}");
  EXPECT_CONTAINS(user_error([&] { read_records({folder_.path() / "set"}); }),
                  "holds no .json or .jsonl file");
}

TEST_F(ReadRecords, ParquetNamesTheConversion) {
  const auto file = folder_.write("set/data/train-00000-of-00001.parquet", "PAR1");
  auto sentence = user_error([&] { read_records({folder_.path() / "set"}); });
  EXPECT_CONTAINS(sentence, "python -c ");
  EXPECT_CONTAINS(sentence, (folder_.path() / "set/data/*.parquet").string());
  EXPECT_CONTAINS(user_error([&] { read_records({file}); }), "python -c ");
}

TEST_F(ReadRecords, TheFormatIsRecognisedFromTheFirstRow) {
  const auto rows_of = [&](const std::string& row) { return read("[" + row + "]"); };
  auto records = rows_of(R"({"prompt": "p", "completion": "c"})");
  EXPECT_EQ(records.format, RowFormat::prompt_completion);
  EXPECT_EQ(records.rows[0].instruction + records.rows[0].output, "pc");
  records = rows_of(R"({"text": "t"})");
  EXPECT_EQ(records.format, RowFormat::text);
  EXPECT_EQ(records.rows[0].output, "t");
  records = rows_of(R"({"prompt": "p", "messages": [{"role": "user", "content": "u", "name": "x"},
                                                    {"role": "assistant", "content": "a"}]})");
  EXPECT_EQ(records.format, RowFormat::messages);
  // As it stands in the row, but on one line.
  EXPECT_CONTAINS(records.rows[0].messages, R"([{"role": "user", "content": "u", "name": "x"},  )");
  EXPECT_EQ(records.rows[0].messages.find('\n'), std::string::npos);
  records = rows_of(R"({"system": "s", "conversations": [{"from": "human", "value": "u"},
                                                         {"from": "gpt", "value": "a"}]})");
  EXPECT_EQ(records.format, RowFormat::conversations);
  EXPECT_EQ(
      records.rows[0].messages,
      R"([{"content":"s","role":"system"},{"content":"u","role":"user"},{"content":"a","role":"assistant"}])");
  records = rows_of(R"({"conversations": [{"role": "user", "content": "u"}]})");
  EXPECT_EQ(records.rows[0].messages, R"([{"content":"u","role":"user"}])");
  EXPECT_EQ(rows_of(R"({"text": "t", "instruction": "i", "output": "o"})").format, RowFormat::alpaca);
}

TEST_F(ReadRecords, AFormatThatIsNamedHolds) {
  const auto file = folder_.write("rows.json", R"([{"text": "t", "instruction": "i", "output": "o"}])");
  EXPECT_EQ(read_records({file}, {.format = RowFormat::text}).rows[0].output, "t");
  EXPECT_CONTAINS(
      user_error([&] { read_records({file}, {.format = RowFormat::messages}); }),
      R"(no column "messages"; columns found: "instruction", "output", "text" (a row of the format)");
}

TEST_F(ReadRecords, WhatIsWrongWithAMessageIsSaid) {
  const std::pair<const char*, const char*> wrong[] = {
      {R"("messages": "hello")", R"(column "messages" must be an array of messages, but is string)"},
      {R"("messages": [])", "but is an empty one"},
      {R"("messages": ["hello"])", R"(message 1 of "messages" must be an object, but is string)"},
      {R"("messages": [{"role": "user"}])",
       R"(message 1 of "messages" has no "content"; keys found: "role")"},
      {R"("messages": [{"from": "human", "value": "x"}])", R"(has no "role"; keys found: "from", "value")"},
      {R"("messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": null}])",
       R"(message 2 of "messages" must have a string as "content", but has null)"},
      {R"("messages": [{"role": "user", "content": [{"type": "text"}]}])", "but has array"},
      {R"("messages": [{"role": "assistant", "content": "", "tool_calls": [1]}])", "tools are not supported"},
      {R"("conversations": [{"from": 3, "value": "x"}])", R"(must have a string as "from", but has 3)"},
      {R"("conversations": [{"value": "x"}])", R"(message 1 of "conversations" has no "from")"},
      {R"("conversations": [{"from": "observation", "value": "x"}])",
       R"(message 1 of "conversations" is from "observation"; known are human,)"},
      {R"("tools": [{}], "messages": [{"role": "user", "content": "x"}])", R"(the row has "tools")"},
      {R"("system": 1, "conversations": [{"from": "gpt", "value": "x"}])",
       R"(column "system" must be a string or null, but is 1)"},
      {R"("text": ["a"])", R"(column "text" must be a string, but is array)"},
      {R"("prompt": "p")", R"(no column "completion"; columns found: "prompt")"},
      {R"("prompt": "p", "completion": 1.5)", R"(column "completion" must be a string, but is 1.5)"},
      {R"("question": "q")", R"(no known format; columns found: "question")"}};
  for (const auto& [row, what] : wrong) {
    const auto sentence = error("[\n{" + std::string(row) + "}]");
    EXPECT_TRUE(sentence.starts_with("row 1, line 2: ")) << sentence;
    EXPECT_CONTAINS(sentence, what);
  }
}

TEST_F(ReadRecords, PlainTextIsOneRow) {
  const auto read_text = [&](const char* name, const char* content) {
    return read_raw_text(folder_.write(name, content));
  };
  const auto records = read_text("book.txt", "\xEF\xBB\xBFone\r\n\r\ntwo\rthree\n");
  EXPECT_EQ(records.format, RowFormat::raw_text);
  ASSERT_EQ(records.rows.size(), 1U);
  EXPECT_EQ(records.rows[0].output, "one\n\ntwo\nthree\n");
  EXPECT_EQ(read_text("end.md", "a\r").rows[0].output, "a\n");
  EXPECT_CONTAINS(user_error([&] { read_text("blank.txt", " \r\n"); }), "is empty");
  EXPECT_CONTAINS(user_error([&] { read_text("bad.txt", "a\n\xff"); }), "line 2: invalid UTF-8");
  EXPECT_CONTAINS(user_error([&] { read_text("rows.jsonl", "{}"); }), "give JSON rows to --dataset");
}

TEST_F(ReadRecords, SeveralFilesAndALimit) {
  const auto one = folder_.write("one.json", "[" + kGood + "," + kGood + "]");
  const auto two = folder_.write("two.jsonl", R"({"instruction": "x", "output": "y"})");
  EXPECT_EQ(read_records({one, two}).rows.size(), 3U);
  EXPECT_EQ(read_records({two, one}).rows[0].output, "y");
  EXPECT_NE(read_records({two, one}).digest, read_records({one, two}).digest);
  EXPECT_EQ(read_records({one}, {.limit = 1}).rows.size(), 1U);
  EXPECT_EQ(read_records({one, two}, {.limit = 3}).rows[2].output, "y");
  EXPECT_EQ(read_records({one, two}, {.limit = 100}).rows.size(), 3U);
  // The second file has to have the format of the first.
  const auto text = folder_.write("text.jsonl", R"({"text": "x"})");
  EXPECT_CONTAINS(user_error([&] {
                    read_records({one, text});
                  }),
                  text.string() + R"(: row 1, line 1: no column "instruction")");
}

// Made by gzip and zstd of one JSON line: {"text": "a"}
TEST_F(ReadRecords, CompressedFiles) {
  const auto bytes = [](std::initializer_list<int> values) {
    std::string text;
    for (const int value : values) text += static_cast<char>(value);
    return text;
  };
  const auto gzip = bytes({0x1f, 0x8b, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0x03, 0xab, 0x56,
                           0x2a, 0x49, 0xad, 0x28, 0x51, 0xb2, 0x52, 0x50, 0x4a, 0x54, 0xaa, 0xe5,
                           0x02, 0x00, 0xbd, 0xd2, 0x2a, 0x20, 0x0e, 0x00, 0x00, 0x00});
  const auto zstd = bytes({0x28, 0xb5, 0x2f, 0xfd, 0x04, 0x58, 0x71, 0x00, 0x00, 0x7b, 0x22, 0x74, 0x65, 0x78,
                           0x74, 0x22, 0x3a, 0x20, 0x22, 0x61, 0x22, 0x7d, 0x0a, 0xfc, 0x0c, 0x48, 0x58});
  EXPECT_EQ(read(gzip, "a.json.gz").rows.size(), 1U);
  EXPECT_EQ(read(gzip + gzip, "two.jsonl.gz").rows.size(), 2U) << "members follow each other";
  EXPECT_EQ(read(zstd, "a.jsonl.zst").rows[0].output, "a");
  EXPECT_EQ(read(zstd + zstd, "two.jsonl.zst").rows.size(), 2U);
  for (std::size_t length = 4; length < gzip.size(); ++length) {
    EXPECT_CONTAINS(error(gzip.substr(0, length), "cut.json.gz"), "the gzip data is damaged: ");
  }
  for (std::size_t length = 4; length < zstd.size(); ++length) {
    EXPECT_CONTAINS(error(zstd.substr(0, length), "cut.json.zst"),
                    "the zstd data is damaged: it is cut short");
  }
  EXPECT_CONTAINS(error(gzip + "more", "tail.json.gz"), "damaged");
}

TEST_F(ReadRecords, FiftyThousandRowsTakeWellUnderASecond) {
#if defined(__SANITIZE_ADDRESS__) || !defined(NDEBUG)
  GTEST_SKIP() << "timed in release builds only";
#endif
  std::string rows = "[";
  const std::string output(700, 'x');
  for (int i = 0; i < 50'000; ++i) {
    rows += i == 0 ? "\n" : ",\n";
    rows += R"({"instruction": "Give three tips for staying healthy.", "input": "", "output": ")" + output +
            "\"}";
  }
  const auto file = folder_.write("rows.json", rows + "\n]");
  const auto start = std::chrono::steady_clock::now();
  const auto records = read_records({file});
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_EQ(records.rows.size(), 50'000U);
  RecordProperty("seconds", std::to_string(took.count()));
  EXPECT_LT(took.count(), 2.0);  // a tenth of that on an idle machine
}

TEST(ReadRecordsData, EqualsAPlainParserOnRealRows) {
  const char* data = std::getenv("RANKTUNE_TEST_DATA");
  const auto folder = fs::path(data == nullptr ? "" : data) / "alpaca";
  if (!fs::exists(folder)) GTEST_SKIP() << "RANKTUNE_TEST_DATA holds no alpaca rows";
  for (const std::string name : {"alpaca_cleaned_5000.json", "alpaca_zh_1000.json"}) {
    const auto records = read_records({folder / name});
    const auto expected = nlohmann::json::parse(read_file(folder / name));
    ASSERT_EQ(records.rows.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(records.rows[i].instruction, expected[i].at("instruction"));
      EXPECT_EQ(records.rows[i].input, expected[i].at("input"));
      EXPECT_EQ(records.rows[i].output, expected[i].at("output"));
    }
  }
}

}  // namespace
}  // namespace ranktune::data
