// SPDX-License-Identifier: Apache-2.0
//
// Goal: a trainer that is killed goes on from its newest checkpoint and makes the same versions,
// bit for bit, as one that was not; a checkpoint is whole or not there; one of another contract and
// a damaged one are refused. Method: the real titan-weightstore and titan-trainer as processes,
// SIGKILL, and samples that the test makes up.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "core/runtime/endpoint.h"
#include "tests/support/small_model.h"
#include "tests/support/test_files.h"
#include "titan/trainer/v1/trainer.grpc.pb.h"
#include "titan/weightstore/v1/weightstore.grpc.pb.h"

namespace titan::services {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
namespace tv = trainer::v1;
namespace wv = weightstore::v1;

constexpr uint32_t kEvery = 2;  // steps of a checkpoint
constexpr uint64_t kSteps = 6;
constexpr int32_t kVocabulary = 600;

// A daemon in a folder of its own, which outlives it.
class Daemon {
 public:
  Daemon(std::string name, std::string folder, const std::string& settings)
      : name_(std::move(name)), folder_(std::move(folder)) {
    fs::create_directories(folder_);
    std::ofstream(folder_ + "/config.json")
        << R"({"daemon": {"data_folder": ")" << folder_ << R"("}, )" << settings << "}";
  }
  ~Daemon() {
    Kill();
    if (!::testing::Test::HasFailure()) return;
    std::ifstream log(folder_ + "/log");
    std::cerr << name_ << "'s log:\n" << log.rdbuf() << "\n";
  }

  // Its address; empty when it did not start.
  std::string Start() {
    fs::remove(runtime::EndpointPath(folder_, name_));
    pid_ = fork();
    if (pid_ == 0) {
      const std::string program = std::string(TITAN_BINARY_DIR) + "/bin/titan-" + name_;
      const std::string config = folder_ + "/config.json", log = folder_ + "/log";
      (void)!freopen(log.c_str(), "a", stderr);
      execl(program.c_str(), program.c_str(), "--config", config.c_str(), nullptr);
      _exit(127);
    }
    for (int i = 0; i < 20'000; ++i) {
      const auto endpoint = runtime::ReadEndpoint(folder_, name_);
      if (endpoint.ok()) return endpoint->address;
      std::this_thread::sleep_for(milliseconds(1));
    }
    ADD_FAILURE() << name_ << " did not start";
    return "";
  }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

 private:
  const std::string name_, folder_;
  pid_t pid_ = 0;
};

config::v1::JobSpec Spec(const std::string& model, double learning_rate) {
  config::v1::JobSpec spec;
  spec.mutable_model()->set_path(model);
  spec.mutable_model()->set_mode("f32");
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

class TrainerCheckpointTest : public ::testing::Test {
 protected:
  TrainerCheckpointTest()
      : store_("weightstore", folder_.path("ws"), R"("memory_limit_bytes": 268435456)") {
    test::SmallModelOptions options;
    options.hidden_size = 32;
    options.intermediate_size = 64;
    options.vocab_size = kVocabulary;
    options.num_heads = 2;
    options.num_kv_heads = 1;
    options.head_dim = 16;
    EXPECT_TRUE(test::MakeSmallModel(folder_.path("model"), 5, options).ok());
    store_address_ = store_.Start();
    store_stub_ = wv::WeightStoreService::NewStub(
        grpc::CreateChannel(store_address_, grpc::InsecureChannelCredentials()));
    trainer_ = std::make_unique<Daemon>(
        "trainer", folder_.path("trainer"),
        R"("orchestrator_address": "127.0.0.1:1", "weightstore_address": ")" + store_address_ +
            R"(", "weightstore_socket": ")" + folder_.path("ws/ws.sock") +
            R"(", "kernels": {"threads": 1})");
    StartTrainer();
  }

  void StartTrainer() {
    stub_ = tv::TrainerService::NewStub(
        grpc::CreateChannel(trainer_->Start(), grpc::InsecureChannelCredentials()));
  }
  grpc::Status StartRun(const std::string& run, bool from_checkpoint,
                        tv::StartRunResponse* response, double learning_rate = 1e-2) {
    grpc::ClientContext context;
    tv::StartRunRequest request;
    request.set_request_id("start");
    request.set_run_id(run);
    *request.mutable_spec() = Spec(folder_.path("model"), learning_rate);
    request.set_from_checkpoint(from_checkpoint);
    return stub_->StartRun(&context, request, response);
  }
  // Two groups of two made-up samples. The digest of the version that it makes.
  std::string Train(const std::string& run, uint64_t step) {
    grpc::ClientContext context;
    tv::TrainStepResponse response;
    const auto stream = stub_->TrainStep(&context, &response);
    tv::TrainStepRequest message;
    tv::StepHeader& header = *message.mutable_header();
    header.set_request_id("train");
    header.set_run_id(run);
    header.set_step(step);
    header.set_plan_digest("plan-" + std::to_string(step));
    header.set_num_samples(4);
    header.set_num_groups_trained(2);
    header.set_behaviour_version(step);
    stream->Write(message);
    for (uint32_t i = 0; i < 4; ++i) {
      tv::TrainStepRequest part;
      tv::TrainingSample& sample = *part.mutable_sample();
      sample.set_group_index(i / 2);
      sample.set_sample_index(i % 2);
      sample.set_sample_id(step * 4 + i + 1);
      for (int t = 0; t < 20; ++t) {
        const auto token = static_cast<int32_t>((step * 131 + i / 2 * 17 + t * 7) % kVocabulary);
        sample.add_prompt_token_ids(token);
      }
      for (int t = 0; t < 12; ++t) {
        sample.add_token_ids(static_cast<int32_t>((step * 57 + i * 29 + t * 13) % kVocabulary));
        sample.add_logprobs(-6.0f - 0.01f * static_cast<float>(t));
      }
      sample.set_advantage(i % 2 == 0 ? 1.0 : -1.0);
      sample.set_trained(true);
      stream->Write(part);
    }
    stream->WritesDone();
    const grpc::Status status = stream->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.version(), step + 1);
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
    for (int i = 0; i < 10'000; ++i) {
      const auto versions = Checkpoints(run);
      if (!versions.empty() && versions.back() == version) return;
      std::this_thread::sleep_for(milliseconds(1));
    }
    FAIL() << "no checkpoint at version " << version;
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
  Daemon store_;
  std::string store_address_;
  std::unique_ptr<wv::WeightStoreService::Stub> store_stub_;
  std::unique_ptr<Daemon> trainer_;
  std::unique_ptr<tv::TrainerService::Stub> stub_;
};

TEST_F(TrainerCheckpointTest, AKilledTrainerGoesOnBitForBit) {
  const std::map<uint64_t, std::string> want = Undisturbed();
  EXPECT_NE(want.at(1), want.at(2));
  tv::StartRunResponse started;
  ASSERT_TRUE(StartRun("run", true, &started).ok()) << "without a checkpoint it begins";
  EXPECT_EQ(started.version(), 0u);
  for (uint64_t step = 0; step < 5; ++step) EXPECT_EQ(Train("run", step), want.at(step + 1));
  WaitForCheckpoint("run", 4);
  // Version 5 is done, so recovery needs step 4 - max_age; version 2 is the newest at or below 3.
  EXPECT_EQ(Checkpoints("run"), (std::vector<uint64_t>{2, 4}));
  trainer_->Kill();
  StartTrainer();
  ASSERT_TRUE(StartRun("run", true, &started).ok());
  EXPECT_EQ(started.version(), 4u);
  EXPECT_EQ(started.weights_digest(), want.at(4));
  for (uint64_t step = 4; step < kSteps; ++step) EXPECT_EQ(Train("run", step), want.at(step + 1));
  WaitForCheckpoint("run", 6);

  // Killed at any time of a write: what is there is whole.
  for (int round = 0; round < 3; ++round) {
    trainer_->Kill();
    StartTrainer();
    const auto status = StartRun("run", true, &started);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(started.version(), 6u + 2u * static_cast<uint64_t>(round));
    for (uint64_t step = started.version(); step < started.version() + 2; ++step)
      Train("run", step);
    if (round < 2) WaitForCheckpoint("run", started.version() + 2);
  }
  trainer_->Kill();  // perhaps while it writes version 12
  StartTrainer();
  ASSERT_TRUE(StartRun("run", true, &started).ok());
  EXPECT_TRUE(started.version() == 10 || started.version() == 12) << started.version();

  // Another learning rate is another run; a checkpoint goes with its run.
  const auto other = StartRun("run", true, &started, 2e-2);
  EXPECT_TRUE(other.ok()) << "the run is on this trainer already";
  trainer_->Kill();
  StartTrainer();
  const auto refused = StartRun("run", true, &started, 2e-2);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_NE(refused.error_message().find("optimizer.learning_rate"), std::string::npos)
      << refused.error_message();
  grpc::ClientContext context;
  wv::EndRunRequest end;
  end.set_request_id("end");
  end.set_run_id("run");
  wv::EndRunResponse ended;
  ASSERT_TRUE(store_stub_->EndRun(&context, end, &ended).ok());
  EXPECT_TRUE(Checkpoints("run").empty());
}

TEST_F(TrainerCheckpointTest, ADamagedCheckpointIsRefusedNamingTheTensor) {
  tv::StartRunResponse started;
  ASSERT_TRUE(StartRun("run", false, &started).ok());
  for (uint64_t step = 0; step < 2; ++step) Train("run", step);
  WaitForCheckpoint("run", 2);
  trainer_->Kill();
  grpc::ClientContext context;
  wv::GetCheckpointRequest get;
  get.set_run_id("run");
  wv::GetCheckpointResponse found;
  ASSERT_TRUE(store_stub_->GetCheckpoint(&context, get, &found).ok());
  const std::string blob = folder_.path("ws/blobs/" + found.checkpoint().blobs(3));
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

}  // namespace
}  // namespace titan::services
