// Names of the Hugging Face Hub resolved in the local cache, without network.
#pragma once

#include <filesystem>
#include <string>

namespace ranktune::data {

enum class HubKind { model, dataset };

// A folder or file that exists is returned as it is. Otherwise `name` ("owner/name" or "name") is looked up
// as <cache>/{models,datasets}--owner--name/snapshots/<commit of refs/main>, without refs/main as the only
// snapshot there is, where <cache> is HF_HUB_CACHE,
// else HUGGINGFACE_HUB_CACHE, else HF_HOME/hub, else XDG_CACHE_HOME/huggingface/hub, else
// ~/.cache/huggingface/hub. Links into blobs/ are followed. Throws UserError that says where it looked and
// what to run: `hf download NAME [--repo-type dataset]`.
std::filesystem::path resolve_hub_name(const std::string& name, HubKind kind);

}  // namespace ranktune::data
