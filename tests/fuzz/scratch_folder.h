// SPDX-License-Identifier: Apache-2.0
//
// A folder for a fuzz target, in memory where that is possible. It goes when this process ends,
// however it does.
#ifndef TITAN_TESTS_FUZZ_SCRATCH_FOLDER_H_
#define TITAN_TESTS_FUZZ_SCRATCH_FOLDER_H_

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <string>

namespace titan::fuzz {

// REQUIRES: made before this process has threads.
class ScratchFolder {
 public:
  ScratchFolder() {
    const bool memory = access("/dev/shm", W_OK) == 0;
    path_ = std::string(memory ? "/dev/shm" : "/tmp") + "/titan_fuzz_XXXXXX";
    if (mkdtemp(path_.data()) == nullptr) {
      std::fprintf(stderr, "fuzz: cannot make a folder\n");
      std::abort();
    }
    const pid_t parent = getpid();
    const pid_t child = fork();
    if (child == 0) {
      setsid();
      while (kill(parent, 0) == 0) usleep(100'000);
      std::error_code ignored;
      std::filesystem::remove_all(path_, ignored);
      _exit(0);
    }
  }

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace titan::fuzz

#endif  // TITAN_TESTS_FUZZ_SCRATCH_FOLDER_H_
