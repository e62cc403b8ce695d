// SPDX-License-Identifier: Apache-2.0
#include "trainer/ranks.h"

#include <bit>
#include <cstdint>

#include "core/base/check.h"

namespace titan::trainer {

std::vector<Subtree> SubtreesOf(int num_shards, int num_ranks, int rank) {
  TITAN_CHECK(num_shards >= 1 && std::has_single_bit(static_cast<unsigned>(num_shards)));
  TITAN_CHECK(num_ranks >= 1 && num_ranks <= num_shards && rank >= 0 && rank < num_ranks);
  const auto first_of = [&](int r) {
    return static_cast<int>(int64_t{r} * num_shards / num_ranks);
  };
  std::vector<Subtree> subtrees;
  for (int first = first_of(rank); first < first_of(rank + 1);) {
    int size = 1;
    while (first % (2 * size) == 0 && first + 2 * size <= first_of(rank + 1)) size *= 2;
    subtrees.push_back({first, size});
    first += size;
  }
  return subtrees;
}

}  // namespace titan::trainer
