#include <nvtx3/nvToolsExt.h>

#include "llmc/base/error.h"
#include "llmc/device/range.h"

namespace {
bool ranges_are_on = false;
}

Range::Range(const char* name) {
  if (ranges_are_on) nvtxRangePushA(name);
}
Range::Range(const char* format, long long number) {
  if (ranges_are_on) nvtxRangePushA(::format(format, number).c_str());
}
Range::~Range() {
  if (ranges_are_on) nvtxRangePop();
}
void Range::turn_on() { ranges_are_on = true; }
