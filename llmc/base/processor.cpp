// The Makefile compiles this file for the oldest processor, whatever CPU_ARCH says, and passes the macros of CPU_ARCH's
// instructions as LLMC_CPU_FEATURES ("__AVX2__ __AVX512F__").
#include "llmc/base/processor.h"

#if defined(__x86_64__) && defined(LLMC_CPU_FEATURES)
#include <unistd.h>

#include <cstring>

namespace {

// Texts, one after the other, on standard error. Nothing of the C++ library: its global objects do not exist yet.
void say(const char* text) { (void)!write(STDERR_FILENO, text, strlen(text)); }

void lacks(const char* name, bool& any) {
  if (!any) say("error: this program was built for a processor with instructions that this one lacks:");
  any = true;
  say(" "), say(name);
}

void check() {
  __builtin_cpu_init();
  bool any = false;
// The name is that of __builtin_cpu_supports, which takes a literal. Instructions that have no name there come with
// some that have one: F16C and MOVBE with AVX2, ADX with AVX512.
#define LLMC_LOOK(NAME, MACRO) \
  if (strstr(LLMC_CPU_FEATURES, MACRO) && !__builtin_cpu_supports(NAME)) lacks(NAME, any)
  LLMC_LOOK("sse3", "__SSE3__");
  LLMC_LOOK("ssse3", "__SSSE3__");
  LLMC_LOOK("sse4.1", "__SSE4_1__");
  LLMC_LOOK("sse4.2", "__SSE4_2__");
  LLMC_LOOK("sse4a", "__SSE4A__");
  LLMC_LOOK("popcnt", "__POPCNT__");
  LLMC_LOOK("avx", "__AVX__");
  LLMC_LOOK("avx2", "__AVX2__");
  LLMC_LOOK("fma", "__FMA__");
  LLMC_LOOK("fma4", "__FMA4__");
  LLMC_LOOK("xop", "__XOP__");
  LLMC_LOOK("bmi", "__BMI__");
  LLMC_LOOK("bmi2", "__BMI2__");
  LLMC_LOOK("avx512f", "__AVX512F__");
  LLMC_LOOK("avx512cd", "__AVX512CD__");
  LLMC_LOOK("avx512vl", "__AVX512VL__");
  LLMC_LOOK("avx512bw", "__AVX512BW__");
  LLMC_LOOK("avx512dq", "__AVX512DQ__");
  LLMC_LOOK("avx512ifma", "__AVX512IFMA__");
  LLMC_LOOK("avx512vbmi", "__AVX512VBMI__");
  LLMC_LOOK("avx512vbmi2", "__AVX512VBMI2__");
  LLMC_LOOK("avx512vnni", "__AVX512VNNI__");
  LLMC_LOOK("avx512bitalg", "__AVX512BITALG__");
  LLMC_LOOK("avx512vpopcntdq", "__AVX512VPOPCNTDQ__");
  LLMC_LOOK("avx5124fmaps", "__AVX5124FMAPS__");
  LLMC_LOOK("gfni", "__GFNI__");
  LLMC_LOOK("vpclmulqdq", "__VPCLMULQDQ__");
#undef LLMC_LOOK
  if (!any) return;
  say("\n  build it on this machine; or for both, by make CPU_ARCH=x86-64-v3 (processors with AVX2 and FMA) or "
      "CPU_ARCH=x86-64-v2\n");
  _exit(1);
}

__attribute__((constructor(101))) void check_before_main() { check(); }  // 101: the first that is not the system's

}  // namespace

void require_processor() {}  // the constructor has looked
#else
void require_processor() {}
#endif
