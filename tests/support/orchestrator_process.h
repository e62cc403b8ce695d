// SPDX-License-Identifier: Apache-2.0
//
// titan-orchestrator as a process, with the other daemons played by the test over real gRPC: what
// they answer is a pure function of ids. Test code.
#ifndef TITAN_TESTS_SUPPORT_ORCHESTRATOR_PROCESS_H_
#define TITAN_TESTS_SUPPORT_ORCHESTRATOR_PROCESS_H_

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/base/hash.h"
#include "core/runtime/endpoint.h"
#include "services/rpc/status_convert.h"
#include "tests/support/child_process.h"
#include "tests/support/tiny_model_folder.h"
#include "titan/generator/v1/generator.grpc.pb.h"
#include "titan/orchestrator/v1/orchestrator.grpc.pb.h"
#include "titan/reward/v1/reward.grpc.pb.h"
#include "titan/trainer/v1/trainer.grpc.pb.h"
#include "titan/weightstore/v1/weightstore.grpc.pb.h"

namespace titan::test {

namespace ov = orchestrator::v1;
namespace gv = generator::v1;
namespace tv = trainer::v1;
namespace rv = reward::v1;
namespace wv = weightstore::v1;
using grpc::ServerContext;

inline constexpr char kBinaries[] = TITAN_BINARY_DIR "/bin";

class FakeStore final : public wv::WeightStoreService::Service {
 public:
  grpc::Status AdvanceOrchestratorEpoch(ServerContext*, const wv::AdvanceOrchestratorEpochRequest*,
                                        wv::AdvanceOrchestratorEpochResponse* r) override {
    r->set_epoch(++epoch);
    return grpc::Status::OK;
  }
  grpc::Status ListVersions(ServerContext*, const wv::ListVersionsRequest*,
                            wv::ListVersionsResponse*) override {
    return grpc::Status(grpc::StatusCode::NOT_FOUND, "no such run");
  }
  grpc::Status ListStoredModels(ServerContext*, const wv::ListStoredModelsRequest*,
                                wv::ListStoredModelsResponse* response) override {
    response->set_disk_available_bytes(disk_available);
    response->set_keeps_nothing(keeps_nothing);
    return grpc::Status::OK;
  }
  grpc::Status PinForEvaluation(ServerContext*, const wv::PinForEvaluationRequest*,
                                wv::PinForEvaluationResponse*) override {
    ++pins;
    return grpc::Status::OK;
  }
  grpc::Status UnpinEvaluation(ServerContext*, const wv::UnpinEvaluationRequest*,
                               wv::UnpinEvaluationResponse*) override {
    if (++unpins == 1) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "once");
    return grpc::Status::OK;
  }
  grpc::Status EndRun(ServerContext* context, const wv::EndRunRequest* request,
                      wv::EndRunResponse*) override {
    if (end_failures > 0) {
      --end_failures;
      return grpc::Status(grpc::StatusCode::UNAVAILABLE, "not yet");
    }
    while (end_stuck && !context->IsCancelled()) {
      end_waits = true;  // until the caller has gone
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    if (end_waits.exchange(false)) return grpc::Status::CANCELLED;
    {
      std::lock_guard lock(mutex);
      ended_runs.insert(request->run_id());
    }
    ++ended;
    return grpc::Status::OK;
  }
  std::atomic<uint64_t> epoch{0};
  std::atomic<uint64_t> disk_available{uint64_t{1} << 40};
  std::atomic<bool> keeps_nothing{false};
  std::atomic<int> pins{0}, unpins{0}, ended{0}, end_failures{0};
  std::atomic<bool> end_stuck{false}, end_waits{false};  // EndRun does not answer; one was asked
  std::mutex mutex;
  std::set<std::string> ended_runs;
  bool HasEnded(const std::string& run_id) {
    std::lock_guard lock(mutex);
    return ended_runs.count(run_id) != 0;
  }
};

class FakeGenerator final : public gv::GeneratorService::Service {
 public:
  grpc::Status LoadVersion(ServerContext*, const gv::LoadVersionRequest* request,
                           gv::LoadVersionResponse*) override {
    std::lock_guard lock(mutex);
    held.insert({request->evaluation(), request->version()});
    return grpc::Status::OK;
  }
  grpc::Status ReleaseVersion(ServerContext*, const gv::ReleaseVersionRequest* request,
                              gv::ReleaseVersionResponse*) override {
    std::lock_guard lock(mutex);
    held.erase({request->evaluation(), request->version()});
    return grpc::Status::OK;
  }
  grpc::Status GetStatus(ServerContext*, const gv::GetStatusRequest*,
                         gv::GetStatusResponse* response) override {
    std::lock_guard lock(mutex);
    response->mutable_memory()->set_kv_cache_bytes(kv_cache_bytes);
    for (const auto& [evaluation, version] : held) {
      auto& v = *response->add_versions();
      v.set_evaluation(evaluation);
      v.set_version(version);
    }
    return grpc::Status::OK;
  }
  grpc::Status GenerateGroup(ServerContext* context, const gv::GenerateGroupRequest* request,
                             grpc::ServerWriter<gv::GenerateGroupResponse>* writer) override {
    {
      std::lock_guard lock(mutex);
      if (held.count({request->evaluation(), request->version()}) == 0) {
        return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "version not held");
      }
    }
    ++groups;
    if (stuck) {
      while (!context->IsCancelled() && stuck) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      return grpc::Status::CANCELLED;
    }
    for (int i = request->sample_indexes_size(); i-- > 0;) {
      const uint64_t bits = HashFields(request->sample_ids(i), request->version(), request->seed());
      const int num = 1 + static_cast<int>(bits % request->sampling().max_new_tokens());
      gv::GenerateGroupResponse chunk;
      chunk.set_sample_index(request->sample_indexes(i));
      for (int t = 0; t < num; ++t) {
        chunk.add_token_ids(static_cast<int>(HashFields(bits, t) % 200));
        chunk.add_logprobs(-static_cast<float>(HashFields(bits, t) % 64) / 8);
        if (t == 0 && num > 1) {  // in two pieces
          writer->Write(chunk);
          chunk.clear_token_ids();
          chunk.clear_logprobs();
        }
      }
      chunk.set_done(true);
      chunk.set_finish_reason(type::v1::FINISH_REASON_STOP);
      auto& span = *chunk.add_spans();
      span.set_version(request->version());
      span.set_num_tokens(static_cast<uint32_t>(num));
      chunk.set_sequences_running_max(8);
      writer->Write(chunk);
    }
    return grpc::Status::OK;
  }
  std::mutex mutex;
  std::set<std::pair<bool, uint64_t>> held;
  std::atomic<int> groups{0};
  std::atomic<uint64_t> kv_cache_bytes{0};
  std::atomic<bool> stuck{false};
};

class FakeTrainer final : public tv::TrainerService::Service {
 public:
  grpc::Status StartRun(ServerContext*, const tv::StartRunRequest* request,
                        tv::StartRunResponse* response) override {
    while (busy) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    starting = true;
    while (start_stuck) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    starting = false;
    digest = "start";
    spec = request->spec();
    response->set_weights_digest(digest);
    return grpc::Status::OK;
  }
  grpc::Status TrainStep(ServerContext*, grpc::ServerReader<tv::TrainStepRequest>* reader,
                         tv::TrainStepResponse* response) override {
    tv::TrainStepRequest message;
    if (!reader->Read(&message) || !message.has_header()) {
      return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "no header");
    }
    if (unavailable) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "the disk is slow");
    const tv::StepHeader header = message.header();
    uint32_t num = 0;
    while (reader->Read(&message)) {
      const auto& sample = message.sample();
      ++num;
      if (sample.trained()) {
        response->set_tokens_trained(response->tokens_trained() +
                                     static_cast<uint64_t>(sample.token_ids_size()));
      }
      if (sample.compared()) {
        response->set_tokens_compared(response->tokens_compared() +
                                      static_cast<uint64_t>(sample.token_ids_size()));
      }
      if (sample.prompt_token_ids_size() == 0 ||
          sample.token_ids_size() != sample.logprobs_size()) {
        return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "bad sample");
      }
    }
    if (num != header.num_samples()) {
      return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "missing samples");
    }
    digest = ToHex(Hash64(digest + header.plan_digest()));
    response->set_version(header.step() + 1);
    response->set_weights_digest(digest);
    response->set_updated(header.num_groups_trained() > 0);
    busy = true;  // also after the caller has gone
    std::this_thread::sleep_for(std::chrono::milliseconds(step_ms));
    busy = false;
    return grpc::Status::OK;
  }
  grpc::Status EndRun(ServerContext*, const tv::EndRunRequest* request,
                      tv::EndRunResponse*) override {
    while (busy) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    {
      std::lock_guard lock(mutex);
      ended_runs.insert(request->run_id());
    }
    ++ended;
    return grpc::Status::OK;
  }
  bool HasEnded(const std::string& run_id) {
    std::lock_guard lock(mutex);
    return ended_runs.count(run_id) != 0;
  }
  std::string digest;
  config::v1::JobSpec spec;
  std::mutex mutex;
  std::set<std::string> ended_runs;
  std::atomic<bool> start_stuck{false}, starting{false};  // StartRun does not end; one is at work
  std::atomic<int> ended{0};
  std::atomic<int> step_ms{20};
  std::atomic<bool> busy{false};
  std::atomic<bool> unavailable{false};
};

class FakeReward final : public rv::RewardService::Service {
 public:
  grpc::Status Describe(ServerContext*, const rv::DescribeRequest*,
                        rv::DescribeResponse* response) override {
    response->set_max_batch_items(5);
    auto& grader = *response->add_graders();
    grader.set_name("numeric_match");
    grader.set_version("7");
    return grpc::Status::OK;
  }
  grpc::Status Score(ServerContext*, const rv::ScoreRequest* request,
                     rv::ScoreResponse* response) override {
    if (request->items_size() > 5) {
      return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "too many items");
    }
    for (const auto& item : request->items()) {
      std::lock_guard lock(mutex);
      prompts.insert(item.prompt());
      auto& result = *response->add_results();
      if (item.sample_id() % 7 == 0 && faulted.insert(item.sample_id()).second) {
        result.mutable_infra_fault()->set_reason("once");
      } else if (item.sample_id() % 5 == 0) {
        result.mutable_model_fault()->set_reason("no number");
      } else {
        result.mutable_ok()->set_value(static_cast<double>(item.sample_id() % 2));
        (*result.mutable_ok()->mutable_components())["match"] = 1;
      }
    }
    return grpc::Status::OK;
  }
  std::mutex mutex;
  std::set<std::string> prompts;
  std::set<uint64_t> faulted;
};

// A gRPC server of this test on a free port.
class Listener {
 public:
  explicit Listener(grpc::Service* service) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(service);
    server_ = builder.BuildAndStart();
  }
  ~Listener() { Stop(); }
  void Stop() { server_->Shutdown(std::chrono::system_clock::now()); }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

 private:
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

class OrchestratorProcessTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/titan_orchestrator_test_XXXXXX";
    ASSERT_NE(mkdtemp(pattern), nullptr);
    folder_ = pattern;
    MakeTinyModelFolder(folder_ + "/model");
    std::ofstream data(folder_ + "/data.jsonl");
    for (int i = 0; i < 30; ++i) {
      data << "{\"id\":\"q" << i << "\",\"prompt\":\"What is " << i
           << " + 1?\",\"answer\":" << i + 1 << "}\n";
    }
  }
  void TearDown() override {
    Stop(SIGKILL);
    if (HasFailure()) std::cerr << std::ifstream(folder_ + "/log").rdbuf() << std::endl;
    std::filesystem::remove_all(folder_);
  }

  void StartDaemon() {
    int code = 0;
    ASSERT_TRUE(TryStartDaemon(&code)) << "titan-orchestrator did not start: " << code;
  }
  // False: it ended instead, with this code.
  bool TryStartDaemon(int* exit_code) {
    const std::string data = folder_ + "/orchestrator";
    std::ofstream(folder_ + "/config.json")
        << "{\"daemon\": {\"data_folder\": \"" << data << "\"}, \"weightstore_address\": \""
        << store_listener_.address()
        << "\", \"worker_timeout_ms\": 60000, \"rpc_deadline_ms\": " << rpc_deadline_ms_ << "}";
    std::filesystem::create_directories(data);
    std::filesystem::remove(runtime::EndpointPath(data, "orchestrator"));
    process_.emplace(std::vector<std::string>{std::string(kBinaries) + "/titan-orchestrator",
                                              "--config", folder_ + "/config.json"},
                     folder_ + "/log", before_exec_);
    stub_.reset();
    bool ended = false;
    const auto started = [&] {
      const auto endpoint = runtime::ReadEndpoint(data, "orchestrator");
      if (endpoint.ok()) {
        stub_ = ov::OrchestratorService::NewStub(
            grpc::CreateChannel(endpoint->address, grpc::InsecureChannelCredentials()));
      }
      return endpoint.ok() || (ended = process_->Ended(exit_code));
    };
    EXPECT_TRUE(titan::testing::Eventually(started, std::chrono::milliseconds(30'000)));
    if (ended) process_.reset();
    return stub_ != nullptr;
  }
  // Sends the signal and waits: the exit code, or the signal negated; 0 when it does not run.
  int Stop(int signal) {
    if (!process_.has_value()) return 0;
    process_->Signal(signal);
    return WaitForTheEnd();
  }
  int WaitForTheEnd() {
    const int code = process_->Wait();
    process_.reset();
    return code;
  }

  grpc::Status Register(const std::string& id, type::v1::WorkerRole role,
                        const std::string& address, const std::string& incarnation = "1",
                        const std::string& leaves = "8", const std::string& machine = "") {
    ov::RegisterWorkerRequest request;
    request.set_machine(machine);
    request.mutable_worker()->set_worker_id(id);
    request.mutable_worker()->set_incarnation(incarnation);
    request.mutable_worker()->set_role(role);
    request.mutable_worker()->set_address(address);
    request.mutable_contract()->set_forward("digest" + leaves);
    auto& item = *request.mutable_contract()->add_items();
    item.set_name("linear.leaves");
    item.set_value(leaves);
    request.set_max_versions(3);
    request.set_max_running_sequences(8);
    request.add_graders("numeric_match");
    grpc::Status status;
    for (int i = 0; i < 500; ++i) {  // UNAVAILABLE until the store was asked for the epoch
      grpc::ClientContext context;
      ov::RegisterWorkerResponse response;
      status = stub_->RegisterWorker(&context, request, &response);
      if (status.error_code() != grpc::StatusCode::UNAVAILABLE) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return status;
  }
  void RegisterAll(int num_generators) {
    EXPECT_TRUE(
        Register("trainer", type::v1::WORKER_ROLE_TRAINER, trainer_listener_.address()).ok());
    EXPECT_TRUE(Register("reward", type::v1::WORKER_ROLE_REWARD, reward_listener_.address()).ok());
    for (int i = 0; i < num_generators; ++i) {
      EXPECT_TRUE(Register("generator-" + std::to_string(i), type::v1::WORKER_ROLE_GENERATOR,
                           generator_listeners_[i]->address())
                      .ok());
    }
  }

  config::v1::JobSpec Spec() const {
    config::v1::JobSpec spec;
    spec.set_name("test");
    spec.set_seed(5);
    spec.mutable_model()->set_path(folder_ + "/model");
    spec.mutable_model()->set_max_sequence_tokens(128);
    spec.mutable_data()->set_path(folder_ + "/data.jsonl");
    spec.mutable_data()->set_held_out(6);
    spec.mutable_schedule()->set_steps(4);
    spec.mutable_schedule()->set_groups_per_step(3);
    spec.mutable_rollout()->set_samples_per_group(4);
    spec.mutable_rollout()->set_max_new_tokens(12);
    spec.mutable_reward()->set_grader("numeric_match");
    spec.mutable_parity()->set_share(0.5);
    return spec;
  }
  StatusOr<std::string> Submit(const config::v1::JobSpec& spec, const std::string& request_id) {
    grpc::ClientContext context;
    ov::SubmitJobRequest request;
    request.set_request_id(request_id);
    *request.mutable_spec() = spec;
    ov::SubmitJobResponse response;
    const grpc::Status status = stub_->SubmitJob(&context, request, &response);
    if (!status.ok()) return rpc::FromGrpc(status);
    return response.job_id();
  }
  std::vector<ov::WatchJobResponse> Watch(const std::string& job_id, uint64_t after = 0) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    ov::WatchJobRequest request;
    request.set_job_id(job_id);
    request.set_after_sequence(after);
    auto reader = stub_->WatchJob(&context, request);
    std::vector<ov::WatchJobResponse> events;
    ov::WatchJobResponse event;
    while (reader->Read(&event)) events.push_back(event);
    const grpc::Status status = reader->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    return events;
  }
  ov::CheckJobResponse Check(const config::v1::JobSpec& spec) {
    grpc::ClientContext context;
    ov::CheckJobRequest request;
    *request.mutable_spec() = spec;
    ov::CheckJobResponse response;
    EXPECT_TRUE(stub_->CheckJob(&context, request, &response).ok());
    return response;
  }
  void Cancel(const std::string& job_id) {
    grpc::ClientContext context;
    ov::CancelJobRequest request;
    request.set_request_id("cancel-" + job_id);
    request.set_job_id(job_id);
    ov::CancelJobResponse response;
    EXPECT_TRUE(stub_->CancelJob(&context, request, &response).ok());
  }
  ov::Job Get(const std::string& job_id) {
    grpc::ClientContext context;
    ov::GetJobRequest request;
    request.set_job_id(job_id);
    ov::GetJobResponse response;
    EXPECT_TRUE(stub_->GetJob(&context, request, &response).ok());
    return response.job();
  }
  std::string Canonical(const std::string& job_id) {
    const std::string command = std::string(kBinaries) + "/titan-journal --data_folder " + folder_ +
                                "/orchestrator --job " + job_id;
    FILE* pipe = popen(command.c_str(), "r");
    std::string text;
    std::array<char, 4096> buffer;
    while (const size_t got = fread(buffer.data(), 1, buffer.size(), pipe)) {
      text.append(buffer.data(), got);
    }
    EXPECT_EQ(pclose(pipe), 0);
    return text;
  }

  std::string folder_;
  int rpc_deadline_ms_ = 10000;
  FakeStore store_;
  FakeTrainer trainer_;
  FakeReward reward_;
  FakeGenerator generators_[2];
  Listener store_listener_{&store_}, trainer_listener_{&trainer_}, reward_listener_{&reward_};
  std::unique_ptr<Listener> generator_listeners_[2] = {std::make_unique<Listener>(&generators_[0]),
                                                       std::make_unique<Listener>(&generators_[1])};
  std::unique_ptr<ov::OrchestratorService::Stub> stub_;
  std::function<void()> before_exec_;  // of the next StartDaemon, in the child
  std::optional<titan::testing::ChildProcess> process_;
};

}  // namespace titan::test

#endif  // TITAN_TESTS_SUPPORT_ORCHESTRATOR_PROCESS_H_
