// SPDX-License-Identifier: Apache-2.0
//
// The caller's way between the ranks of one group: those that share an update's samples
// (trainer/ranks.h) or those that share a model's matrices (core/model/tensor_parallel.h).
#ifndef TITAN_CORE_MODEL_RANKS_H_
#define TITAN_CORE_MODEL_RANKS_H_

#include <cstddef>
#include <span>
#include <vector>

#include "core/base/status.h"

namespace titan::model {

// Moves bytes, adds nothing. Every rank makes the same calls in the same order, from one thread. A
// rank that cannot go on makes the others' calls fail; no call waits without end.
class Ranks {
 public:
  virtual ~Ranks() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // parts[r], of one size everywhere, are the bytes of rank r: this rank's own are sent, the others
  // overwritten. REQUIRES: parts.size() == size().
  virtual Status AllGather(std::span<const std::span<std::byte>> parts) = 0;

  // The bytes of `root` to everyone; data has one size everywhere.
  Status Broadcast(int root, std::span<std::byte> data) {
    std::vector<std::span<std::byte>> parts(static_cast<size_t>(size()));
    parts[static_cast<size_t>(root)] = data;
    return AllGather(parts);
  }
};

}  // namespace titan::model

#endif  // TITAN_CORE_MODEL_RANKS_H_
