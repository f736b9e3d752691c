// The host tests' framework: doctest, whose REQUIRE would hide ours, so only the names we use are given.
#pragma once

#define DOCTEST_CONFIG_NO_SHORT_MACRO_NAMES
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "dev/test/error_of.h"

#define TEST_CASE DOCTEST_TEST_CASE
#define SUBCASE DOCTEST_SUBCASE
#define CHECK DOCTEST_CHECK
#define CAPTURE DOCTEST_CAPTURE

// Checks that each of the parts stands in the text.
template <class... Parts>
void says(const std::string& text, const Parts&... parts) {
  CAPTURE(text);
  for (const std::string& part : {std::string(parts)...}) {
    CAPTURE(part);
    CHECK(text.find(part) != text.npos);
  }
}

// The words of a command line.
inline std::vector<std::string> words_of(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}
