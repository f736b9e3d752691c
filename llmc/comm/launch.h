// Starts the ranks of one machine without MPI: --gpus N.
#pragma once

#include <string>
#include <vector>

#include "llmc/comm/ranks.h"

// Ranks that are started so can reach each other: on CPUs they need MPI.
#if LLMC_DEVICE_CPU
constexpr bool kLaunchesRanks = false;
#else
constexpr bool kLaunchesRanks = true;
#endif

// Runs this program again with the same `arguments` (argv), as rank 0 to `size` - 1 of this machine, and waits for all
// of them. Ranks::start() of each reads LLMC_RANK and its companions, among them a file through which they meet.
//
// SIGINT, SIGTERM, SIGHUP and SIGUSR1 ask all ranks to stop (they get SIGUSR1); a second SIGINT, or SIGUSR2, kills
// them. When a rank fails, the others have a second to say what failed on them. Then an error that several ranks have
// is printed once, as with MPI, and the ranks that are left are killed. They are also killed if this process is.
//
// Returns 0, or the exit code of the rank that failed first: 128 + the signal's number if a signal ended it. Throws if
// a process cannot be started.
int launch_ranks(int size, const std::vector<std::string>& arguments);

// Gives the error of this rank, and its exit code, to the process that started it by launch_ranks(), which prints it.
// Returns false if there is none: this rank then prints the error itself.
bool send_error_to_launcher(const Ranks& ranks, const std::string& error, int code);
