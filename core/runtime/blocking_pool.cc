// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/blocking_pool.h"

namespace titan::runtime {

BlockingPool::BlockingPool(BlockingPoolOptions options) : queue_(options.max_queued) {
  TITAN_CHECK(options.threads > 0);
  for (size_t i = 0; i < options.threads; ++i) {
    threads_.emplace_back([this] {
      while (auto work = queue_.Pop()) (*work)();
    });
  }
}

BlockingPool::~BlockingPool() { Stop(); }

Status BlockingPool::Post(std::function<void()> work) {
  if (queue_.closed()) return Cancelled("the blocking pool is stopped");
  if (!queue_.TryPush(std::move(work))) {
    return ResourceExhausted("the blocking pool has " + std::to_string(queue_.capacity()) +
                             " calls queued");
  }
  return OkStatus();
}

void BlockingPool::Stop() {
  queue_.Close();
  threads_.clear();
}

}  // namespace titan::runtime
