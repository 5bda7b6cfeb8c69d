// What the native tests need of a test framework: a check that says where it failed, and a count.
#pragma once

#include <cstdio>

namespace stratad::test {

inline int failures = 0;

inline void check(bool holds, const char* text, const char* file, int line) {
  if (holds) return;
  ++failures;
  std::fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, text);
}

template <class Error, class Action>
bool throws(Action action) {
  try {
    action();
  } catch (const Error&) {
    return true;
  }
  return false;
}

}  // namespace stratad::test

#define CHECK(condition) stratad::test::check((condition), #condition, __FILE__, __LINE__)
