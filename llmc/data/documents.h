// Documents in a stream of tokens. If a row is packed with several documents, each is trained as if it stood alone:
// positions begin again at 0, attention stops at the borders, and no token is predicted across one. BatchUploader finds
// the documents again by position 0.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "llmc/base/json.h"
#include "llmc/config/config.h"
#include "llmc/data/token_dataset.h"

// Documents of a stream begin at a token that begins each, or after one that ends the former one.
struct DocumentRule {
  int64_t token;
  bool begins;
};

// The tokens that stand before and after each document of a data set; -1: none does.
struct Delimiter {
  int before = -1, after = -1;

  bool known() const { return before >= 0 || after >= 0; }
  int begins_text() const { return before >= 0 ? before : after; }  // a document follows either of them
  int ends_text() const { return after >= 0 ? after : before; }     // and precedes either
};

// Returns the delimiter that the manifests of the shards that match `pattern` name, the first one if they differ. A
// token that is not below `V` counts as none.
Delimiter delimiter_of(const std::string& pattern, int V);

// Gives a model that has no token that ends a text, as one with random weights, the data's in its
// generation_config.json, and likewise the one that begins it.
void end_at_documents(const Delimiter& delimiter, ModelConfig& config);

// A checkpoint stores {"token": 10, "begins": false}, or null where rows are not packed with documents.
Json json_of(const std::optional<DocumentRule>& rule);
std::optional<DocumentRule> rule_of(const Json& json);

// Returns the rule of the shards that match `pattern`. If `token` is not negative, it begins each document. Otherwise
// the manifest.json in the folder of the shards decides, which dev/data writes; else the rule that a run which goes on
// had `before`; else the model's begin-of-text token; nothing if no token is known. Throws if the manifests of several
// folders disagree.
std::optional<DocumentRule> find_document_rule(const std::string& pattern, int64_t token, const ModelConfig& config,
                                               const std::optional<DocumentRule>& before = {});
// The same; throws if no token is known.
DocumentRule document_rule(const std::string& pattern, int64_t token, const ModelConfig& config,
                           const std::optional<DocumentRule>& before = {});

// Returns a sentence if the folders of the shards that match `pattern` have different rules for
// documents; "" if not.
std::string different_rules(const std::string& pattern);

// Searches for the rule's token in the first 2^20 tokens of the data and then in 2^22 tokens spread over it. Returns ""
// if it occurs after the first token of all, else a sentence that says so: there is only one document.
std::string missing_documents(const DocumentRule& rule, const TokenDataset& data);

// Splits a row of T tokens into documents: writes positions (T), and sets the labels across a border to -100. A row may
// begin inside a document; the rest of that document begins at position 0.
void split_documents(const DocumentRule& rule, const int32_t* inputs, int32_t* labels, int32_t* positions, int T);

// Splits each row of inputs (rows, T), labels and positions likewise. Without a rule `positions` is then empty.
void split_rows(const std::optional<DocumentRule>& rule, const std::vector<int32_t>& inputs,
                std::vector<int32_t>& labels, std::vector<int32_t>& positions, int T);
