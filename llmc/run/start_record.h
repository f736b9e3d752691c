// What a start of the program runs on: for --version, and for run.json.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "llmc/base/json.h"
#include "llmc/comm/communicator.h"

// What --version prints: the version, the commit, for what and by what it was built, and the libraries.
std::string version_text();

std::string host_name();  // of this machine

// Returns an entry of "starts" in run.json: when the program was started (UTC), after which step it goes on, by which
// command and launcher, from which commit it was built, with which libraries and GPU driver, and on which hosts. The
// environment is left out, since it may hold secrets. "process" is the one that writes the run's folder
// (this_process()). All ranks call.
Json start_record(int64_t first_step, const std::string& from, const std::string& stage, const Ranks& ranks,
                  const DeviceInfo& device, Communicator& communicator, Stream& stream);

// Returns the hosts of a run: {"host": "node1", "ranks": "0-7", "device": "NVIDIA H200", "gpus": ["GPU-8a6e…", …]} for
// each host and kind of device, in the order of their first ranks. `of_ranks` has "host\ndevice\nUUID of the GPU" for
// each rank; a CPU has no UUID and no "gpus".
Json hosts_json(const std::vector<std::string>& of_ranks);
