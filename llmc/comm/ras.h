// NCCL's own knowledge of a run's processes (RAS, NCCL 2.24 and later): a thread in each process that NCCL has started
// talks to the others, and answers at a TCP port of this machine. The program `ncclras` asks it the same.
#pragma once

#include <string>

// Returns the lines in which RAS says what is wrong: its errors, or if there are none its warnings, such as ranks that
// are behind; each is indented by four more spaces. "" if nothing is, or if nobody answers within `seconds`.
// NCCL_RAS_ADDR (address:port) says where it answers. Its usual port belongs to the first run that NCCL has started on
// this machine.
std::string ask_ras(double seconds);

// Returns these lines of an answer; at most 12.
std::string faults_of_ras(const std::string& answer);
