// The host tests' framework: doctest, whose REQUIRE would hide ours, so only the names we use are given.
#pragma once

#define DOCTEST_CONFIG_NO_SHORT_MACRO_NAMES
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <string>

#include "llmc/base/error.h"

#define TEST_CASE DOCTEST_TEST_CASE
#define SUBCASE DOCTEST_SUBCASE
#define CHECK DOCTEST_CHECK
#define CAPTURE DOCTEST_CAPTURE

// The message of the Error that `f` throws; empty if it throws none.
template <class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}
