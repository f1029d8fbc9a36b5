// What a run leaves behind for others: the adapter folder.
#pragma once

#include <filesystem>
#include <string>

#include "export/adapter.hpp"

namespace ranktune::train {

// Tells this process's temporary directories from others': host, pid and a random number.
std::string attempt_name();

// FOLDER with the adapter, replaced as a whole.
void save_adapter(const std::filesystem::path& folder, const exporting::Adapter& adapter,
                  const std::filesystem::path& tokenizer_folder);

}  // namespace ranktune::train
