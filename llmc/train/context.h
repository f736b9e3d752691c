// How many tokens the model looks at together in samples and questions: in a training its T; where nothing is trained
// as many as they have, up to the model's positions and to what fits in memory.
#pragma once

#include <string>
#include <vector>

#include "llmc/base/options.h"
#include "llmc/comm/communicator.h"
#include "llmc/comm/mesh.h"
#include "llmc/train/choices.h"
#include "llmc/train/planner.h"
#include "llmc/train/report.h"
#include "llmc/train/settings.h"
#include "llmc/train/text_codec.h"

// Sets settings.context, and for it the micro-batch of an evaluation, unless --seq-len was `asked` for. Returns the
// questions of --eval-choices, and warns of those and of a prompt of `prompt` tokens that lose their beginning. All
// ranks call, and get the same.
std::vector<ChoiceItem> choose_context(RunSettings& settings, bool asked, size_t prompt, const Options& options,
                                       const LlamaConfig& config, const TextCodec& codec, const Mesh& mesh,
                                       const Planner& planner, Communicator& communicator, Device& device,
                                       Console& console);
