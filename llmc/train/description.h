// What a run is made of, in words: for its first lines and its model card.
#pragma once

#include <optional>
#include <string>

#include "llmc/base/options.h"
#include "llmc/comm/mesh.h"
#include "llmc/train/documents.h"
#include "llmc/train/model_source.h"
#include "llmc/train/settings.h"
#include "llmc/train/token_dataset.h"

// "1.00M tokens of the bundled text (TinyShakespeare), byte by byte"
std::string describe_data(const TokenDataset& data, const std::optional<DocumentRule>& documents,
                          const Options& options);
// "held out: 112k tokens, the last tenth"
std::string describe_held_out(const TokenDataset& held_out, const Options& options);
// Two lines: where it is from and its size; its shape.
std::string describe_model(const ModelSource& model);
// "16 sequences of 128 tokens: 2 ranks x 1 micro-batch of 8"
std::string describe_step(const RunSettings& settings, const Mesh& mesh);
// How several ranks share the state.
std::string describe_sharing(const Mesh& mesh, const Options& options, const LlamaConfig& config);
std::string describe_mesh(const Mesh& mesh, const Options& options, const LlamaConfig& config);
std::string describe_data_ranks(const Mesh& mesh);  // "2 ranks", "2 groups of 4 ranks"
