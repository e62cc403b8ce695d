// SPDX-License-Identifier: Apache-2.0
//
// Pool: the threads that share the outputs of one kernel call. A reduction is never split over
// them, so the number of threads and the order in which tasks are taken cannot change a bit.
#ifndef TITAN_CORE_KERNELS_POOL_H_
#define TITAN_CORE_KERNELS_POOL_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace titan::kernels {

template <typename Signature>
class FunctionRef;

// A borrowed callable: valid only as long as the callable it was made from. Two words, no
// allocation.
template <typename R, typename... Args>
class FunctionRef<R(Args...)> {
 public:
  template <typename F, typename = std::enable_if_t<!std::is_same_v<std::decay_t<F>, FunctionRef>>>
  FunctionRef(F&& callable)  // NOLINT: implicit on purpose, like a function parameter
      : object_(const_cast<void*>(static_cast<const void*>(&callable))),
        call_([](void* object, Args... args) -> R {
          return (*static_cast<std::remove_reference_t<F>*>(object))(std::forward<Args>(args)...);
        }) {}
  R operator()(Args... args) const { return call_(object_, std::forward<Args>(args)...); }

 private:
  void* object_;
  R (*call_)(void*, Args...);
};

// Persistent threads; the caller of Run is one of them, so Pool(1) starts none. Idle threads spin
// for about 50 microseconds and then sleep; so does the caller of Run when only tasks that others
// have taken are left (the last of them wakes it), because several daemons share the cores. The
// pool sets the numeric environment (isa.h) in its threads, and in the caller during Run. One Run
// at a time: a second caller, or a task that calls Run, is a bug and ends the process.
class Pool {
 public:
  explicit Pool(int num_threads);  // REQUIRES: 1 <= num_threads <= 1024
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // The calling thread's own pool of one, for a task that calls functions that take a pool.
  static Pool& OfThisThread();

  int size() const { return static_cast<int>(threads_.size()) + 1; }

  // Calls body(0) .. body(num_tasks - 1), each once, from up to size() threads, in no defined
  // order, and returns when all have returned. Tasks write disjoint outputs and do not throw.
  void Run(int num_tasks, FunctionRef<void(int task)> body);

 private:
  void Loop();
  void Work();
  void AwaitOthers(int num_tasks);

  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable wake_;  // of the threads: another Run, or the end
  std::condition_variable done_;  // of the caller of Run: its last task has returned
  // The body of the current Run; read only by a thread that has taken one of its tasks.
  const FunctionRef<void(int)>* body_ = nullptr;
  // Number of tasks << 32 | next task, one word: a thread that wakes late can take a task of the
  // current Run or none, so Run waits for tasks, never for sleepers.
  alignas(64) std::atomic<uint64_t> tasks_{0};
  alignas(64) std::atomic<int> finished_{0};         // tasks of the current Run that have returned
  alignas(64) std::atomic<uint64_t> generation_{0};  // moves with each Run
  alignas(64) std::atomic<int> sleeping_{0};
  std::atomic<bool> caller_sleeps_{false};
  std::atomic<bool> busy_{false};
  std::atomic<bool> stop_{false};
};

}  // namespace titan::kernels

#endif  // TITAN_CORE_KERNELS_POOL_H_
