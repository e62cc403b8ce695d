// SPDX-License-Identifier: Apache-2.0
//
// Random delays put before RPCs on purpose (DebugConfig), so that tests can show that timing
// changes no result. Thread-safe.
#ifndef TITAN_SERVICES_RPC_DEBUG_DELAY_H_
#define TITAN_SERVICES_RPC_DEBUG_DELAY_H_

#include <atomic>
#include <chrono>
#include <cstdint>

#include "core/base/hash.h"

namespace titan::rpc {

class DebugDelay {
 public:
  DebugDelay() = default;
  DebugDelay(uint32_t max_ms, uint64_t seed) : max_ms_(max_ms), seed_(seed) {}
  DebugDelay(const DebugDelay& other) : max_ms_(other.max_ms_), seed_(other.seed_) {}

  // 0..max_ms, drawn from (seed, how many were drawn before).
  std::chrono::milliseconds Next() const {
    if (max_ms_ == 0) return std::chrono::milliseconds(0);
    const uint64_t n = drawn_.fetch_add(1, std::memory_order_relaxed);
    return std::chrono::milliseconds(HashFields(seed_, n) % (uint64_t{max_ms_} + 1));
  }

 private:
  uint32_t max_ms_ = 0;
  uint64_t seed_ = 0;
  mutable std::atomic<uint64_t> drawn_ = 0;
};

}  // namespace titan::rpc

#endif  // TITAN_SERVICES_RPC_DEBUG_DELAY_H_
