// The data that the options name: what is trained on, what is held out, and how their documents are told apart.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "llmc/base/options.h"
#include "llmc/comm/communicator.h"
#include "llmc/train/documents.h"
#include "llmc/train/model_source.h"
#include "llmc/train/report.h"
#include "llmc/train/text_codec.h"
#include "llmc/train/token_dataset.h"

struct RunData {
  std::optional<TokenDataset> train, held_out;
  std::optional<DocumentRule> documents, held_out_documents;  // if rows are packed with several
  std::vector<std::string> remarks;                           // what the user should know of it, a sentence each
  std::vector<std::string> about_text;                        // that was cut into tokens: how, and where they are kept
};

// Text is cut into tokens if there is a tokenizer, else its bytes are the tokens. To be measured only, a model of text
// needs no data to train on. Throws on data that are no tokens of the model's.
RunData open_run_data(const Options& options, const ModelSource& model, const TextCodec& codec,
                      Communicator& communicator, Device& device, Console& console);
