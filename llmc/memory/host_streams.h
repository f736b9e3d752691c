// The streams on which memory travels to the host and from it, beside compute.
#pragma once

#include "llmc/device/device.h"

struct HostStreams {
  Stream out, in;
  explicit HostStreams(Device& device) : out(device, "offload"), in(device, "prefetch") {}
};
