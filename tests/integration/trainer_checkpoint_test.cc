// SPDX-License-Identifier: Apache-2.0
//
// Goal: a trainer that is killed goes on from its newest checkpoint and makes the same versions,
// bit for bit, as one that was not, in every mode; so does one whose store was killed. A checkpoint
// is whole or not there; one of another contract and a damaged one are refused. No store, hung,
// dead or full, holds up a step or the end of a run. A version that another host has is pulled to
// be compared; a host or lease that goes meanwhile does not break the run. Method: the real
// titan-weightstore and titan-trainer as processes, SIGKILL, and samples that the test makes up.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>

#include "core/model/parameters.h"
#include "core/runtime/address.h"
#include "core/runtime/endpoint.h"
#include "tests/support/flipping_proxy.h"
#include "tests/support/small_model.h"
#include "tests/support/store_proxy.h"
#include "tests/support/test_files.h"
#include "tests/support/weightstore_daemon.h"
#include "titan/trainer/v1/trainer.grpc.pb.h"
#include "titan/weightstore/v1/weightstore.grpc.pb.h"

namespace titan::services {
namespace {

namespace fs = std::filesystem;
namespace asio = boost::asio;
namespace tv = trainer::v1;
namespace wv = weightstore::v1;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using testing::ChildProcess;
using testing::Eventually;

constexpr uint32_t kEvery = 2;  // steps of a checkpoint
constexpr uint64_t kSteps = 6;
constexpr uint64_t kUntrainedStep = 3;  // of which no sample is trained; its version is kept
constexpr int32_t kTokens = 600;
constexpr milliseconds kAtOnce{2000};

// titan-trainer in a folder of its own, which outlives it.
class TrainerProcess {
 public:
  TrainerProcess(std::string folder, const std::string& store_address, const std::string& socket)
      : folder_(std::move(folder)) {
    fs::create_directories(folder_);
    std::ofstream(folder_ + "/config.json")
        << R"({"daemon": {"data_folder": ")" << folder_
        << R"("}, "orchestrator_address": "127.0.0.1:1", "weightstore_address": ")" << store_address
        << R"(", "weightstore_socket": ")" << socket << R"(", "kernels": {"threads": 1}})";
  }
  void Start() {
    fs::remove(runtime::EndpointPath(folder_, "trainer"));
    process_.emplace(std::vector<std::string>{std::string(TITAN_BINARY_DIR) + "/bin/titan-trainer",
                                              "--config", folder_ + "/config.json"},
                     folder_ + "/log");
    EXPECT_TRUE(Eventually(
        [this] {
          const auto endpoint = runtime::ReadEndpoint(folder_, "trainer");
          if (endpoint.ok()) endpoint_ = *endpoint;
          return endpoint.ok();
        },
        milliseconds(20'000)))
        << Log();
  }
  void Kill() { process_.reset(); }
  ChildProcess& process() { return *process_; }
  // Somebody takes connections at its address.
  bool Listens() const {
    const auto at = runtime::ParseHostPort(endpoint_.address);
    asio::io_context io;
    asio::ip::tcp::socket socket(io);
    boost::system::error_code error;
    socket.connect({asio::ip::make_address(at->host), at->port}, error);
    return !error;
  }
  const std::string& address() const { return endpoint_.address; }
  std::string Log() const {
    std::ostringstream text;
    text << std::ifstream(folder_ + "/log").rdbuf();
    return text.str();
  }
  // What its metrics say.
  std::string Metrics() const {
    const auto at = runtime::ParseHostPort(endpoint_.health_address);
    asio::io_context io;
    asio::ip::tcp::socket socket(io);
    boost::system::error_code error;
    socket.connect({asio::ip::make_address(at->host), at->port}, error);
    const std::string request = "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    asio::write(socket, asio::buffer(request), error);
    std::string reply;
    asio::read(socket, asio::dynamic_buffer(reply), error);
    return reply;
  }

 private:
  const std::string folder_;
  runtime::Endpoint endpoint_;
  std::optional<ChildProcess> process_;
};

test::SmallModelOptions Model() {
  test::SmallModelOptions options;
  options.hidden_size = 32;
  options.intermediate_size = 64;
  options.vocab_size = 8192;
  options.num_heads = 2;
  options.num_kv_heads = 1;
  options.head_dim = 16;
  return options;
}

config::v1::JobSpec Spec(const std::string& model, const std::string& mode, double learning_rate) {
  config::v1::JobSpec spec;
  spec.mutable_model()->set_path(model);
  spec.mutable_model()->set_mode(mode);
  spec.mutable_model()->set_max_sequence_tokens(128);
  spec.mutable_schedule()->set_max_age(1);
  spec.mutable_rollout()->set_temperature(1);
  auto& training = *spec.mutable_training();
  training.set_aggregation("token_mean");
  training.set_clip_low(0.2);
  training.set_clip_high(0.2);
  training.set_learning_rate(learning_rate);
  training.set_beta1(0.9);
  training.set_beta2(0.999);
  training.set_epsilon(1e-8);
  training.set_max_gradient_norm(1);
  training.set_shards(1);
  training.set_shared_group_tokens(128);
  training.set_checkpoint_every_steps(kEvery);
  return spec;
}

class TrainerCheckpointTest : public ::testing::TestWithParam<const char*> {
 protected:
  ~TrainerCheckpointTest() override {
    if (!HasFailure()) return;
    if (trainer_) std::cerr << "the trainer's log:\n" << trainer_->Log() << "\n";
    std::cerr << "the store's log:\n" << store_.log() << "\n";
  }

  // A store, with so much more in its configuration, and a trainer.
  void Begin(const std::string& mode, const std::string& store_config = "") {
    mode_ = mode;
    ASSERT_TRUE(test::MakeSmallModel(folder_.path("model"), 5, Model()).ok());
    store_.more_config = store_config;
    StartStore();
    trainer_.emplace(folder_.path("trainer"), store_.address(), store_.socket_path());
    StartTrainer();
  }
  void StartStore() {
    ASSERT_TRUE(store_.Start()) << store_.log();
    store_.more_daemon_config = ", \"listen\": \"" + store_.address() + "\"";  // the next time, too
    store_stub_ = wv::WeightStoreService::NewStub(
        grpc::CreateChannel(store_.address(), grpc::InsecureChannelCredentials()));
  }
  void StartTrainer() {
    trainer_->Kill();
    trainer_->Start();
    stub_ = tv::TrainerService::NewStub(
        grpc::CreateChannel(trainer_->address(), grpc::InsecureChannelCredentials()));
  }
  grpc::Status StartRun(const std::string& run, bool from_checkpoint,
                        tv::StartRunResponse* response, double learning_rate = 1e-2) {
    grpc::ClientContext context;
    tv::StartRunRequest request;
    request.set_request_id("start");
    request.set_run_id(run);
    *request.mutable_spec() = Spec(folder_.path("model"), mode_, learning_rate);
    request.set_from_checkpoint(from_checkpoint);
    return stub_->StartRun(&context, request, response);
  }
  // A host of the store, which is a leader, attached to it.
  void StartHost(weightstore::testing::WeightStoreProcess& host, const std::string& name) {
    host.role = "host";
    host.more_config = R"(, "leader_address": ")" + store_.address() + R"(", "host": ")" + name +
                       R"(", "data_plane_address": "127.0.0.1:0")";
    ASSERT_TRUE(host.Start()) << host.log();
    ASSERT_TRUE(Eventually([&] { return host.IsReady(); }, milliseconds(10'000))) << host.log();
  }
  // Two groups of two made-up samples. behaviour: an older version, by which they are compared.
  grpc::Status Step(const std::string& run, uint64_t step, tv::TrainStepResponse* response,
                    std::optional<uint64_t> behaviour = std::nullopt) {
    const bool trained = step != kUntrainedStep;
    grpc::ClientContext context;
    const auto stream = stub_->TrainStep(&context, response);
    tv::TrainStepRequest message;
    tv::StepHeader& header = *message.mutable_header();
    header.set_request_id("train");
    header.set_run_id(run);
    header.set_step(step);
    header.set_plan_digest("plan-" + std::to_string(step));
    header.set_num_samples(4);
    header.set_num_groups_trained(trained ? 2 : 0);
    header.set_behaviour_version(behaviour.value_or(step));
    stream->Write(message);
    for (uint32_t i = 0; i < 4; ++i) {
      tv::TrainStepRequest part;
      tv::TrainingSample& sample = *part.mutable_sample();
      sample.set_group_index(i / 2);
      sample.set_sample_index(i % 2);
      sample.set_sample_id(step * 4 + i + 1);
      for (int t = 0; t < 20; ++t) {
        const auto token = static_cast<int32_t>((step * 131 + i / 2 * 17 + t * 7) % kTokens);
        sample.add_prompt_token_ids(token);
      }
      for (int t = 0; t < 12; ++t) {
        sample.add_token_ids(static_cast<int32_t>((step * 57 + i * 29 + t * 13) % kTokens));
        sample.add_logprobs(-6.0f - 0.01f * static_cast<float>(t));
      }
      sample.set_advantage(i % 2 == 0 ? 1.0 : -1.0);
      sample.set_trained(trained);
      sample.set_compared(behaviour.has_value());
      stream->Write(part);
    }
    stream->WritesDone();
    return stream->Finish();
  }
  // The digest of the version that the step makes.
  std::string Train(const std::string& run, uint64_t step) {
    tv::TrainStepResponse response;
    const grpc::Status status = Step(run, step, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.version(), step + 1);
    EXPECT_EQ(response.updated(), step != kUntrainedStep);
    return response.weights_digest();
  }
  // Versions of the run's durable checkpoints, ascending.
  std::vector<uint64_t> Checkpoints(const std::string& run) {
    grpc::ClientContext context;
    wv::ListStoredModelsResponse response;
    EXPECT_TRUE(store_stub_->ListStoredModels(&context, {}, &response).ok());
    std::vector<uint64_t> versions;
    for (const wv::StoredModel& checkpoint : response.checkpoints()) {
      if (checkpoint.run_id() == run) versions.push_back(checkpoint.version());
    }
    return versions;
  }
  void WaitForCheckpoint(const std::string& run, uint64_t version) {
    EXPECT_TRUE(Eventually(
        [&] {
          const auto versions = Checkpoints(run);
          return !versions.empty() && versions.back() == version;
        },
        milliseconds(10'000)))
        << "no checkpoint at version " << version;
  }
  // Digests of the versions after each step of a run that nobody disturbs.
  std::map<uint64_t, std::string> Undisturbed() {
    tv::StartRunResponse started;
    EXPECT_TRUE(StartRun("undisturbed", false, &started).ok());
    std::map<uint64_t, std::string> digests = {{0, started.weights_digest()}};
    for (uint64_t step = 0; step < kSteps; ++step) {
      digests[step + 1] = Train("undisturbed", step);
    }
    return digests;
  }

  TempFolder folder_;
  std::string mode_;
  weightstore::testing::WeightStoreProcess store_;
  std::unique_ptr<wv::WeightStoreService::Stub> store_stub_;
  std::optional<TrainerProcess> trainer_;
  std::unique_ptr<tv::TrainerService::Stub> stub_;
};

INSTANTIATE_TEST_SUITE_P(Modes, TrainerCheckpointTest, ::testing::Values("f32", "w16", "bf16"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(TrainerCheckpointTest, AKilledTrainerGoesOnBitForBit) {
  Begin(GetParam());
  const std::map<uint64_t, std::string> want = Undisturbed();
  EXPECT_NE(want.at(1), want.at(2));
  EXPECT_EQ(want.at(kUntrainedStep), want.at(kUntrainedStep + 1));
  tv::StartRunResponse started;
  ASSERT_TRUE(StartRun("run", true, &started).ok()) << "without a checkpoint it begins";
  EXPECT_EQ(started.version(), 0u);
  for (uint64_t step = 0; step < 5; ++step) EXPECT_EQ(Train("run", step), want.at(step + 1));
  WaitForCheckpoint("run", 4);
  // Version 5 is done, so recovery needs step 4 - max_age; version 2 is the newest at or below 3.
  EXPECT_EQ(Checkpoints("run"), (std::vector<uint64_t>{2, 4}));
  StartTrainer();
  ASSERT_TRUE(StartRun("run", true, &started).ok());
  EXPECT_EQ(started.version(), 4u);
  EXPECT_EQ(started.weights_digest(), want.at(4));
  for (uint64_t step = 4; step < kSteps; ++step) EXPECT_EQ(Train("run", step), want.at(step + 1));
  WaitForCheckpoint("run", 6);
}

using TrainerCheckpointProcessTest = TrainerCheckpointTest;

TEST_F(TrainerCheckpointProcessTest, KilledWhileItWritesLeavesWholeOnesOfItsRunAlone) {
  Begin("f32");
  tv::StartRunResponse started;
  uint64_t oldest = 0;
  for (int round = 0; round < 3; ++round) {
    const auto status = StartRun("run", true, &started);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_GE(started.version(), oldest);
    oldest = started.version();
    for (int i = 0; i < 2; ++i) Train("run", started.version() + static_cast<uint64_t>(i));
    StartTrainer();  // perhaps while it writes; what is there is whole
  }
  // Another learning rate is another run; a checkpoint goes with its run.
  const auto refused = StartRun("run", true, &started, 2e-2);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_NE(refused.error_message().find("optimizer.learning_rate"), std::string::npos)
      << refused.error_message();
  ASSERT_TRUE(StartRun("run", true, &started).ok());
  EXPECT_TRUE(StartRun("run", true, &started, 2e-2).ok()) << "the run is on this trainer already";
  grpc::ClientContext context;
  wv::EndRunRequest end;
  end.set_request_id("end");
  end.set_run_id("run");
  wv::EndRunResponse ended;
  ASSERT_TRUE(store_stub_->EndRun(&context, end, &ended).ok());
  EXPECT_TRUE(Checkpoints("run").empty());
}

TEST_F(TrainerCheckpointProcessTest, AKilledStoreFailsTheStepAtOnceAndTheRunIsBegunAnew) {
  Begin("f32");
  const std::map<uint64_t, std::string> want = Undisturbed();
  tv::StartRunResponse started;
  ASSERT_TRUE(StartRun("run", true, &started).ok());
  for (uint64_t step = 0; step < 4; ++step) {
    EXPECT_EQ(Train("run", step), want.at(step + 1));
    if (step == 1) WaitForCheckpoint("run", 2);
  }
  store_.End(SIGKILL);  // version 4 is being written
  auto start = steady_clock::now();
  tv::TrainStepResponse response;
  const grpc::Status lost = Step("run", 4, &response);
  EXPECT_LT(steady_clock::now() - start, kAtOnce);
  EXPECT_EQ(lost.error_code(), grpc::StatusCode::UNAVAILABLE) << lost.error_message();
  start = steady_clock::now();
  const grpc::Status broken = Step("run", 4, &response);
  EXPECT_LT(steady_clock::now() - start, kAtOnce);
  EXPECT_EQ(broken.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_NE(broken.error_message().find("StartRun with from_checkpoint"), std::string::npos)
      << broken.error_message();

  // Every version went with the store; they are made again as they were.
  StartStore();
  const std::vector<uint64_t> left = Checkpoints("run");
  ASSERT_FALSE(left.empty());
  EXPECT_EQ(left.front(), 2u);
  grpc::Status again;
  EXPECT_TRUE(Eventually(
      [&] {
        again = StartRun("run", true, &started);
        return again.ok();
      },
      milliseconds(20'000)))
      << again.error_message();
  EXPECT_EQ(started.version(), left.back());
  for (uint64_t step = started.version(); step < kSteps; ++step) {
    EXPECT_EQ(Train("run", step), want.at(step + 1));
  }
  WaitForCheckpoint("run", kSteps);
}

TEST_F(TrainerCheckpointProcessTest, AHungStoreHoldsUpNeitherTheEndOfARunNorOfTheTrainer) {
  Begin("f32");
  tv::StartRunResponse started;
  ASSERT_TRUE(StartRun("run", true, &started).ok());
  for (uint64_t step = 0; step < 2; ++step) Train("run", step);
  store_.process().Stop();
  const auto start = steady_clock::now();
  grpc::ClientContext context;
  tv::EndRunRequest end;
  end.set_request_id("end");
  end.set_run_id("run");
  tv::EndRunResponse ended;
  const grpc::Status status = stub_->EndRun(&context, end, &ended);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_LT(steady_clock::now() - start, kAtOnce);
  store_.process().Continue();
  EXPECT_TRUE(StartRun("other", true, &started).ok());
}

TEST_F(TrainerCheckpointProcessTest, OnAFullDiskTrainingGoesOnAndTheFailureIsCounted) {
  const auto table = model::ParameterTable::Of(test::SmallModelConfig(Model()));
  ASSERT_TRUE(table.ok()) << table.status();
  // Room for the last version, and for less than the three of a checkpoint.
  const int64_t limit = table->slot_bytes() * 7 / 2;
  Begin("f32", ", \"disk_limit_bytes\": " + std::to_string(limit));
  tv::StartRunResponse started;
  ASSERT_TRUE(StartRun("run", true, &started).ok());
  for (uint64_t step = 0; step < 4; ++step) Train("run", step);
  EXPECT_TRUE(Eventually([this] {
    return trainer_->Metrics().find("titan_trainer_checkpoint_failures_total 2") !=
           std::string::npos;
  })) << trainer_->Metrics();
  EXPECT_TRUE(Checkpoints("run").empty());
  const std::string log = trainer_->Log();
  EXPECT_NE(log.find("checkpoint_not_written"), std::string::npos);
  EXPECT_NE(log.find("the checkpoint of run run at version 2 needs "), std::string::npos) << log;
  EXPECT_NE(log.find("disk_limit_bytes is " + std::to_string(limit)), std::string::npos) << log;
  Train("run", 4);
}

TEST_F(TrainerCheckpointProcessTest, ADamagedCheckpointIsRefusedNamingTheTensor) {
  Begin("f32");
  tv::StartRunResponse started;
  ASSERT_TRUE(StartRun("run", false, &started).ok());
  for (uint64_t step = 0; step < 2; ++step) Train("run", step);
  WaitForCheckpoint("run", 2);
  // The store also keeps the version, from the slot: before that it would write the blob again.
  EXPECT_TRUE(Eventually([this] { return store_.log().find("version_kept") != std::string::npos; }))
      << store_.log();
  grpc::ClientContext context;
  wv::GetCheckpointRequest get;
  get.set_run_id("run");
  wv::GetCheckpointResponse found;
  ASSERT_TRUE(store_stub_->GetCheckpoint(&context, get, &found).ok());
  const std::string blob = store_.data_folder() + "/blobs/" + found.checkpoint().blobs(3);
  const std::string tensor = found.checkpoint().manifest().tensors(3).name();
  std::fstream file(blob, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(5);
  const int byte = file.get();
  file.seekp(5);
  file.put(static_cast<char>(byte ^ 1));
  file.close();
  StartTrainer();
  const auto refused = StartRun("run", true, &started);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::DATA_LOSS) << refused.error_message();
  EXPECT_NE(refused.error_message().find(tensor), std::string::npos) << refused.error_message();
  EXPECT_NE(refused.error_message().find(found.checkpoint().blobs(3)), std::string::npos);
}

// A trainer that has moved to host "h2" after four steps; the versions that it made before are
// where they were, on host "h1".
class TrainerElsewhereTest : public TrainerCheckpointTest {
 protected:
  // What the trainer hears of its leases, from the first on.
  using OnLease = weightstore::testing::StoreProxy::OnLease;

  void Move(OnLease on_lease = [](auto*) { return grpc::Status::OK; }) {
    mode_ = "f32";
    ASSERT_TRUE(test::MakeSmallModel(folder_.path("model"), 5, Model()).ok());
    store_.role = "leader";
    StartStore();
    StartHost(first_, "h1");
    StartHost(second_, "h2");
    trainer_.emplace(folder_.path("trainer"), store_.address(), first_.socket_path());
    StartTrainer();
    tv::StartRunResponse started;
    ASSERT_TRUE(StartRun("run", false, &started).ok());
    for (uint64_t step = 0; step < 4; ++step) Train("run", step);
    WaitForCheckpoint("run", 4);
    on_the_way_.emplace(*store_stub_, std::move(on_lease));
    trainer_.emplace(folder_.path("moved"), on_the_way_->address(), second_.socket_path());
    StartTrainer();
    ASSERT_TRUE(StartRun("run", true, &started).ok());
    ASSERT_EQ(started.version(), 4u);
  }
  // A step that is compared by the version before it.
  void ExpectCompared(uint64_t step) {
    tv::TrainStepResponse response;
    const grpc::Status status = Step("run", step, &response, /*behaviour=*/step - 1);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.version(), step + 1);
    EXPECT_GT(response.tokens_compared(), 0u);
  }
  // Given back, before the trainer makes use of it.
  void End(const wv::AcquireLeaseResponse& lease) {
    grpc::ClientContext context;
    wv::ReleaseLeaseRequest release;
    release.set_lease_id(lease.lease_id());
    wv::ReleaseLeaseResponse released;
    EXPECT_TRUE(store_stub_->ReleaseLease(&context, release, &released).ok());
  }

  weightstore::testing::WeightStoreProcess first_, second_;
  OnLease on_lease_;  // of a test that changes it
  std::optional<weightstore::testing::StoreProxy> on_the_way_;
};

TEST_F(TrainerElsewhereTest, AVersionThatAnotherHostHasIsPulledToBeCompared) {
  Move();
  ExpectCompared(4);
  // No memory for the next one is kept beside a step.
  const std::string metrics = trainer_->Metrics();
  EXPECT_NE(metrics.find("\ntitan_trainer_pull_memory_bytes 0\n"), std::string::npos) << metrics;
}

TEST_F(TrainerElsewhereTest, ABitThatTurnsOnTheWayRaisesTheAlarmAndIsAskedForAgain) {
  std::unique_ptr<weightstore::lanes::testing::FlippingProxy> proxy;
  Move([&](wv::AcquireLeaseResponse* lease) {
    proxy = std::make_unique<weightstore::lanes::testing::FlippingProxy>(
        runtime::ParseHostPort(lease->data_plane_address())->port, std::vector<uint64_t>{20'000},
        std::vector<uint64_t>());
    lease->set_data_plane_address(proxy->address());
    return grpc::Status::OK;
  });
  ExpectCompared(4);
  const std::string metrics = trainer_->Metrics();
  EXPECT_NE(metrics.find("\ntitan_trainer_pull_corrupt_total 1\n"), std::string::npos) << metrics;
  EXPECT_NE(trainer_->Log().find("pull_corrupt"), std::string::npos) << trainer_->Log();
}

TEST_F(TrainerElsewhereTest, AHostThatStandsStillInAStepDoesNotBreakTheRun) {
  std::atomic<bool> stopped = false;
  Move([&](wv::AcquireLeaseResponse*) {
    if (!stopped.exchange(true)) first_.process().Stop();
    return grpc::Status::OK;
  });
  // It goes on once the trainer, which pulls from it, has given it up and asked anew.
  std::jthread waker([&] {
    EXPECT_TRUE(Eventually([&] { return stopped.load(); }, milliseconds(20'000)));
    EXPECT_TRUE(Eventually([&] { return on_the_way_->num_asked() > 1; }, milliseconds(20'000)));
    first_.process().Continue();
  });
  ExpectCompared(4);
}

TEST_F(TrainerElsewhereTest, ALeaseThatEndsOnTheWayIsReplaced) {
  int leases = 0;
  Move([&](wv::AcquireLeaseResponse* lease) {
    ++leases;
    if (leases == 2) return grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, "a silent leader");
    if (leases == 1 || leases == 4) End(*lease);
    return grpc::Status::OK;
  });
  ExpectCompared(4);  // by a version that is pulled
  EXPECT_EQ(leases, 3);
  ExpectCompared(5);  // by one that is mapped
  EXPECT_EQ(leases, 5);
}

TEST_F(TrainerElsewhereTest, TheEndOfTheProcessDoesNotWaitForAVersion) {
  // The lease comes once the trainer shuts down: no pull begins. Or none comes: no other is wanted.
  for (const bool granted : {true, false}) {
    SCOPED_TRACE(granted);
    std::promise<void> ending;
    std::atomic<int> leases = 0;
    on_lease_ = [&, ended = ending.get_future().share()](wv::AcquireLeaseResponse*) {
      if (++leases == 1) ended.wait();
      return granted ? grpc::Status::OK : grpc::Status(grpc::StatusCode::UNAVAILABLE, "no host");
    };
    if (granted) {
      Move([this](wv::AcquireLeaseResponse* lease) { return on_lease_(lease); });
    } else {
      StartTrainer();
      tv::StartRunResponse started;
      ASSERT_TRUE(StartRun("run", true, &started).ok());
    }
    auto step = std::async(std::launch::async, [&] {
      tv::TrainStepResponse response;
      return Step("run", 4, &response, /*behaviour=*/3);
    });
    EXPECT_TRUE(Eventually([&] { return leases > 0; }, milliseconds(20'000)));
    trainer_->process().Signal(SIGTERM);
    // It has drained once it takes no connection any more.
    EXPECT_TRUE(Eventually([&] { return !trainer_->Listens(); }, milliseconds(20'000)));
    const auto start = steady_clock::now();
    ending.set_value();
    EXPECT_EQ(step.get().error_code(), grpc::StatusCode::CANCELLED);
    EXPECT_EQ(trainer_->process().Wait(), 0) << trainer_->Log();
    EXPECT_LT(steady_clock::now() - start, kAtOnce);
    EXPECT_EQ(leases, 1);
  }
}

}  // namespace
}  // namespace titan::services
