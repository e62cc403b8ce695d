// SPDX-License-Identifier: Apache-2.0
#include "services/orchestrator/generator_port.h"

#include <utility>

namespace titan::orchestrator {

namespace pb = generator::v1;
using Async = pb::GeneratorService::StubInterface::async_interface;

void GrpcGeneratorPort::Load(const LoadVersion& action) {
  VersionLoaded answer{action.worker, action.run_id, action.version, action.evaluation, {}};
  auto stub = stubs_.Get(context_.workers, action.worker);
  if (!stub.ok()) {
    answer.status = stub.status();
    context_.DeliverLater(std::move(answer));
    return;
  }
  pb::LoadVersionRequest request;
  request.set_request_id(action.run_id + "-load-" + std::to_string(next_request_++));
  request.set_orchestrator_epoch(context_.epoch);
  request.set_run_id(action.run_id);
  request.set_version(action.version);
  request.set_evaluation(action.evaluation);
  rpc::CallUnaryThen(context_.client, **stub, &Async::LoadVersion, std::move(request),
                     context_.BulkDeadline(),
                     [this, answer, stub = *stub](StatusOr<pb::LoadVersionResponse> reply) mutable {
                       answer.status = reply.status();
                       context_.deliver(answer);
                     });
}

void GrpcGeneratorPort::Release(const ReleaseVersion& action) {
  VersionReleased answer{action.worker, action.run_id, action.version, action.evaluation, {}};
  auto stub = stubs_.Get(context_.workers, action.worker);
  if (!stub.ok()) {
    answer.status = stub.status();
    context_.DeliverLater(std::move(answer));
    return;
  }
  pb::ReleaseVersionRequest request;
  request.set_request_id(action.run_id + "-release-" + std::to_string(next_request_++));
  request.set_orchestrator_epoch(context_.epoch);
  request.set_run_id(action.run_id);
  request.set_version(action.version);
  request.set_evaluation(action.evaluation);
  rpc::CallUnaryThen(
      context_.client, **stub, &Async::ReleaseVersion, std::move(request), context_.BulkDeadline(),
      [this, answer, stub = *stub](StatusOr<pb::ReleaseVersionResponse> reply) mutable {
        answer.status = reply.status();
        context_.deliver(answer);
      });
}

void GrpcGeneratorPort::Start(const StartRollout& action) {
  auto stub = stubs_.Get(context_.workers, action.worker);
  if (!stub.ok()) {
    context_.DeliverLater(
        RolloutEnded{action.worker, action.run_id, action.group, action.attempt, stub.status()});
    return;
  }
  pb::GenerateGroupRequest request;
  request.set_request_id(action.run_id + "-" + std::to_string(action.group.value) + "-" +
                         std::to_string(action.attempt));
  request.set_orchestrator_epoch(context_.epoch);
  request.set_run_id(action.run_id);
  request.set_version(action.version);
  request.set_evaluation(action.evaluation);
  request.set_group_id(action.group.value);
  request.set_attempt(action.attempt);
  request.set_seed(action.seed);
  const auto& prompt = action.dataset->rows[action.data_row].prompt_token_ids;
  request.mutable_prompt_token_ids()->Add(prompt.begin(), prompt.end());
  for (const uint32_t index : action.sample_indexes) request.add_sample_indexes(index);
  for (const SampleId id : action.sample_ids) request.add_sample_ids(id.value);
  auto& sampling = *request.mutable_sampling();
  sampling.set_temperature(action.temperature);
  sampling.set_max_new_tokens(action.max_new_tokens);
  sampling.mutable_stop_token_ids()->Add(action.stop_token_ids.begin(),
                                         action.stop_token_ids.end());
  request.set_priority(action.priority);

  const Key key{action.run_id, action.group, action.attempt};
  Stream& stream = streams_[key];
  stream.worker = action.worker;
  stream.max_new_tokens = action.max_new_tokens;
  stream.handle = rpc::CallServerStream(
      context_.client, **stub, &Async::GenerateGroup, std::move(request),
      rpc::Milliseconds(action.deadline_ms),
      [this, key](const pb::GenerateGroupResponse& chunk) { OnChunk(key, chunk); },
      [this, key, stub = *stub](const Status& status) { OnStreamDone(key, status); });
}

void GrpcGeneratorPort::OnChunk(const Key& key, const pb::GenerateGroupResponse& chunk) {
  const auto found = streams_.find(key);
  if (found == streams_.end() || !found->second.failure.ok()) return;
  Stream& stream = found->second;
  std::shared_ptr<Reply>& reply = stream.parts[chunk.sample_index()];
  if (reply == nullptr) reply = std::make_shared<Reply>();
  reply->token_ids.insert(reply->token_ids.end(), chunk.token_ids().begin(),
                          chunk.token_ids().end());
  reply->logprobs.insert(reply->logprobs.end(), chunk.logprobs().begin(), chunk.logprobs().end());
  if (reply->token_ids.size() > stream.max_new_tokens) {
    stream.failure = Internal(stream.worker.worker_id + " sent more tokens than were asked for");
    stream.handle.Cancel();
    return;
  }
  if (!chunk.done()) return;
  SampleArrived sample;
  sample.worker = stream.worker;
  std::tie(sample.run_id, sample.group, sample.attempt) = key;
  sample.sample_index = chunk.sample_index();
  sample.reply = std::move(reply);
  stream.parts.erase(chunk.sample_index());
  sample.finish = static_cast<FinishReason>(chunk.finish_reason());
  for (const auto& span : chunk.spans())
    sample.spans.push_back({span.version(), span.num_tokens()});
  sample.sequences_running_max = chunk.sequences_running_max();
  sample.batch_fingerprint = chunk.batch_fingerprint();
  context_.deliver(sample);
}

void GrpcGeneratorPort::OnStreamDone(const Key& key, Status status) {
  const auto found = streams_.find(key);
  if (found == streams_.end()) return;
  RolloutEnded ended;
  ended.worker = found->second.worker;
  std::tie(ended.run_id, ended.group, ended.attempt) = key;
  ended.status = found->second.failure.ok() ? std::move(status) : found->second.failure;
  streams_.erase(found);
  context_.deliver(ended);
}

void GrpcGeneratorPort::Cancel(const CancelRollouts& action) {
  for (auto& [key, stream] : streams_) {
    if (std::get<0>(key) == action.run_id) stream.handle.Cancel();
  }
}

void GrpcGeneratorPort::Forget(const WorkerName& name) {
  for (auto& [key, stream] : streams_) {
    if (stream.worker == name) stream.handle.Cancel();
  }
  stubs_.Forget(name);
}

void GrpcGeneratorPort::Reset(const ResetGenerator& action) {
  Reset(action.worker, [this, worker = action.worker](Status status) {
    context_.deliver(GeneratorReset{worker, std::move(status)});
  });
}

void GrpcGeneratorPort::Reset(const WorkerName& name, std::function<void(Status)> done) {
  auto stub = stubs_.Get(context_.workers, name);
  if (!stub.ok()) {
    asio::post(context_.client.control(),
               [done = std::move(done), status = stub.status()] { done(status); });
    return;
  }
  const auto held = [this, stub = *stub,
                     done = std::move(done)](StatusOr<pb::GetStatusResponse> reply) {
    if (!reply.ok() || reply->versions().empty()) {
      done(reply.status());
      return;
    }
    struct Progress {
      int left = 0;
      Status first_failure;
    };
    auto progress = std::make_shared<Progress>(Progress{reply->versions_size(), {}});
    for (const auto& version : reply->versions()) {
      pb::ReleaseVersionRequest request;
      request.set_request_id("reset-" + std::to_string(next_request_++));
      request.set_orchestrator_epoch(context_.epoch);
      request.set_run_id(version.run_id());
      request.set_version(version.version());
      request.set_evaluation(version.evaluation());
      rpc::CallUnaryThen(context_.client, *stub, &Async::ReleaseVersion, std::move(request),
                         context_.BulkDeadline(),
                         [stub, progress, done](StatusOr<pb::ReleaseVersionResponse> released) {
                           if (progress->first_failure.ok()) {
                             progress->first_failure = released.status();
                           }
                           if (--progress->left == 0) done(progress->first_failure);
                         });
    }
  };
  rpc::CallUnaryThen(context_.client, **stub, &Async::GetStatus, pb::GetStatusRequest(),
                     context_.rpc_deadline, held);
}

}  // namespace titan::orchestrator
