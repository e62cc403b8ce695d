// SPDX-License-Identifier: Apache-2.0
//
// The configurations of an embedded cluster: from one ClusterConfig, a config for each daemon with
// names, folders and addresses filled in. Pure functions, any thread.
#ifndef TITAN_CLIENTS_CLUSTER_CLUSTER_CONFIG_H_
#define TITAN_CLIENTS_CLUSTER_CLUSTER_CONFIG_H_

#include <string>
#include <vector>

#include "core/base/status.h"
#include "services/rpc/config.h"
#include "titan/config/v1/daemons.pb.h"

namespace titan::cluster {

inline constexpr uint32_t kDefaultGenerators = 2;
inline constexpr uint32_t kMaxGenerators = 64;

void FillClusterDefaults(config::v1::ClusterConfig* cluster);
// Fields that only the cluster may set (names, folders, addresses), ranges, path lengths.
void ValidateCluster(const config::v1::ClusterConfig& cluster, rpc::ConfigProblems* problems);
// Fields that are set but have no effect, one sentence each.
std::vector<std::string> ClusterWarnings(const config::v1::ClusterConfig& cluster);

// <data folder>/ws.sock.
std::string SocketPath(const config::v1::ClusterConfig& cluster);

struct Addresses {
  std::string orchestrator;
  std::string weightstore;
};

// One daemon: which program, under which name, with which config as JSON.
struct DaemonPlan {
  std::string name;
  std::string role;  // the program is titan-<role>
  bool restart = false;
  std::string config_json;
};

DaemonPlan PlanWeightStore(const config::v1::ClusterConfig& cluster);
DaemonPlan PlanOrchestrator(const config::v1::ClusterConfig& cluster, const Addresses& addresses);
// The trainer, the reward service, the generators.
std::vector<DaemonPlan> PlanWorkers(const config::v1::ClusterConfig& cluster,
                                    const Addresses& addresses);

}  // namespace titan::cluster

#endif  // TITAN_CLIENTS_CLUSTER_CLUSTER_CONFIG_H_
