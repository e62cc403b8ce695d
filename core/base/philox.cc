// SPDX-License-Identifier: Apache-2.0
#include "core/base/philox.h"

#include <numeric>
#include <utility>

namespace titan {

PhiloxCounter Philox4x32(PhiloxCounter c, PhiloxKey key, int rounds) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53u;
  constexpr uint64_t kMultiplier1 = 0xCD9E8D57u;
  constexpr uint32_t kWeyl0 = 0x9E3779B9u;
  constexpr uint32_t kWeyl1 = 0xBB67AE85u;
  for (int round = 0; round < rounds; ++round) {
    const uint64_t product0 = kMultiplier0 * c[0];
    const uint64_t product1 = kMultiplier1 * c[2];
    c = {static_cast<uint32_t>(product1 >> 32) ^ c[1] ^ key[0], static_cast<uint32_t>(product1),
         static_cast<uint32_t>(product0 >> 32) ^ c[3] ^ key[1], static_cast<uint32_t>(product0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return c;
}

uint32_t RandomWord(uint64_t seed, RandomDomain domain, uint32_t c0, uint32_t c1, uint32_t c2,
                    uint32_t draw) {
  const PhiloxKey key = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  return Philox4x32({c0, c1, c2, static_cast<uint32_t>(domain) << 24 | draw}, key)[0];
}

std::vector<uint32_t> RandomPermutation(uint64_t seed, RandomDomain domain, uint64_t epoch,
                                        uint32_t n) {
  std::vector<uint32_t> order(n);
  std::iota(order.begin(), order.end(), 0u);
  for (uint32_t i = n; i-- > 1;) {
    const uint64_t word = RandomWord(seed, domain, static_cast<uint32_t>(epoch),
                                     static_cast<uint32_t>(epoch >> 32), i);
    std::swap(order[i], order[(word * (uint64_t{i} + 1)) >> 32]);
  }
  return order;
}

uint32_t RandomCandidateRow(uint64_t seed, uint64_t group_id, uint32_t n) {
  const uint64_t word = RandomWord(seed, RandomDomain::kCandidates, static_cast<uint32_t>(group_id),
                                   static_cast<uint32_t>(group_id >> 32), 0);
  return static_cast<uint32_t>((word * n) >> 32);
}

}  // namespace titan
