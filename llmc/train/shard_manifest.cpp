#include "llmc/train/shard_manifest.h"

#include <algorithm>
#include <filesystem>

#include "llmc/base/text.h"

namespace fs = std::filesystem;

std::vector<ShardFolder> shard_folders(const std::string& pattern) {
  std::vector<ShardFolder> folders;
  for (const fs::path shard : glob(pattern)) {
    const std::string folder = shard.has_parent_path() ? shard.parent_path().string() : ".";
    const bool known =
        std::any_of(folders.begin(), folders.end(), [&](const ShardFolder& other) { return other.path == folder; });
    if (shard.extension() != ".bin" || known) continue;
    folders.push_back({folder, nullptr});
    const fs::path manifest = fs::path(folder) / "manifest.json";
    if (!fs::exists(manifest)) continue;
    const Json content = Json::read(manifest.string());
    const Json* format = content.is_object() ? content.find("format") : nullptr;
    if (format && format->is_string() && format->as_string() == "train_llama shards 1")
      folders.back().manifest = content;
  }
  return folders;
}
