// SPDX-License-Identifier: Apache-2.0
//
// Goal: a demo leaves nothing behind but its folder: no process, no socket, no memory file, no file
// elsewhere, and the folder does not grow from one demo to the next. Method: TITAN_DEMOS demos of 2
// steps in a row (2; 100 in the long suite) with a small model, as the program that `make demo`
// runs. Processes that outlive a demo become children of this one. Where namespaces are allowed the
// test has the network, /dev/shm and /tmp for itself, so that everything there is the demos'.
#include <gtest/gtest.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <set>
#include <sstream>

#include "tests/e2e/small_job.h"

namespace titan::e2e {
namespace {

namespace fs = std::filesystem;
using Names = std::multiset<std::string>;

// True when network, /dev/shm and /tmp are this process's own from here.
bool EnterNamespaces() {
  if (unshare(CLONE_NEWNS | CLONE_NEWNET) != 0) return false;
  if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return false;
  for (const char* folder : {"/dev/shm", "/tmp"}) {
    // A build folder below /tmp must stay visible.
    if (std::string(TITAN_BINARY_DIR).starts_with(folder)) continue;
    if (mount("tmpfs", folder, "tmpfs", 0, nullptr) != 0) return false;
  }
  const int fd = socket(AF_INET, SOCK_DGRAM, 0);
  ifreq request{};
  std::strncpy(request.ifr_name, "lo", IFNAMSIZ - 1);
  request.ifr_flags = IFF_UP | IFF_RUNNING;
  const bool up = ioctl(fd, SIOCSIFFLAGS, &request) == 0;
  close(fd);
  return up;
}

// Names below a folder, digits as '#': RocksDB and logs number their files.
Names FilesBelow(const std::string& folder) {
  Names names;
  std::error_code error;
  for (const auto& entry : fs::recursive_directory_iterator(folder, error)) {
    std::string name = fs::relative(entry.path(), folder).string();
    for (char& c : name) {
      if (c >= '0' && c <= '9') c = '#';
    }
    names.insert(name);
  }
  return names;
}

uint64_t BytesBelow(const std::string& folder) {
  uint64_t bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) bytes += entry.file_size();
  }
  return bytes;
}

// Listening and bound sockets of this network namespace; of TCP without those that only wait out
// their time.
Names Sockets() {
  Names all;
  for (const char* table : {"tcp", "tcp6"}) {
    std::ifstream in(std::string("/proc/self/net/") + table);
    std::string line, word, local, remote, state;
    std::getline(in, line);
    while (std::getline(in, line)) {
      std::istringstream(line) >> word >> local >> remote >> state;
      if (state != "06") all.insert(std::string(table) + " " + local + " " + state);
    }
  }
  std::ifstream in("/proc/self/net/unix");
  std::string line;
  std::getline(in, line);
  while (std::getline(in, line)) {
    const size_t at = line.find_first_of("/@");
    all.insert("unix " + (at == std::string::npos ? std::string("unnamed") : line.substr(at)));
  }
  return all;
}

// Files that this process has open, by what they are; a demo could pass descriptors up.
Names OwnFiles() {
  Names all;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const fs::path target = fs::read_symlink(entry.path(), gone);
    if (!gone) all.insert(target.string().substr(0, target.string().find('[')));
  }
  return all;
}

// Processes of the machine that have a memory file of the weight store and this network namespace.
Names MemoryFiles() {
  Names all;
  const fs::path net = fs::read_symlink("/proc/self/ns/net");
  for (const auto& process : fs::directory_iterator("/proc")) {
    std::error_code gone;
    if (fs::read_symlink(process.path() / "ns/net", gone) != net || gone) continue;
    for (fs::directory_iterator file(process.path() / "fd", gone), end; !gone && file != end;
         file.increment(gone)) {
      const std::string target = fs::read_symlink(file->path(), gone).string();
      if (target.starts_with("/memfd:")) {
        all.insert(process.path().filename().string() + " " + target);
      }
    }
  }
  return all;
}

std::string Show(const Names& names) {
  std::string text;
  for (const std::string& name : names) text += "\n  " + name;
  return text;
}

Names Minus(const Names& from, const Names& what) {
  Names left;
  std::set_difference(from.begin(), from.end(), what.begin(), what.end(),
                      std::inserter(left, left.end()));
  return left;
}

// The demo's output goes to a file.
pid_t StartDemo(const std::string& folder, const std::string& log, int steps, int seed) {
  const std::string program = std::string(TITAN_BINARY_DIR) + "/bin/titan-demo";
  const std::string count = std::to_string(steps), number = std::to_string(seed);
  std::ofstream(folder + ".cluster.json")
      << R"({"num_generators": 1, "generator": {"kernels": {"threads": 1}, "kv_cache_bytes": 67108864},)"
      << R"( "trainer": {"kernels": {"threads": 1}}})";
  const pid_t pid = fork();
  if (pid == 0) {
    (void)!freopen("/dev/null", "r", stdin);
    (void)!freopen(log.c_str(), "w", stdout);
    dup2(1, 2);
    execl(program.c_str(), program.c_str(), "--steps", count.c_str(), "--seed", number.c_str(),
          "--output", folder.c_str(), "--model", SmallModelFolder().c_str(), "--cluster",
          (folder + ".cluster.json").c_str(), nullptr);
    _exit(127);
  }
  return pid;
}

int ExitCode(pid_t pid) {
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(DemoLeaksTest, DemosInARowLeaveNothing) {
  const char* wanted = getenv("TITAN_DEMOS");
  const int num_demos = wanted != nullptr ? std::atoi(wanted) : 2;
  ASSERT_GT(num_demos, 0);
  SmallModelFolder();
  TestFolder folder("demo-leaks");
  const std::string output = folder.path() + "/demo";
  const bool alone = EnterNamespaces();
  if (!alone) std::cout << "namespaces are not allowed here: sockets and /tmp are not looked at\n";
  ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);

  const Names sockets = Sockets(), own = OwnFiles(), shm = FilesBelow("/dev/shm");
  const Names tmp = FilesBelow("/tmp");
  Names in_folder;
  uint64_t bytes = 0;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < num_demos; ++i) {
    const int code = ExitCode(StartDemo(output, folder.path() + "/log", 2, 1 + i % 3));
    ASSERT_EQ(code, 0) << "demo " << i << ":\n" << std::ifstream(folder.path() + "/log").rdbuf();
    // Processes: whatever is left is a child of this process now.
    const pid_t left = waitpid(-1, nullptr, WNOHANG);
    ASSERT_TRUE(left == -1 && errno == ECHILD) << "demo " << i << " left process " << left;
    EXPECT_EQ(Show(OwnFiles()), Show(own)) << "demo " << i;
    EXPECT_EQ(Show(MemoryFiles()), "") << "demo " << i;
    if (alone) {
      EXPECT_EQ(Show(Minus(Sockets(), sockets)), "") << "demo " << i;
      EXPECT_EQ(Show(FilesBelow("/dev/shm")), Show(shm)) << "demo " << i;
      EXPECT_EQ(Show(FilesBelow("/tmp")), Show(tmp)) << "demo " << i;
    }
    // The folder: what the first demo left there is what every demo leaves.
    if (i == 0) {
      in_folder = FilesBelow(output);
      bytes = BytesBelow(output);
    }
    EXPECT_EQ(Show(Minus(FilesBelow(output), in_folder)), "") << "new after demo " << i;
    EXPECT_LT(BytesBelow(output), 2 * bytes + (1 << 20)) << "demo " << i;
    if (HasFailure()) break;
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::cout << num_demos << " demos of 2 steps in " << seconds << " s" << std::endl;
}

TEST(DemoLeaksTest, AKilledDemoTakesItsDaemonsWithItAndTheNextOneRuns) {
  SmallModelFolder();
  TestFolder folder("demo-killed");
  const std::string output = folder.path() + "/demo", log = folder.path() + "/log";
  ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  const pid_t demo = StartDemo(output, log, 100000, 1);
  const auto says = [&log](const std::string& part) {
    std::ifstream in(log);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    return text.find(part) != std::string::npos;
  };
  for (int i = 0; i < 600 && !says("/100000)  reward"); ++i) usleep(100'000);
  EXPECT_TRUE(says("/100000)  reward"));
  kill(demo, SIGKILL);
  EXPECT_EQ(ExitCode(demo), 128 + SIGKILL);
  // Its daemons are children of this process now, and end by themselves.
  pid_t left = 0;
  for (int i = 0; i < 200 && left >= 0; ++i) {
    left = waitpid(-1, nullptr, WNOHANG);
    if (left == 0) usleep(100'000);
  }
  EXPECT_EQ(left, -1) << "a daemon outlives its demo";
  EXPECT_EQ(Show(MemoryFiles()), "");
  EXPECT_EQ(ExitCode(StartDemo(output, log, 2, 1)), 0);
  EXPECT_TRUE(says("result: "));
}

}  // namespace
}  // namespace titan::e2e
