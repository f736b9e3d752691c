// What dev/data wrote about shards of tokens: manifest.json beside them.
#pragma once

#include <string>
#include <vector>

#include "llmc/base/json.h"
#include "llmc/train/token_dataset.h"

struct ShardFolder {
  std::string path;  // "." for the working directory
  Json manifest;     // null where there is none
};

// The folders of the .bin files that match `pattern`, each once, in order. Other files have no manifest. Throws on a
// manifest.json that cannot be read; one of another program is none.
std::vector<ShardFolder> shard_folders(const std::string& pattern);

// Compares the data with what the manifests beside its shards list. Throws where a shard has another number of tokens
// than it was written with, or its mask is not there: every token would be learnt. Returns a sentence about the shards
// of the same splits that are not part of the data, if there are any: a user may leave them out on purpose.
std::vector<std::string> compare_with_manifests(const TokenDataset& data);

// A checksum of the sha256 that the manifests list of all the data's shards and masks; "" if one of them is not listed.
std::string listed_checksum(const TokenDataset& data);
