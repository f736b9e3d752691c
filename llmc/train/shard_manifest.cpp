#include "llmc/train/shard_manifest.h"

#include <filesystem>

#include "llmc/base/text.h"

namespace fs = std::filesystem;

std::vector<ShardFolder> shard_folders(const std::string& pattern) {
  std::vector<ShardFolder> folders;
  for (const fs::path shard : glob(pattern)) {
    const std::string folder = shard.has_parent_path() ? shard.parent_path().string() : ".";
    if (shard.extension() != ".bin" || (!folders.empty() && folders.back().path == folder)) continue;
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
