// SPDX-License-Identifier: Apache-2.0
//
// A child process, for tests about processes that die or pause: a body of this program with a pipe
// each way, or another program. It is killed at the end, and when the thread that made it ends.
// Test code.
#ifndef TITAN_TESTS_SUPPORT_CHILD_PROCESS_H_
#define TITAN_TESTS_SUPPORT_CHILD_PROCESS_H_

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace titan::testing {

// Not thread-safe, except Kill and Signal beside the others. The parent and the body of a forked
// child speak through the same class.
class ChildProcess {
 public:
  // Forks. REQUIRES: what the body uses survives a fork (no thread of this process holds its
  // locks).
  explicit ChildProcess(const std::function<void(ChildProcess& parent)>& body) {
    int to_child[2], to_parent[2];
    EXPECT_EQ(pipe2(to_child, O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(to_parent, O_CLOEXEC), 0);
    pid_ = Fork();
    is_child_ = pid_ == 0;
    in_ = is_child_ ? to_child[0] : to_parent[0];
    out_ = is_child_ ? to_parent[1] : to_child[1];
    close(is_child_ ? to_child[1] : to_child[0]);
    close(is_child_ ? to_parent[0] : to_parent[1]);
    if (is_child_) {
      body(*this);
      _exit(0);
    }
  }
  // Runs a program; what it says on stderr is added to the file `log`. before_exec runs in the
  // child.
  explicit ChildProcess(const std::vector<std::string>& command, const std::string& log,
                        const std::function<void()>& before_exec = {}) {
    pid_ = Fork();
    if (pid_ != 0) return;
    const int file = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    dup2(file, STDERR_FILENO);
    close(file);
    if (before_exec) before_exec();
    std::vector<char*> arguments;
    for (const std::string& part : command) arguments.push_back(const_cast<char*>(part.c_str()));
    arguments.push_back(nullptr);
    execv(arguments[0], arguments.data());
    _exit(127);
  }
  ~ChildProcess() {
    Kill();
    if (in_ >= 0) close(in_);
    if (out_ >= 0) close(out_);
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  void Signal(int signal) {
    if (pid_ > 0) kill(pid_, signal);
  }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  // SIGSTOP; returns when the process stands still.
  void Stop() {
    kill(pid_, SIGSTOP);
    int status = 0;
    waitpid(pid_, &status, WUNTRACED);
  }
  void Continue() { kill(pid_, SIGCONT); }
  // Waits for its end: the exit code, or the signal negated; 0 once it has been told.
  int Wait() {
    if (pid_ <= 0) return 0;
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  // Wait, if it has ended; else false.
  bool Ended(int* code) {
    int status = 0;
    if (pid_ <= 0 || waitpid(pid_, &status, WNOHANG) != pid_) return false;
    pid_ = 0;
    *code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    return true;
  }

  // To and from the other side. ~0: it is gone; a child ends then.
  void Send(uint64_t value) { (void)!write(out_, &value, sizeof(value)); }
  uint64_t Receive() {
    uint64_t value = 0;
    if (read(in_, &value, sizeof(value)) == sizeof(value)) return value;
    if (is_child_) _exit(3);
    return ~uint64_t{0};
  }
  // The same for short texts. "": it is gone.
  void SendText(const std::string& text) {
    Send(text.size());
    (void)!write(out_, text.data(), text.size());
  }
  std::string ReceiveText() {
    const uint64_t size = Receive();
    std::string text(size == ~uint64_t{0} ? 0 : size, '\0');
    EXPECT_EQ(read(in_, text.data(), text.size()), static_cast<ssize_t>(text.size()));
    return text;
  }

 private:
  static pid_t Fork() {
    const pid_t parent = getpid();
    const pid_t pid = fork();
    EXPECT_GE(pid, 0);
    if (pid != 0) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(3);
    return 0;
  }

  pid_t pid_ = 0;  // 0: it has ended
  bool is_child_ = false;
  int in_ = -1, out_ = -1;
};

// Looks every millisecond.
inline bool Eventually(const std::function<bool()>& condition,
                       std::chrono::milliseconds patience = std::chrono::milliseconds(5000)) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  for (;;) {
    if (condition()) return true;
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace titan::testing

#endif  // TITAN_TESTS_SUPPORT_CHILD_PROCESS_H_
