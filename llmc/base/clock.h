// Seconds of a clock that only goes forward.
#pragma once

#include <chrono>

inline double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
