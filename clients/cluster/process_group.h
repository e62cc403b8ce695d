// SPDX-License-Identifier: Apache-2.0
//
// A set of child processes under supervision: those marked `restart` are started again with
// back-off (at most 5 times in a minute), the end of another one degrades the group. Decides and
// starts; threads and waiting are the caller's.
#ifndef TITAN_CLIENTS_CLUSTER_PROCESS_GROUP_H_
#define TITAN_CLIENTS_CLUSTER_PROCESS_GROUP_H_

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "clients/cluster/process.h"
#include "core/base/clock.h"
#include "core/base/status.h"

namespace titan::cluster {

struct ProcessSpec {
  std::string name;  // worker id
  std::string role;
  std::string exe;
  std::vector<std::string> arguments;
  std::string log_path;
  bool restart = false;
};

struct PastExit {
  pid_t pid = 0;
  ProcessExit exit;
  int64_t unix_ms = 0;
};

struct ProcessState {
  ProcessSpec spec;
  pid_t pid = 0;  // of the running or the last process
  bool running = false;
  bool given_up = false;  // restarted too often
  uint32_t restarts = 0;
  std::vector<PastExit> exits;
};

// One thread only, and always the same one (see StartProcess).
class ProcessGroup {
 public:
  static constexpr int kMaxRestarts = 5;
  static constexpr std::chrono::seconds kRestartWindow{60};
  static constexpr std::chrono::milliseconds kFirstBackoff{200};
  static constexpr std::chrono::milliseconds kMaxBackoff{3000};

  // `clock` must outlive the group.
  explicit ProcessGroup(const Clock& clock) : clock_(clock) {}
  // Kills what still runs.
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  Status Start(ProcessSpec spec);
  // Reaps what has ended, starts what is due. True when something changed. Call it often (50 ms).
  bool Poll();
  // From now on nothing is restarted and no end degrades the group.
  void BeginStop() { stopping_ = true; }
  // Sends a signal to a running process; false when it does not run.
  bool Signal(const std::string& name, int signal);

  const std::vector<ProcessState>& processes() const { return states_; }
  const ProcessState* Find(const std::string& name) const;
  // Why the group is degraded; empty while it is not.
  const std::string& degraded() const { return degraded_; }

 private:
  struct Pending {
    std::deque<Instant> starts;  // restarts within the window
    std::optional<Instant> due;
  };
  void Ended(size_t i, const ProcessExit& exit);

  const Clock& clock_;
  std::vector<ProcessState> states_;
  std::vector<Pending> pending_;  // parallel to states_
  std::string degraded_;
  bool stopping_ = false;
};

}  // namespace titan::cluster

#endif  // TITAN_CLIENTS_CLUSTER_PROCESS_GROUP_H_
