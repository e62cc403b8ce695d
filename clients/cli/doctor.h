// SPDX-License-Identifier: Apache-2.0
//
// doctor: is this machine fit to run a cluster? Facts are gathered by ReadMachine; what they mean
// is decided by Examine, a pure function.
#ifndef TITAN_CLIENTS_CLI_DOCTOR_H_
#define TITAN_CLIENTS_CLI_DOCTOR_H_

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "clients/cluster/terminal.h"
#include "orchestrator/disk_needs.h"
#include "orchestrator/memory_needs.h"

namespace titan::cli {

// What doctor looks at. A reason that is not empty says why something does not work.
struct MachineFacts {
  std::set<std::string> cpu_flags;  // as /proc/cpuinfo names them
  std::string cpu_name;
  int cores = 0;  // that this process may use
  uint64_t memlock_bytes = 0;
  bool memlock_unlimited = false;
  uint64_t open_files = 0;
  std::string memfd_reason;     // sealed memory files
  std::string loopback_reason;  // a listener on a free port of 127.0.0.1
  std::string port_reason;      // addresses of the cluster configuration
  int64_t unix_seconds = 0;
  std::optional<bool> clock_synchronized;
  std::string folder;         // data folder that was looked at
  std::string folder_reason;  // it cannot be written
  bool folder_in_use = false;
  uint64_t disk_available_bytes = 0;
  double disk_sync_seconds = 0;  // of one small synced write
  uint64_t shm_available_bytes = 0;
  bool has_shm = false;
  std::optional<uint64_t> memory_available_bytes;
  uint64_t swap_used_bytes = 0;
  std::vector<std::string> missing_programs;
};

// The job that memory and disk are compared with.
struct JobNeeds {
  std::vector<orchestrator::MemoryNeed> memory;
  orchestrator::DiskNeeds disk;  // all 0 when nothing is kept
  // What disk_limit_bytes leaves beside the files that are there; none: the volume is the bound.
  std::optional<uint64_t> disk_left_bytes;
  std::string problem;  // why it could not be looked at
};

enum class Health { kGood, kWarning, kBad };
struct Finding {
  Health health = Health::kGood;
  std::string subject;
  std::string text;
  std::string fix;  // empty when there is nothing to do
};

std::vector<Finding> Examine(const MachineFacts& facts, const std::optional<JobNeeds>& job);
bool IsFit(const std::vector<Finding>& findings);  // nothing is bad
std::string FormatFindings(const std::vector<Finding>& findings, const cluster::Terminal& terminal);

// `listen`: addresses that a cluster configuration asks for.
MachineFacts ReadMachine(const std::string& data_folder, const std::string& bin_folder,
                         const std::vector<std::string>& listen);

}  // namespace titan::cli

#endif  // TITAN_CLIENTS_CLI_DOCTOR_H_
