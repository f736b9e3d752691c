// The program chooses these numbers by the model's size alone, for a run's losses may not depend on the machine. With
// x = parameters / 0.86M, or 1 for a smaller model (`tiny` has 0.85M):
//
//   tokens a sequence    128 x^(1/2)     a power of two, 4096 at most and as many as the model has positions
//   sequences a step      16 x^(1/5)     a power of two, 64 at most
//   learning rate       4e-3 x^(-3/8)    two digits, 3e-4 at least
//   steps                one pass over the data, but no more than 160 x² of them; with random weights at least as many
//                        as see the tokens of 160 steps of `tiny`
//
//   parameters    0.85M    10M       28M       135M       0.9B and more
//   a step        16x128   16x256    32x512    32x1024    64x4096
//   rate          4e-3     1.6e-3    1.1e-3    6e-4       3e-4
//
// A step then has tokens as x^0.7. The batch that trains with the least compute grows so: as C^0.327 with the compute C
// (DeepSeek LLM, arXiv 2401.02954), thus as x^0.65 at 20 tokens a parameter. The default is a fifth to a thirteenth of
// it. A smaller batch needs no more tokens, and a run on a laptop reports its steps soon. Rates fall as those of GPT-3
// (arXiv 2005.14165), which has 6e-4 at 125M and 2e-4 at 1.3B.
#pragma once

#include <cstdint>

#include "llmc/config/config.h"

struct Defaults {
  int64_t T, G;                      // tokens a sequence, sequences a step
  int64_t fewest_steps, most_steps;  // of a run with random weights; with loaded ones, as few as a pass has
  double lr;                         // of random weights
};

Defaults defaults_of(const ModelConfig& config);
