// The tests' framework and their main(), compiled once: 9 s that each test program would take again.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
