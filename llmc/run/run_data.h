// Opens the data that the options name: training data, held-out data, and the rules that say where their documents
// begin.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "llmc/base/console.h"
#include "llmc/base/options.h"
#include "llmc/comm/communicator.h"
#include "llmc/data/data_chat.h"
#include "llmc/data/data_sources.h"
#include "llmc/data/documents.h"
#include "llmc/data/text_codec.h"
#include "llmc/run/model_source.h"
#include "llmc/train/checkpoint.h"

struct RunData {
  DataSources train, held_out;             // one each, or those of a mixture; empty: there is none
  std::vector<std::string> remarks;        // what the user should know about it, one sentence each
  std::vector<std::string> about_folders;  // which of their files are not trained on
  std::vector<std::string> about_text;     // how text was tokenized, and where the tokens are kept
  Delimiter delimiter;                     // of the (first) training data, where tokens are not bytes
  std::optional<DataChat> chat;            // the form of the conversations that a run trains on
};

// Text is tokenized if there is a tokenizer, else its bytes are the tokens. Without --val-data the last tenth of each
// text is held out. A run that only measures opens only the data that it is given; but if it is given none and tokens
// are bytes, it opens the bundled text. Throws if the tokens of the data are not the model's. If nothing else says
// where documents begin, the rule of the checkpoint `start` stays.
RunData open_run_data(const Options& options, const ModelSource& model, const TextCodec& codec, const Checkpoint* start,
                      Communicator& communicator, Device& device, Console& console);
