// The host tests' framework: doctest, whose REQUIRE would hide ours, so only the names we use are given.
#pragma once

#define DOCTEST_CONFIG_NO_SHORT_MACRO_NAMES
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <string>

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
