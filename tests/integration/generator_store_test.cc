// SPDX-License-Identifier: Apache-2.0
//
// Goal: a generator that maps its weights goes on over a weight store that is killed, without a
// reload and with the same tokens, and the store has the version again; one whose cache does not
// fit into memory says so with the numbers and lives on. Method: titan-generator and
// titan-weightstore, the real programs; this process is the trainer and the orchestrator.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/sanitized.h"
#include "tests/support/small_run.h"
#include "tests/support/weightstore_daemon.h"
#include "titan/generator/v1/generator.grpc.pb.h"

namespace titan::services {
namespace {

namespace wv1 = weightstore::v1;
using titan::testing::Eventually;

constexpr std::chrono::milliseconds kPatience{titan::testing::Rounds(30'000, 120'000)};

class GeneratorStoreTest : public ::testing::Test {
 protected:
  explicit GeneratorStoreTest(uint64_t kv_cache_bytes = 1 << 20) {
    StartStore();
    std::filesystem::create_directory(folder());
    std::ofstream(folder() + "/config.json")
        << R"({"daemon": {"worker_id": "generator-0", "data_folder": ")" << folder()
        << R"("}, "kernels": {"threads": 1}, "orchestrator_address": "127.0.0.1:1")"
        << R"(, "weightstore_address": ")" << store_.address() << R"(", "weightstore_socket": ")"
        << store_.socket_path() << R"(", "kv_cache_bytes": )" << kv_cache_bytes << "}";
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

  weightstore::testing::WeightStoreProcess store_;
  std::unique_ptr<weightstore::StandaloneLeader> leader_;
  std::unique_ptr<wv1::WeightStoreService::Stub> store_stub_;
  std::optional<titan::testing::ChildProcess> generator_;
  std::unique_ptr<generator::v1::GeneratorService::Stub> stub_;
};

TEST_F(GeneratorStoreTest, AKilledStoreDoesNotStopAGeneratorThatMaps) {
  kernels::Pool pool(1);
  auto run = std::make_unique<test::SmallRun>(leader_->port(), store_.socket_path(), pool, "run",
                                              /*num_layers=*/1, /*num_versions=*/2);
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
  size_t loads = 0;
  for (size_t at = Log().find("version_loaded"); at != std::string::npos;
       at = Log().find("version_loaded", at + 1)) {
    ++loads;
  }
  EXPECT_EQ(loads, 2u);

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

class HugeCacheTest : public GeneratorStoreTest {
 protected:
  HugeCacheTest() : GeneratorStoreTest(uint64_t{1} << 44) {}
};

TEST_F(HugeCacheTest, IsRefusedWithTheNumbersAndTheGeneratorLivesOn) {
  kernels::Pool pool(1);
  const test::SmallRun run(leader_->port(), store_.socket_path(), pool, "run", /*num_layers=*/1,
                           /*num_versions=*/2);
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

}  // namespace
}  // namespace titan::services
