// SPDX-License-Identifier: Apache-2.0
// A reward service that misbehaves in one way, over the real contract: registers as `judge` with
// the grader `judge`, sends heartbeats, and answers wrong. Ends with its parent.
//
//   nonsense_reward ORCHESTRATOR_ADDRESS MODE
//
// Modes: see Answer() and main(). `code:N` ends every call with the gRPC code N.
#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>
#include <thread>

#include "titan/orchestrator/v1/orchestrator.grpc.pb.h"
#include "titan/reward/v1/reward.grpc.pb.h"

namespace {

namespace ov = titan::orchestrator::v1;
namespace rv = titan::reward::v1;
using grpc::ByteBuffer;
using grpc::ServerUnaryReactor;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

std::string mode;

ByteBuffer ToBuffer(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return ByteBuffer(&slice, 1);
}

void Sleep(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

// The answer of Score in bytes, for the modes that answer.
std::string Answer(const rv::ScoreRequest& request) {
  rv::ScoreResponse response;
  int num = request.items_size();
  if (mode == "few") --num;
  if (mode == "many") ++num;
  if (mode == "empty") num = 0;
  for (int i = 0; i < num; ++i) {
    rv::ScoreResult& result = *response.add_results();
    if (mode == "no_outcome") continue;
    if (mode == "infra") {
      result.mutable_infra_fault()->set_reason(std::string(100'000, 'x'));
    } else if (mode == "model_fault_nan") {
      result.mutable_model_fault()->set_value(kNan);
    } else {
      rv::Value& value = *result.mutable_ok();
      value.set_value(static_cast<double>(i % 2));
      auto& components = *value.mutable_components();
      if (mode == "nan") value.set_value(kNan);
      if (mode == "inf") value.set_value(-kInf);
      if (mode == "enormous") value.set_value(1e200);
      if (mode == "component_nan") components["style"] = kNan;
      if (mode == "component_unnamed") components[""] = 1;
      if (mode == "component_flood") {
        for (int k = 0; k < 1000; ++k) components[std::to_string(k)] = k;
      }
      if (mode == "huge" && i == 0) components[std::string(6 << 20, 'x')] = 1;
    }
  }
  std::string bytes = response.SerializeAsString();
  if (mode == "cut") bytes.pop_back();  // inside the last result
  if (mode == "garbage") bytes = "\x0a\xffnonsense";
  return bytes;
}

class Judge final
    : public rv::RewardService::WithRawCallbackMethod_Score<
          rv::RewardService::WithRawCallbackMethod_Describe<rv::RewardService::Service>> {
 public:
  ServerUnaryReactor* Describe(grpc::CallbackServerContext* context, const ByteBuffer*,
                               ByteBuffer* response) override {
    ServerUnaryReactor* reactor = context->DefaultReactor();
    if (mode == "describe_fails") {
      reactor->Finish(grpc::Status(grpc::StatusCode::INTERNAL, "describes nothing"));
      return reactor;
    }
    rv::DescribeResponse made;
    made.set_max_batch_items(mode == "zero_batch" ? 0 : mode.starts_with("bad_rows") ? 100 : 5);
    made.add_graders()->set_name("judge");
    *response = ToBuffer(made.SerializeAsString());
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  ServerUnaryReactor* Score(grpc::CallbackServerContext* context, const ByteBuffer* request,
                            ByteBuffer* response) override {
    ServerUnaryReactor* reactor = context->DefaultReactor();
    rv::ScoreRequest parsed;
    ByteBuffer copy(*request);
    if (!grpc::SerializationTraits<rv::ScoreRequest>::Deserialize(&copy, &parsed).ok()) _exit(8);
    // At a submission it answers well, but for the mode that refuses there.
    const bool checked = parsed.request_id().starts_with("check-");
    if (checked && mode != "refuses") {
      // "bad_row:K", "bad_rows:K": it cannot score item K and those after it.
      const size_t colon = mode.find(':');
      const int bad = mode.starts_with("bad_row") ? std::atoi(mode.c_str() + colon + 1) : INT_MAX;
      rv::ScoreResponse good;
      for (int i = 0; i < parsed.items_size(); ++i) {
        if (i >= bad) {
          good.add_results()->mutable_infra_fault()->set_reason(
              "no answer in item " + std::to_string(i + 1) + " of " +
              std::to_string(parsed.items_size()));
        } else {
          good.add_results()->mutable_ok()->set_value(1);
        }
      }
      *response = ToBuffer(good.SerializeAsString());
      reactor->Finish(grpc::Status::OK);
      return reactor;
    }
    if (mode == "refuses") {
      reactor->Finish(
          grpc::Status(checked ? grpc::StatusCode::INVALID_ARGUMENT : grpc::StatusCode::INTERNAL,
                       "it does not like these parameters"));
      return reactor;
    }
    if (mode == "die") _exit(9);
    if (mode == "slow") {  // answers right, each time too late
      std::thread([reactor] {
        Sleep(1500);
        reactor->Finish(grpc::Status::OK);
      }).detach();
      return reactor;
    }
    if (mode.rfind("code:", 0) == 0) {
      const int code = std::atoi(mode.c_str() + 5);
      reactor->Finish(grpc::Status(static_cast<grpc::StatusCode>(code), "because it is so"));
      return reactor;
    }
    *response = ToBuffer(Answer(parsed));
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  mode = argv[2];
  Judge judge;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.SetMaxSendMessageSize(-1);
  builder.RegisterService(&judge);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  const auto stub = ov::OrchestratorService::NewStub(
      grpc::CreateChannel(argv[1], grpc::InsecureChannelCredentials()));
  ov::RegisterWorkerRequest request;
  request.mutable_worker()->set_worker_id("judge");
  request.mutable_worker()->set_incarnation(std::to_string(getpid()));
  request.mutable_worker()->set_role(titan::type::v1::WORKER_ROLE_REWARD);
  request.mutable_worker()->set_address("127.0.0.1:" + std::to_string(port));
  request.add_graders("judge");
  for (bool registered = false;;) {
    grpc::ClientContext context;
    if (registered) {
      ov::HeartbeatRequest beat;
      *beat.mutable_worker() = request.worker();
      ov::HeartbeatResponse ignored;
      registered = stub->Heartbeat(&context, beat, &ignored).ok();
    } else {
      ov::RegisterWorkerResponse response;
      registered = stub->RegisterWorker(&context, request, &response).ok();
      if (registered) std::puts("registered");
      std::fflush(stdout);
    }
    Sleep(100);
  }
}
