// SPDX-License-Identifier: Apache-2.0
#include "services/orchestrator/reward_port.h"

#include <algorithm>
#include <memory>
#include <set>
#include <utility>
#include <vector>

namespace titan::orchestrator {

namespace pb = reward::v1;
using Async = pb::RewardService::StubInterface::async_interface;

namespace {

constexpr size_t kMaxRequestBytes = size_t{900} << 10;  // a message carries at most 1 MiB
constexpr size_t kMaxRowsTried = 16;                    // at a submission

ScoreOutcome FromProto(const pb::ScoreResult& result) {
  ScoreOutcome outcome;
  switch (result.outcome_case()) {
    case pb::ScoreResult::kOk:
      outcome.kind = ScoreOutcome::Kind::kValue;
      outcome.value = result.ok().value();
      for (const auto& [name, value] : result.ok().components()) outcome.components[name] = value;
      break;
    case pb::ScoreResult::kModelFault:
      outcome.kind = ScoreOutcome::Kind::kModelFault;
      outcome.value = result.model_fault().value();
      outcome.reason = result.model_fault().reason();
      break;
    case pb::ScoreResult::kInfraFault:
      outcome.reason = result.infra_fault().reason();
      break;
    case pb::ScoreResult::OUTCOME_NOT_SET:
      outcome.reason = "a result without an outcome";
      break;
  }
  return outcome;
}

// What a failed call means to people; gRPC's own words for some of it are bare.
Status Explained(const Status& status, rpc::Milliseconds deadline) {
  switch (status.code()) {
    case StatusCode::kOk:
    case StatusCode::kInvalidArgument:  // the service's own words
      return status;
    case StatusCode::kDeadlineExceeded:
      return DeadlineExceeded("did not answer within " + std::to_string(deadline.count()) + " ms");
    case StatusCode::kUnimplemented:
      return Unimplemented("does not implement titan.reward.v1.RewardService as asked (" +
                           MessageOf(status) + ")");
    default:
      return MakeStatus(status.code(), "answered " + absl::StatusCodeToString(status.code()) +
                                           (MessageOf(status).empty() ? "" : ": ") +
                                           MessageOf(status));
  }
}

// At most `max` of `num` rows, evenly spread, ascending: the first, the last, some between.
std::vector<size_t> RowsToTry(size_t num, size_t max) {
  const size_t tried = std::min(num, std::max<size_t>(1, max));
  std::vector<size_t> rows;
  for (size_t i = 0; i < tried; ++i) {
    rows.push_back(tried == 1 ? 0 : i * (num - 1) / (tried - 1));
  }
  return rows;
}

// The answers of the parts of one Score, put together.
struct Gathering {
  ScoreAnswered answer;
  size_t left = 0;
};

}  // namespace

void GrpcRewardPort::Send(const Score& action) {
  auto gathering = std::make_shared<Gathering>();
  ScoreAnswered& answer = gathering->answer;
  answer.run_id = action.run_id;
  answer.request = action.request;
  auto stub = stubs_.Get(context_.workers, action.reward);
  const auto run = context_.runs.find(action.run_id);
  const auto described = context_.rewards.find(action.reward);
  if (!stub.ok() || run == context_.runs.end() || described == context_.rewards.end()) {
    answer.status = stub.ok() ? Unavailable("the run or the service is gone") : stub.status();
    context_.DeliverLater(std::move(answer));
    return;
  }
  const auto version = described->second.grader_versions.find(action.grader);
  if (version != described->second.grader_versions.end()) answer.grader_version = version->second;
  answer.results.resize(action.items.size());

  const size_t max_items = std::max<size_t>(1, described->second.max_batch_items);
  std::vector<pb::ScoreRequest> requests;
  size_t bytes = 0;
  for (const ScoreItem& item : action.items) {
    const DataRow& row = action.dataset->rows[item.data_row];
    pb::ScoreItem out;
    out.set_sample_id(item.sample.value);
    out.set_prompt(row.rendered_prompt);
    out.set_completion(run->second.renderer->Decode(item.reply->token_ids));
    out.set_answer(row.answer);
    out.set_metadata_json(row.metadata_json);
    out.set_truncated(item.truncated);
    const size_t size = out.ByteSizeLong();
    if (requests.empty() || bytes + size > kMaxRequestBytes ||
        static_cast<size_t>(requests.back().items_size()) >= max_items) {
      pb::ScoreRequest request;
      request.set_request_id(action.run_id + "-score-" + std::to_string(action.request) + "-" +
                             std::to_string(requests.size()));
      request.set_grader(action.grader);
      request.set_parameters_json(action.parameters_json);
      requests.push_back(std::move(request));
      bytes = 0;
    }
    *requests.back().add_items() = std::move(out);
    bytes += size;
  }
  const rpc::Milliseconds deadline =
      std::max(context_.rpc_deadline, rpc::Milliseconds(action.deadline_ms));
  gathering->left = requests.size();
  size_t first = 0;
  for (pb::ScoreRequest& request : requests) {
    const auto num = static_cast<size_t>(request.items_size());
    rpc::CallUnaryThen(
        context_.client, **stub, &Async::Score, std::move(request), deadline,
        [this, gathering, first, num, deadline, stub = *stub](StatusOr<pb::ScoreResponse> reply) {
          ScoreAnswered& all = gathering->answer;
          if (!reply.ok()) {
            all.status = Explained(reply.status(), deadline);
          } else if (static_cast<size_t>(reply->results_size()) != num) {
            all.status = Internal("answered " + std::to_string(reply->results_size()) +
                                  " results for " + std::to_string(num) + " items");
          } else {
            for (size_t i = 0; i < num; ++i) {
              all.results[first + i] = FromProto(reply->results(static_cast<int>(i)));
            }
          }
          if (--gathering->left == 0) context_.deliver(all);
        });
    first += num;
  }
}

void GrpcRewardPort::Describe(const WorkerName& name, std::function<void(Status)> done) {
  auto stub = stubs_.Get(context_.workers, name);
  if (!stub.ok()) {
    asio::post(context_.client.control(),
               [done = std::move(done), status = stub.status()] { done(status); });
    return;
  }
  rpc::CallUnaryThen(
      context_.client, **stub, &Async::Describe, pb::DescribeRequest(), context_.rpc_deadline,
      [this, name, done = std::move(done), stub = *stub](StatusOr<pb::DescribeResponse> reply) {
        if (reply.ok()) Remember(name, *reply);
        const Status status = Explained(reply.status(), context_.rpc_deadline);
        done(status.ok() ? status : Annotate(status, "Describe"));
      });
}

void GrpcRewardPort::Remember(const WorkerName& name, const pb::DescribeResponse& description) {
  RewardDescription& d = context_.rewards[name];
  d.max_batch_items = std::max(1u, description.max_batch_items());
  for (const auto& grader : description.graders()) {
    d.grader_versions[grader.name()] = grader.version();
  }
}

asio::awaitable<GrpcRewardPort::Checked> GrpcRewardPort::Check(
    std::shared_ptr<const JobSpec> spec, std::shared_ptr<const PreparedData> data) {
  Checked checked;
  const JobSpec::Reward& reward = spec->reward;
  std::set<std::string> graders;
  const WorkerRecord* service = nullptr;
  for (const auto& [id, record] : context_.workers.workers()) {
    const std::vector<std::string>& has = record.ready.graders;
    graders.insert(has.begin(), has.end());
    if (service == nullptr && std::count(has.begin(), has.end(), reward.grader) > 0) {
      service = &record;
    }
  }
  if (graders.empty()) {
    checked.warnings.push_back(
        "no reward service is registered; the job stays queued until one is, and fails if it has "
        "no grader " +
        reward.grader);
    co_return checked;
  }
  if (service == nullptr) {
    std::string known;
    for (const std::string& name : graders) known += (known.empty() ? "" : ", ") + name;
    checked.problems.push_back({"reward.grader", "no registered reward service has the grader \"" +
                                                     reward.grader + "\"; valid: " + known +
                                                     "; a service of your own is started first"});
    co_return checked;
  }
  auto stub = stubs_.Get(context_.workers, service->ready.name);
  if (!stub.ok() || data->dataset->rows.empty()) co_return checked;
  const std::shared_ptr<Stub> kept = *stub;
  const WorkerName name = service->ready.name;
  if (context_.rewards.count(name) == 0) {  // it has just registered
    pb::DescribeRequest describe;
    const auto description = co_await rpc::CallUnary(context_.client, *kept, &Async::Describe,
                                                     std::move(describe), context_.rpc_deadline);
    const WorkerRecord* record = context_.workers.Find(name.worker_id);
    if (!description.ok() || record == nullptr || record->ready.name != name) co_return checked;
    Remember(name, *description);
  }
  const size_t max_items = context_.rewards[name].max_batch_items;
  const std::vector<DataRow>& rows = data->dataset->rows;
  pb::ScoreRequest request;
  request.set_request_id("check-" + std::to_string(++num_checks_));
  request.set_grader(reward.grader);
  request.set_parameters_json(reward.grader_parameters_json);
  std::vector<uint64_t> lines;
  size_t bytes = 0;
  for (const size_t row : RowsToTry(rows.size(), std::min(max_items, kMaxRowsTried))) {
    pb::ScoreItem item;
    item.set_sample_id(row);
    item.set_prompt(rows[row].rendered_prompt);
    item.set_answer(rows[row].answer);
    item.set_metadata_json(rows[row].metadata_json);
    const size_t size = item.ByteSizeLong();
    if (!lines.empty() && bytes + size > kMaxRequestBytes) continue;
    bytes += size;
    *request.add_items() = std::move(item);
    lines.push_back(rows[row].line);
  }
  const auto reply = co_await rpc::CallUnary(context_.client, *kept, &Async::Score,
                                             std::move(request), context_.rpc_deadline);
  if (reply.status().code() == StatusCode::kInvalidArgument) {
    checked.problems.push_back({"reward.grader_parameters_json", MessageOf(reply.status())});
    co_return checked;
  }
  if (!reply.ok() || static_cast<size_t>(reply->results_size()) != lines.size()) co_return checked;
  for (size_t i = 0; i < lines.size(); ++i) {
    const pb::ScoreResult& result = reply->results(static_cast<int>(i));
    if (!result.has_infra_fault()) continue;
    checked.problems.push_back({spec->data.id.empty() ? "data.path" : "data.id",
                                "line " + std::to_string(lines[i]) + ": the grader " +
                                    reward.grader +
                                    " cannot score this row: " + result.infra_fault().reason()});
    break;
  }
  co_return checked;
}

void GrpcRewardPort::Forget(const WorkerName& name) {
  stubs_.Forget(name);
  context_.rewards.erase(name);
}

}  // namespace titan::orchestrator
