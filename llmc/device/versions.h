// The software below this program on a GPU's machine.
#pragma once

#include <string>

// Returns "CUDA 13.0", the version of CUDA's runtime; "" in the CPU backend.
std::string device_library();
// Returns "580.65.06", the version of the machine's GPU driver; "" if there is none, and in the CPU backend.
std::string driver_version();
