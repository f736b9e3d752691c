// How a run ends when a rank holds or computes other bits than it must: the words, which are the same on all ranks, and
// the mark in the run's folder by which the next start goes on from the newest verified checkpoint.
//
//   wrong_gpu.json   {"step": 120, "ranks": [3], "certain": true, "hosts": ["node1"], "gpus": ["GPU-8a6e…"],
//                     "checkpoint": "step-00000100", "error": "…"}
//
// "certain": each of the ranks is wrong; else one of them is, or some are. No ranks: it is not known which one.
// "hosts" and "gpus" have an entry for each of the ranks; a CPU's is "". "checkpoint": the newest verified one; "" for
// none. A start that takes the mark over renames it to wrong_gpu.step-00000120.json.
#pragma once

#include <string>

#include "llmc/run/run_folder.h"
#include "llmc/run/setup.h"
#include "llmc/train/trainer.h"

// A finding after `step` steps: it says how the ranks err, and what shows it.
struct WrongGpu {
  int64_t step;
  Suspects suspects;
  std::string what;    // "other bits than other ranks from the same weights and tokens, first the losses"
  bool holds = false;  // they hold these bits; else they compute them
};
WrongGpu wrong_gpu(int64_t step, const WrongBits& wrong);

// Writes the mark, if this rank has the folder and verifications mark checkpoints, and ends the run with
// ExitCode::wrong_gpu. All ranks call. `checkpoint`: the newest verified one, "" for none; `remains`: which checkpoints
// there are; what the first rank says counts.
[[noreturn]] void end_wrong_gpu(Setup& setup, const WrongGpu& found, const RunFolder* folder,
                                const std::string& checkpoint, const std::string& remains);

// True if the run in this folder has ended so, and no start has taken that over.
bool ended_with_wrong_gpu(const std::string& run_folder);
// Renames the mark, if there is one. Call it when the start can no longer go on from a newer checkpoint. Returns a
// sentence that says what was found; "" if there is no mark.
std::string take_over_wrong_gpu(const std::string& run_folder);
