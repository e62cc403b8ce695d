// SPDX-License-Identifier: Apache-2.0
//
// TITAN_CHECK: invariants of our own code, also in release builds. A failed check is a bug, prints the
// place and ends the process; a cause outside the process is a Status, never a check.
#ifndef TITAN_CORE_BASE_CHECK_H_
#define TITAN_CORE_BASE_CHECK_H_

#include <cstdio>
#include <cstdlib>

#define TITAN_CHECK(condition)                                                              \
  do {                                                                                      \
    if (__builtin_expect(!(condition), 0)) {                                                \
      std::fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, #condition);     \
      std::abort();                                                                         \
    }                                                                                       \
  } while (false)

#ifdef TITAN_DEBUG_CHECKS
#define TITAN_DCHECK(condition) TITAN_CHECK(condition)
#else
#define TITAN_DCHECK(condition) \
  do {                          \
  } while (false && (condition))
#endif

#endif  // TITAN_CORE_BASE_CHECK_H_
