// SPDX-License-Identifier: Apache-2.0
// The gathering half of doctor.h.
#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/timex.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "clients/cli/doctor.h"
#include "clients/cluster/cluster.h"
#include "core/runtime/address.h"
#include "core/runtime/files.h"
#include "core/runtime/listen.h"
#include "core/runtime/machine.h"

namespace titan::cli {
namespace {

namespace fs = std::filesystem;

void ReadCpu(MachineFacts* facts) {
  const auto text = runtime::ReadFile("/proc/cpuinfo", 16u << 20);
  if (!text.ok()) return;
  std::istringstream lines(*text);
  for (std::string line; std::getline(lines, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos || colon + 2 > line.size()) continue;
    if (line.starts_with("model name") && facts->cpu_name.empty()) {
      facts->cpu_name = line.substr(colon + 2);
    }
    if (line.starts_with("flags") && facts->cpu_flags.empty()) {
      std::istringstream words(line.substr(colon + 1));
      for (std::string word; words >> word;) facts->cpu_flags.insert(word);
    }
  }
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) facts->cores = CPU_COUNT(&set);
}

uint64_t SwapUsed() {
  const auto text = runtime::ReadFile("/proc/meminfo");
  if (!text.ok()) return 0;
  uint64_t total = 0, left = 0;
  std::istringstream lines(*text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("SwapTotal:")) total = std::strtoull(line.c_str() + 10, nullptr, 10);
    if (line.starts_with("SwapFree:")) left = std::strtoull(line.c_str() + 9, nullptr, 10);
  }
  return (total - left) * 1024;
}

std::string TryMemoryFile() {
  const int fd = memfd_create("titan-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return strerror(errno);
  std::string reason;
  if (ftruncate(fd, 4096) != 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    reason = strerror(errno);
  }
  close(fd);
  return reason;
}

// The folder itself, or the nearest that exists above it.
std::string ExistingFolder(const std::string& folder) {
  std::error_code error;
  fs::path at = fs::weakly_canonical(folder, error);
  while (!at.empty() && !fs::exists(at, error) && at != at.root_path()) at = at.parent_path();
  return at.empty() ? "." : at.string();
}

void ReadDisk(const std::string& data_folder, MachineFacts* facts) {
  const std::string folder = ExistingFolder(data_folder);
  facts->folder = folder;
  facts->folder_in_use = runtime::FileLock::IsHeld(cluster::LockPath(data_folder));
  std::error_code error;
  const auto space = fs::space(folder, error);
  if (!error) facts->disk_available_bytes = space.available;
  const std::string probe = folder + "/.titan-doctor-" + std::to_string(getpid());
  const auto begin = std::chrono::steady_clock::now();
  const Status written = runtime::WriteFileAtomically(probe, "probe\n");
  facts->disk_sync_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (!written.ok()) facts->folder_reason = MessageOf(written);
  fs::remove(probe, error);
  const auto shm = fs::space("/dev/shm", error);
  facts->has_shm = !error;
  if (!error) facts->shm_available_bytes = shm.available;
}

void ReadLimits(MachineFacts* facts) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0) {
    facts->memlock_unlimited = limit.rlim_cur == RLIM_INFINITY;
    facts->memlock_bytes = limit.rlim_cur;
  }
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) facts->open_files = limit.rlim_cur;
}

}  // namespace

MachineFacts ReadMachine(const std::string& data_folder, const std::string& bin_folder,
                         const std::vector<std::string>& listen) {
  MachineFacts facts;
  ReadCpu(&facts);
  ReadLimits(&facts);
  facts.memfd_reason = TryMemoryFile();
  if (const int error = runtime::TryListen({"127.0.0.1", 0}); error != 0) {
    facts.loopback_reason = strerror(error);
  }
  for (const std::string& address : listen) {
    const auto parsed = runtime::ParseHostPort(address);
    if (!parsed.ok() || parsed->port == 0) continue;  // --check_config speaks of the former
    const int error = runtime::TryListen(*parsed);
    if (error != 0 && facts.port_reason.empty()) {
      facts.port_reason = "cannot listen on " + address + ": " + strerror(error);
    }
  }
  facts.unix_seconds = std::chrono::duration_cast<std::chrono::seconds>(
                           std::chrono::system_clock::now().time_since_epoch())
                           .count();
  timex clock = {};
  const int state = adjtimex(&clock);
  if (state >= 0) facts.clock_synchronized = (clock.status & STA_UNSYNC) == 0;
  ReadDisk(data_folder, &facts);
  if (const auto available = runtime::AvailableMemory(); available.ok()) {
    facts.memory_available_bytes = *available;
  }
  facts.swap_used_bytes = SwapUsed();
  for (const char* role : {"orchestrator", "generator", "trainer", "weightstore", "reward"}) {
    const std::string program = std::string("titan-") + role;
    if (access((bin_folder + "/" + program).c_str(), X_OK) != 0) {
      facts.missing_programs.push_back(program);
    }
  }
  return facts;
}

}  // namespace titan::cli
