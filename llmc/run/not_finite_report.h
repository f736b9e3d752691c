// What a run tells its user about a step that is not finite.
#pragma once

#include <string>

#include "llmc/train/trainer.h"

struct Setup;

struct NotFiniteReport {
  std::string text;
  StepResult again;  // of the step that was run again
};
// Runs the step again, and returns lines for the user: the first tensor that is not finite on any rank, the rank, the
// micro-batch and its place in the data, and what may help. No step may be under way. All ranks call and return the
// same.
NotFiniteReport find_not_finite(Setup& setup, Trainer& trainer, const StepInput& input);
