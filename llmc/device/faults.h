// Fault sites. In a build with FAULTS=1 (build/cpu-faults) every barrier, event record, event wait and release is a
// fault site. So are Hopper's copies and products, every commit of and wait for asynchronous copies, and every swizzled
// address. A site is named by its file and line, and LLMC_FAULT=file:line skips it at run time. `dev/test/fault_sites`
// numbers the sites of the source and runs a command with one of them skipped. In an ordinary build a site costs
// nothing.
#pragma once

#ifndef LLMC_FAULTS
#define LLMC_FAULTS 0
#endif

#if LLMC_FAULTS
// Returns true if the operation at this place must be skipped. Counts the skips and prints their number to stderr when
// the program ends. Ends the program with exit code 2 if LLMC_FAULT is not file:line.
bool fault_skips(const char* file, int line);
#else
constexpr bool fault_skips(const char*, int) { return false; }
#endif
