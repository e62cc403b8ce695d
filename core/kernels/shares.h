// SPDX-License-Identifier: Apache-2.0
//
// Internal to core/kernels: who takes which task of a call. Each thread has a share of neighbouring
// tasks and goes through it in order, so that it finds what it packed and fetched for the one
// before; who is done takes the last task of another's share, because no two cores are equally fast
// at any moment. Speed only: a task computes the same whoever takes it.
#ifndef TITAN_CORE_KERNELS_SHARES_H_
#define TITAN_CORE_KERNELS_SHARES_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

#include "core/base/check.h"
#include "core/kernels/pool.h"

namespace titan::kernels::internal {

// Thread-safe.
class Shares {
 public:
  // REQUIRES: shares >= 1, 0 <= tasks < 2^32 (checked).
  Shares(int shares, int64_t tasks)
      : count_(shares), left_(std::make_unique<Left[]>(static_cast<size_t>(shares))) {
    TITAN_CHECK(shares >= 1 && tasks >= 0 && tasks < kTasks);
    for (int s = 0; s < shares; ++s) {
      left_[static_cast<size_t>(s)].range.store(Range(tasks * s / shares, tasks * (s + 1) / shares),
                                                std::memory_order_relaxed);
    }
  }

  // Shares [starts[s], starts[s + 1]).
  explicit Shares(std::span<const int64_t> starts)
      : count_(static_cast<int>(starts.size()) - 1),
        left_(std::make_unique<Left[]>(starts.size() - 1)) {
    TITAN_CHECK(starts.front() >= 0 && starts.back() < kTasks);
    for (size_t s = 0; s + 1 < starts.size(); ++s) {
      left_[s].range.store(Range(starts[s], starts[s + 1]), std::memory_order_relaxed);
    }
  }

  // The next task for whoever has taken this share; -1: none is left of it, and of no other share
  // `least`, which is 2 where one task costs another thread more than it saves. REQUIRES: least >
  // 0.
  int64_t Next(int share, int64_t least = 1) {
    const int64_t own = Take(share, /*first=*/true, 1);
    if (own >= 0) return own;
    for (int i = 1; i < count_; ++i) {
      const int64_t other = Take((share + i) % count_, /*first=*/false, least);
      if (other >= 0) return other;
    }
    return -1;
  }

 private:
  static constexpr int64_t kTasks = int64_t{1} << 32;
  // One word: the tasks [low half, high half).
  struct alignas(64) Left {
    std::atomic<uint64_t> range;
  };
  static uint64_t Range(int64_t begin, int64_t end) {
    return static_cast<uint64_t>(end) << 32 | static_cast<uint64_t>(begin);
  }
  int64_t Take(int share, bool first, int64_t least) {
    std::atomic<uint64_t>& left = left_[static_cast<size_t>(share)].range;
    uint64_t range = left.load(std::memory_order_relaxed);
    for (;;) {
      const int64_t begin = static_cast<uint32_t>(range), end = static_cast<int64_t>(range >> 32);
      if (end - begin < least) return -1;
      const uint64_t rest = first ? Range(begin + 1, end) : Range(begin, end - 1);
      if (left.compare_exchange_weak(range, rest, std::memory_order_relaxed)) {
        return first ? begin : end - 1;
      }
    }
  }

  const int count_;
  const std::unique_ptr<Left[]> left_;
};

// Calls body(0) .. body(tasks - 1), each once, dealt to the pool's threads in shares; least: Next.
template <typename Body>
void RunInShares(Pool& pool, int64_t tasks, int64_t least, const Body& body) {
  if (tasks == 0) return;
  const int threads = static_cast<int>(std::min<int64_t>(pool.size(), tasks));
  Shares shares(threads, tasks);
  pool.Run(threads, [&](int share) {
    for (int64_t task; (task = shares.Next(share, least)) >= 0;) body(task);
  });
}

}  // namespace titan::kernels::internal

#endif  // TITAN_CORE_KERNELS_SHARES_H_
