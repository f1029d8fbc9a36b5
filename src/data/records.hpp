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

// Reads a .json (array of objects; also an object with one array under "data"), or .jsonl file; or a folder
// that holds exactly one such file (several: UserError lists them and says to name one). "instruction" and
// "output" must be strings, "input" a string, null or absent; other keys are ignored. Throws UserError with
// file, row and line number for malformed JSON, a wrong type, a missing column (naming the columns found),
// invalid UTF-8 or no rows at all.
Records read_alpaca(const std::filesystem::path& path);

}  // namespace ranktune::data
