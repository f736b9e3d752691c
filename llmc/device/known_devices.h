// GPUs that the program knows by name: data sheets' figures, for MFU and for devices that only record.
#pragma once

#include <string>

#include "llmc/device/device.h"

// Sets bf16_flops and memory_bytes_per_second of a device whose name is known.
void set_known_rates(DeviceInfo& info);
// A GPU that is not here: "H100", "H200", "A100", "B200". Throws on another name, with those that are known.
DeviceInfo modelled_device(const std::string& name);
