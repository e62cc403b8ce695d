// SPDX-License-Identifier: Apache-2.0
#include "clients/cluster/cluster_config.h"

#include <google/protobuf/descriptor.h>
#include <sys/un.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "core/runtime/address.h"
#include "services/settings/settings.h"

namespace titan::cluster {
namespace {

using config::v1::ClusterConfig;
using config::v1::DaemonConfig;
using config::v1::GeneratorConfig;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// Leader and host in one: the cluster is on one machine.
const char kStoreRole[] = "both";
// Stand in for addresses that are known at the start only, for checks of the rest.
const Addresses kLaterAddresses = {"127.0.0.1:1", "127.0.0.1:1"};
// What the cluster fills in, where a daemon's config has it.
const std::set<std::string> kFilledIn = {"daemon.worker_id",     "daemon.data_folder",
                                         "orchestrator_address", "weightstore_address",
                                         "weightstore_socket",   "socket_path"};

// ---- fields of a daemon's config, by path ----

struct Leaf {
  std::string path;
  bool is_set;  // has a value; for a plain scalar: another one than zero
};

// Every field of the type that is not a message, set or not.
void CollectLeaves(const Message& message, const std::string& path, std::vector<Leaf>* out) {
  const auto* reflection = message.GetReflection();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* field = message.GetDescriptor()->field(i);
    const std::string here = path.empty() ? field->name() : path + "." + field->name();
    if (field->is_repeated()) {
      out->push_back({here, reflection->FieldSize(message, field) > 0});
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      CollectLeaves(reflection->GetMessage(message, field), here, out);
    } else {
      out->push_back({here, reflection->HasField(message, field)});
    }
  }
}

std::vector<Leaf> LeavesOf(const Message& message) {
  std::vector<Leaf> leaves;
  CollectLeaves(message, "", &leaves);
  return leaves;
}

void ClearPath(const std::string& path, Message* message) {
  const size_t dot = path.find('.');
  const FieldDescriptor* field = message->GetDescriptor()->FindFieldByName(path.substr(0, dot));
  if (dot == std::string::npos) {
    message->GetReflection()->ClearField(message, field);
  } else {
    ClearPath(path.substr(dot + 1), message->GetReflection()->MutableMessage(message, field));
  }
}

// ---- what each daemon reads ----

template <typename Config>
void FillPart(Config* config) {
  settings::FillDefaults(config);
  config->mutable_daemon()->clear_worker_id();
}

void FillDaemon(const ClusterConfig& cluster, const std::string& name, DaemonConfig* daemon) {
  daemon->set_worker_id(name);
  daemon->set_data_folder(cluster.data_folder() + "/" + name);
}

config::v1::WeightStoreConfig WeightStoreOf(const ClusterConfig& cluster) {
  auto config = cluster.weightstore();
  config.set_role(kStoreRole);
  FillDaemon(cluster, "weightstore", config.mutable_daemon());
  config.set_socket_path(SocketPath(cluster));
  return config;
}

config::v1::OrchestratorConfig OrchestratorOf(const ClusterConfig& cluster,
                                              const Addresses& addresses) {
  auto config = cluster.orchestrator();
  FillDaemon(cluster, "orchestrator", config.mutable_daemon());
  config.set_weightstore_address(addresses.weightstore);
  return config;
}

config::v1::TrainerConfig TrainerOf(const ClusterConfig& cluster, const Addresses& addresses) {
  auto config = cluster.trainer();
  FillDaemon(cluster, "trainer", config.mutable_daemon());
  config.set_orchestrator_address(addresses.orchestrator);
  config.set_weightstore_address(addresses.weightstore);
  config.set_weightstore_socket(SocketPath(cluster));
  return config;
}

config::v1::RewardConfig RewardOf(const ClusterConfig& cluster, const Addresses& addresses) {
  auto config = cluster.reward();
  FillDaemon(cluster, "reward", config.mutable_daemon());
  config.set_orchestrator_address(addresses.orchestrator);
  return config;
}

// The own entry of a generator; null when it has none.
const GeneratorConfig* EntryOf(const ClusterConfig& cluster, uint32_t index) {
  if (index >= static_cast<uint32_t>(cluster.generators_size())) return nullptr;
  return &cluster.generators(static_cast<int>(index));
}

GeneratorConfig MergedGenerator(const ClusterConfig& cluster, uint32_t index) {
  GeneratorConfig config = cluster.generator();
  if (const auto* entry = EntryOf(cluster, index); entry != nullptr) config.MergeFrom(*entry);
  return config;
}

std::string GeneratorName(uint32_t index) { return "generator-" + std::to_string(index); }

GeneratorConfig GeneratorOf(const ClusterConfig& cluster, uint32_t index,
                            const Addresses& addresses) {
  GeneratorConfig config = MergedGenerator(cluster, index);
  FillDaemon(cluster, GeneratorName(index), config.mutable_daemon());
  config.set_orchestrator_address(addresses.orchestrator);
  config.set_weightstore_address(addresses.weightstore);
  config.set_weightstore_socket(SocketPath(cluster));
  return config;
}

template <typename Config>
DaemonPlan MakePlan(const std::string& role, bool restart, const Config& config) {
  return {config.daemon().worker_id(), role, restart,
          rpc::ToJsonText(config, /*all_fields=*/false) + "\n"};
}

std::string EntryPath(uint32_t index) { return "generators[" + std::to_string(index) + "]"; }

// ---- checks ----

bool HasProblem(const rpc::ConfigProblems& problems, const std::string& path) {
  return std::any_of(problems.begin(), problems.end(),
                     [&](const rpc::ConfigProblem& problem) { return problem.path == path; });
}

// The fields of `part` that only the cluster may set.
void RefuseFilledIn(const std::string& path, const Message& part, rpc::ConfigProblems* problems) {
  for (const Leaf& leaf : LeavesOf(part)) {
    if (!leaf.is_set || !kFilledIn.contains(leaf.path)) continue;
    problems->push_back({path + "." + leaf.path, "is filled in by the cluster; leave it out"});
  }
}

// The daemon's own checks of what it would read. `path_of` answers the path in the cluster's file.
template <typename Config>
void ValidatePart(const Config& config,
                  const std::function<std::string(const std::string&)>& path_of,
                  rpc::ConfigProblems* problems) {
  rpc::ConfigProblems own;
  settings::Validate(config, &own);
  for (rpc::ConfigProblem& problem : own) {
    if (kFilledIn.contains(problem.path)) continue;
    problem.path = path_of(problem.path);
    const bool known =
        std::any_of(problems->begin(), problems->end(), [&](const rpc::ConfigProblem& p) {
          return p.path == problem.path && p.description == problem.description;
        });
    if (!known) problems->push_back(std::move(problem));
  }
}

template <typename Config>
void ValidatePart(const Config& config, const std::string& prefix, rpc::ConfigProblems* problems) {
  ValidatePart(
      config, [&prefix](const std::string& path) { return prefix + "." + path; }, problems);
}

// An entry of `generators` overrides with values; a zero or an empty text that somebody wrote there
// would be lost in the merge, so it is checked as if it were the value, and refused where it would
// even be a valid one.
void ValidateGenerator(const ClusterConfig& cluster, uint32_t index,
                       const rpc::ConfigOrigins& origins, rpc::ConfigProblems* problems) {
  GeneratorConfig config = GeneratorOf(cluster, index, kLaterAddresses);
  const GeneratorConfig* entry = EntryOf(cluster, index);
  const std::string own = EntryPath(index) + ".";
  std::set<std::string> overridden, zeros;
  if (entry != nullptr) {
    for (const Leaf& leaf : LeavesOf(*entry)) {
      if (kFilledIn.contains(leaf.path)) continue;
      const bool zero = !leaf.is_set && !origins.IsDefault(own + leaf.path);
      if (zero) zeros.insert(leaf.path);
      if (zero || leaf.is_set) overridden.insert(leaf.path);
    }
    for (const std::string& path : zeros) ClearPath(path, &config);
  }
  ValidatePart(
      config,
      [&](const std::string& path) {
        return overridden.contains(path) ? own + path : "generator." + path;
      },
      problems);
  for (const Leaf& leaf : LeavesOf(cluster.generator())) {
    if (!leaf.is_set || !zeros.contains(leaf.path)) continue;
    const std::string path = own + leaf.path;
    if (HasProblem(*problems, path)) continue;
    problems->push_back({path, "cannot be 0 where generator." + leaf.path +
                                   " has a value; leave that out and set it in the entries"});
  }
}

// Two daemons on one port, which the second could not take.
void RefuseSharedPorts(const ClusterConfig& cluster, rpc::ConfigProblems* problems) {
  const auto is_any = [](const std::string& host) { return host == "0.0.0.0" || host == "::"; };
  struct Taken {
    runtime::HostPort address;
    std::string path;
  };
  std::vector<Taken> taken;
  std::map<std::string, uint32_t> shared;  // field of `generator`: how many use it
  for (const Listener& listener : FixedListeners(cluster)) {
    runtime::HostPort address = *runtime::ParseHostPort(listener.address);
    address.host = runtime::NumericHost(address);
    const auto other = std::find_if(taken.begin(), taken.end(), [&](const Taken& t) {
      return t.address.port == address.port &&
             (t.address.host == address.host || is_any(t.address.host) || is_any(address.host));
    });
    if (other == taken.end()) {
      taken.push_back({address, listener.path});
    } else if (other->path == listener.path) {
      ++shared[listener.path];
    } else if (!HasProblem(*problems, listener.path)) {
      problems->push_back({listener.path, "is " + listener.address + ", where " + other->path +
                                              " listens already; choose another port (0 takes a "
                                              "free one)"});
    }
  }
  for (const auto& [path, more] : shared) {
    const std::string field = path.substr(path.find('.') + 1);
    problems->push_back({path, "is one port for " + std::to_string(more + 1) +
                                   " generators; leave it out (each takes a free port), or give "
                                   "each its own under generators[i]." +
                                   field});
  }
}

uint32_t NumGenerators(const ClusterConfig& cluster) {
  return std::min(cluster.num_generators(), kMaxGenerators);
}

}  // namespace

std::vector<std::string> ClusterWarnings(const ClusterConfig& cluster,
                                         const rpc::ConfigOrigins& origins) {
  std::vector<std::string> warnings;
  const auto add = [&](const DaemonConfig& daemon, const std::string& prefix) {
    for (std::string& warning : settings::Warnings(daemon, prefix + ".")) {
      warnings.push_back(std::move(warning));
    }
  };
  const auto given = static_cast<uint32_t>(cluster.generators_size());
  if (given > 0 && given >= cluster.num_generators()) {
    std::map<std::string, uint32_t> own;
    for (const GeneratorConfig& entry : cluster.generators()) {
      for (const Leaf& leaf : LeavesOf(entry)) own[leaf.path] += leaf.is_set ? 1 : 0;
    }
    for (const Leaf& leaf : LeavesOf(cluster.generator())) {
      if (own[leaf.path] < given || origins.IsDefault("generator." + leaf.path)) continue;
      warnings.push_back("generator." + leaf.path +
                         " has no effect: every entry of generators sets " + leaf.path);
    }
  }
  add(cluster.orchestrator().daemon(), "orchestrator");
  add(cluster.generator().daemon(), "generator");
  for (uint32_t i = 0; i < given; ++i) add(EntryOf(cluster, i)->daemon(), EntryPath(i));
  add(cluster.trainer().daemon(), "trainer");
  add(cluster.weightstore().daemon(), "weightstore");
  add(cluster.reward().daemon(), "reward");
  return warnings;
}

void FillClusterDefaults(ClusterConfig* cluster) {
  cluster->set_num_generators(kDefaultGenerators);
  FillPart(cluster->mutable_orchestrator());
  FillPart(cluster->mutable_generator());
  FillPart(cluster->mutable_trainer());
  FillPart(cluster->mutable_weightstore());
  FillPart(cluster->mutable_reward());
}

void ValidateCluster(const ClusterConfig& cluster, const rpc::ConfigOrigins& origins,
                     rpc::ConfigProblems* problems) {
  if (cluster.data_folder().empty()) {
    problems->push_back({"data_folder", "is required: the folder of the cluster's files"});
  } else if (SocketPath(cluster).size() >= sizeof(sockaddr_un::sun_path)) {
    problems->push_back({"data_folder", "is too long: the unix socket '" + SocketPath(cluster) +
                                            "' has more than " +
                                            std::to_string(sizeof(sockaddr_un::sun_path) - 1) +
                                            " bytes; choose a shorter folder"});
  }
  if (cluster.num_generators() < 1 || cluster.num_generators() > kMaxGenerators) {
    problems->push_back(rpc::InvalidValue("num_generators",
                                          std::to_string(cluster.num_generators()),
                                          "1 to " + std::to_string(kMaxGenerators)));
  }
  if (static_cast<uint32_t>(cluster.generators_size()) > cluster.num_generators()) {
    problems->push_back({"generators", "has more entries than num_generators"});
  }
  RefuseFilledIn("orchestrator", cluster.orchestrator(), problems);
  RefuseFilledIn("weightstore", cluster.weightstore(), problems);
  RefuseFilledIn("reward", cluster.reward(), problems);
  RefuseFilledIn("trainer", cluster.trainer(), problems);
  RefuseFilledIn("generator", cluster.generator(), problems);
  for (int i = 0; i < cluster.generators_size(); ++i) {
    RefuseFilledIn(EntryPath(static_cast<uint32_t>(i)), cluster.generators(i), problems);
  }
  ValidatePart(OrchestratorOf(cluster, kLaterAddresses), "orchestrator", problems);
  if (cluster.weightstore().role() != kStoreRole) {
    problems->push_back(rpc::InvalidValue("weightstore.role",
                                          "\"" + cluster.weightstore().role() + "\"",
                                          "both (leader and host in one process)"));
  }
  ValidatePart(WeightStoreOf(cluster), "weightstore", problems);
  ValidatePart(RewardOf(cluster, kLaterAddresses), "reward", problems);
  ValidatePart(TrainerOf(cluster, kLaterAddresses), "trainer", problems);
  for (uint32_t i = 0; i < std::max(1u, NumGenerators(cluster)); ++i) {
    ValidateGenerator(cluster, i, origins, problems);
  }
  RefuseSharedPorts(cluster, problems);
}

rpc::ValidValues ValidClusterValues() {
  ClusterConfig defaults;
  FillClusterDefaults(&defaults);
  const auto values = rpc::ValidByCheck(defaults, [](const Message& m, rpc::ConfigProblems* out) {
    ValidateCluster(static_cast<const ClusterConfig&>(m), {}, out);
  });
  return [values](const std::string& path) {
    const size_t entry = path.find("].");  // those of the entries are those of `generator`
    return values(path.starts_with("generators[") && entry != std::string::npos
                      ? "generator" + path.substr(entry + 1)
                      : path);
  };
}

std::string PrintCluster(const ClusterConfig& cluster, const rpc::ConfigOrigins& origins) {
  constexpr char kAtTheStart[] = "filled in at the start";
  ClusterConfig shown = cluster;
  rpc::ConfigOrigins from = origins;
  for (uint32_t i = 0; i < static_cast<uint32_t>(cluster.generators_size()); ++i) {
    auto* entry = shown.mutable_generators(static_cast<int>(i));
    for (const Leaf& leaf : LeavesOf(cluster.generators(static_cast<int>(i)))) {
      const std::string path = EntryPath(i) + "." + leaf.path;
      const std::string general = "generator." + leaf.path;
      if (!leaf.is_set && !origins.IsDefault(general)) from.Set(path, origins.Of(general));
    }
    *entry = MergedGenerator(cluster, i);
  }
  const auto mark = [&](const std::string& prefix, const Message& part) {
    for (const Leaf& leaf : LeavesOf(part)) {
      if (kFilledIn.contains(leaf.path)) from.Set(prefix + "." + leaf.path, kAtTheStart);
    }
  };
  mark("orchestrator", shown.orchestrator());
  mark("generator", shown.generator());
  for (int i = 0; i < shown.generators_size(); ++i) {
    mark(EntryPath(static_cast<uint32_t>(i)), shown.generators(i));
  }
  mark("trainer", shown.trainer());
  mark("weightstore", shown.weightstore());
  mark("reward", shown.reward());
  return rpc::PrintConfig(shown, from);
}

std::vector<Listener> FixedListeners(const ClusterConfig& cluster) {
  std::vector<Listener> listeners;
  const auto add = [&](const std::string& path, const std::string& address) {
    const auto parsed = runtime::ParseHostPort(address);
    if (parsed.ok() && parsed->port != 0) listeners.push_back({path, address});
  };
  const auto add_both = [&](const std::string& part, const DaemonConfig& daemon) {
    add(part + ".daemon.listen", daemon.listen());
    add(part + ".daemon.health_listen", daemon.health_listen());
  };
  add_both("weightstore", cluster.weightstore().daemon());
  add("weightstore.data_plane_address", cluster.weightstore().data_plane_address());
  add_both("orchestrator", cluster.orchestrator().daemon());
  add_both("trainer", cluster.trainer().daemon());
  add_both("reward", cluster.reward().daemon());
  for (uint32_t i = 0; i < NumGenerators(cluster); ++i) {
    const auto* entry = EntryOf(cluster, i);
    const DaemonConfig merged = MergedGenerator(cluster, i).daemon();
    const auto part = [&](bool own) { return own ? EntryPath(i) : std::string("generator"); };
    add(part(entry != nullptr && !entry->daemon().listen().empty()) + ".daemon.listen",
        merged.listen());
    add(part(entry != nullptr && !entry->daemon().health_listen().empty()) +
            ".daemon.health_listen",
        merged.health_listen());
  }
  return listeners;
}

std::vector<GeneratorConfig> GeneratorConfigs(const ClusterConfig& cluster) {
  std::vector<GeneratorConfig> configs;
  for (uint32_t i = 0; i < NumGenerators(cluster); ++i) {
    configs.push_back(MergedGenerator(cluster, i));
  }
  return configs;
}

std::string SocketPath(const ClusterConfig& cluster) { return cluster.data_folder() + "/ws.sock"; }

DaemonPlan PlanWeightStore(const ClusterConfig& cluster) {
  return MakePlan("weightstore", false, WeightStoreOf(cluster));
}

DaemonPlan PlanOrchestrator(const ClusterConfig& cluster, const Addresses& addresses) {
  return MakePlan("orchestrator", false, OrchestratorOf(cluster, addresses));
}

std::vector<DaemonPlan> PlanWorkers(const ClusterConfig& cluster, const Addresses& addresses) {
  std::vector<DaemonPlan> plans;
  plans.push_back(MakePlan("trainer", false, TrainerOf(cluster, addresses)));
  plans.push_back(MakePlan("reward", true, RewardOf(cluster, addresses)));
  for (uint32_t i = 0; i < cluster.num_generators(); ++i) {
    plans.push_back(MakePlan("generator", true, GeneratorOf(cluster, i, addresses)));
  }
  return plans;
}

}  // namespace titan::cluster
