#include "llmc/data/shard_manifest.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <unordered_map>

#include "llmc/base/checksum.h"
#include "llmc/base/error.h"
#include "llmc/base/input_file.h"
#include "llmc/base/sha256.h"
#include "llmc/base/text.h"
#include "llmc/data/data_sources.h"

namespace fs = std::filesystem;

namespace {

std::string folder_of(const fs::path& shard) { return shard.has_parent_path() ? shard.parent_path().string() : "."; }

std::vector<ShardFolder> folders_of(const std::vector<std::string>& paths) {
  std::vector<ShardFolder> folders;
  for (const fs::path shard : paths) {
    const std::string folder = folder_of(shard);
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

// Returns the entries of a folder's manifest: name, split, tokens, sha256 and, if the shard has one, mask.
const Json::Array& entries_of(const ShardFolder& folder) {
  static const Json::Array none;
  const Json* shards = folder.manifest.is_null() ? nullptr : folder.manifest.find("shards");
  return shards ? shards->elements() : none;
}

// Calls f(folder, numbers) for each folder of the data. `numbers` maps the file names of its shards to their numbers.
template <class F>
void for_folders_of(const TokenDataset& data, F&& f) {
  if (data.is_text()) return;
  std::vector<std::string> paths;
  std::unordered_map<std::string, std::unordered_map<std::string, int>> numbers;
  for (int i = 0; i < data.shards(); ++i) {
    paths.push_back(data.shard_path(i));
    numbers[folder_of(paths.back())][fs::path(paths.back()).filename()] = i;
  }
  for (const ShardFolder& folder : folders_of(paths)) f(folder, numbers[folder.path]);
}

void require_as_listed(const TokenDataset& data, int shard, const Json& entry, const std::string& folder) {
  const std::string& path = data.shard_path(shard);
  REQUIRE(data.shard_size(shard) == entry.get_int("tokens"),
          "shard %s has %lld tokens, and %s/manifest.json lists %lld\n  they were not written together: fetch both "
          "again, or write them again with dev/data/prepare",
          path.c_str(), (long long)data.shard_size(shard), folder.c_str(), (long long)entry.get_int("tokens"));
  const Json* mask = entry.find("mask");
  REQUIRE(!mask || mask->is_null() || data.has_masks(),
          "shard %s has no mask, and %s/manifest.json lists %s: every token would be learnt\n  fetch the "
          ".mask files too; to learn every token on purpose, move manifest.json away",
          path.c_str(), folder.c_str(), mask->get_string("name").c_str());
}

// What to do about a file of the folder that was altered.
std::string remedy(const std::string& folder) {
  if (fs::exists(fs::path(folder) / "made_of.json"))
    return "remove the folder " + folder + ": the next run cuts the text again";
  return "fetch it again, or write it again with dev/data/prepare";
}

// Returns the checksums of blocks that an entry lists of a shard, or of its mask; null if it lists none.
std::shared_ptr<BlockChecksums> checksums_of(const ShardFolder& folder, const Json* entry) {
  const Json* blocks = entry && !entry->is_null() ? entry->find("xxh64") : nullptr;
  if (!blocks || blocks->is_null()) return nullptr;
  std::vector<std::string> sums;
  for (const Json& sum : blocks->elements()) sums.push_back(sum.as_string());
  const int64_t bytes = folder.manifest.get_int("xxh64_block_bytes");
  REQUIRE(bytes >= 1, "%s/manifest.json: blocks of %lld bytes\n  expected at least 1", folder.path.c_str(),
          (long long)bytes);
  return std::make_shared<BlockChecksums>(size_t(bytes), std::move(sums), remedy(folder.path));
}

// "a.bin, b.bin, c.bin, …"
std::string some_of(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size() && i < 3; ++i) text += (i ? ", " : "") + names[i];
  return names.size() > 3 ? text + ", …" : text;
}

}  // namespace

std::vector<ShardFolder> shard_folders(const std::string& data) {
  std::vector<std::string> paths;
  for (const std::string& pattern : patterns_of(data)) std::ranges::move(glob(pattern), std::back_inserter(paths));
  return folders_of(paths);
}

std::vector<std::string> compare_with_manifests(TokenDataset& data) {
  std::vector<std::string> remarks;
  for_folders_of(data, [&](const ShardFolder& folder, const std::unordered_map<std::string, int>& numbers) {
    struct Split {
      int64_t listed = 0;
      bool used = false;
      std::vector<std::string> lost = {}, left_out = {};  // not on the disk; on the disk, but not part of the data
    };
    std::map<std::string, Split> splits;
    for (const Json& entry : entries_of(folder)) {
      const std::string& name = entry.get_string("name");
      Split& split = splits[entry.get_string("split")];
      ++split.listed;
      if (const auto found = numbers.find(name); found != numbers.end()) {
        require_as_listed(data, found->second, entry, folder.path);
        data.expect(found->second, checksums_of(folder, &entry), checksums_of(folder, entry.find("mask")));
        split.used = true;
      } else {
        (fs::exists(listed_file(folder.path, name, entry.where())) ? split.left_out : split.lost).push_back(name);
      }
    }
    for (const auto& [name, split] : splits) {
      if (!split.used) continue;
      const auto remark = [&](const std::vector<std::string>& missing, const char* how) {
        if (missing.empty()) return;
        remarks.push_back(format("%zu of the %lld %s shards that %s/manifest.json lists %s: %s", missing.size(),
                                 (long long)split.listed, name.c_str(), folder.path.c_str(), how,
                                 some_of(missing).c_str()));
      };
      remark(split.lost, "are not there");
      remark(split.left_out, "are left out by the pattern");
    }
  });
  return remarks;
}

std::vector<int32_t> delimiters_of(const TokenDataset& data) {
  std::vector<int32_t> tokens;
  for_folders_of(data, [&](const ShardFolder& folder, const auto&) {
    const Json* delimiter = folder.manifest.is_null() ? nullptr : folder.manifest.find("delimiter");
    if (!delimiter || delimiter->is_null()) return;
    for (const char* key : {"id", "end_id"})
      if (const Json* id = delimiter->find(key)) tokens.push_back(int32_t(id->as_int()));
  });
  return tokens;
}

std::vector<ListedFile> files_without_blocks(const TokenDataset& data) {
  std::vector<ListedFile> files;
  for_folders_of(data, [&](const ShardFolder& folder, const std::unordered_map<std::string, int>& numbers) {
    for (const Json& entry : entries_of(folder)) {
      if (!numbers.contains(entry.get_string("name"))) continue;
      for (const Json* file : {&entry, entry.find("mask")})
        if (file && !file->is_null() && !file->contains("xxh64") && file->contains("sha256"))
          files.push_back({listed_file(folder.path, file->get_string("name"), file->where()),
                           file->get_string("sha256"), remedy(folder.path)});
    }
  });
  return files;
}

void ListedFile::verify() const {
  const InputFile file(path);
  std::vector<char> chunk(size_t(1) << 20);
  Sha256 sum;
  for (size_t at = 0; at < file.size(); at += chunk.size()) {
    const size_t bytes = std::min(chunk.size(), file.size() - at);
    file.read(at, bytes, chunk.data());
    sum.add(chunk.data(), bytes);
  }
  REQUIRE(sum.text() == sha256, "%s was altered or damaged: its sha256 is not the one that manifest.json lists\n  %s",
          path.c_str(), remedy.c_str());
}

std::string listed_checksum(const TokenDataset& data) {
  std::vector<std::string> listed(size_t(data.shards()));
  for_folders_of(data, [&](const ShardFolder& folder, const std::unordered_map<std::string, int>& numbers) {
    for (const Json& entry : entries_of(folder)) {
      const auto found = numbers.find(entry.get_string("name"));
      if (found == numbers.end()) continue;
      std::string& text = listed[size_t(found->second)];
      text = entry.get_string("sha256", "");
      if (const Json* mask = entry.find("mask"); mask && !mask->is_null()) text += mask->get_string("sha256");
    }
  });
  Checksum all;
  for (const std::string& text : listed) {
    if (text.empty()) return "";
    all.add(text.data(), text.size() + 1);
  }
  return all.text();
}
