// Prints a table of the documentation that follows from the program, as Markdown:  tables options|activations
#include <cstdio>
#include <cstring>

#include "llmc/base/options.h"
#include "llmc/memory/activation_policy.h"

int main(int argc, char** argv) {
  const char* name = argc == 2 ? argv[1] : "";
  if (!std::strcmp(name, "options")) std::fputs(options_markdown().c_str(), stdout);
  else if (!std::strcmp(name, "activations")) std::printf("```text\n%s```\n", activation_table().c_str());
  else {
    std::fprintf(stderr, "usage: %s options|activations\n", argv[0]);
    return 1;
  }
  return 0;
}
