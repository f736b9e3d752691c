// The Makefile passes LLMC_COMMIT and LLMC_TARGET to this file alone. It holds no date: the same sources give the same
// program.
#include "llmc/base/build.h"

const char* const kBuildCommit = LLMC_COMMIT;
const char* const kBuildTarget = LLMC_TARGET;
#ifdef __clang__
const char* const kBuildCompiler = "clang++ " __clang_version__;
#else
const char* const kBuildCompiler = "g++ " __VERSION__;
#endif
