// SPDX-License-Identifier: Apache-2.0
//
// Philox4x32-10, the only source of randomness (numerics.md section 9), and the shuffles and draws made
// from it. Key = 64-bit seed; counter = three words given by the use, and domain << 24 | draw; output word
// 0 is used. Pure functions, any thread. Source: Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3" (SC 2011); known answers in tests/golden/philox.
#ifndef TITAN_CORE_BASE_PHILOX_H_
#define TITAN_CORE_BASE_PHILOX_H_

#include <array>
#include <cstdint>
#include <vector>

namespace titan {

using PhiloxCounter = std::array<uint32_t, 4>;
using PhiloxKey = std::array<uint32_t, 2>;

// The block function; rounds is 10 everywhere in the product (7 exists for the published vectors).
PhiloxCounter Philox4x32(PhiloxCounter counter, PhiloxKey key, int rounds = 10);

enum class RandomDomain : uint32_t {
  kSampling = 0,    // (sample id low, sample id high, absolute token position, .)
  kDataOrder = 1,   // (epoch low, epoch high, i, .)
  kCandidates = 2,  // (group id low, group id high, 0, .)
  kHeldOut = 3,     // (0, 0, i, .)
};

// Output word 0 for key = seed and counter (c0, c1, c2, domain << 24 | draw).
uint32_t RandomWord(uint64_t seed, RandomDomain domain, uint32_t c0, uint32_t c1, uint32_t c2,
                    uint32_t draw = 0);

// Fisher-Yates of 0..n-1 for i = n-1..1 with j = (u64(word) * (i + 1)) >> 32, counter (epoch low, epoch
// high, i, .). The caller's items are sorted bytewise by id before. REQUIRES: n < 2^32.
std::vector<uint32_t> RandomPermutation(uint64_t seed, RandomDomain domain, uint64_t epoch, uint32_t n);

// Row of a later candidate of a slot: (u64(word) * n) >> 32 with counter (group id low, high, 0, .).
uint32_t RandomCandidateRow(uint64_t seed, uint64_t group_id, uint32_t n);

// u = ((word >> 8) + 0.5) * 2^-24, in (0, 1).
inline double UniformFromWord(uint32_t word) {
  return (static_cast<double>(word >> 8) + 0.5) * 0x1p-24;
}

}  // namespace titan

#endif  // TITAN_CORE_BASE_PHILOX_H_
