// SPDX-License-Identifier: Apache-2.0
//
// The configurations of an embedded cluster: from one ClusterConfig, a config for each daemon with
// names, folders and addresses filled in. Defaults and checks of the parts are the daemons' own
// (services/settings), so that what is accepted here is accepted by the daemons. Pure functions
// that look at nothing but the CPU, any thread.
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

// Those of every daemon, except what the cluster fills in. `generators` stays: its entries say only
// what differs from `generator`.
void FillClusterDefaults(config::v1::ClusterConfig* cluster);
// Fields that only the cluster may set (names, folders, addresses), and every check of the daemons
// on what they would read, under the path that `origins` says the user wrote.
void ValidateCluster(const config::v1::ClusterConfig& cluster, const rpc::ConfigOrigins& origins,
                     rpc::ConfigProblems* problems);
// What a field of the cluster's file may be, for the reader's messages.
rpc::ValidValues ValidClusterValues();
// Fields that are set but have no effect, one sentence each.
std::vector<std::string> ClusterWarnings(const config::v1::ClusterConfig& cluster,
                                         const rpc::ConfigOrigins& origins);
// What --print_config shows: each entry of `generators` with all its values, and where they came
// from. What the cluster fills in stays empty, so that the output can be a cluster's file again.
std::string PrintCluster(const config::v1::ClusterConfig& cluster,
                         const rpc::ConfigOrigins& origins);

// An address at which a daemon of the cluster will listen.
struct Listener {
  std::string path;     // in the cluster's file, for example orchestrator.daemon.listen
  std::string address;  // host:port as written
};
// Those with a fixed port. Malformed addresses are left out.
std::vector<Listener> FixedListeners(const config::v1::ClusterConfig& cluster);

// Of each generator, what is said for it alone merged over what is said for all.
std::vector<config::v1::GeneratorConfig> GeneratorConfigs(const config::v1::ClusterConfig& cluster);

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
