// Another tuning of the same products, with the hash that it then has, on standard output:
//   retune TUNING choice TEXT           all of them have this choice
//   retune TUNING device|library TEXT   it was found on, or with, another
#include <cstdio>
#include <string>

#include "llmc/base/error.h"
#include "llmc/kernels/tuning.h"

int main(int argc, char** argv) try {
  REQUIRE(argc == 4, "usage: retune TUNING choice|device|library TEXT");
  const Tuning before = Tuning::from_json(Json::read(argv[1]));
  const std::string what = argv[2], text = argv[3];
  TunedFor found_on = before.found_on();
  if (what == "device") found_on.device = text;
  if (what == "library") found_on.library = text;
  Tuning after(found_on);
  for (const auto& [shape, product] : before.products()) {
    TunedProduct changed = product;
    if (what == "choice") changed.choice = text;
    after.set(shape, changed);
  }
  printf("%s\n", after.to_json().dump(2).c_str());
  return 0;
} catch (const Error& error) {
  fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
