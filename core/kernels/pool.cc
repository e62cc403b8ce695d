// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/pool.h"

#include <immintrin.h>

#include <chrono>

#include "core/base/check.h"
#include "core/kernels/isa.h"

namespace titan::kernels {
namespace {

// How long a thread without work spins before it sleeps: longer than the gap between two kernels of
// a layer, shorter than what a scheduler would notice. Time decides only between spinning and
// sleeping.
constexpr std::chrono::microseconds kSpin(50);
constexpr int kPausesPerClockRead = 16;

// Spins until done() or for about kSpin; the last value of done(). A short wait reads no clock.
template <typename Done>
bool Spin(Done done) {
  std::chrono::steady_clock::time_point until;
  for (int spins = 1; !done(); ++spins) {
    _mm_pause();
    if (spins % kPausesPerClockRead != 0) continue;
    const auto now = std::chrono::steady_clock::now();
    if (spins == kPausesPerClockRead) {
      until = now + kSpin;
    } else if (now >= until) {
      return done();
    }
  }
  return true;
}

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

Pool& Pool::OfThisThread() {
  static thread_local Pool alone(1);
  return alone;
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
  AwaitOthers(num_tasks);
  busy_.store(false);
}

// The tails of the tasks that other threads have taken.
void Pool::AwaitOthers(int num_tasks) {
  const auto done = [&] { return finished_.load() == num_tasks; };
  if (Spin(done)) return;
  std::unique_lock<std::mutex> lock(mutex_);
  // Sequentially consistent with finished_: the caller sees the last task's end, or the thread that
  // ended it sees the caller asleep, and then takes mutex_, so its notice cannot come between the
  // caller's look and its wait.
  caller_sleeps_.store(true);
  done_.wait(lock, done);
  caller_sleeps_.store(false);
}

void Pool::Work() {
  uint64_t tasks = tasks_.load(std::memory_order_acquire);
  for (;;) {
    const uint32_t next = static_cast<uint32_t>(tasks);
    if (next >= static_cast<uint32_t>(tasks >> 32)) return;
    if (!tasks_.compare_exchange_weak(tasks, tasks + 1, std::memory_order_acq_rel)) continue;
    (*body_)(static_cast<int>(next));
    // After the last of these the caller may return and start another Run: nothing below may touch
    // body_, and a notice that comes late wakes a caller that looks again.
    if (finished_.fetch_add(1) + 1 == static_cast<int>(tasks >> 32) && caller_sleeps_.load()) {
      { const std::lock_guard<std::mutex> lock(mutex_); }
      done_.notify_one();
    }
    tasks = tasks_.load(std::memory_order_acquire);
  }
}

void Pool::Loop() {
  const NumericThread environment;
  uint64_t seen = 0;
  for (;;) {
    if (!Spin([&] { return generation_.load(std::memory_order_acquire) != seen; })) {
      std::unique_lock<std::mutex> lock(mutex_);
      sleeping_.fetch_add(1);
      wake_.wait(lock, [&] { return generation_.load() != seen; });
      sleeping_.fetch_sub(1);
    }
    seen = generation_.load(std::memory_order_acquire);
    if (stop_.load()) return;
    Work();
  }
}

}  // namespace titan::kernels
