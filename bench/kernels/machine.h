// SPDX-License-Identifier: Apache-2.0
//
// What this machine can do, measured: the physical bounds that kernel figures are held against.
#ifndef TITAN_BENCH_KERNELS_MACHINE_H_
#define TITAN_BENCH_KERNELS_MACHINE_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "core/kernels/pool.h"

namespace titan::kernels {

// Best of several runs within the budget, seconds: other load on the machine only ever adds.
double BestSeconds(const std::function<void()>& body, double budget = 0.25);

// Deterministic numbers in [-1, 1).
std::vector<float> RandomFloats(int64_t n, uint32_t seed);

// Rate of independent FMAs in registers, all threads, with the vectors of the current instruction
// set.
double PeakGflops(Pool& pool);

// All threads read the memory from end to end (but for less than a KiB a task), as fast as was
// found.
void ReadAll(Pool& pool, const char* data, int64_t bytes);

// Rate at which all threads read `bytes` of memory from end to end, in huge pages where the system
// gives them, as weight slots are; without them it is up to half lower.
double ReadGigabytes(Pool& pool, int64_t bytes);

}  // namespace titan::kernels

#endif  // TITAN_BENCH_KERNELS_MACHINE_H_
