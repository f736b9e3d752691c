// Another tuning of the same products, with the hash that it then has, on standard output:
//   edit_tuning TUNING choice TEXT           all of them have this choice
//   edit_tuning TUNING device|library TEXT   it was found on, or with, another
#include <cstdio>

#include "dev/test/ranks_main.h"
#include "llmc/kernels/tuning.h"

namespace {

void edit_tuning(const Ranks&, const Words& words) {
  const Tuning before = Tuning::from_json(Json::read(words[0]));
  const std::string &what = words[1], &text = words[2];
  TunedFor found_on = before.found_on();
  if (what != "choice") (what == "device" ? found_on.device : found_on.library) = text;
  Tuning after(found_on);
  for (auto [shape, product] : before.products()) {
    if (what == "choice") product.choice = text;
    after.set(shape, product);
  }
  printf("%s\n", after.to_json().dump(2).c_str());
}

}  // namespace

int main(int argc, char** argv) {
  return ranks_main(argc, argv, {{"edit_tuning TUNING choice|device|library TEXT", edit_tuning}});
}
