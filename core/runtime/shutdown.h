// SPDX-License-Identifier: Apache-2.0
//
// How a process ends. The first SIGINT or SIGTERM (or RequestShutdown) starts the graceful
// shutdown, a second signal ends the process at once, and a watchdog ends it when the deadline has
// passed.
#ifndef TITAN_CORE_RUNTIME_SHUTDOWN_H_
#define TITAN_CORE_RUNTIME_SHUTDOWN_H_

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "core/base/status.h"

namespace titan::runtime {

inline constexpr int kExitShutdownCutOff = 70;  // the watchdog ended the process
inline constexpr int kExitSecondSignal = 71;    // a second signal did

// What a second signal prints and which exit code it gives. With an empty text it is logged, as
// daemons do.
struct SecondSignal {
  std::string text;
  int exit_code = kExitSecondSignal;
};

// Blocks SIGINT and SIGTERM in the calling thread and in every thread it starts afterwards; a
// thread of its own receives them. Make one, first thing in main().
class ShutdownSignal {
 public:
  explicit ShutdownSignal(SecondSignal second = {});
  ~ShutdownSignal();
  ShutdownSignal(const ShutdownSignal&) = delete;
  ShutdownSignal& operator=(const ShutdownSignal&) = delete;

  // Starts the shutdown from any thread. The first reason counts; OK means an ordinary end.
  void Request(const Status& reason);
  // Waits for the request and answers its reason. Any thread.
  Status Wait();
  bool requested() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool requested_ = false;
  Status reason_;
  std::jthread receiver_;
};

// Ends the process with kExitShutdownCutOff unless it is destroyed within the deadline.
class ShutdownWatchdog {
 public:
  explicit ShutdownWatchdog(std::chrono::milliseconds deadline);
  ~ShutdownWatchdog();
  ShutdownWatchdog(const ShutdownWatchdog&) = delete;
  ShutdownWatchdog& operator=(const ShutdownWatchdog&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::jthread thread_;
};

}  // namespace titan::runtime

#endif  // TITAN_CORE_RUNTIME_SHUTDOWN_H_
