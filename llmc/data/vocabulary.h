// The vocabulary of data next to that of a model: how many tokens the data's tokenizer has, and the message about a
// token that the model lacks.
#pragma once

#include <cstdint>
#include <string>

#include "llmc/base/options.h"

struct DataVocabulary {
  int64_t tokens = 0;  // 0: not known
  std::string whose;   // "gpt2/tokenizer.json", "data/talks/manifest.json"
};

// Returns the largest vocabulary that the manifests in the folders of the shards name.
DataVocabulary manifest_vocabulary(const std::string& pattern);

// Returns the vocabulary of the tokenizer that --tokenizer names, else the largest one that a manifest in
// a folder of the shards of --train-data or --val-data names. Throws if the tokenizer cannot be read.
DataVocabulary named_vocabulary(const Options& options);

// Returns the vocabulary of a shard as the manifest in its folder names it; else GPT-2's or Llama 3's, which llm.c's
// shards of 2 and of 4 bytes a token have. It is always larger than `token`, which the shard has.
DataVocabulary vocabulary_of_shard(const std::string& path, int token_bytes, int64_t token);

// Throws: `where` names a token of the data ("shard a.bin: token 7"), whose number is not below the model's V.
[[noreturn]] void fail_beyond_vocabulary(const std::string& where, int64_t token, int V, const DataVocabulary& data);
