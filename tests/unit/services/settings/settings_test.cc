// SPDX-License-Identifier: Apache-2.0
// Goal: each rule of each daemon's configuration refuses a wrong value once, by its path, with the
// value and what is valid; what the defaults leave to the user is enough; a check changes nothing.
#include "services/settings/settings.h"

#include <gtest/gtest.h>

#include "core/kernels/isa.h"

namespace titan::settings {
namespace {

using config::v1::GeneratorConfig;
using config::v1::OrchestratorConfig;
using config::v1::RewardConfig;
using config::v1::TrainerConfig;
using config::v1::WeightStoreConfig;

struct Wrong {
  std::string assignment;  // path=value
  std::string problem;     // how its description begins
};

// A config that is complete: the defaults and `required`, path=value.
template <typename Config>
Config Complete(const std::vector<std::string>& required) {
  Config config;
  FillDefaults(&config);
  rpc::ConfigOrigins origins;
  for (const std::string& assignment : required) {
    const Status set = rpc::SetConfigValue(assignment, "test", &config, &origins);
    EXPECT_TRUE(set.ok()) << set;
  }
  return config;
}

// Each is the only thing that is wrong with a config that is else complete.
template <typename Config>
void ExpectWrongs(const std::vector<std::string>& required, const std::vector<Wrong>& wrongs) {
  rpc::ConfigProblems problems;
  Validate(Complete<Config>(required), &problems);
  for (const auto& problem : problems) ADD_FAILURE() << problem.path << ": " << problem.description;
  for (const Wrong& wrong : wrongs) {
    Config config = Complete<Config>(required);
    rpc::ConfigOrigins origins;
    ASSERT_TRUE(rpc::SetConfigValue(wrong.assignment, "test", &config, &origins).ok());
    problems.clear();
    Validate(config, &problems);
    ASSERT_EQ(problems.size(), 1u) << wrong.assignment;
    EXPECT_EQ(problems[0].path, wrong.assignment.substr(0, wrong.assignment.find('=')));
    EXPECT_TRUE(problems[0].description.starts_with(wrong.problem))
        << wrong.assignment << " gives: " << problems[0].description;
  }
}

template <typename Config>
void ExpectRules(const std::vector<std::string>& required, const std::vector<Wrong>& wrongs) {
  rpc::ConfigProblems problems;
  // Without what is required, each of it is named, and nothing else.
  Config empty;
  FillDefaults(&empty);
  Validate(empty, &problems);
  ASSERT_EQ(problems.size(), required.size());
  for (size_t i = 0; i < required.size(); ++i) {
    EXPECT_EQ(problems[i].path, required[i].substr(0, required[i].find('=')));
    EXPECT_TRUE(problems[i].description.starts_with("is required")) << problems[i].description;
  }
  ExpectWrongs<Config>(required, wrongs);
}

// The rules of `daemon`, which every daemon has.
std::vector<Wrong> With(std::vector<Wrong> wrongs) {
  const std::vector<Wrong> daemon = {
      {"daemon.listen=0.0.0.0:80", "'0.0.0.0:80' is not on loopback"},
      {"daemon.listen=10.1.2.3:0", "'10.1.2.3:0' is not on loopback"},
      {"daemon.listen=garbage", "address 'garbage' has no port"},
      {"daemon.listen=127.0.0.1:70000", "address '127.0.0.1:70000' has a port that is not"},
      {"daemon.listen=", "address '' has no port"},
      {"daemon.health_listen=x", "address 'x' has no port"},
      {"daemon.health_listen=myhost:0", "'myhost:0' names a host that is not an IP address"},
      {"daemon.worker_id=a/b",
       "wants 1 to 64 letters, digits, '-', '_' and '.', the first one not '.'; has 'a/b'"},
      {"daemon.worker_id=", "wants 1 to 64 letters, digits, '-', '_' and '.'"},
      {"daemon.worker_id=..", "wants 1 to 64 letters"},
      {"daemon.worker_id=" + std::string(65, 'a'), "wants 1 to 64 letters"},
      {"daemon.shutdown_deadline_ms=99", "is 99; valid: 100 to 600000 ms"},
      {"daemon.shutdown_deadline_ms=600001", "is 600001; valid: 100 to 600000 ms"},
      {"daemon.log_level=loud", "is \"loud\"; valid: debug, info, warning, error"},
      {"daemon.debug.rpc_delay_max_ms=60001", "is 60001; valid: 0 to 60000 ms"},
  };
  wrongs.insert(wrongs.end(), daemon.begin(), daemon.end());
  return wrongs;
}

std::vector<Wrong> WithKernels(std::vector<Wrong> wrongs) {
  const std::vector<Wrong> kernels = {
      {"kernels.threads=0", "is 0; valid: 1 to 1024"},
      {"kernels.threads=100000", "is 100000; valid: 1 to 1024"},
      {"kernels.isa=avx1024", "is \"avx1024\"; valid: auto, avx2, avx512, avx512_bf16"},
      {"kernels.isa=", "is \"\"; valid: auto, avx2, avx512, avx512_bf16"},
  };
  wrongs.insert(wrongs.end(), kernels.begin(), kernels.end());
  return With(std::move(wrongs));
}

std::vector<Wrong> PeerRules(const std::string& path) {
  return {{path + "=here", "address 'here' has no port"},
          {path + "=127.0.0.1:0", "wants the real port, has 0"},
          {path + "=10.0.0.1:80", "'10.0.0.1:80' is not on loopback"}};
}

std::vector<Wrong> operator+(std::vector<Wrong> a, const std::vector<Wrong>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST(SettingsTest, Orchestrator) {
  ExpectRules<OrchestratorConfig>(
      {"daemon.data_folder=d", "weightstore_address=127.0.0.1:1"},
      With(PeerRules("weightstore_address") +
           std::vector<Wrong>{{"worker_timeout_ms=99", "is 99; valid: 100 to 600000 ms"},
                              {"rpc_deadline_ms=600001", "is 600001; valid: 100 to 600000 ms"}}));
}

TEST(SettingsTest, Generator) {
  ExpectRules<GeneratorConfig>(
      {"daemon.data_folder=d", "orchestrator_address=127.0.0.1:1",
       "weightstore_address=127.0.0.1:1"},
      WithKernels(
          PeerRules("orchestrator_address") + PeerRules("weightstore_address") +
          std::vector<Wrong>{
              {"max_versions=0", "is 0; valid: 1 to 64"},
              {"max_running_sequences=65537", "is 65537; valid: 1 to 65536"},
              {"max_running_sequences=0", "is 0; valid: 1 to 65536"},
              {"max_batch_tokens=63", "is 63; valid: 64 (max_running_sequences) to 1048576"},
              {"max_batch_tokens=1048577", "is 1048577; valid: 1 to 1048576"},
              {"kv_cache_bytes=65535", "is 65535; valid: 65536 to 17592186044416"},
              {"kv_cache_bytes=17592186044417", "is 17592186044417; valid: 65536 to"},
              {"max_queued_groups=0", "is 0; valid: 1 to 1048576"}}));
  // One that maps pulls what its host does not have.
  const std::vector<std::string> maps = {"daemon.data_folder=d", "orchestrator_address=127.0.0.1:1",
                                         "weightstore_address=127.0.0.1:1", "weightstore_socket=s"};
  for (const char* lane :
       {"require_rdma=true", "rdma_device=mlx5_0:1", "daemon.debug.shm_test_lane=true"}) {
    auto with_lane = maps;
    with_lane.push_back(lane);
    rpc::ConfigProblems problems;
    Validate(Complete<GeneratorConfig>(with_lane), &problems);
    EXPECT_TRUE(problems.empty()) << lane;
  }
  auto test_lane = maps;
  test_lane.push_back("daemon.debug.shm_test_lane=true");
  ExpectWrongs<GeneratorConfig>(
      test_lane,
      {{"rdma_device=mlx5_0:1", "is set; daemon.debug.shm_test_lane takes the place of"}});
  auto required = maps;
  required.push_back("require_rdma=true");
  ExpectWrongs<GeneratorConfig>(required,
                                {{"rdma_device=none", "is none, but require_rdma is set"}});
}

TEST(SettingsTest, Trainer) {
  ExpectRules<TrainerConfig>(
      {"daemon.data_folder=d", "orchestrator_address=127.0.0.1:1",
       "weightstore_address=127.0.0.1:1", "weightstore_socket=s"},
      WithKernels(
          PeerRules("orchestrator_address") + PeerRules("weightstore_address") +
          std::vector<Wrong>{{"max_pack_tokens=2047", "is 2047; valid: 2048 to 1048576"},
                             {"recompute=maybe", "is \"maybe\"; valid: none, selective, full"}}));
}

TEST(SettingsTest, WeightStore) {
  ExpectRules<WeightStoreConfig>(
      {"daemon.data_folder=d"},
      With({{"role=follower",
             "is \"follower\"; valid: both (leader and host in one process), leader, host"},
            {"leader_address=127.0.0.1:1", "is set; this process is the leader"},
            {"host=node-1", "is set; only role host has a name"},
            {"lease_ttl_ms=99", "is 99; valid: 100 to 3600000 ms"},
            {"map_deadline_ms=99", "is 99; valid: 100 to 3600000 ms"},
            {"check_index_ms=99", "is 99; valid: 100 to 86400000 ms"},
            {"memory_limit_bytes=0", "is 0; valid: at least 1048576 bytes"},
            {"data_plane_address=here", "address 'here' has no port"},
            {"data_plane_address=store:7301", "'store:7301' is not where a reader can connect to"},
            {"data_plane_address=0.0.0.0:7301", "'0.0.0.0:7301' is not where a reader"},
            {"data_plane_address=[::]:7301", "'[::]:7301' is not where a reader"},
            {"require_rdma=true", "is set; only readers on other machines pull"},
            {"rdma_device=mlx5_0:1", "is set; only readers on other machines pull"},
            {"daemon.debug.shm_test_lane=true", "is set; only readers on other machines pull"},
            {"socket_path=" + std::string(108, 's'), "socket path '"}}));
  const std::string test_lane = "daemon.debug.shm_test_lane=true";
  ExpectWrongs<WeightStoreConfig>({"daemon.data_folder=d", "data_plane_address=10.0.0.7:7301"},
                                  {{test_lane, "is set; it is a test seam, refused when"}});
  ExpectWrongs<WeightStoreConfig>(
      {"daemon.data_folder=d", "data_plane_address=127.0.0.1:0", "daemon.health_listen=0.0.0.0:0"},
      {{test_lane, "is a test seam, refused when a listener is not on loopback"}});
  ExpectWrongs<WeightStoreConfig>(
      {"daemon.data_folder=d", "data_plane_address=127.0.0.1:0", test_lane},
      {{"rdma_device=mlx5_0:1", "is set; daemon.debug.shm_test_lane takes the place of"}});
  ExpectWrongs<WeightStoreConfig>(
      {"daemon.data_folder=d", "data_plane_address=127.0.0.1:0", "require_rdma=true"},
      {{"rdma_device=none", "is none, but require_rdma is set"}});
  const auto config = Complete<WeightStoreConfig>({"daemon.data_folder=d"});
  EXPECT_EQ(SocketPathOf(config), "d/ws.sock");
  for (const char* address : {"127.0.0.1:0", "10.0.0.7:7301", "[fd00::1]:7301"}) {
    auto remote = config;
    remote.set_data_plane_address(address);
    rpc::ConfigProblems problems;
    Validate(remote, &problems);
    EXPECT_TRUE(problems.empty()) << address;
  }
}

TEST(SettingsTest, WeightStoreLeader) {
  ExpectWrongs<WeightStoreConfig>(
      {"daemon.data_folder=d", "role=leader"},
      With({{"memory_limit_bytes=2000000", "is set; a leader has no slots: set it at its hosts"},
            {"socket_path=s", "is set; a leader has no socket: set it at its hosts"},
            {"require_rdma=true", "is set; a leader has no slots: set it at its hosts"},
            {"rdma_device=mlx5_0:1", "is set; a leader has no slots: set it at its hosts"},
            {"daemon.debug.shm_test_lane=true", "is set; a leader has no slots"},
            {"leader_address=127.0.0.1:1", "is set; this process is the leader"},
            {"host=node-1", "is set; only role host has a name"}}));
}

TEST(SettingsTest, WeightStoreHost) {
  ExpectWrongs<WeightStoreConfig>(
      {"daemon.data_folder=d", "role=host", "leader_address=127.0.0.1:1", "host=node-1"},
      With(PeerRules("leader_address") +
           std::vector<Wrong>{
               {"leader_address=", "is required: host:port"},
               {"host=", "is required: the name by which the leader knows this host"},
               {"host=a/b", "is \"a/b\"; valid: 1 to 64 characters of A-Z a-z 0-9 . _ -"},
               {"check_index_ms=1000", "is set; a host has no records"},
               {"disk_limit_bytes=0", "is set; a host keeps nothing on disk"}}));
}

TEST(SettingsTest, Reward) {
  ExpectRules<RewardConfig>(
      {"daemon.data_folder=d", "orchestrator_address=127.0.0.1:1"},
      With(PeerRules("orchestrator_address") +
           std::vector<Wrong>{{"max_batch_items=4097", "is 4097; valid: 1 to 4096"}}));
}

TEST(SettingsTest, ALimitOfTheTestLaneAloneIsWarnedOf) {
  auto config = Complete<WeightStoreConfig>(
      {"daemon.data_folder=d", "daemon.debug.shm_test_lock_bytes=4096"});
  EXPECT_EQ(Warnings(config.daemon(), ""),
            std::vector<std::string>{"daemon.debug.shm_test_lock_bytes has no effect: "
                                     "daemon.debug.shm_test_lane is not set"});
  config.mutable_daemon()->mutable_debug()->set_shm_test_lane(true);
  EXPECT_TRUE(Warnings(config.daemon(), "").empty());
}

TEST(SettingsTest, DelaysAreForLoopbackAndASeedAloneIsWarnedOf) {
  auto config =
      Complete<RewardConfig>({"daemon.data_folder=d", "orchestrator_address=127.0.0.1:1",
                              "daemon.health_listen=0.0.0.0:0", "daemon.debug.rpc_delay_max_ms=5"});
  rpc::ConfigProblems problems;
  Validate(config, &problems);
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0].path, "daemon.debug.rpc_delay_max_ms");
  EXPECT_TRUE(Warnings(config.daemon(), "").empty());
  config.mutable_daemon()->mutable_debug()->set_rpc_delay_seed(3);
  config.mutable_daemon()->mutable_debug()->set_rpc_delay_max_ms(0);
  EXPECT_EQ(Warnings(config.daemon(), "reward."),
            std::vector<std::string>{"reward.daemon.debug.rpc_delay_seed has no effect: "
                                     "reward.daemon.debug.rpc_delay_max_ms is 0"});
}

TEST(SettingsTest, ACheckDoesNotChooseTheInstructionSet) {
  ASSERT_TRUE(kernels::SetIsa("avx2").ok());
  rpc::ConfigProblems problems;
  auto config = Complete<TrainerConfig>({});
  for (const char* isa : {"auto", "avx512", "avx512_bf16", "avx1024"}) {
    config.mutable_kernels()->set_isa(isa);
    Validate(config, &problems);
    EXPECT_EQ(kernels::CurrentIsaName(), "avx2") << isa;
  }
  // What is accepted can be chosen, what is refused cannot.
  for (const char* isa : {"auto", "avx2", "avx512", "avx512_bf16", "avx1024"}) {
    config.mutable_kernels()->set_isa(isa);
    problems.clear();
    Validate(config, &problems);
    bool accepted = true;
    for (const auto& problem : problems) accepted = accepted && problem.path != "kernels.isa";
    EXPECT_EQ(kernels::SetIsa(isa).ok(), accepted) << isa;
  }
}

}  // namespace
}  // namespace titan::settings
