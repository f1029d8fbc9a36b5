// A folder of a test's own, gone at its end, and the sentence of a UserError.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "base/error.hpp"

namespace ranktune::test {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "ranktune-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw Failure("cannot make " + name);
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

  // Writes a file below the folder, with the folders that lead to it.
  std::filesystem::path write(const std::filesystem::path& name, std::string_view content) const {
    const auto file = path_ / name;
    std::filesystem::create_directories(file.parent_path());
    std::filesystem::remove(file);  // truncating a file makes some file systems flush it at close
    std::ofstream out(file, std::ios::binary);
    out.write(content.data(), static_cast<std::streamsize>(content.size()));
    out.close();
    if (!out) throw Failure("cannot write " + file.string());
    return file;
  }

 private:
  std::filesystem::path path_;
};

// What the UserError says that `action` throws; a test failure and "" when it throws none.
template <typename Action>
std::string user_error(Action&& action) {
  try {
    action();
  } catch (const UserError& error) {
    return error.what();
  }
  ADD_FAILURE() << "no UserError was thrown";
  return "";
}

inline bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

inline testing::AssertionResult contains_part(const char*, const char*, const std::string& text,
                                              const std::string& part) {
  if (contains(text, part)) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "\"" << part << "\"\nis missing in\n\"" << text << "\"";
}

}  // namespace ranktune::test

#define EXPECT_CONTAINS(text, part) EXPECT_PRED_FORMAT2(::ranktune::test::contains_part, text, part)
