// SPDX-License-Identifier: Apache-2.0
//
// Time as a dependency: a monotonic instant for deadlines and durations, and the wall clock for
// what people read. Results never depend on either.
#ifndef TITAN_CORE_BASE_CLOCK_H_
#define TITAN_CORE_BASE_CLOCK_H_

#include <atomic>
#include <chrono>
#include <cstdint>

namespace titan {

using Duration = std::chrono::nanoseconds;
// Monotonic time since an origin of the clock's own; only differences mean something.
using Instant = std::chrono::nanoseconds;

inline double Seconds(Duration d) { return std::chrono::duration<double>(d).count(); }

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual Instant Now() const = 0;
  // Milliseconds since 1970-01-01 UTC.
  virtual int64_t UnixMs() const = 0;
};

// The machine's clocks.
class SystemClock final : public Clock {
 public:
  Instant Now() const override { return std::chrono::steady_clock::now().time_since_epoch(); }
  int64_t UnixMs() const override {
    return std::chrono::duration_cast<std::chrono::milliseconds>(
               std::chrono::system_clock::now().time_since_epoch())
        .count();
  }
};

// A clock that stands until it is moved: tests and simulation.
class ManualClock final : public Clock {
 public:
  explicit ManualClock(int64_t unix_ms = 0) : origin_unix_ms_(unix_ms) {}
  Instant Now() const override { return Instant(now_.load()); }
  int64_t UnixMs() const override { return origin_unix_ms_ + now_.load() / 1'000'000; }
  void Advance(Duration by) { now_ += by.count(); }

 private:
  const int64_t origin_unix_ms_;
  std::atomic<int64_t> now_ = 0;
};

}  // namespace titan

#endif  // TITAN_CORE_BASE_CLOCK_H_
