// Covers: the README's table of options is the program's
#include <fstream>
#include <sstream>

#include "dev/test/test.h"
#include "llmc/base/options.h"

TEST_CASE("the README has the table of options") {
  std::ifstream file("README.md");
  std::stringstream text;
  text << file.rdbuf();
  const std::string readme = text.str(), begin = "<!-- options -->\n", end = "<!-- /options -->";
  const size_t from = readme.find(begin), to = readme.find(end);
  CHECK(from != std::string::npos);
  CHECK(to != std::string::npos);
  if (from == std::string::npos || to == std::string::npos) return;
  const std::string here = readme.substr(from + begin.size(), to - from - begin.size()), wanted = options_markdown();
  CHECK(here == wanted);
  if (here != wanted) printf("put this between the marks in README.md:\n%s", wanted.c_str());
}
