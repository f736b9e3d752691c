// Which sources this program was built from, for what, and by which compiler. build.cpp alone is compiled at each
// commit, and every program links it.
#pragma once

// "27e8af0f1d3f"; "27e8af0f1d3f+changes" if files differed from that commit; "unknown" without git.
extern const char* const kBuildCommit;
extern const char* const kBuildTarget;    // "the CPU, -march=native on AMD EPYC", "GPUs of architecture 90a"
extern const char* const kBuildCompiler;  // "g++ 12.2.0"
