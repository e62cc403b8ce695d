// SPDX-License-Identifier: Apache-2.0
//
// trainer::Ranks over memory that threads or forked processes share: a barrier and a window of
// bytes. Test code: a rank that never comes makes the others fail after kPatience.
#ifndef TITAN_TESTS_SUPPORT_SHARED_MEMORY_RANKS_H_
#define TITAN_TESTS_SUPPORT_SHARED_MEMORY_RANKS_H_

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "trainer/ranks.h"

namespace titan::testing {

class SharedWindow {
 public:
  static constexpr size_t kBytes = 1 << 20;

  explicit SharedWindow(int size) : size_(size) {
    void* memory =
        mmap(nullptr, sizeof(Memory), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    memory_ = new (memory) Memory();
  }
  ~SharedWindow() { munmap(memory_, sizeof(Memory)); }
  SharedWindow(const SharedWindow&) = delete;
  SharedWindow& operator=(const SharedWindow&) = delete;

  int size() const { return size_; }
  std::byte* bytes() { return memory_->bytes; }
  // Every rank has come. False: one never did.
  bool Meet() {
    static constexpr std::chrono::seconds kPatience{60};
    const int64_t round = memory_->arrived.fetch_add(1) / size_;
    const auto start = std::chrono::steady_clock::now();
    while (memory_->arrived.load() < (round + 1) * size_) {
      if (std::chrono::steady_clock::now() - start > kPatience) return false;
      std::this_thread::yield();
    }
    return true;
  }

 private:
  struct Memory {
    std::atomic<int64_t> arrived{0};
    std::byte bytes[kBytes];
  };

  const int size_;
  Memory* memory_;
};

class SharedMemoryRanks final : public trainer::Ranks {
 public:
  SharedMemoryRanks(SharedWindow& window, int rank) : window_(window), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return window_.size(); }
  Status Broadcast(int root, std::span<std::byte> data) override {
    for (size_t done = 0; done < data.size(); done += SharedWindow::kBytes) {
      const auto part = data.subspan(done, std::min(SharedWindow::kBytes, data.size() - done));
      if (root == rank_) std::memcpy(window_.bytes(), part.data(), part.size());
      if (!window_.Meet()) return Unavailable("a rank did not come");
      if (root != rank_) std::memcpy(part.data(), window_.bytes(), part.size());
      if (!window_.Meet()) return Unavailable("a rank did not come");
    }
    return OkStatus();
  }

 private:
  SharedWindow& window_;
  const int rank_;
};

}  // namespace titan::testing

#endif  // TITAN_TESTS_SUPPORT_SHARED_MEMORY_RANKS_H_
