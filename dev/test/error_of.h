// Catches the message of an Error, for tests with and without doctest.
#pragma once

#include <string>

#include "llmc/base/error.h"

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
