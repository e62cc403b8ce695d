// SPDX-License-Identifier: Apache-2.0
//
// model::Ranks over memory that threads or forked processes share: a barrier and a window of
// bytes. Test code: a rank that never comes makes the others fail after kPatienceSeconds.
#ifndef TITAN_TESTS_SUPPORT_SHARED_MEMORY_RANKS_H_
#define TITAN_TESTS_SUPPORT_SHARED_MEMORY_RANKS_H_

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <span>

#include "core/model/ranks.h"

namespace titan::testing {

class SharedWindow {
 public:
  static constexpr size_t kBytes = 1 << 20;

  explicit SharedWindow(int size) : size_(size) {
    void* memory =
        mmap(nullptr, sizeof(Memory), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    memory_ = new (memory) Memory();
    pthread_mutexattr_t mutex;
    pthread_mutexattr_init(&mutex);
    pthread_mutexattr_setpshared(&mutex, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&memory_->mutex, &mutex);
    pthread_condattr_t condition;
    pthread_condattr_init(&condition);
    pthread_condattr_setpshared(&condition, PTHREAD_PROCESS_SHARED);
    pthread_condattr_setclock(&condition, CLOCK_MONOTONIC);
    pthread_cond_init(&memory_->all_came, &condition);
  }
  ~SharedWindow() { munmap(memory_, sizeof(Memory)); }
  SharedWindow(const SharedWindow&) = delete;
  SharedWindow& operator=(const SharedWindow&) = delete;

  int size() const { return size_; }
  // Of one round of exchange; those of the round before may still be read by others.
  std::byte* bytes(int64_t round = 0) { return memory_->bytes[round % 2]; }
  // Every rank has come. False: one never did.
  bool Meet() {
    static constexpr time_t kPatienceSeconds = 300;  // many ranks share a busy machine
    if (size_ == 1) return true;
    timespec until = {};
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += kPatienceSeconds;
    pthread_mutex_lock(&memory_->mutex);
    const int64_t round = memory_->arrived++ / size_;
    if (memory_->arrived == (round + 1) * size_) pthread_cond_broadcast(&memory_->all_came);
    int late = 0;
    while (memory_->arrived < (round + 1) * size_ && late == 0) {
      late = pthread_cond_timedwait(&memory_->all_came, &memory_->mutex, &until);
    }
    pthread_mutex_unlock(&memory_->mutex);
    return late == 0;
  }

 private:
  struct Memory {
    pthread_mutex_t mutex;
    pthread_cond_t all_came;
    int64_t arrived = 0;
    std::byte bytes[2][kBytes];
  };

  const int size_;
  Memory* memory_;
};

class SharedMemoryRanks final : public model::Ranks {
 public:
  SharedMemoryRanks(SharedWindow& window, int rank) : window_(window), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return window_.size(); }
  // The parts laid end to end pass through the window in rounds; each rank writes its own.
  Status AllGather(std::span<const std::span<std::byte>> parts) override {
    size_t total = 0;
    for (const std::span<std::byte> part : parts) total += part.size();
    for (size_t begin = 0; begin < total; begin += SharedWindow::kBytes) {
      std::byte* window = window_.bytes(round_++);
      const size_t end = std::min(total, begin + SharedWindow::kBytes);
      const auto copy = [&](bool own) {
        size_t first = 0;
        for (size_t r = 0; r < parts.size(); first += parts[r++].size()) {
          const size_t from = std::max(begin, first);
          const size_t to = std::min(end, first + parts[r].size());
          if (from >= to || (static_cast<int>(r) == rank_) != own) continue;
          std::byte* here = parts[r].data() + (from - first);
          std::byte* there = window + (from - begin);
          std::memcpy(own ? there : here, own ? here : there, to - from);
        }
      };
      copy(/*own=*/true);
      if (!window_.Meet()) return Unavailable("a rank did not come");
      copy(/*own=*/false);
    }
    return OkStatus();
  }

 private:
  SharedWindow& window_;
  const int rank_;
  int64_t round_ = 0;
};

}  // namespace titan::testing

#endif  // TITAN_TESTS_SUPPORT_SHARED_MEMORY_RANKS_H_
