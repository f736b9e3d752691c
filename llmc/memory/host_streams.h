// The streams that copy memory to the host (`out`) and from it (`in`) while compute runs.
#pragma once

#include "llmc/device/device.h"

struct HostStreams {
  Stream out, in;
  explicit HostStreams(Device& device) : out(device, "offload"), in(device, "prefetch") {}
};
