// Covers: the README's tables of options and of what becomes of activations are the program's
#include <fstream>
#include <sstream>

#include "dev/test/test.h"
#include "llmc/base/options.h"
#include "llmc/memory/activation_policy.h"

namespace {

std::string readme() {
  std::ifstream file("README.md");
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

TEST_CASE("the README has the table of activations") {
  const std::string wanted = "```text\n" + activation_table() + "```";
  CAPTURE(wanted);
  CHECK(readme().find(wanted) != std::string::npos);
}

TEST_CASE("the README has the table of options") {
  const std::string readme = ::readme(), begin = "<!-- options -->\n", end = "<!-- /options -->";
  const size_t from = readme.find(begin), to = readme.find(end);
  CHECK(from != std::string::npos);
  CHECK(to != std::string::npos);
  if (from == std::string::npos || to == std::string::npos) return;
  const std::string here = readme.substr(from + begin.size(), to - from - begin.size()), wanted = options_markdown();
  CHECK(here == wanted);
  if (here != wanted) printf("put this between the marks in README.md:\n%s", wanted.c_str());
}
