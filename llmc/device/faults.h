// Fault sites: in a build with FAULTS=1 (build/cpu-faults) every barrier, event record, event wait, release and
// asynchronous-copy wait is a site, named by its file and line, that can be skipped at run time: LLMC_FAULT=file:line.
// `dev/test/fault_sites` numbers the sites of the source and runs a command with one of them skipped. In an ordinary
// build a site costs nothing.
#pragma once

#ifndef LLMC_FAULTS
#define LLMC_FAULTS 0
#endif

#if LLMC_FAULTS
// True if the operation at this place is to be left out. Counts how often it was, and says so when the program ends.
bool fault_skips(const char* file, int line);
#else
constexpr bool fault_skips(const char*, int) { return false; }
#endif
