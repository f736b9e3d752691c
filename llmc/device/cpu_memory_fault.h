// Reports of memory faults in kernels. A kernel that overflows its stack or accesses unmapped memory ends with a report
// like that of its other errors, instead of a bare "Segmentation fault". Signals outside kernels go to the handlers
// that were installed before. With AddressSanitizer, which reports such faults itself, this does nothing.
#pragma once

namespace cpu_backend {

// Each OS thread that executes blocks calls this before its first block. Later calls of the same thread cost nothing.
void report_memory_faults();

}  // namespace cpu_backend
