#include "data/records.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "base/error.hpp"
#include "base/file.hpp"
#include "data/json_scanner.hpp"
#include "data/parallel.hpp"

namespace ranktune::data {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr std::string_view kFormat =
    R"(a row has "instruction" and "output", and may have "input", each of them text)";

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

std::string text_column(const JsonPlace& place, Json& row, const char* column, bool required) {
  const auto found = row.find(column);
  if (found == row.end()) {
    if (!required) return {};
    json_error(place,
               fmt::format("no column \"{}\"; columns found: {} ({})", column, columns_of(row), kFormat));
  }
  if (found->is_null() && !required) return {};
  if (!found->is_string()) {
    const bool is_short = found->is_number() || found->is_boolean();
    json_error(place,
               fmt::format("column \"{}\" must be a string{}, but is {}", column, required ? "" : " or null",
                           is_short ? found->dump() : std::string(found->type_name())));
  }
  return std::move(found->get_ref<std::string&>());
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

AlpacaRow parse_row(std::string_view file, std::int64_t number, const JsonSpan& span) {
  JsonPlace place{file, number, span.line};
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
    json_error(place, fmt::format("expected an object, found {}; {}", json_kind(span.text.front()), kFormat));
  }
  AlpacaRow parsed;
  parsed.instruction = text_column(place, row, "instruction", true);
  parsed.input = text_column(place, row, "input", false);
  parsed.output = text_column(place, row, "output", true);
  return parsed;
}

std::vector<AlpacaRow> parse_rows(std::string_view file, const std::vector<JsonSpan>& spans) {
  constexpr std::size_t kMostThreads = 8;
  ParallelOptions parallel;
  parallel.threads = std::clamp<std::size_t>(std::thread::hardware_concurrency(), 1, kMostThreads);
  parallel.block = 1024;
  std::vector<AlpacaRow> rows(spans.size());
  for_each_block(spans.size(), parallel, [&](std::size_t, std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      rows[i] = parse_row(file, static_cast<std::int64_t>(i) + 1, spans[i]);
    }
  });
  return rows;
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
  if (path.extension() == ".jsonl") return line_rows(file, text);
  if (scanner.peek() == '{') return object_rows(file, text);
  scanner.fail_expected("an array of rows");
}

// --- files
// --------------------------------------------------------------------------------------------------

[[noreturn]] void fail_parquet(const std::string& what, const std::string& files) {
  throw UserError(fmt::format(
      "{} is Parquet, which is not read; convert it to JSON with: python -c 'import sys, pandas as p; "
      "p.concat(map(p.read_parquet, sys.argv[1:])).to_json(\"alpaca.json\", orient=\"records\")' {}",
      what, files));
}

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

Records read_rows(const fs::path& path) {
  if (path.extension() == ".parquet") fail_parquet(path.string(), path.string());
  const std::string content = read_file(path);
  const std::string file = path.string();
  std::string_view text = content;
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  check_text(file, text);
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) json_error({file}, "is empty");
  const auto spans = find_rows(path, file, text);
  if (spans.empty()) json_error({file}, "holds no rows");
  Records records;
  records.rows = parse_rows(file, spans);
  records.digest = content_hash(content);
  return records;
}

bool is_rows_file(const fs::path& path) {
  // Files that describe a dataset or a download instead of holding its rows.
  static constexpr std::string_view kAbout[] = {"dataset_infos.json", "dataset_info.json",
                                                "dataset_dict.json", "state.json", "config.json"};
  const std::string name = path.filename().string();
  const bool is_about = std::find(std::begin(kAbout), std::end(kAbout), name) != std::end(kAbout);
  return (path.extension() == ".json" || path.extension() == ".jsonl") && !is_about && name.front() != '.';
}

// Regular files in the folder, sorted.
std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code ignored;
    if (entry->is_regular_file(ignored)) files.push_back(entry->path());
  }
  if (error) throw UserError(fmt::format("cannot read the folder {}: {}", folder.string(), error.message()));
  std::sort(files.begin(), files.end());
  return files;
}

// The one data file of a folder, or of its subfolder data/ where Hub datasets often keep theirs.
fs::path rows_file_in(const fs::path& folder) {
  std::string parquet;
  for (const auto& place : {folder, folder / "data"}) {
    std::error_code ignored;
    if (!fs::is_directory(place, ignored)) continue;
    std::vector<fs::path> found;
    for (const auto& file : files_in(place)) {
      if (is_rows_file(file)) found.push_back(file);
      if (file.extension() == ".parquet") parquet = (place / "*.parquet").string();
    }
    if (found.size() == 1) return found.front();
    if (found.empty()) continue;
    std::string names;
    for (const auto& file : found) {
      names.append(names.empty() ? "" : ", ").append(file.filename().string());
    }
    throw UserError(fmt::format("{} holds {} data files ({}); name one of them as the dataset",
                                place.string(), found.size(), names));
  }
  if (!parquet.empty()) fail_parquet(fmt::format("the dataset in {}", folder.string()), parquet);
  throw UserError(fmt::format("{} holds no .json or .jsonl file with rows", folder.string()));
}

}  // namespace

Records read_alpaca(const fs::path& path) {
  std::error_code error;
  return read_rows(fs::is_directory(path, error) ? rows_file_in(path) : path);
}

}  // namespace ranktune::data
