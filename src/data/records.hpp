// Rows of a dataset: JSON arrays or JSON Lines, in one of five formats, and plain text.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ranktune::data {

enum class RowFormat {
  alpaca,             // "instruction", "output", perhaps "input"
  prompt_completion,  // "prompt", "completion"
  text,               // "text"
  messages,           // "messages": [{"role", "content"}, ...]
  conversations,      // ShareGPT: "conversations": [{"from", "value"}, ...], perhaps "system"
  raw_text            // no rows: read_raw_text
};
// As --dataset_format has it.
std::string_view format_name(RowFormat format);
std::optional<RowFormat> parse_format(std::string_view name);

struct Row {
  std::string instruction{};  // alpaca; the prompt of a completion
  std::string input{};        // alpaca; may be empty
  std::string output{};       // alpaca; the completion; the text
  // messages and conversations: a JSON array of objects with the strings "role" and "content", and whatever
  // else the rows of the format messages have for the chat template.
  std::string messages{};
};

struct Records {
  std::vector<Row> rows;
  RowFormat format = RowFormat::alpaca;
  std::string digest;  // content hash of the file(s) read
};

struct ReadOptions {
  std::optional<RowFormat> format{};  // none: recognised from the first row
  std::int64_t limit = 0;             // at most so many rows, the first ones; 0: all
};

// Reads the sources one after the other, each a file or a folder (data_files.hpp), plain or compressed with
// gzip or zstd. A file is an array of objects, an object with such an array under "data", or JSON Lines,
// whatever its name. All rows have the format of the first one; columns that the format does not know are
// ignored. Throws UserError with file, row (from 1, in its file) and line for malformed JSON, a wrong type, a
// missing column (naming the columns found); with file and line for invalid UTF-8; and for Parquet or no rows
// at all.
Records read_records(const std::vector<std::filesystem::path>& sources, const ReadOptions& options = {});

// A file of plain text, plain or compressed, as one row with the text as its output; line ends are made \n.
// Throws UserError for what is no text, and for JSON and CSV.
Records read_raw_text(const std::filesystem::path& path);

}  // namespace ranktune::data
