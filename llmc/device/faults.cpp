#include "llmc/device/faults.h"

#if LLMC_FAULTS

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

struct Fault {
  std::string file;
  int line = 0;
  long skipped = 0;

  Fault() {
    const char* text = getenv("LLMC_FAULT");
    if (!text || !*text) return;
    const char* colon = strrchr(text, ':');
    if (!colon || (line = atoi(colon + 1)) <= 0) {
      fprintf(stderr, "LLMC_FAULT=%s: expected file:line\n", text);
      exit(2);
    }
    file.assign(text, colon);
  }
  ~Fault() {
    if (line) fprintf(stderr, "fault: %s:%d was skipped %ld times\n", file.c_str(), line, skipped);
  }
};

Fault& fault() {
  static Fault f;
  return f;
}

}  // namespace

bool fault_skips(const char* file, int line) {
  Fault& f = fault();
  if (line != f.line) return false;
  if (strncmp(file, "./", 2) == 0) file += 2;  // the name of a header that was found through -I.
  if (f.file != file) return false;
  ++f.skipped;
  return true;
}

#endif
