// A kernel that overflows its stack or touches memory that is not there ends with a report like its other errors,
// instead of a bare "Segmentation fault". Signals outside of kernels go to whoever handled them before. With
// AddressSanitizer, which reports such things itself, this does nothing.
#pragma once

namespace cpu_world {

// To be called by each OS thread that executes blocks, before it does: costs nothing after the first call.
void report_memory_faults();

}  // namespace cpu_world
