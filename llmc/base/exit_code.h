// The exit codes of train_llama. A script reads from them whether it may start the run again: the table is in
// dev/docs/cluster.md.
#pragma once

#include <cerrno>

enum class ExitCode {
  done = 0,          // trained, measured or sampled to the end, or stopped as asked, with all that was to be saved
  unexpected = 1,    // what nobody foresaw: a library's exception, a GPU that is missing, a wrong call of CUDA
  does_not_fit = 2,  // the memory: the same start fails again on such machines
  not_saved = 3,     // a checkpoint or an export could not be written: start again when the disk has room
  not_finite = 4,    // a step with an infinity or NaN: the same start meets it again
  lost = 5,          // a rank, a GPU, the network or a disk failed: start again
  bad_steps = 6,     // --bad-steps-limit spikes in a row: look at the data that the error names
  wrong_gpu = 7,     // a rank holds or computes other bits than it must: start again without its GPU
  // An option, a file or the data, which the user must mend: the same start fails again. It is the EX_USAGE of
  // sysexits.h, a number with which no launcher, library or shell ends a program by itself, as they do with 1.
  wrong_input = 64,
};

// Returns the code of a call of the file system that failed with `error` (errno): that of wrong input if the name or
// its permissions are wrong, else `failed`, for then the disk or its server has failed.
inline ExitCode code_of_file_error(int error, ExitCode failed) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
    case EISDIR:
    case EACCES:
    case EPERM:
    case ELOOP:
    case ENAMETOOLONG:
      return ExitCode::wrong_input;
    default:
      return failed;
  }
}
