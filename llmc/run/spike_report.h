// What a run tells its user about the last of too many spikes in a row.
#pragma once

#include <string>

struct Setup;
class Trainer;
struct StepInput;

// Finds the sequence of the step that makes it a spike: with the largest loss if `by_loss`, else with the largest
// gradients. Runs the step again some 2 log2(G) times, of G sequences, each time with the labels of fewer sequences.
// Returns lines for the user: its rank, micro-batch and place in the data, and what may help. Training must be halted,
// so that no run makes an update, and no step may be under way. All ranks call and return the same.
std::string find_spike(Setup& setup, Trainer& trainer, const StepInput& input, bool by_loss);
