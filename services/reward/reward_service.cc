// SPDX-License-Identifier: Apache-2.0
#include "services/reward/reward_service.h"

#include <cmath>
#include <string>
#include <utility>

#include "core/base/clock.h"
#include "core/runtime/co_status.h"
#include "rewards/registry.h"
#include "services/rpc/status_convert.h"

namespace titan::reward {
namespace {

constexpr char kVersion[] = "0.1.0";

// A JSON object of a request field; empty text means {}.
StatusOr<rewards::Json> ParseObject(const std::string& text, const std::string& field) {
  if (text.empty()) return rewards::Json::object();
  rewards::Json json = rewards::Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return InvalidArgument(field + ": wants a JSON object");
  return json;
}

v1::ScoreResult ToResult(const rewards::Grade& grade) {
  v1::ScoreResult result;
  if (grade.kind != rewards::GradeKind::kInfraFault && !std::isfinite(grade.value)) {
    result.mutable_infra_fault()->set_reason("the grader's value is not finite");
    return result;
  }
  switch (grade.kind) {
    case rewards::GradeKind::kOk:
      result.mutable_ok()->set_value(grade.value);
      for (const auto& [name, value] : grade.components) {
        (*result.mutable_ok()->mutable_components())[name] = value;
      }
      break;
    case rewards::GradeKind::kModelFault:
      result.mutable_model_fault()->set_value(grade.value);
      result.mutable_model_fault()->set_reason(grade.reason);
      break;
    case rewards::GradeKind::kInfraFault:
      result.mutable_infra_fault()->set_reason(grade.reason);
      break;
  }
  return result;
}

}  // namespace

StatusOr<v1::ScoreResponse> ScoreBatch(const v1::ScoreRequest& request, uint32_t max_batch_items) {
  if (request.items_size() == 0) return InvalidArgument("items: is empty");
  if (static_cast<uint32_t>(request.items_size()) > max_batch_items) {
    return InvalidArgument("items: " + std::to_string(request.items_size()) + " items, at most " +
                           std::to_string(max_batch_items) + " in a request");
  }
  if (request.ByteSizeLong() > kMaxBatchBytes) {
    return InvalidArgument("items: more than 1 MiB together; send fewer in a request");
  }
  TITAN_ASSIGN_OR_RETURN(const rewards::Json parameters,
                         ParseObject(request.parameters_json(), "parameters_json"));
  auto grader = rewards::MakeGrader(request.grader(), parameters);
  if (!grader.ok()) {
    return rpc::WithReason(grader.status(),
                           grader.status().code() == StatusCode::kNotFound
                               ? "NO_SUCH_GRADER"
                               : "BAD_GRADER_PARAMETERS",
                           "Describe lists the graders and their parameters.");
  }
  v1::ScoreResponse response;
  for (int i = 0; i < request.items_size(); ++i) {
    const v1::ScoreItem& item = request.items(i);
    rewards::Sample sample;
    sample.prompt = item.prompt();
    sample.completion = item.completion();
    sample.answer = item.answer();
    TITAN_ASSIGN_OR_RETURN(
        sample.metadata,
        ParseObject(item.metadata_json(), "items[" + std::to_string(i) + "].metadata_json"));
    *response.add_results() = ToResult((*grader)->Score(sample));
  }
  return response;
}

StatusOr<std::unique_ptr<rpc::DaemonService>> RewardService::Create(
    const config::v1::RewardConfig& config, rpc::DaemonContext& context) {
  std::unique_ptr<RewardService> service(new RewardService(config, context));
  rpc::WorkerAgent::Options options;
  options.orchestrator_address = config.orchestrator_address();
  for (const rewards::GraderInfo& info : rewards::ListGraders()) {
    options.registration.add_graders(info.name);
  }
  TITAN_ASSIGN_OR_RETURN(service->agent_, rpc::WorkerAgent::Create(context, std::move(options)));
  return std::unique_ptr<rpc::DaemonService>(std::move(service));
}

RewardService::RewardService(const config::v1::RewardConfig& config, rpc::DaemonContext& context)
    : context_(context), max_batch_items_(config.max_batch_items()) {
  const auto outcome = [&](const char* name) {
    return context_.metrics.AddCounter("titan_reward_items_total", "Items scored, by outcome",
                                       {{"outcome", name}});
  };
  ok_ = outcome("ok");
  model_faults_ = outcome("model_fault");
  infra_faults_ = outcome("infra_fault");
  batch_seconds_ = context_.metrics.AddHistogram(
      "titan_reward_batch_seconds", "Time to score one request", runtime::SecondsBuckets());
}

rpc::asio::awaitable<Status> RewardService::Start() {
  agent_->Start();
  co_return OkStatus();
}

rpc::asio::awaitable<void> RewardService::Drain() { co_await agent_->Stop(); }

grpc::ServerUnaryReactor* RewardService::Describe(grpc::CallbackServerContext* context,
                                                  const v1::DescribeRequest* request,
                                                  v1::DescribeResponse* response) {
  return rpc::ServeUnaryThen(
      context_.server, context, request, response,
      [this](v1::DescribeRequest,
             const std::function<void(StatusOr<v1::DescribeResponse>)>& reply) {
        v1::DescribeResponse made;
        made.set_name("titan-reward");
        made.set_version(kVersion);
        made.set_max_batch_items(max_batch_items_);
        for (const rewards::GraderInfo& info : rewards::ListGraders()) {
          v1::Grader* grader = made.add_graders();
          grader->set_name(info.name);
          grader->set_version(std::to_string(info.version));
          grader->set_deterministic(info.deterministic);
          std::string description = info.summary;
          for (const auto& [name, meaning] : info.parameters) {
            description += "\n" + name + ": " + meaning;
          }
          grader->set_description(description);
        }
        reply(std::move(made));
      });
}

grpc::ServerUnaryReactor* RewardService::Score(grpc::CallbackServerContext* context,
                                               const v1::ScoreRequest* request,
                                               v1::ScoreResponse* response) {
  return rpc::ServeUnary(context_.server, context, request, response,
                         [this](v1::ScoreRequest r) { return ScoreOnPool(std::move(r)); });
}

rpc::asio::awaitable<StatusOr<v1::ScoreResponse>> RewardService::ScoreOnPool(
    v1::ScoreRequest request) {
  const Instant start = context_.clock.Now();
  auto kept = std::make_shared<v1::ScoreRequest>(std::move(request));
  const uint32_t max_items = max_batch_items_;
  const auto score = [kept, max_items] { return ScoreBatch(*kept, max_items); };
  auto response = co_await context_.blocking.Run(score);
  batch_seconds_.Observe(Seconds(context_.clock.Now() - start));
  if (response.ok()) {
    for (const v1::ScoreResult& result : response->results()) {
      ok_.Add(result.has_ok());
      model_faults_.Add(result.has_model_fault());
      infra_faults_.Add(result.has_infra_fault());
    }
  }
  co_return response;
}

}  // namespace titan::reward
