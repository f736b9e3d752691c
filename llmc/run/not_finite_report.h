// What a run tells its user about a step that is not finite.
#pragma once

#include <string>

struct Setup;
class Trainer;
struct StepInput;

// Runs the step again, and returns lines for the user: the first tensor that is not finite on any rank, the rank, the
// micro-batch and its place in the data, and what may help. No step may be under way. All ranks call and return the
// same.
std::string find_not_finite(Setup& setup, Trainer& trainer, const StepInput& input);
