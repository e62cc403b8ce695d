// SPDX-License-Identifier: Apache-2.0
#include "clients/cluster/cluster_config.h"

#include <google/protobuf/descriptor.h>
#include <sys/un.h>

#include <algorithm>
#include <map>

#include "core/runtime/address.h"

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
  return {name, role, restart, rpc::ToJsonText(config, /*all_fields=*/false) + "\n"};
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

// A port that every generator would listen on.
void RefuseSharedPort(const ClusterConfig& cluster, const std::string& field,
                      const std::string& (DaemonConfig::*of)() const,
                      rpc::ConfigProblems* problems) {
  const auto address = runtime::ParseHostPort((cluster.generator().daemon().*of)());
  if (!address.ok() || address->port == 0) return;  // the daemons say what is malformed
  uint32_t users = 0;
  for (uint32_t i = 0; i < std::min(cluster.num_generators(), kMaxGenerators); ++i) {
    const bool own = i < static_cast<uint32_t>(cluster.generators_size()) &&
                     !(cluster.generators(static_cast<int>(i)).daemon().*of)().empty();
    users += own ? 0 : 1;
  }
  if (users < 2) return;
  problems->push_back({"generator.daemon." + field,
                       "is one port for " + std::to_string(users) +
                           " generators; leave it out (each takes a free port), or give each its "
                           "own under generators[i].daemon." +
                           field});
}

// Every leaf that `message` sets, with its path.
void CollectSet(const google::protobuf::Message& message, const std::string& path,
                std::vector<std::string>* out) {
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  for (const auto* field : fields) {
    const std::string here = path.empty() ? field->name() : path + "." + field->name();
    if (!field->is_repeated() &&
        field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE) {
      CollectSet(message.GetReflection()->GetMessage(message, field), here, out);
    } else {
      out->push_back(here);
    }
  }
}

void WarnOfDelaySeed(const std::string& path, const DaemonConfig& daemon,
                     std::vector<std::string>* warnings) {
  if (daemon.debug().rpc_delay_seed() == 0 || daemon.debug().rpc_delay_max_ms() > 0) return;
  warnings->push_back(path + ".daemon.debug.rpc_delay_seed has no effect: " + path +
                      ".daemon.debug.rpc_delay_max_ms is 0");
}

}  // namespace

std::vector<std::string> ClusterWarnings(const ClusterConfig& cluster) {
  std::vector<std::string> warnings;
  std::vector<std::string> common;
  CollectSet(cluster.generator(), "", &common);
  const auto given = static_cast<uint32_t>(cluster.generators_size());
  if (given > 0 && given >= cluster.num_generators()) {
    std::map<std::string, uint32_t> own;
    for (const GeneratorConfig& generator : cluster.generators()) {
      std::vector<std::string> fields;
      CollectSet(generator, "", &fields);
      for (const std::string& field : fields) ++own[field];
    }
    for (const std::string& field : common) {
      if (own[field] < given) continue;
      warnings.push_back("generator." + field + " has no effect: every entry of generators sets " +
                         field);
    }
  }
  WarnOfDelaySeed("orchestrator", cluster.orchestrator().daemon(), &warnings);
  WarnOfDelaySeed("generator", cluster.generator().daemon(), &warnings);
  for (int i = 0; i < cluster.generators_size(); ++i) {
    WarnOfDelaySeed("generators[" + std::to_string(i) + "]", cluster.generators(i).daemon(),
                    &warnings);
  }
  WarnOfDelaySeed("trainer", cluster.trainer().daemon(), &warnings);
  WarnOfDelaySeed("weightstore", cluster.weightstore().daemon(), &warnings);
  WarnOfDelaySeed("reward", cluster.reward().daemon(), &warnings);
  return warnings;
}

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
    problems->push_back({"num_generators", "is " + std::to_string(cluster.num_generators()) +
                                               "; valid: 1 to " + std::to_string(kMaxGenerators)});
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
  RefuseSharedPort(cluster, "listen", &DaemonConfig::listen, problems);
  RefuseSharedPort(cluster, "health_listen", &DaemonConfig::health_listen, problems);
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
