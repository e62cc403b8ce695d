// SPDX-License-Identifier: Apache-2.0
#include "clients/cluster/process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "core/runtime/files.h"

namespace titan::cluster {

std::string Describe(const ProcessExit& exit) {
  if (exit.signal == 0) return "exit code " + std::to_string(exit.code);
  const char* name = strsignal(exit.signal);
  return "signal " + std::to_string(exit.signal) +
         (name != nullptr ? " (" + std::string(name) + ")" : "");
}

StatusOr<pid_t> StartProcess(const std::string& exe, const std::vector<std::string>& arguments,
                             const std::string& log_path) {
  if (access(exe.c_str(), X_OK) != 0) return runtime::SystemError(errno, "cannot run", exe);
  const int log = open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (log < 0) return runtime::SystemError(errno, "cannot open log", log_path);
  const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  std::vector<char*> argv;  // made before the fork: the child may not allocate
  argv.push_back(const_cast<char*>(exe.c_str()));
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    // Only async-signal-safe calls from here on.
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(127);
    setpgid(0, 0);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    signal(SIGPIPE, SIG_DFL);
    dup2(null, STDIN_FILENO);
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    execv(argv[0], argv.data());
    _exit(127);
  }
  const int error = errno;
  close(log);
  if (null >= 0) close(null);
  if (pid < 0) return runtime::SystemError(error, "cannot fork for", exe);
  return pid;
}

std::optional<ProcessExit> PollProcess(pid_t pid) {
  int status = 0;
  rusage usage{};
  const pid_t got = wait4(pid, &status, WNOHANG, &usage);
  if (got != pid) return std::nullopt;
  if (WIFSIGNALED(status)) {
    return ProcessExit{128 + WTERMSIG(status), WTERMSIG(status), usage.ru_maxrss};
  }
  return ProcessExit{WEXITSTATUS(status), 0, usage.ru_maxrss};
}

std::string LastLines(const std::string& path, int lines) {
  const auto content = runtime::ReadFile(path, 64u << 20);
  if (!content.ok()) return "";
  std::string_view text = *content;
  while (text.ends_with('\n')) text.remove_suffix(1);
  size_t start = text.size();
  for (int i = 0; i < lines && start != std::string_view::npos && start > 0; ++i) {
    start = text.rfind('\n', start - 1);
  }
  return std::string(start == std::string_view::npos || start == 0 ? text : text.substr(start + 1));
}

}  // namespace titan::cluster
