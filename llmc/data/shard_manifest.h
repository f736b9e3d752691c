// Reads manifest.json, which dev/data writes into each folder of shards.
#pragma once

#include <string>
#include <vector>

#include "llmc/base/json.h"
#include "llmc/data/token_dataset.h"

struct ShardFolder {
  std::string path;  // "." for the working directory
  Json manifest;     // null if there is none
};

// Returns the folders of the .bin files that match the pattern `data`, or one of those of a mixture (data_sources.h),
// each once, in order. Other files have no manifest. Throws on a manifest.json that cannot be read; a manifest.json of
// another program counts as none.
std::vector<ShardFolder> shard_folders(const std::string& data);

// Compares the data with what the manifests in the folders of its shards list, and gives it their checksums (XXH64 of
// each block of the files), by which it verifies what it reads. Throws if a shard has another number of tokens than is
// listed, or if its mask is not there: the loss of every token would then count. Returns sentences about listed shards
// of the same splits that are not part of the data: a user may leave them out on purpose.
std::vector<std::string> compare_with_manifests(TokenDataset& data);

// Returns the tokens that stand before or after each document, as the manifests say.
std::vector<int32_t> delimiters_of(const TokenDataset& data);

// A file of which the manifest lists no checksums of blocks, but one of the whole file: dev/data/prepare found no
// xxhash.
struct ListedFile {
  std::string path, sha256, remedy;
  // Throws if the file has another checksum.
  void verify() const;
};
std::vector<ListedFile> files_without_blocks(const TokenDataset& data);

// Returns a checksum of the sha256 that the manifests list of all the data's shards and masks; "" if one is not listed.
std::string listed_checksum(const TokenDataset& data);
