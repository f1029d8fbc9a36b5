#include "data/hub.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/error.hpp"
#include "base/file.hpp"

namespace ranktune::data {
namespace {

namespace fs = std::filesystem;

// A variable that is set and not empty, with a leading "~/" expanded as huggingface_hub does.
std::optional<fs::path> variable(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): nobody writes the environment
  if (value == nullptr || *value == '\0') return std::nullopt;
  const std::string_view text(value);
  if (text.starts_with("~/")) {
    if (const auto home = variable("HOME")) return *home / text.substr(2);
  }
  return fs::path(text);
}

fs::path hub_cache() {
  if (const auto cache = variable("HF_HUB_CACHE")) return *cache;
  if (const auto cache = variable("HUGGINGFACE_HUB_CACHE")) return *cache;
  if (const auto home = variable("HF_HOME")) return *home / "hub";
  if (const auto cache = variable("XDG_CACHE_HOME")) return *cache / "huggingface" / "hub";
  if (const auto home = variable("HOME")) return *home / ".cache" / "huggingface" / "hub";
  throw UserError("the Hugging Face cache cannot be found: none of HF_HUB_CACHE, HF_HOME and HOME is set");
}

// The Hub's rule for one part of a name.
bool is_name_part(std::string_view part) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  const auto is_edge = [](char c) { return c == '.' || c == '-'; };
  return !part.empty() && part.size() <= 96 && std::all_of(part.begin(), part.end(), allowed) &&
         !is_edge(part.front()) && !is_edge(part.back()) && part.find("--") == std::string_view::npos &&
         part.find("..") == std::string_view::npos;
}

bool is_hub_name(std::string_view name) {
  // Nobody means a repository by these.
  for (const std::string_view ending : {".json", ".jsonl", ".parquet", ".safetensors", ".git"}) {
    if (name.ends_with(ending)) return false;
  }
  const auto slash = name.find('/');
  if (slash == std::string_view::npos) return is_name_part(name);
  return is_name_part(name.substr(0, slash)) && is_name_part(name.substr(slash + 1));
}

// What a name means in the cache, and the words for it.
struct Lookup {
  const std::string& name;
  std::string_view noun;  // "model" or "dataset"
  fs::path folder;        // <cache>/models--owner--name
  std::string command;    // hf download ...
};

Lookup make_lookup(const std::string& name, HubKind kind) {
  const bool is_model = kind == HubKind::model;
  std::string folder = is_model ? "models--" : "datasets--";
  for (const char c : name) folder += c == '/' ? std::string("--") : std::string(1, c);
  return {name, is_model ? "model" : "dataset", hub_cache() / folder,
          fmt::format("hf download {}{}", name, is_model ? "" : " --repo-type dataset")};
}

// The commit that refs/main names; nullopt without that file.
std::optional<std::string> commit_of_main(const Lookup& lookup) {
  const auto ref = lookup.folder / "refs" / "main";
  std::error_code error;
  if (!fs::exists(ref, error)) return std::nullopt;
  std::string commit = read_file(ref);
  while (!commit.empty() && (commit.back() == '\n' || commit.back() == '\r' || commit.back() == ' ')) {
    commit.pop_back();
  }
  const auto is_hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  if (commit.empty() || commit.size() > 64 || !std::all_of(commit.begin(), commit.end(), is_hex)) {
    throw UserError(fmt::format("{} does not hold a commit; get the {} again with: {}", ref.string(),
                                lookup.noun, lookup.command));
  }
  return commit;
}

fs::path only_snapshot(const Lookup& lookup) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator entry(lookup.folder / "snapshots", error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code ignored;
    if (entry->is_directory(ignored)) found.push_back(entry->path());
  }
  if (found.size() == 1) return found.front();
  if (found.empty()) {
    throw UserError(
        fmt::format("the {} {} is not complete in the Hugging Face cache: {} holds no snapshot; "
                    "get it with: {}",
                    lookup.noun, lookup.name, lookup.folder.string(), lookup.command));
  }
  throw UserError(
      fmt::format("{} holds {} snapshots and no refs/main that says which; name one of the folders "
                  "under {} instead of {}, or run: {}",
                  lookup.folder.string(), found.size(), (lookup.folder / "snapshots").string(), lookup.name,
                  lookup.command));
}

fs::path snapshot(const Lookup& lookup) {
  const auto commit = commit_of_main(lookup);
  const auto folder = commit ? lookup.folder / "snapshots" / *commit : only_snapshot(lookup);
  std::error_code error;
  const bool usable = fs::is_directory(folder, error) && !fs::is_empty(folder, error) && !error;
  if (!usable) {
    throw UserError(
        fmt::format("the {} {} is not complete in the Hugging Face cache: {} is missing or empty; "
                    "get it with: {}",
                    lookup.noun, lookup.name, folder.string(), lookup.command));
  }
  return folder;
}

[[noreturn]] void no_such_path(const std::string& name) {
  std::string hint;
  if (name.starts_with('~')) hint = " (the shell expands '~' only at the start of a word; write $HOME)";
  throw UserError(fmt::format("there is no such folder or file: '{}'{}", name, hint));
}

}  // namespace

fs::path resolve_hub_name(const std::string& name, HubKind kind) {
  const bool is_text = !name.empty() && name.find('\0') == std::string::npos;
  std::error_code error;
  const auto status = is_text ? fs::status(name, error) : fs::file_status(fs::file_type::not_found);
  if (fs::exists(status)) return name;
  if (error && status.type() != fs::file_type::not_found) {
    throw UserError(fmt::format("cannot read '{}': {}", name, error.message()));
  }
  if (!is_hub_name(name)) no_such_path(name);

  const auto lookup = make_lookup(name, kind);
  if (!fs::is_directory(lookup.folder, error)) {
    throw UserError(
        fmt::format("'{}' is neither a folder or file nor a {} in the Hugging Face cache (looked for {}); "
                    "get it with: {}",
                    name, lookup.noun, lookup.folder.string(), lookup.command));
  }
  return snapshot(lookup);
}

}  // namespace ranktune::data
