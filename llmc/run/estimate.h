// How long a training takes, estimated before its first step.
#pragma once

#include "llmc/run/setup.h"
#include "llmc/train/trainer.h"

// Times the forward pass of the first micro-batch, and prints what a step and the rest of the run take by it: forward
// and backward are three forward passes, and what is computed again is a fourth. The update, what the ranks send and
// the samples are not in it. All ranks call, before the first step; it changes nothing that is trained.
void print_estimate(Setup& setup, Trainer& trainer);
