// Chooses how many tokens the model sees at once in samples and questions. In a training this is its T. If nothing is
// trained, it is as many tokens as these have, limited by the model's positions and by memory.
#pragma once

#include <string>
#include <vector>

#include "llmc/base/console.h"
#include "llmc/base/options.h"
#include "llmc/comm/communicator.h"
#include "llmc/comm/mesh.h"
#include "llmc/data/choices.h"
#include "llmc/data/text_codec.h"
#include "llmc/predict/planner.h"
#include "llmc/train/settings.h"

// Sets settings.context_length, and the micro-batch of an evaluation to suit it, unless --seq-len was `asked` for.
// Returns the questions of --eval-choices. Warns about questions that lose their beginning, and about a prompt (of
// `prompt` tokens) that does. All ranks call and get the same result.
std::vector<ChoiceItem> choose_context(RunSettings& settings, bool asked, size_t prompt, const Options& options,
                                       const ModelConfig& config, const TextCodec& codec, const Mesh& mesh,
                                       const Planner& planner, Communicator& communicator, Device& device,
                                       Console& console);
