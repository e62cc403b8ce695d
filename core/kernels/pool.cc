// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/pool.h"

#include <immintrin.h>

#include <chrono>

#include "core/base/check.h"
#include "core/kernels/isa.h"

namespace titan::kernels {
namespace {

// How long an idle thread spins before it sleeps: longer than the gap between two kernels of a
// layer, shorter than what a scheduler would notice. Time decides only between spinning and
// sleeping.
constexpr std::chrono::microseconds kSpin(20);
constexpr int kPausesPerClockRead = 16;
constexpr int kSpinsBeforeYield = 4096;

}  // namespace

Pool::Pool(int num_threads) {
  TITAN_CHECK(num_threads >= 1 && num_threads <= 1024);
  threads_.reserve(static_cast<size_t>(num_threads) - 1);
  for (int i = 1; i < num_threads; ++i) threads_.emplace_back([this] { Loop(); });
}

Pool::~Pool() {
  TITAN_CHECK(!busy_.load());
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_.store(true);
    generation_.fetch_add(1);
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Pool::Run(int num_tasks, FunctionRef<void(int task)> body) {
  TITAN_CHECK(!busy_.exchange(true));
  const NumericThread environment;
  if (threads_.empty() || num_tasks <= 1) {
    for (int task = 0; task < num_tasks; ++task) body(task);
    busy_.store(false);
    return;
  }
  body_ = &body;
  finished_.store(0, std::memory_order_relaxed);
  tasks_.store(static_cast<uint64_t>(num_tasks) << 32, std::memory_order_release);
  generation_.fetch_add(
      1);  // sequentially consistent with sleeping_: one of the two sees the other
  if (sleeping_.load() > 0) {
    { std::lock_guard<std::mutex> lock(mutex_); }
    wake_.notify_all();
  }
  Work();
  // The tail of another thread's task: short by construction, so spin, and yield when the core is
  // shared.
  for (int spins = 0; finished_.load(std::memory_order_acquire) < num_tasks; ++spins) {
    if (spins < kSpinsBeforeYield) {
      _mm_pause();
    } else {
      std::this_thread::yield();
    }
  }
  busy_.store(false);
}

void Pool::Work() {
  uint64_t tasks = tasks_.load(std::memory_order_acquire);
  for (;;) {
    const uint32_t next = static_cast<uint32_t>(tasks);
    if (next >= static_cast<uint32_t>(tasks >> 32)) return;
    if (!tasks_.compare_exchange_weak(tasks, tasks + 1, std::memory_order_acq_rel)) continue;
    (*body_)(static_cast<int>(next));
    finished_.fetch_add(1, std::memory_order_release);
    tasks = tasks_.load(std::memory_order_acquire);
  }
}

void Pool::Loop() {
  const NumericThread environment;
  uint64_t seen = 0;
  for (;;) {
    const auto spin_until = std::chrono::steady_clock::now() + kSpin;
    for (int spins = 1; generation_.load(std::memory_order_acquire) == seen; ++spins) {
      _mm_pause();
      if (spins % kPausesPerClockRead != 0 || std::chrono::steady_clock::now() < spin_until)
        continue;
      std::unique_lock<std::mutex> lock(mutex_);
      sleeping_.fetch_add(1);
      wake_.wait(lock, [&] { return generation_.load() != seen; });
      sleeping_.fetch_sub(1);
      break;
    }
    seen = generation_.load(std::memory_order_acquire);
    if (stop_.load()) return;
    Work();
  }
}

}  // namespace titan::kernels
