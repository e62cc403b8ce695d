// SPDX-License-Identifier: Apache-2.0
//
// Internal to core/kernels: n independent elements over the pool's threads.
#ifndef TITAN_CORE_KERNELS_ELEMENTS_H_
#define TITAN_CORE_KERNELS_ELEMENTS_H_

#include <algorithm>
#include <cstdint>

#include "core/kernels/pool.h"

namespace titan::kernels::internal {

// body(first, count) over disjoint ranges that cover n elements.
template <typename Body>
void OverElements(Pool& pool, int64_t n, const Body& body) {
  constexpr int64_t kElementsPerTask = 16384;
  pool.Run(static_cast<int>((n + kElementsPerTask - 1) / kElementsPerTask), [&](int task) {
    const int64_t first = task * kElementsPerTask;
    body(first, std::min(kElementsPerTask, n - first));
  });
}

}  // namespace titan::kernels::internal

#endif  // TITAN_CORE_KERNELS_ELEMENTS_H_
