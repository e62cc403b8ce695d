// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/shutdown.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#include "core/runtime/log.h"

namespace titan::runtime {
namespace {

sigset_t EndSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}

}  // namespace

ShutdownSignal::ShutdownSignal(SecondSignal second) {
  const sigset_t set = EndSignals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);
  receiver_ = std::jthread([this, second = std::move(second)](std::stop_token stop) {
    const sigset_t waited = EndSignals();
    bool seen = false;
    while (!stop.stop_requested()) {
      const timespec patience{0, 50'000'000};
      const int received = sigtimedwait(&waited, nullptr, &patience);
      if (received < 0) continue;
      if (seen) {
        if (second.text.empty()) {
          TITAN_LOG(kError, "shutdown_second_signal", {"signal", received});
        } else {
          std::fprintf(stderr, "\n%s\n", second.text.c_str());
        }
        _exit(second.exit_code);
      }
      seen = true;
      TITAN_LOG(kInfo, "shutdown_signal", {"signal", received});
      Request(OkStatus());
    }
  });
}

ShutdownSignal::~ShutdownSignal() = default;

void ShutdownSignal::Request(const Status& reason) {
  {
    std::lock_guard lock(mutex_);
    if (requested_) return;
    requested_ = true;
    reason_ = reason;
  }
  changed_.notify_all();
}

Status ShutdownSignal::Wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return requested_; });
  return reason_;
}

bool ShutdownSignal::requested() const {
  std::lock_guard lock(mutex_);
  return requested_;
}

ShutdownWatchdog::ShutdownWatchdog(std::chrono::milliseconds deadline)
    : thread_([this, deadline] {
        std::unique_lock lock(mutex_);
        if (changed_.wait_for(lock, deadline, [&] { return done_; })) return;
        TITAN_LOG(kError, "shutdown_cut_off", {"deadline_ms", deadline.count()});
        _exit(kExitShutdownCutOff);
      }) {}

ShutdownWatchdog::~ShutdownWatchdog() {
  {
    std::lock_guard lock(mutex_);
    done_ = true;
  }
  changed_.notify_all();
}

}  // namespace titan::runtime
