// Returns the seconds of a monotonic clock: its start is arbitrary, so only differences have a meaning.
#pragma once

#include <chrono>

inline double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
