#include "data/records.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "base/error.hpp"
#include "base/file.hpp"
#include "data/data_files.hpp"
#include "data/json_scanner.hpp"
#include "data/parallel.hpp"

namespace ranktune::data {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

struct FormatFacts {
  RowFormat format;
  std::string_view name;     // as --dataset_format has it
  std::string_view columns;  // in words
};
constexpr FormatFacts kFormats[] = {
    {RowFormat::alpaca, "alpaca", R"("instruction" and "output", and perhaps "input")"},
    {RowFormat::prompt_completion, "prompt_completion", R"("prompt" and "completion")"},
    {RowFormat::text, "text", R"("text")"},
    {RowFormat::messages, "messages", R"("messages", each with "role" and "content")"},
    {RowFormat::conversations, "conversations", R"("conversations", each with "from" and "value")"},
    {RowFormat::raw_text, "raw text", ""},  // a name that is no choice of --dataset_format
};

const FormatFacts& facts_of(RowFormat format) {
  return kFormats[static_cast<std::size_t>(format)];
}

// A text that may be anything, for an error message: escaped, and cut where it is long.
std::string quoted_name(std::string_view text) {
  constexpr std::size_t kLongest = 60;
  std::string cut(text.substr(0, kLongest));
  if (cut.size() < text.size()) cut += "...";
  return Json(cut).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string columns_of(const Json& row) {
  constexpr std::size_t kMost = 20;
  if (row.empty()) return "none";
  std::string names;
  std::size_t count = 0;
  for (const auto& item : row.items()) {
    if (count++ == kMost) return names + ", ...";
    if (!names.empty()) names += ", ";
    names += quoted_name(item.key());
  }
  return names;
}

// --- one row
// ------------------------------------------------------------------------------------------------

// What was found in the place of a string.
std::string found_instead(const Json& value) {
  return value.is_number() || value.is_boolean() ? value.dump() : std::string(value.type_name());
}

// The row that is being read: where it stands, what it holds, and what it should be.
struct RowSource {
  JsonPlace place;
  Json& row;
  const FormatFacts& facts;
};

[[noreturn]] void fail_missing(const RowSource& source, std::string_view column) {
  json_error(source.place,
             fmt::format("no column \"{}\"; columns found: {} (a row of the format {} has {})", column,
                         columns_of(source.row), source.facts.name, source.facts.columns));
}

std::string text_column(const RowSource& source, const char* column, bool required = true) {
  const auto found = source.row.find(column);
  if (found == source.row.end()) {
    if (!required) return {};
    fail_missing(source, column);
  }
  if (found->is_null() && !required) return {};
  if (!found->is_string()) {
    json_error(source.place, fmt::format("column \"{}\" must be a string{}, but is {}", column,
                                         required ? "" : " or null", found_instead(*found)));
  }
  return std::move(found->get_ref<std::string&>());
}

// ShareGPT's names of who speaks, as the role that chat templates know.
std::optional<std::string> role_of_speaker(std::string_view from) {
  if (from == "human" || from == "user") return "user";
  if (from == "gpt" || from == "chatgpt" || from == "assistant") return "assistant";
  if (from == "system") return "system";
  return std::nullopt;
}

// One message of a row, checked.
class MessageSource {
 public:
  MessageSource(const RowSource& source, const char* column, std::size_t number, Json& item)
      : source_(source), column_(column), number_(number), item_(item) {
    if (!item.is_object()) fail(fmt::format("must be an object, but is {}", found_instead(item)));
    // Nothing that the model should see is left out in silence.
    for (const char* other : {"tool_calls", "function_call"}) {
      if (item.contains(other) && !item[other].is_null()) {
        fail(fmt::format("has \"{}\", and tools are not supported; leave such rows out", other));
      }
    }
  }
  [[noreturn]] void fail(const std::string& what) const {
    json_error(source_.place, fmt::format("message {} of \"{}\" {}", number_, column_, what));
  }
  const std::string& text(const char* key) const {
    const auto value = item_.find(key);
    if (value == item_.end()) fail(fmt::format("has no \"{}\"; keys found: {}", key, columns_of(item_)));
    if (!value->is_string())
      fail(fmt::format("must have a string as \"{}\", but has {}", key, found_instead(*value)));
    return value->get_ref<const std::string&>();
  }
  // {"from", "value"} as {"role", "content"}.
  Json said() const {
    const std::string& from = text("from");
    const auto role = role_of_speaker(from);
    if (!role) {
      fail(fmt::format("is from {}; known are human, user, gpt, chatgpt, assistant and system",
                       quoted_name(from)));
    }
    return {{"role", *role}, {"content", text("value")}};
  }

 private:
  const RowSource& source_;
  const char* column_;
  std::size_t number_;
  Json& item_;
};

// The messages of a column, each a role and a content, with what else they hold if they came in that form.
Json message_column(const RowSource& source, const char* column, bool may_be_sharegpt) {
  const auto found = source.row.find(column);
  if (found == source.row.end()) fail_missing(source, column);
  if (!found->is_array() || found->empty()) {
    json_error(source.place, fmt::format("column \"{}\" must be an array of messages, but is {}", column,
                                         found->is_array() ? "an empty one" : found_instead(*found)));
  }
  const Json tools = source.row.value("tools", Json());
  if ((tools.is_structured() && !tools.empty()) ||
      (tools.is_string() && !tools.get_ref<const std::string&>().empty())) {
    json_error(source.place, "the row has \"tools\", which are not supported; leave such rows out");
  }
  Json messages = Json::array();
  for (Json& item : *found) {
    const MessageSource message(source, column, messages.size() + 1, item);
    if (may_be_sharegpt && !item.contains("role")) {
      messages.push_back(message.said());
      continue;
    }
    message.text("role");
    message.text("content");
    messages.push_back(std::move(item));
  }
  return messages;
}

// The library's words without its prefix "[json.exception...] parse error at line L, column C: ", which count
// from the row's start.
std::string_view reason(const Json::exception& error) {
  std::string_view what = error.what();
  if (const auto bracket = what.find("] "); bracket != std::string_view::npos)
    what.remove_prefix(bracket + 2);
  if (!what.starts_with("parse error at ")) return what;
  const auto colon = what.find(": ");
  return colon == std::string_view::npos ? what : what.substr(colon + 2);
}

Json parse_object(const JsonPlace& at, const JsonSpan& span) {
  JsonPlace place = at;
  Json row;
  try {
    row = Json::parse(span.text.begin(), span.text.end());
  } catch (const Json::parse_error& error) {
    const auto before = span.text.substr(0, error.byte);
    place.line += std::count(before.begin(), before.end(), '\n');
    json_error(place, fmt::format("not valid JSON: {}", reason(error)));
  } catch (const Json::out_of_range& error) {  // a number that no double holds
    json_error(place, fmt::format("not readable: {}", reason(error)));
  }
  if (!row.is_object()) {
    json_error(place, fmt::format("expected an object, found {}; a row is an object whose columns are text",
                                  json_kind(span.text.front())));
  }
  return row;
}

// The value of `key` in the object that the span holds; of several the last, as JSON parsers do.
std::optional<JsonSpan> member(std::string_view file, const JsonSpan& object, std::string_view key) {
  JsonScanner scanner(file, object);
  std::optional<JsonSpan> found;
  if (!scanner.accept('{') || scanner.accept('}')) return found;
  do {
    if (scanner.peek() != '"') scanner.fail_expected("a key");
    const auto name = scanner.value().text;
    if (!scanner.accept(':')) scanner.fail_expected("':' after the key");
    const auto value = scanner.value();
    if (name.substr(1, name.size() - 2) == key) found = value;
  } while (scanner.accept(','));
  if (!scanner.accept('}')) scanner.fail_expected("',' or '}' after the value");
  return found;
}

// The column as it stands in the row, on one line: a template may write the keys of a message in their order.
std::string column_text(const JsonPlace& place, const JsonSpan& span, const char* column, const Json& value) {
  const auto found = member(place.file, span, column);
  std::string text = found ? std::string(found->text) : value.dump();
  std::replace(text.begin(), text.end(), '\n', ' ');
  std::replace(text.begin(), text.end(), '\r', ' ');
  return text;
}

// The format whose columns the row has. Of several the one that says most: a dataset with "instruction" may
// have a ready-made "text" as well, one with "messages" its first "prompt".
RowFormat recognise(const JsonPlace& place, const Json& row) {
  const auto has = [&](const char* column) { return row.contains(column); };
  if (has("instruction")) return RowFormat::alpaca;
  if (has("messages")) return RowFormat::messages;
  if (has("conversations")) return RowFormat::conversations;
  if (has("completion")) return RowFormat::prompt_completion;
  if (has("text")) return RowFormat::text;
  if (has("output")) return RowFormat::alpaca;
  if (has("prompt")) return RowFormat::prompt_completion;
  std::string known;
  for (const FormatFacts& facts : kFormats) {
    if (facts.format == RowFormat::raw_text) continue;
    known += fmt::format("{}{} ({})", known.empty() ? "" : ", ", facts.name, facts.columns);
  }
  json_error(place, fmt::format("no known format; columns found: {}; known are {}", columns_of(row), known));
}

Row parse_row(const JsonPlace& place, const JsonSpan& span, RowFormat format) {
  Json json = parse_object(place, span);
  const RowSource source{place, json, facts_of(format)};
  Row row;
  switch (format) {
    case RowFormat::alpaca:
      row.instruction = text_column(source, "instruction");
      row.input = text_column(source, "input", false);
      row.output = text_column(source, "output");
      break;
    case RowFormat::prompt_completion:
      row.instruction = text_column(source, "prompt");
      row.output = text_column(source, "completion");
      break;
    case RowFormat::raw_text:
      throw Failure("plain text has no rows");
    case RowFormat::text:
      row.output = text_column(source, "text");
      break;
    case RowFormat::messages:
      row.messages = column_text(place, span, "messages", message_column(source, "messages", false));
      break;
    case RowFormat::conversations: {
      Json messages = message_column(source, "conversations", true);
      if (std::string system = text_column(source, "system", false); !system.empty()) {
        const Json message = {{"role", "system"}, {"content", std::move(system)}};
        messages.insert(messages.begin(), message);
      }
      row.messages = messages.dump();
      break;
    }
  }
  return row;
}

void parse_rows(std::string_view file, const std::vector<JsonSpan>& spans, RowFormat format,
                std::vector<Row>& rows) {
  constexpr std::size_t kMostThreads = 8;
  ParallelOptions parallel;
  parallel.threads = std::clamp<std::size_t>(std::thread::hardware_concurrency(), 1, kMostThreads);
  parallel.block = 1024;
  const std::size_t before = rows.size();
  rows.resize(before + spans.size());
  for_each_block(spans.size(), parallel, [&](std::size_t, std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      const JsonPlace place{file, static_cast<std::int64_t>(i) + 1, spans[i].line};
      rows[before + i] = parse_row(place, spans[i], format);
    }
  });
}

// --- where the rows are
// -------------------------------------------------------------------------------------

// The elements of the array that comes next.
std::vector<JsonSpan> array_rows(JsonScanner& scanner) {
  std::vector<JsonSpan> rows;
  if (!scanner.accept('[')) scanner.fail_expected("an array of rows");
  if (scanner.accept(']')) return rows;
  do {
    scanner.set_row(static_cast<std::int64_t>(rows.size()) + 1);
    rows.push_back(scanner.value());
  } while (scanner.accept(','));
  if (!scanner.accept(']')) scanner.fail_expected("',' or ']' after the row");
  scanner.set_row(0);
  return rows;
}

// JSON Lines: one value a line; empty lines are skipped.
std::vector<JsonSpan> line_rows(std::string_view file, std::string_view text) {
  std::vector<JsonSpan> rows;
  std::int64_t line = 0;
  while (!text.empty()) {
    const auto length = std::min(text.find('\n'), text.size());
    JsonScanner scanner(file, {text.substr(0, length), ++line}, "line");
    text.remove_prefix(std::min(length + 1, text.size()));
    if (scanner.at_end()) continue;
    scanner.set_row(static_cast<std::int64_t>(rows.size()) + 1);
    rows.push_back(scanner.value());
    if (!scanner.at_end()) scanner.fail_expected("the end of the line (JSON Lines: one row a line)");
  }
  return rows;
}

// What begins with an object: rows under "data", a single row, or (the name .json notwithstanding) JSON
// Lines.
std::vector<JsonSpan> object_rows(std::string_view file, std::string_view text) {
  JsonScanner scanner(file, {text, 1});
  const auto object = scanner.value();
  if (!scanner.at_end()) return line_rows(file, text);
  const auto data = member(file, object, "data");
  if (!data || data->text.front() != '[') return {object};
  JsonScanner inside(file, *data);
  return array_rows(inside);
}

std::vector<JsonSpan> find_rows(const fs::path& path, std::string_view file, std::string_view text) {
  JsonScanner scanner(file, {text, 1});
  if (scanner.peek() == '[') {
    auto rows = array_rows(scanner);
    if (!scanner.at_end()) scanner.fail_expected("the end of the file");
    return rows;
  }
  if (data_extension(path) == ".jsonl") return line_rows(file, text);
  if (scanner.peek() == '{') return object_rows(file, text);
  scanner.fail_expected("an array of rows");
}

// --- files
// --------------------------------------------------------------------------------------------------

void check_text(std::string_view file, std::string_view text) {
  if (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF")) {
    json_error({file}, "is UTF-16; convert it to UTF-8 with: iconv -f UTF-16 -t UTF-8");
  }
  if (const auto bad = find_invalid_utf8(text); bad != std::string_view::npos) {
    const auto before = text.substr(0, bad);
    json_error({file, 0, 1 + std::count(before.begin(), before.end(), '\n')},
               fmt::format("invalid UTF-8: byte 0x{:02x}", static_cast<unsigned char>(text[bad])));
  }
}

// The text of a file, which holds some, without a byte order mark.
std::string_view checked_text(std::string_view file, std::string_view text) {
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  check_text(file, text);
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) json_error({file}, "is empty");
  return text;
}

// Appends the rows of one file; the first row of all decides the format, unless it is given.
void read_rows(const fs::path& path, const ReadOptions& options, std::optional<RowFormat>& format,
               Records& records) {
  const std::string content = read_data_file(path);
  const std::string file = path.string();
  const std::string_view text = checked_text(file, content);
  auto spans = find_rows(path, file, text);
  if (spans.empty()) json_error({file}, "holds no rows");
  if (options.limit > 0) {
    const auto left = static_cast<std::size_t>(options.limit) - records.rows.size();
    spans.resize(std::min(spans.size(), left));
  }
  if (!format) {
    const JsonPlace first{file, 1, spans.front().line};
    format = recognise(first, parse_object(first, spans.front()));
  }
  parse_rows(file, spans, *format, records.rows);
  records.digest =
      records.digest.empty() ? content_hash(content) : content_hash(records.digest + content_hash(content));
}

}  // namespace

std::string_view format_name(RowFormat format) {
  return facts_of(format).name;
}

std::optional<RowFormat> parse_format(std::string_view name) {
  for (const FormatFacts& facts : kFormats) {
    if (facts.name == name) return facts.format;
  }
  return std::nullopt;
}

Records read_records(const std::vector<fs::path>& sources, const ReadOptions& options) {
  Records records;
  std::optional<RowFormat> format = options.format;
  for (const fs::path& source : sources) {
    for (const fs::path& file : data_files(source)) {
      if (options.limit > 0 && std::cmp_greater_equal(records.rows.size(), options.limit)) break;
      read_rows(file, options, format, records);
    }
  }
  if (records.rows.empty()) throw UserError("no dataset is named");
  records.format = *format;
  return records;
}

Records read_raw_text(const fs::path& path) {
  const auto extension = data_extension(path);
  for (const char* rows : {".json", ".jsonl", ".csv", ".parquet"}) {
    if (extension == rows) {
      throw UserError(
          fmt::format("{} is not plain text but rows; give JSON rows to --dataset", path.string()));
    }
  }
  const std::string content = read_data_file(path);
  Records records;
  records.format = RowFormat::raw_text;
  records.digest = content_hash(content);
  std::string& text = records.rows.emplace_back().output;
  for (const char c : checked_text(path.string(), content)) {
    // \r\n and \r alone are line ends too.
    if (c == '\n' && text.ends_with('\r')) text.pop_back();
    if (text.ends_with('\r')) text.back() = '\n';
    text += c;
  }
  if (text.ends_with('\r')) text.back() = '\n';
  return records;
}

}  // namespace ranktune::data
