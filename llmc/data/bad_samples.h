// Samples that a training leaves out, since a step on them was not finite or a spike.
//
// A run that such steps end writes bad_samples.json into its folder: {"steps": [{"stage": "", "step": 22, "why": "the
// loss is nan, …", "samples": [[168, 175]]}]}. Samples are the sequences that Sampler numbers, from 0 in each stage; a
// pair is the first and the last of them. A checkpoint has the same list, of its stage, as "left_out" (run_state.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "llmc/base/json.h"

struct SampleRange {
  int64_t first, last;
};

struct BadStep {
  std::string stage;
  int64_t step;  // from 1, as it is printed
  std::string why;
  std::vector<SampleRange> samples;
};

Json to_json(const std::vector<BadStep>& steps);
// Throws unless steps and samples rise, as those of a run do.
std::vector<BadStep> bad_steps_of(const Json& list);

// Completes the list `left_out` of a checkpoint: the steps of this stage after the checkpoint's step that
// bad_samples.json lists, whose text is given; "" for none.
void add_bad_steps(std::vector<BadStep>& left_out, const std::string& text, const std::string& stage, int64_t step);

// "samples 168 to 175 (step 22)", with a comma between steps.
std::string describe_bad_steps(const std::vector<BadStep>& steps);
