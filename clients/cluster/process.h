// SPDX-License-Identifier: Apache-2.0
//
// One child process: started with its output in a file, in a process group of its own (so that
// Ctrl-C on the terminal reaches only the supervisor), asked to end if the thread that started it
// ends.
#ifndef TITAN_CLIENTS_CLUSTER_PROCESS_H_
#define TITAN_CLIENTS_CLUSTER_PROCESS_H_

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "core/base/status.h"

namespace titan::cluster {

// How a process ended.
struct ProcessExit {
  int code = 0;                 // exit code; 128 + signal when a signal ended it
  int signal = 0;               // 0: it exited by itself
  int64_t peak_memory_kib = 0;  // largest resident set, mapped weight slots included
};
std::string Describe(const ProcessExit& exit);  // "exit code 1", "signal 9 (Killed)"

// Forks and executes; output (stdout and stderr) is appended to `log_path`. NotFound: no such
// program. The calling thread must live as long as the child: the kernel sends SIGTERM to the child
// when it ends.
StatusOr<pid_t> StartProcess(const std::string& exe, const std::vector<std::string>& arguments,
                             const std::string& log_path);

// Reaps the child if it has ended. REQUIRES: a child of this process that was not reaped.
std::optional<ProcessExit> PollProcess(pid_t pid);

// The last lines of a file, for error messages; empty when there is none.
std::string LastLines(const std::string& path, int lines);

}  // namespace titan::cluster

#endif  // TITAN_CLIENTS_CLUSTER_PROCESS_H_
