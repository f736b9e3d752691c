// GPUs that the program knows by name. The figures of their data sheets serve to compute MFU and to model devices.
#pragma once

#include <string>

#include "llmc/device/device.h"

// Sets bf16_flops and the bandwidths of memory and bus if the name of the device is known.
void set_known_rates(DeviceInfo& info);
// Returns a GPU that need not be present, such as "H100" (also for "auto") or "RTX4090", with the memory that CUDA
// reports of it. The name's case, spaces and brand do not matter. Throws on any other name and lists the known ones.
DeviceInfo modelled_device(const std::string& name);
