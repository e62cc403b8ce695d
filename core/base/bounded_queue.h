// SPDX-License-Identifier: Apache-2.0
//
// A queue with a bound between threads. Every queue of a daemon is one of these, so that none grows
// without limit: the producer chooses between refusing (TryPush) and waiting (Push).
#ifndef TITAN_CORE_BASE_BOUNDED_QUEUE_H_
#define TITAN_CORE_BASE_BOUNDED_QUEUE_H_

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "core/base/check.h"

namespace titan {

// First in, first out. Any thread may call anything; after Close() pushes fail and pops drain what
// is left.
template <typename T>
class BoundedQueue {
 public:
  // REQUIRES: capacity > 0.
  explicit BoundedQueue(size_t capacity) : capacity_(capacity) { TITAN_CHECK(capacity > 0); }
  BoundedQueue(const BoundedQueue&) = delete;
  BoundedQueue& operator=(const BoundedQueue&) = delete;

  // False, with `item` dropped, when the queue is full or closed.
  bool TryPush(T item) {
    {
      std::lock_guard lock(mutex_);
      if (closed_ || items_.size() >= capacity_) return false;
      items_.push_back(std::move(item));
    }
    not_empty_.notify_one();
    return true;
  }

  // Waits for a place. False when the queue is or becomes closed.
  bool Push(T item) {
    {
      std::unique_lock lock(mutex_);
      not_full_.wait(lock, [&] { return closed_ || items_.size() < capacity_; });
      if (closed_) return false;
      items_.push_back(std::move(item));
    }
    not_empty_.notify_one();
    return true;
  }

  // Waits for an item; nothing once the queue is closed and empty.
  std::optional<T> Pop() {
    std::unique_lock lock(mutex_);
    not_empty_.wait(lock, [&] { return closed_ || !items_.empty(); });
    return Take(lock);
  }

  // As Pop, but nothing also after `patience`.
  template <typename Rep, typename Period>
  std::optional<T> PopFor(std::chrono::duration<Rep, Period> patience) {
    std::unique_lock lock(mutex_);
    not_empty_.wait_for(lock, patience, [&] { return closed_ || !items_.empty(); });
    return Take(lock);
  }

  // An item that is there now, or nothing.
  std::optional<T> TryPop() {
    std::unique_lock lock(mutex_);
    return Take(lock);
  }

  void Close() {
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
    }
    not_empty_.notify_all();
    not_full_.notify_all();
  }

  bool closed() const {
    std::lock_guard lock(mutex_);
    return closed_;
  }
  size_t size() const {
    std::lock_guard lock(mutex_);
    return items_.size();
  }
  size_t capacity() const { return capacity_; }

 private:
  std::optional<T> Take(std::unique_lock<std::mutex>& lock) {
    if (items_.empty()) return std::nullopt;
    std::optional<T> item(std::move(items_.front()));
    items_.pop_front();
    lock.unlock();
    not_full_.notify_one();
    return item;
  }

  const size_t capacity_;
  mutable std::mutex mutex_;
  std::condition_variable not_empty_;
  std::condition_variable not_full_;
  std::deque<T> items_;
  bool closed_ = false;
};

}  // namespace titan

#endif  // TITAN_CORE_BASE_BOUNDED_QUEUE_H_
