// SPDX-License-Identifier: Apache-2.0
//
// Goal: a generator that maps its weights goes on over a weight store that is killed, without a
// reload and with the same tokens, and the store has the version again; what another host has made
// again meanwhile it keeps and asks for no more; one whose cache does not fit into memory says so
// with the numbers and lives on; one that pulls finds a bit that turns on the way, raises its alarm
// and asks again. Method: titan-generator and titan-weightstore, the real programs;
// this process is the trainer and the orchestrator.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "core/runtime/address.h"
#include "tests/support/flipping_proxy.h"
#include "tests/support/metric.h"
#include "tests/support/sanitized.h"
#include "tests/support/small_run.h"
#include "tests/support/store_proxy.h"
#include "tests/support/weightstore_daemon.h"
#include "titan/generator/v1/generator.grpc.pb.h"

namespace titan::services {
namespace {

namespace wv1 = weightstore::v1;
using titan::testing::Eventually;

constexpr std::chrono::milliseconds kPatience{titan::testing::Rounds(30'000, 120'000)};

class GeneratorStoreTest : public ::testing::Test {
 protected:
  // A map: on the host whose socket that is.
  void StartGenerator(const std::string& socket_path, uint64_t kv_cache_bytes = 1 << 20) {
    StartGenerator(store_.address(), R"(, "weightstore_socket": ")" + socket_path + "\"",
                   kv_cache_bytes);
  }
  void StartGenerator(const std::string& store_address, const std::string& more_config,
                      uint64_t kv_cache_bytes) {
    std::filesystem::create_directory(folder());
    std::filesystem::remove(runtime::EndpointPath(folder(), "generator-0"));
    std::ofstream(folder() + "/config.json")
        << R"({"daemon": {"worker_id": "generator-0", "data_folder": ")" << folder()
        << R"("}, "kernels": {"threads": 1}, "orchestrator_address": "127.0.0.1:1")"
        << R"(, "weightstore_address": ")" << store_address << R"(", "kv_cache_bytes": )"
        << kv_cache_bytes << more_config << "}";
    generator_.emplace(
        std::vector<std::string>{std::string(TITAN_BINARY_DIR) + "/bin/titan-generator", "--config",
                                 folder() + "/config.json"},
        folder() + "/log");
    std::string address;
    EXPECT_TRUE(Eventually(
        [&] {
          const auto endpoint = runtime::ReadEndpoint(folder(), "generator-0");
          if (endpoint.ok()) address = endpoint->address;
          return endpoint.ok();
        },
        kPatience))
        << Log();
    stub_ = generator::v1::GeneratorService::NewStub(*rpc::MakeChannel(address));
  }

  // At the same address every time.
  void StartStore() {
    if (!store_.address().empty()) store_.more_arguments = {"--listen", store_.address()};
    ASSERT_TRUE(store_.Start()) << store_.log();
    leader_ = *weightstore::StandaloneLeader::Create(store_.address());
    store_stub_ = wv1::WeightStoreService::NewStub(*rpc::MakeChannel(store_.address()));
  }
  // Until it is attached to its leader.
  void StartHost(weightstore::testing::WeightStoreProcess& host, const std::string& name) {
    host.role = "host";
    host.more_config =
        R"(, "leader_address": ")" + store_.address() + R"(", "host": ")" + name + "\"";
    ASSERT_TRUE(host.Start()) << host.log();
    ASSERT_TRUE(Eventually([&] { return host.IsReady(); }, kPatience)) << host.log();
  }
  std::unique_ptr<test::SmallRun> Train(const std::string& socket_path, uint64_t num_versions) {
    return std::make_unique<test::SmallRun>(leader_->port(), socket_path, pool_, "run",
                                            /*num_layers=*/1, num_versions);
  }
  size_t Said(const std::string& event) const {
    const std::string log = Log();
    size_t times = 0;
    for (size_t at = log.find(event); at != std::string::npos; at = log.find(event, at + 1)) {
      ++times;
    }
    return times;
  }
  std::string folder() const { return store_.folder() + "/generator"; }
  std::string Log() const {
    std::ostringstream text;
    text << std::ifstream(folder() + "/log").rdbuf();
    return text.str();
  }
  grpc::Status Load(uint64_t version) {
    grpc::ClientContext context;
    generator::v1::LoadVersionRequest request;
    request.set_orchestrator_epoch(1);
    request.set_run_id("run");
    request.set_version(version);
    generator::v1::LoadVersionResponse response;
    return stub_->LoadVersion(&context, request, &response);
  }
  std::vector<int32_t> Generate(uint64_t version) {
    grpc::ClientContext context;
    generator::v1::GenerateGroupRequest request;
    request.set_orchestrator_epoch(1);
    request.set_run_id("run");
    request.set_version(version);
    request.set_group_id(1);
    request.set_seed(7);
    for (const int32_t token : {3, 1, 4, 1, 5}) request.add_prompt_token_ids(token);
    request.add_sample_indexes(0);
    request.add_sample_ids(11);
    request.mutable_sampling()->set_temperature(1.0f);
    request.mutable_sampling()->set_max_new_tokens(32);
    auto stream = stub_->GenerateGroup(&context, request);
    std::vector<int32_t> tokens;
    generator::v1::GenerateGroupResponse response;
    while (stream->Read(&response)) {
      tokens.insert(tokens.end(), response.token_ids().begin(), response.token_ids().end());
    }
    const grpc::Status status = stream->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    return tokens;
  }
  wv1::VersionInfo Version(int number) {
    grpc::ClientContext context;
    wv1::ListVersionsRequest request;
    request.set_run_id("run");
    wv1::ListVersionsResponse response;
    (void)store_stub_->ListVersions(&context, request, &response);
    return number < response.versions_size() ? response.versions(number) : wv1::VersionInfo();
  }
  bool IsHeld(int number) {
    const wv1::VersionInfo info = Version(number);
    return info.state() == wv1::VERSION_STATE_COMMITTED && info.holders_size() == 1 &&
           info.holders(0) == "generator-0";
  }

  kernels::Pool pool_{1};
  weightstore::testing::WeightStoreProcess store_;
  std::unique_ptr<weightstore::StandaloneLeader> leader_;
  std::unique_ptr<wv1::WeightStoreService::Stub> store_stub_;
  std::optional<titan::testing::ChildProcess> generator_;
  std::unique_ptr<generator::v1::GeneratorService::Stub> stub_;
};

TEST_F(GeneratorStoreTest, AKilledStoreDoesNotStopAGeneratorThatMaps) {
  StartStore();
  StartGenerator(store_.socket_path());
  auto run = Train(store_.socket_path(), 2);
  for (const uint64_t version : {0, 1}) {
    const grpc::Status loaded = Load(version);
    ASSERT_TRUE(loaded.ok()) << loaded.error_message() << Log();
  }
  const std::vector<int32_t> old_tokens = Generate(0), tokens = Generate(1);
  ASSERT_EQ(tokens.size(), 32u);
  for (int kill = 0; kill < 2; ++kill) {
    run.reset();  // the trainer's connection is over, too
    EXPECT_EQ(store_.End(SIGKILL), -SIGKILL);
    EXPECT_EQ(Generate(1), tokens);
    StartStore();
    EXPECT_TRUE(Eventually([&] { return IsHeld(0) && IsHeld(1); }, kPatience)) << Log();
    EXPECT_EQ(Generate(1), tokens);
    EXPECT_EQ(Generate(0), old_tokens);
  }
  EXPECT_EQ(Said("version_loaded"), 2u);

  // A run that ended while the store was down is not kept: its samples end, then the memory goes.
  grpc::ClientContext end_context;
  wv1::EndRunRequest end;
  end.set_run_id("run");
  wv1::EndRunResponse ended;
  generator_->Stop();
  EXPECT_EQ(store_.End(SIGKILL), -SIGKILL);
  StartStore();
  ASSERT_TRUE(store_stub_->EndRun(&end_context, end, &ended).ok());
  generator_->Continue();
  EXPECT_TRUE(Eventually(
      [&] {
        grpc::ClientContext context;
        generator::v1::GetStatusResponse status;
        (void)stub_->GetStatus(&context, generator::v1::GetStatusRequest(), &status);
        return status.versions_size() == 0;
      },
      kPatience))
      << Log();
}

TEST_F(GeneratorStoreTest, ACacheThatDoesNotFitIsRefusedWithTheNumbersAndTheGeneratorLivesOn) {
  StartStore();
  StartGenerator(store_.socket_path(), /*kv_cache_bytes=*/uint64_t{1} << 44);
  const auto run = Train(store_.socket_path(), 2);
  for (const uint64_t version : {0, 1, 0}) {
    const grpc::Status refused = Load(version);
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_NE(refused.error_message().find("serving this model needs 16777"), std::string::npos)
        << refused.error_message();
    EXPECT_NE(refused.error_message().find(" MiB are free; lower kv_cache_bytes"),
              std::string::npos)
        << refused.error_message();
    grpc::ClientContext context;
    generator::v1::GetStatusResponse status;
    ASSERT_TRUE(stub_->GetStatus(&context, generator::v1::GetStatusRequest(), &status).ok());
    EXPECT_EQ(status.versions_size(), 0);
    EXPECT_EQ(status.memory().kv_cache_bytes(), uint64_t{1} << 44);
    EXPECT_EQ(status.memory().taken_bytes(), 0u);
  }
  EXPECT_TRUE(Eventually([&] { return Version(0).holders_size() == 0; }, kPatience)) << Log();
}

TEST_F(GeneratorStoreTest, AVersionThatAnotherHostMadeAgainIsKeptAndAskedForOnceItIsLost) {
  store_.role = "leader";
  StartStore();
  weightstore::testing::WeightStoreProcess here, there;
  StartHost(here, "h1");
  StartHost(there, "h2");
  StartGenerator(here.socket_path());
  auto run = Train(here.socket_path(), 1);
  const std::string digest = run->digests[0];
  ASSERT_TRUE(Load(0).ok()) << Log();
  const std::vector<int32_t> tokens = Generate(0);

  // While the generator stands still its host dies, and a trainer elsewhere makes the version.
  generator_->Stop();
  run.reset();
  EXPECT_EQ(here.End(SIGKILL), -SIGKILL);
  StartHost(here, "h1");
  ASSERT_TRUE(Eventually([&] { return Version(0).state() == wv1::VERSION_STATE_LOST; }, kPatience));
  run = Train(there.socket_path(), 1);
  EXPECT_EQ(run->digests[0], digest);
  EXPECT_EQ(Version(0).state(), wv1::VERSION_STATE_COMMITTED);
  generator_->Continue();
  ASSERT_TRUE(Eventually([&] { return Said("version_kept_alone") > 0; }, kPatience)) << Log();
  EXPECT_EQ(Generate(0), tokens);
  // Once, and perhaps again for the news of its loss, which waited for the generator. Then no more:
  // in that time it looks for orphans six times.
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  const size_t said = Said("version_kept_alone");
  EXPECT_LE(said, 2u);
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  EXPECT_EQ(Said("version_kept_alone"), said);
  EXPECT_EQ(Version(0).holders_size(), 0);

  // That host dies, too: now the generator's memory is the only one that has it.
  run.reset();
  EXPECT_EQ(there.End(SIGKILL), -SIGKILL);
  StartHost(there, "h2");
  EXPECT_TRUE(Eventually([&] { return IsHeld(0); }, kPatience)) << Log();
  EXPECT_EQ(Generate(0), tokens);
  EXPECT_EQ(Said("version_loaded"), 1u);
}

TEST_F(GeneratorStoreTest, AVersionThatIsKeptAloneGoesWithItsRun) {
  store_.role = "leader";
  StartStore();
  weightstore::testing::WeightStoreProcess here, there;
  StartHost(here, "h1");
  StartHost(there, "h2");
  StartGenerator(here.socket_path());
  auto run = Train(here.socket_path(), 1);
  ASSERT_TRUE(Load(0).ok()) << Log();
  generator_->Stop();
  run.reset();
  EXPECT_EQ(here.End(SIGKILL), -SIGKILL);
  StartHost(here, "h1");
  ASSERT_TRUE(Eventually([&] { return Version(0).state() == wv1::VERSION_STATE_LOST; }, kPatience));
  run = Train(there.socket_path(), 1);
  generator_->Continue();
  ASSERT_TRUE(Eventually([&] { return Said("version_kept_alone") > 0; }, kPatience)) << Log();

  grpc::ClientContext context;
  wv1::EndRunRequest end;
  end.set_run_id("run");
  wv1::EndRunResponse ended;
  ASSERT_TRUE(store_stub_->EndRun(&context, end, &ended).ok());
  EXPECT_TRUE(Eventually(
      [&] {
        grpc::ClientContext status_context;
        generator::v1::GetStatusResponse status;
        (void)stub_->GetStatus(&status_context, generator::v1::GetStatusRequest(), &status);
        return status.versions_size() == 0;
      },
      kPatience))
      << Log();
}

TEST_F(GeneratorStoreTest, ABitThatTurnsOnTheWayRaisesTheAlarmAndIsAskedForAgain) {
  store_.more_config = R"(, "data_plane_address": "127.0.0.1:0")";
  StartStore();
  const auto run = Train(store_.socket_path(), 2);
  // The data plane is said to be where a bit of what it sends is turned.
  std::mutex mutex;  // guards flips
  std::unique_ptr<weightstore::lanes::testing::FlippingProxy> flips;
  weightstore::testing::StoreProxy on_the_way(
      *store_stub_, [&](wv1::AcquireLeaseResponse* response) {
        if (response->data_plane_address().empty()) return grpc::Status::OK;
        const std::lock_guard lock(mutex);
        if (flips == nullptr) {
          const auto real = runtime::ParseHostPort(response->data_plane_address());
          flips = std::make_unique<weightstore::lanes::testing::FlippingProxy>(
              real->port, std::vector<uint64_t>{20'000}, std::vector<uint64_t>());
        }
        response->set_data_plane_address(flips->address());
        return grpc::Status::OK;
      });
  StartGenerator(on_the_way.address(), "", 1 << 20);
  const auto corrupt = [this] {
    return titan::testing::MetricOf(folder(), "generator-0", "titan_generator_pull_corrupt_total");
  };
  EXPECT_EQ(corrupt(), 0);
  const grpc::Status loaded = Load(0);
  ASSERT_TRUE(loaded.ok()) << loaded.error_message() << Log();
  EXPECT_EQ(corrupt(), 1);
  EXPECT_NE(Log().find("pull_corrupt"), std::string::npos);
  ASSERT_TRUE(Load(1).ok()) << Log();
  EXPECT_EQ(corrupt(), 1);
  const std::vector<int32_t> pulled = Generate(0);

  // The bits are those of a map.
  generator_.reset();
  StartGenerator(store_.socket_path());
  ASSERT_TRUE(Load(0).ok()) << Log();
  EXPECT_EQ(Generate(0), pulled);
}

}  // namespace
}  // namespace titan::services
