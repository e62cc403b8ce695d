// SPDX-License-Identifier: Apache-2.0
#include "clients/cluster/cluster_config.h"

#include <sys/un.h>

namespace titan::cluster {
namespace {

using config::v1::ClusterConfig;
using config::v1::DaemonConfig;
using config::v1::GeneratorConfig;

// The part of every daemon.
void FillDaemon(const ClusterConfig& cluster, const std::string& name, DaemonConfig* daemon) {
  daemon->set_worker_id(name);
  daemon->set_data_folder(cluster.data_folder() + "/" + name);
}

template <typename Config>
DaemonPlan MakePlan(const ClusterConfig& cluster, const std::string& name, const std::string& role,
                    bool restart, Config config) {
  FillDaemon(cluster, name, config.mutable_daemon());
  return {name, role, restart, rpc::ToJsonText(config) + "\n"};
}

void RefuseFilledIn(const std::string& path, const std::string& value,
                    rpc::ConfigProblems* problems) {
  if (!value.empty()) problems->push_back({path, "is filled in by the cluster; leave it out"});
}

template <typename Config>
void ValidateDaemonPart(const std::string& path, const Config& config,
                        rpc::ConfigProblems* problems) {
  RefuseFilledIn(path + ".daemon.worker_id", config.daemon().worker_id(), problems);
  RefuseFilledIn(path + ".daemon.data_folder", config.daemon().data_folder(), problems);
}

void ValidateGenerator(const std::string& path, const GeneratorConfig& config,
                       rpc::ConfigProblems* problems) {
  ValidateDaemonPart(path, config, problems);
  RefuseFilledIn(path + ".orchestrator_address", config.orchestrator_address(), problems);
  RefuseFilledIn(path + ".weightstore_address", config.weightstore_address(), problems);
  RefuseFilledIn(path + ".weightstore_socket", config.weightstore_socket(), problems);
}

}  // namespace

void FillClusterDefaults(ClusterConfig* cluster) {
  cluster->set_num_generators(kDefaultGenerators);
}

void ValidateCluster(const ClusterConfig& cluster, rpc::ConfigProblems* problems) {
  if (cluster.data_folder().empty()) {
    problems->push_back({"data_folder", "is required: the folder of the cluster's files"});
  } else if (SocketPath(cluster).size() >= sizeof(sockaddr_un::sun_path)) {
    problems->push_back({"data_folder", "is too long: the unix socket '" + SocketPath(cluster) +
                                            "' has more than " +
                                            std::to_string(sizeof(sockaddr_un::sun_path) - 1) +
                                            " bytes; choose a shorter folder"});
  }
  if (cluster.num_generators() < 1 || cluster.num_generators() > kMaxGenerators) {
    problems->push_back({"num_generators", "wants 1 to " + std::to_string(kMaxGenerators)});
  }
  if (static_cast<uint32_t>(cluster.generators_size()) > cluster.num_generators()) {
    problems->push_back({"generators", "has more entries than num_generators"});
  }
  ValidateDaemonPart("orchestrator", cluster.orchestrator(), problems);
  RefuseFilledIn("orchestrator.weightstore_address", cluster.orchestrator().weightstore_address(),
                 problems);
  ValidateDaemonPart("weightstore", cluster.weightstore(), problems);
  RefuseFilledIn("weightstore.socket_path", cluster.weightstore().socket_path(), problems);
  ValidateDaemonPart("reward", cluster.reward(), problems);
  RefuseFilledIn("reward.orchestrator_address", cluster.reward().orchestrator_address(), problems);
  ValidateDaemonPart("trainer", cluster.trainer(), problems);
  RefuseFilledIn("trainer.orchestrator_address", cluster.trainer().orchestrator_address(),
                 problems);
  RefuseFilledIn("trainer.weightstore_address", cluster.trainer().weightstore_address(), problems);
  RefuseFilledIn("trainer.weightstore_socket", cluster.trainer().weightstore_socket(), problems);
  ValidateGenerator("generator", cluster.generator(), problems);
  for (int i = 0; i < cluster.generators_size(); ++i) {
    ValidateGenerator("generators[" + std::to_string(i) + "]", cluster.generators(i), problems);
  }
}

std::string SocketPath(const ClusterConfig& cluster) { return cluster.data_folder() + "/ws.sock"; }

DaemonPlan PlanWeightStore(const ClusterConfig& cluster) {
  auto config = cluster.weightstore();
  config.set_socket_path(SocketPath(cluster));
  return MakePlan(cluster, "weightstore", "weightstore", false, config);
}

DaemonPlan PlanOrchestrator(const ClusterConfig& cluster, const Addresses& addresses) {
  auto config = cluster.orchestrator();
  config.set_weightstore_address(addresses.weightstore);
  return MakePlan(cluster, "orchestrator", "orchestrator", false, config);
}

std::vector<DaemonPlan> PlanWorkers(const ClusterConfig& cluster, const Addresses& addresses) {
  std::vector<DaemonPlan> plans;
  auto trainer = cluster.trainer();
  trainer.set_orchestrator_address(addresses.orchestrator);
  trainer.set_weightstore_address(addresses.weightstore);
  trainer.set_weightstore_socket(SocketPath(cluster));
  plans.push_back(MakePlan(cluster, "trainer", "trainer", false, trainer));
  auto reward = cluster.reward();
  reward.set_orchestrator_address(addresses.orchestrator);
  plans.push_back(MakePlan(cluster, "reward", "reward", true, reward));
  for (uint32_t i = 0; i < cluster.num_generators(); ++i) {
    GeneratorConfig generator = cluster.generator();
    if (i < static_cast<uint32_t>(cluster.generators_size())) {
      generator.MergeFrom(cluster.generators(static_cast<int>(i)));
    }
    generator.set_orchestrator_address(addresses.orchestrator);
    generator.set_weightstore_address(addresses.weightstore);
    generator.set_weightstore_socket(SocketPath(cluster));
    plans.push_back(
        MakePlan(cluster, "generator-" + std::to_string(i), "generator", true, generator));
  }
  return plans;
}

}  // namespace titan::cluster
