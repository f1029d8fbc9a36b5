#include "model/weights.hpp"

#include <nlohmann/json.hpp>
#include <set>

#include "base/error.hpp"
#include "base/file.hpp"

namespace ranktune::model {
namespace {

// Shard file names of an index; each a plain name inside the folder, never a path that could leave it.
std::map<std::string, std::string> read_index(const std::filesystem::path& path) {
  const auto object = nlohmann::json::parse(read_file(path), nullptr, false);
  if (object.is_discarded() || !object.is_object() || !object.contains("weight_map") ||
      !object.at("weight_map").is_object()) {
    throw UserError(path.string() + ": is not a safetensors index (no \"weight_map\")");
  }
  std::map<std::string, std::string> files;
  for (const auto& [name, file] : object.at("weight_map").items()) {
    if (!file.is_string())
      throw UserError(path.string() + ": the file of tensor \"" + name + "\" is not a string");
    const auto text = file.get<std::string>();
    if (text.empty() || text.find('/') != std::string::npos || text == "." || text == "..") {
      throw UserError(path.string() + ": the file \"" + text + "\" of tensor \"" + name +
                      "\" is not a plain file name");
    }
    files[name] = text;
  }
  return files;
}

}  // namespace

WeightFiles::WeightFiles(const std::filesystem::path& folder) : folder_(folder) {
  const auto single = folder / "model.safetensors";
  const auto index = folder / "model.safetensors.index.json";
  if (std::filesystem::exists(single)) {
    files_.push_back(std::make_unique<SafetensorsFile>(single));
    for (const auto& [name, entry] : files_.back()->entries()) where_[name] = files_.back().get();
  } else if (std::filesystem::exists(index)) {
    std::map<std::string, const SafetensorsFile*> opened;
    for (const auto& [name, file] : read_index(index)) {
      if (!opened.contains(file)) {
        files_.push_back(std::make_unique<SafetensorsFile>(folder / file));
        opened[file] = files_.back().get();
      }
      if (!opened[file]->contains(name)) {
        throw UserError((folder / file).string() + ": tensor \"" + name +
                        "\" is missing, though the index places it here");
      }
      where_[name] = opened[file];
    }
  } else {
    throw UserError(folder.string() + ": holds neither model.safetensors nor model.safetensors.index.json");
  }
  for (const auto& [name, file] : where_) total_bytes_ += file->data(name).size();
}

WeightView WeightFiles::view(const std::string& name) const {
  const auto found = where_.find(name);
  if (found == where_.end())
    throw UserError(folder_.string() + ": the weights hold no tensor \"" + name + "\"");
  const auto& entry = found->second->entries().at(name);
  return {entry.dtype, entry.shape, found->second->data(name)};
}

std::vector<std::string> WeightFiles::names() const {
  std::vector<std::string> all;
  for (const auto& [name, file] : where_) all.push_back(name);
  return all;
}

}  // namespace ranktune::model
