// The exit codes of train_llama. A script reads from them whether it may start the run again: the table is in
// dev/docs/cluster.md.
#pragma once

enum class ExitCode {
  done = 0,          // trained, measured or sampled to the end, or stopped as asked, with all that was to be saved
  wrong_input = 1,   // an option, a file or the data: the same start fails again
  does_not_fit = 2,  // the memory: the same start fails again on such machines
  not_saved = 3,     // a checkpoint or an export could not be written: start again when the disk has room
  not_finite = 4,    // a step with an infinity or NaN: the same start meets it again
  lost = 5,          // a rank, a GPU or the network failed: start again
  bad_steps = 6,     // --bad-steps-limit spikes in a row: look at the data that the error names
  wrong_gpu = 7,     // a rank holds or computes other bits than it must: start again without its GPU
};
