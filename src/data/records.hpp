// Rows of an alpaca-format dataset: a JSON array, or JSON Lines.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace ranktune::data {

struct AlpacaRow {
  std::string instruction;
  std::string input;  // may be empty
  std::string output;
};

struct Records {
  std::vector<AlpacaRow> rows;
  std::string digest;  // content hash of the file(s) read
};

// Reads a .json file (an array of objects, an object with such an array under "data", or JSON Lines all the
// same), a .jsonl file, or a folder that holds exactly one of these, itself or in its subfolder data/
// (several: UserError lists them and says to name one; files about a dataset, such as dataset_infos.json, do
// not count). "instruction" and "output" must be strings, "input" a string, null or absent; other keys are
// ignored. Throws UserError with file, row (from 1) and line for malformed JSON, a wrong type, a missing
// column (naming the columns found); with file and line for invalid UTF-8; and for Parquet or no rows at all.
Records read_alpaca(const std::filesystem::path& path);

}  // namespace ranktune::data
