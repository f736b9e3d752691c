// Names for Nsight Systems of what the host enqueues: each operation, the blocks of the model, the phases of a
// step. Ranges nest. They are off until turn_on(), and a CPU has none.
//
//   const Range range("block %lld", layer);  // until the end of the scope
#pragma once

class Range {
 public:
  explicit Range(const char* name);
  Range(const char* format, long long number);
  ~Range();
  Range(const Range&) = delete;

  // Called before the first range begins.
  static void turn_on();
};
