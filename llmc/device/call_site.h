// The place in the source that called a function. Reports name it: two accesses that nothing orders, a collective that
// hangs. A function declares it as its last parameter, `CallSite site = CallSite::here()`. Callers leave it out, unless
// they pass on the place of their own caller.
#pragma once

struct CallSite {
  const char* file = "";
  int line = 0;

  static constexpr CallSite here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
  }
};
