// SPDX-License-Identifier: Apache-2.0
//
// A disk whose syncs fail, for the real programs: every fsync and fdatasync of a child process is
// shown to this process by the kernel (seccomp user notification), which lets it pass or answers
// with an error in its place. What a power loss would leave of a folder is made from what was seen.
// Test code.
//
// The disk is as bad as can be: bytes that no sync covered are lost, and each folder has the names
// that it had when it was synced last; what a failed sync was to cover is lost although a later
// sync of the same file or folder succeeds.
#ifndef TITAN_TESTS_SUPPORT_SYNC_FAULTS_H_
#define TITAN_TESTS_SUPPORT_SYNC_FAULTS_H_

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace titan::testing {

// Thread-safe. Make it before the child, which may be started again and again.
class SyncFaults {
 public:
  // Of syncs in this folder alone, as of those below it.
  explicit SyncFaults(const std::string& folder)
      : folder_(std::filesystem::canonical(folder).string()), kept_(folder_ + ".kept") {
    std::filesystem::create_directory(kept_);
    int pair[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    here_ = pair[0];
    child_ = pair[1];
    EXPECT_EQ(pipe2(stop_, O_CLOEXEC), 0);
    server_ = std::thread([this] { Serve(); });
  }
  // REQUIRES: the child has ended, or never syncs again.
  ~SyncFaults() {
    (void)!write(stop_[1], "s", 1);
    server_.join();
    for (const int fd : {here_, child_, stop_[0], stop_[1]}) close(fd);
    std::error_code ignored;
    std::filesystem::remove_all(kept_, ignored);
  }
  SyncFaults(const SyncFaults&) = delete;
  SyncFaults& operator=(const SyncFaults&) = delete;

  // Runs in the child before its program does (ChildProcess, before_exec).
  std::function<void()> before_exec() const {
    return [socket = child_] {
      sock_filter filter[] = {
          BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
          BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_fsync, 1, 0),
          BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_fdatasync, 0, 1),
          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      };
      const sock_fprog program = {std::size(filter), filter};
      prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
      const auto listener = static_cast<int>(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER,
                                                     SECCOMP_FILTER_FLAG_NEW_LISTENER, &program));
      if (listener < 0 || !Pass(socket, listener)) _exit(99);
      close(listener);
    };
  }

  // The number-th sync from now on (0: the next) fails with `error`, all others pass. of: counts
  // those of this file or folder below the folder alone ("/blobs"); "": all.
  void Fail(int number, int error, const std::string& of = "") {
    const std::lock_guard lock(mutex_);
    countdown_ = number;
    error_ = error;
    of_ = of;
    failed_.reset();
  }
  // What could not be synced since Fail, as the child named it; none: not so many were asked for.
  std::optional<std::string> failed() const {
    const std::lock_guard lock(mutex_);
    return failed_;
  }
  // What was synced, or not, since the start, below the folder, without numbers in names.
  std::set<std::string> seen() const {
    const std::lock_guard lock(mutex_);
    return seen_;
  }

  // Leaves of the folder what power loss now would leave. REQUIRES: the child has ended.
  void LosePower() {
    const std::lock_guard lock(mutex_);
    LoseIn(folder_);
  }

 private:
  using Identity = std::pair<uint64_t, uint64_t>;  // a file or folder, whatever its name
  struct File {
    uint64_t synced_bytes = 0;
    std::vector<std::pair<uint64_t, uint64_t>> lost;  // ranges that a failed sync was to cover
  };
  struct Folder {
    std::map<std::string, Identity> synced;
    std::set<Identity> lost;
  };

  static bool Pass(int socket, int fd) {
    char byte = 'l';
    iovec data = {&byte, 1};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message = {};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof(int));
    return sendmsg(socket, &message, 0) == 1;
  }
  static int Take(int socket) {
    char byte = 0;
    iovec data = {&byte, 1};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message = {};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1) return -1;
    const cmsghdr* header = CMSG_FIRSTHDR(&message);
    int fd = -1;
    if (header != nullptr) std::memcpy(&fd, CMSG_DATA(header), sizeof(int));
    return fd;
  }
  // False: it is gone.
  static bool Identify(const std::string& path, Identity* identity) {
    struct stat info = {};
    if (stat(path.c_str(), &info) != 0) return false;
    *identity = {info.st_dev, info.st_ino};
    return true;
  }
  static std::map<std::string, Identity> NamesIn(const std::string& folder) {
    std::map<std::string, Identity> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (!entry.is_regular_file() && !entry.is_directory()) continue;
      Identity identity;
      if (!Identify(entry.path().string(), &identity)) continue;
      names[entry.path().filename().string()] = identity;
    }
    return names;
  }

  void Serve() {
    std::vector<pollfd> all = {{stop_[0], POLLIN, 0}, {here_, POLLIN, 0}};
    for (;;) {
      if (poll(all.data(), all.size(), -1) < 0) continue;
      if (all[0].revents != 0) break;
      for (size_t i = all.size(); i-- > 2;) {
        if ((all[i].revents & POLLIN) != 0) {
          Answer(all[i].fd);
        } else if (all[i].revents != 0) {  // its processes have ended
          close(all[i].fd);
          all.erase(all.begin() + static_cast<ptrdiff_t>(i));
        }
      }
      if (all[1].revents != 0) {
        const int listener = Take(here_);
        if (listener >= 0) all.push_back({listener, POLLIN, 0});
      }
    }
    for (size_t i = 2; i < all.size(); ++i) close(all[i].fd);
  }
  void Answer(int listener) {
    seccomp_notif_sizes sizes = {};
    syscall(SYS_seccomp, SECCOMP_GET_NOTIF_SIZES, 0, &sizes);
    std::vector<uint64_t> asked(sizes.seccomp_notif / 8 + 1);
    std::vector<uint64_t> told(sizes.seccomp_notif_resp / 8 + 1);
    auto* question = reinterpret_cast<seccomp_notif*>(asked.data());
    auto* answer = reinterpret_cast<seccomp_notif_resp*>(told.data());
    if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, question) != 0) return;  // it was killed
    answer->id = question->id;
    answer->error = -ErrorOf("/proc/" + std::to_string(question->pid) + "/fd/" +
                             std::to_string(static_cast<int>(question->data.args[0])));
    if (answer->error == 0) answer->flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
    (void)ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, answer);
  }
  // Of the sync of what this link of /proc leads to; 0: it passes.
  int ErrorOf(const std::string& link) {
    std::error_code gone;
    const std::string path = std::filesystem::read_symlink(link, gone).string();
    if (gone || (path != folder_ && !path.starts_with(folder_ + "/"))) return 0;
    const std::lock_guard lock(mutex_);
    std::string name = path.substr(folder_.size());
    std::erase_if(name, [](char c) { return c >= '0' && c <= '9'; });
    seen_.insert(name);
    const bool counts = of_.empty() || path == folder_ + of_;
    const bool fails = counts && countdown_-- == 0;
    if (fails) failed_ = path;
    struct stat info = {};
    Identity self;
    if (stat(link.c_str(), &info) != 0 || !Identify(link, &self)) return fails ? error_ : 0;
    if (S_ISDIR(info.st_mode)) {
      Folder& folder = folders_[self];
      std::map<std::string, Identity> names = NamesIn(path);
      for (const auto& [entry, identity] : names) Hold(path + "/" + entry, identity);
      if (fails) {
        for (const auto& [entry, identity] : names) {
          const auto before = folder.synced.find(entry);
          if (before == folder.synced.end() || before->second != identity) {
            folder.lost.insert(identity);
          }
        }
      } else {
        std::erase_if(names, [&](const auto& entry) { return folder.lost.contains(entry.second); });
        folder.synced = std::move(names);
      }
    } else {
      Hold(path, self);
      File& file = files_[self];
      const auto bytes = static_cast<uint64_t>(info.st_size);
      if (fails) {
        file.lost.emplace_back(file.synced_bytes, bytes);
      } else {
        file.synced_bytes = bytes;
      }
    }
    return fails ? error_ : 0;
  }

  // Another name for a file, so that it is there when its own is to come back, and its number is
  // not used again.
  std::string KeptName(const Identity& identity) const {
    return kept_ + "/" + std::to_string(identity.second);
  }
  void Hold(const std::string& path, const Identity& identity) const {
    if (std::filesystem::is_directory(path)) return;
    (void)link(path.c_str(), KeptName(identity).c_str());
  }

  void LoseIn(const std::string& path) {
    Identity self;
    ASSERT_TRUE(Identify(path, &self)) << path;
    const Folder& folder = folders_[self];
    for (const auto& [name, identity] : NamesIn(path)) {
      const auto synced = folder.synced.find(name);
      if (synced != folder.synced.end() && synced->second == identity) continue;
      std::filesystem::remove_all(path + "/" + name);
    }
    for (const auto& [name, identity] : folder.synced) {
      const std::string entry = path + "/" + name;
      if (std::filesystem::is_directory(entry)) {
        LoseIn(entry);
      } else if (link(KeptName(identity).c_str(), entry.c_str()) == 0 || errno == EEXIST) {
        LoseOf(entry, files_[identity]);
      } else {
        ADD_FAILURE() << entry << ": " << std::strerror(errno);
      }
    }
  }
  // Files here are appended to, never written again in their middle.
  static void LoseOf(const std::string& path, const File& file) {
    if (std::filesystem::file_size(path) > file.synced_bytes) {
      std::filesystem::resize_file(path, file.synced_bytes);
    }
    const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
    for (const auto& [begin, end] : file.lost) {
      const uint64_t stop = std::min(end, file.synced_bytes);
      if (begin >= stop) continue;
      const std::string zeros(stop - begin, '\0');
      EXPECT_EQ(pwrite(fd, zeros.data(), zeros.size(), static_cast<off_t>(begin)),
                static_cast<ssize_t>(zeros.size()));
    }
    close(fd);
  }

  const std::string folder_;
  const std::string kept_;      // a folder beside it
  int here_ = -1, child_ = -1;  // the child's end brings its listener
  int stop_[2] = {-1, -1};

  mutable std::mutex mutex_;  // guards what follows
  int countdown_ = -1;
  int error_ = 0;
  std::string of_;
  std::optional<std::string> failed_;
  std::set<std::string> seen_;
  std::map<Identity, File> files_;
  std::map<Identity, Folder> folders_;
  std::thread server_;
};

}  // namespace titan::testing

#endif  // TITAN_TESTS_SUPPORT_SYNC_FAULTS_H_
