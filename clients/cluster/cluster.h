// SPDX-License-Identifier: Apache-2.0
//
// An embedded cluster: every daemon on this machine, its files in one data folder:
//   cluster.lock        held while the cluster runs (flock)
//   config/<name>.json  generated configs        logs/<name>.log  output of each daemon
//   <name>/             data folder of a daemon  ws.sock          the weight store's unix socket
//   endpoints.json      where everyone listens   supervisor.json  processes, exits, restarts, state
//
// Start order: weight store, orchestrator, then trainer, reward service and generators together.
// Stop order: orchestrator (it forgets nobody then), workers, weight store. A generator or reward
// service that dies is restarted; the loss of another daemon degrades the cluster.
#ifndef TITAN_CLIENTS_CLUSTER_CLUSTER_H_
#define TITAN_CLIENTS_CLUSTER_CLUSTER_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "clients/cluster/process_group.h"
#include "core/base/status.h"
#include "core/runtime/endpoint.h"
#include "services/rpc/config.h"
#include "titan/config/v1/daemons.pb.h"

namespace titan::cluster {

struct ClusterOptions {
  config::v1::ClusterConfig config;  // defaults filled in, validated; data_folder absolute
  std::string bin_folder;            // where titan-<role> lie
  std::function<void(const std::string&)>
      say;  // progress for people; from the supervisor's thread. May be empty
  rpc::ConfigOrigins origins = {};  // of `config`, for errors
  // What `titanctl up` was given beside --data, a word each; supervisor.json keeps it.
  std::vector<std::string> up_options = {};
};

// Thread-safe. One thread inside starts, watches and stops the processes.
class Cluster {
 public:
  // Returns when every daemon is ready. FailedPrecondition: the folder is in use by a running
  // cluster, or a port that the config names is taken; else why a daemon did not start, with its
  // last log lines. Nothing runs after a failure. `cancelled` (may be empty) is asked while waiting
  // and ends the start with Cancelled.
  static StatusOr<std::unique_ptr<Cluster>> Start(ClusterOptions options,
                                                  std::function<bool()> cancelled = {});
  // As Stop.
  ~Cluster();
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  std::string orchestrator_address() const;
  // Why the cluster is degraded; empty while it is not.
  std::string degraded() const;
  std::vector<ProcessState> processes() const;
  // Ends every daemon: SIGTERM, then SIGKILL after its shutdown deadline. Idempotent.
  void Stop();

 private:
  struct Impl;
  explicit Cluster(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// ---- what titanctl reads about a cluster that another process runs ----

std::string LockPath(const std::string& data_folder);
std::string SupervisorPath(const std::string& data_folder);  // supervisor.json
std::string EndpointsPath(const std::string& data_folder);   // endpoints.json
// PermissionDenied: another user's cluster, or one that ran; nothing can be said about it.
Status CheckAccess(const std::string& data_folder);
// PermissionDenied: the folder, which exists, is of another user and cannot be written to;
// InvalidArgument: it is a file.
Status CheckOwner(const std::string& data_folder);
// "titanctl up --data FOLDER", with the options that the cluster there was started with last; a
// shell takes it as it stands. The one place that makes this line.
std::string UpCommand(const std::string& data_folder);
// "titanctl down --data FOLDER && " and UpCommand.
std::string RestartCommand(const std::string& data_folder);
// Whether `titanctl down` ends the cluster there or has ended it; false also after its supervisor
// was killed.
bool WasTakenDown(const std::string& data_folder);
// The orchestrator's address from endpoints.json; NotFound says how to start a cluster.
StatusOr<std::string> OrchestratorAddressOf(const std::string& data_folder);

}  // namespace titan::cluster

#endif  // TITAN_CLIENTS_CLUSTER_CLUSTER_H_
