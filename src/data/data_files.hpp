// Which files make a dataset, and their text, compressed or not.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace ranktune::data {

// A file is itself. A folder is its .json and .jsonl files (also .gz and .zst), in the order of their names,
// or those of its subfolder data/; files about a dataset, such as dataset_infos.json, do not count. Throws
// UserError where there are none, where a name tells of another split (test, validation, eval), and for
// Parquet.
std::vector<std::filesystem::path> data_files(const std::filesystem::path& source);

// ".json" of "rows.json.gz": the extension without that of the compression.
std::filesystem::path data_extension(const std::filesystem::path& path);

// The content; gzip and zstd, recognised by their first bytes, are decompressed. Throws UserError that names
// the file where it cannot be read or is damaged.
std::string read_data_file(const std::filesystem::path& path);

}  // namespace ranktune::data
