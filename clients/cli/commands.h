// SPDX-License-Identifier: Apache-2.0
//
// The commands of titanctl. Each returns the exit code: 0 done; 1 the operation failed; 2 wrong use
// or input; 3 the job FAILED; 4 the job was CANCELLED; 5 no cluster or not reachable; 130 detached
// by Ctrl-C.
#ifndef TITAN_CLIENTS_CLI_COMMANDS_H_
#define TITAN_CLIENTS_CLI_COMMANDS_H_

#include <string>

#include "core/base/status.h"

namespace titan::cli {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitJobFailed = 3;
inline constexpr int kExitJobCancelled = 4;
inline constexpr int kExitUnreachable = 5;
inline constexpr int kExitDetached = 130;

// Options that all commands share.
struct Common {
  std::string data = "titan-data";  // data folder of the embedded cluster
  std::string address;              // orchestrator host:port instead of the data folder's
  bool json = false;                // -o json
};

// Prints "titanctl: <message>" and the fix of its detail to stderr; the exit code that fits.
int Fail(const Status& status);
// An orchestrator to talk to: --address, or the one of the data folder.
StatusOr<std::string> OrchestratorOf(const Common& common);

struct UpOptions {
  std::string config;  // ClusterConfig file; may be empty
  int generators = 0;  // 0: as the config says
};
int Up(const Common& common, const UpOptions& options);
// The supervisor process that Up starts; reports "ready" or the failure on `report_fd`.
int Supervise(const Common& common, const UpOptions& options, int report_fd);
int Down(const Common& common);
int ShowStatus(const Common& common);

int Submit(const Common& common, const std::string& file, bool watch);
int Watch(const Common& common, const std::string& job_id);
int Cancel(const Common& common, const std::string& job_id, const std::string& reason);

}  // namespace titan::cli

#endif  // TITAN_CLIENTS_CLI_COMMANDS_H_
