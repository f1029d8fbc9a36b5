#include "data/data_files.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cctype>
#include <limits>
#include <memory>
#include <string_view>
#include <system_error>

#include "base/error.hpp"
#include "base/file.hpp"

namespace ranktune::data {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kPiece = std::size_t{1} << 20;  // bytes decompressed at a time

[[noreturn]] void fail_damaged(const fs::path& path, std::string_view method, std::string_view why) {
  throw UserError(fmt::format("{}: the {} data is damaged: {}", path.string(), method, why));
}

// One member after the other, as gunzip does.
std::string gunzip(const fs::path& path, std::string_view packed) {
  z_stream stream{};
  RT_CHECK(inflateInit2(&stream, 16 + MAX_WBITS) == Z_OK, "zlib starts");
  const std::unique_ptr<z_stream, void (*)(z_stream*)> end(&stream, [](z_stream* s) { inflateEnd(s); });
  std::string text;
  std::size_t used = 0;
  for (int state = Z_OK; state != Z_STREAM_END || used < packed.size();) {
    if (state == Z_STREAM_END && inflateReset(&stream) != Z_OK) fail_damaged(path, "gzip", "no next member");
    const std::size_t left = packed.size() - used;
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data() + used));
    stream.avail_in = static_cast<uInt>(std::min<std::size_t>(left, std::numeric_limits<uInt>::max()));
    const uInt given = stream.avail_in;
    const std::size_t before = text.size();
    text.resize(before + kPiece);
    stream.next_out = reinterpret_cast<Bytef*>(text.data() + before);
    stream.avail_out = kPiece;
    state = inflate(&stream, Z_NO_FLUSH);
    used += given - stream.avail_in;
    text.resize(before + kPiece - stream.avail_out);
    if (state != Z_OK && state != Z_STREAM_END) {
      fail_damaged(path, "gzip",
                   state == Z_BUF_ERROR    ? "it is cut short"
                   : stream.msg == nullptr ? "no gzip header"
                                           : stream.msg);
    }
  }
  return text;
}

std::string unzstd(const fs::path& path, std::string_view packed) {
  const std::unique_ptr<ZSTD_DCtx, std::size_t (*)(ZSTD_DCtx*)> context(ZSTD_createDCtx(), ZSTD_freeDCtx);
  RT_CHECK(context != nullptr, "zstd starts");
  std::string text;
  ZSTD_inBuffer in{packed.data(), packed.size(), 0};
  std::size_t expected = 1;  // 0: at the end of a frame
  for (bool full = false; in.pos < in.size || full;) {
    const std::size_t before = text.size();
    text.resize(before + kPiece);
    ZSTD_outBuffer out{text.data() + before, kPiece, 0};
    expected = ZSTD_decompressStream(context.get(), &out, &in);
    if (ZSTD_isError(expected) != 0) fail_damaged(path, "zstd", ZSTD_getErrorName(expected));
    text.resize(before + out.pos);
    full = out.pos == out.size && expected != 0;
  }
  if (expected != 0) fail_damaged(path, "zstd", "it is cut short");
  return text;
}

[[noreturn]] void fail_parquet(const std::string& what, const std::string& files) {
  throw UserError(fmt::format(
      "{} is Parquet, which is not read; convert it to JSON with: python -c 'import sys, pandas as p; "
      "p.concat(map(p.read_parquet, sys.argv[1:])).to_json(\"rows.json\", orient=\"records\")' {}",
      what, files));
}

bool is_rows_file(const fs::path& path) {
  // Files that describe a dataset or a download instead of holding its rows.
  static constexpr std::string_view kAbout[] = {"dataset_infos.json", "dataset_info.json",
                                                "dataset_dict.json", "state.json", "config.json"};
  const std::string name = path.filename().string();
  const bool is_about = std::find(std::begin(kAbout), std::end(kAbout), name) != std::end(kAbout);
  const auto extension = data_extension(path);
  return (extension == ".json" || extension == ".jsonl") && !is_about && name.front() != '.';
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

// Whether a name has a word of a split that is not for training: "test.json", "alpaca_eval-00001.jsonl".
bool is_other_split(const fs::path& path) {
  std::string word;
  for (const char c : path.filename().string() + ".") {
    if (std::isalpha(static_cast<unsigned char>(c)) != 0) {
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      continue;
    }
    for (const std::string_view split : {"test", "validation", "valid", "val", "eval", "dev"}) {
      if (word == split) return true;
    }
    word.clear();
  }
  return false;
}

std::vector<fs::path> files_of_folder(const fs::path& folder) {
  std::string parquet;
  for (const auto& place : {folder, folder / "data"}) {
    std::error_code ignored;
    if (!fs::is_directory(place, ignored)) continue;
    std::vector<fs::path> found;
    for (const auto& file : files_in(place)) {
      if (is_rows_file(file)) found.push_back(file);
      if (file.extension() == ".parquet") parquet = (place / "*.parquet").string();
    }
    if (found.empty()) continue;
    if (found.size() > 1 && std::any_of(found.begin(), found.end(), is_other_split)) {
      std::vector<std::string> names;
      for (const auto& file : found) names.push_back(file.filename().string());
      throw UserError(fmt::format(
          "{} holds {} data files, and not all seem to be for training ({}); name those that are, "
          "with commas between",
          place.string(), found.size(), fmt::join(names, ", ")));
    }
    return found;
  }
  if (!parquet.empty()) fail_parquet(fmt::format("the dataset in {}", folder.string()), parquet);
  throw UserError(fmt::format("{} holds no .json or .jsonl file with rows", folder.string()));
}

}  // namespace

fs::path data_extension(const fs::path& path) {
  const auto extension = path.extension();
  return extension == ".gz" || extension == ".zst" ? path.stem().extension() : extension;
}

std::vector<fs::path> data_files(const fs::path& source) {
  std::error_code error;
  if (fs::is_directory(source, error)) return files_of_folder(source);
  if (source.extension() == ".parquet") fail_parquet(source.string(), source.string());
  return {source};
}

std::string read_data_file(const fs::path& path) {
  std::string content = read_file(path);
  if (content.starts_with("\x1f\x8b")) return gunzip(path, content);
  if (content.starts_with("\x28\xb5\x2f\xfd")) return unzstd(path, content);
  return content;
}

}  // namespace ranktune::data
