// What dev/data wrote about shards of tokens: manifest.json beside them.
#pragma once

#include <string>
#include <vector>

#include "llmc/base/json.h"

struct ShardFolder {
  std::string path;  // "." for the working directory
  Json manifest;     // null where there is none
};

// The folders of the .bin files that match `pattern`, each once, in order. Other files have no manifest. Throws on a
// manifest.json that cannot be read; one of another program is none.
std::vector<ShardFolder> shard_folders(const std::string& pattern);
