// Documents in a stream of tokens: rows that are packed with several of them are trained as if each stood alone.
// Positions begin again at 0, attention stops at the borders (see BatchFeed), and no token is predicted across one.
#pragma once

#include <cstdint>
#include <string>

#include "llmc/model/config.h"
#include "llmc/train/token_dataset.h"

// How a stream's documents are told apart: by a token that begins each, or ends it.
struct DocumentRule {
  int64_t token;
  bool begins;
};

// The rule of the shards that match `pattern`: `token` begins each document, if it is not negative; else what
// manifest.json beside the shards says, which dev/data writes; else the model's begin-of-text. Throws if none is known,
// or if the shards lie in folders that say different things.
DocumentRule document_rule(const std::string& pattern, int64_t token, const LlamaConfig& config);

// Looks for the rule's token in the first 2^20 tokens of the data and in 2^22 that are spread over the rest: "" if it
// is there, else a sentence that says so. Without it no document is told apart.
std::string missing_documents(const DocumentRule& rule, const TokenDataset& data);

// A row of T tokens: positions (T) =, and labels across a border = -100. What the row begins with is a document's rest,
// at position 0.
void cut_documents(const DocumentRule& rule, const int32_t* inputs, int32_t* labels, int32_t* positions, int T);
