// SPDX-License-Identifier: Apache-2.0
#include "services/orchestrator/trainer_port.h"

#include <cstdio>
#include <optional>
#include <utility>

#include "services/orchestrator/convert.h"
#include "services/orchestrator/probe.h"

namespace titan::orchestrator {

namespace pb = trainer::v1;
using Async = pb::TrainerService::StubInterface::async_interface;

namespace {

pb::TrainStepRequest Header(const TrainStep& action, uint64_t epoch) {
  pb::TrainStepRequest message;
  auto& header = *message.mutable_header();
  header.set_request_id(action.run_id + "-step-" + std::to_string(action.step));
  header.set_orchestrator_epoch(epoch);
  header.set_run_id(action.run_id);
  header.set_step(action.step);
  header.set_plan_digest(action.plan_digest);
  header.set_num_samples(static_cast<uint32_t>(action.samples.size()));
  header.set_num_groups_trained(action.num_groups_trained);
  header.set_behaviour_version(action.behaviour_version);
  return message;
}

pb::TrainStepRequest Sample(const PlannedSample& sample, const Dataset& dataset) {
  pb::TrainStepRequest message;
  auto& out = *message.mutable_sample();
  out.set_group_id(sample.group.value);
  out.set_group_index(sample.group_index);
  out.set_sample_index(sample.sample_index);
  out.set_sample_id(sample.sample.value);
  const auto& prompt = dataset.rows[sample.data_row].prompt_token_ids;
  out.mutable_prompt_token_ids()->Add(prompt.begin(), prompt.end());
  const Reply& reply = *sample.reply;
  out.mutable_token_ids()->Add(reply.token_ids.begin(), reply.token_ids.end());
  out.mutable_logprobs()->Add(reply.logprobs.begin(), reply.logprobs.end());
  out.set_advantage(sample.advantage);
  out.set_trained(sample.trained);
  out.set_compared(sample.compared);
  return message;
}

TrainResult FromProto(const pb::TrainStepResponse& p) {
  TrainResult r;
  r.version = p.version();
  r.weights_digest = p.weights_digest();
  r.updated = p.updated();
  r.loss = p.loss();
  r.gradient_norm = p.gradient_norm();
  r.clip_fraction = p.clip_fraction();
  r.ratio_max = p.ratio_max();
  r.learning_rate = p.learning_rate();
  r.tokens_trained = p.tokens_trained();
  r.sample_tokens_max = p.sample_tokens_max();
  r.parity = {p.logprob_difference_max(), p.tokens_differing(), p.tokens_compared()};
  if (!p.differences().empty()) {
    const auto& d = p.differences(0);
    char text[160];
    std::snprintf(
        text, sizeof(text), "first: sample %016llx, reply token %u, rollout %.9g, trainer %.9g",
        static_cast<unsigned long long>(d.sample_id()), d.token_index(),
        static_cast<double>(d.rollout_logprob()), static_cast<double>(d.trainer_logprob()));
    r.first_difference = text;
  }
  r.samples_per_pack_min = p.samples_per_pack_min();
  r.parity_forward_seconds = p.parity_forward_seconds();
  r.forward_seconds = p.forward_seconds();
  r.backward_seconds = p.backward_seconds();
  r.optimizer_seconds = p.optimizer_seconds();
  r.publish_seconds = p.publish_seconds();
  return r;
}

}  // namespace

void GrpcTrainerPort::Start(const StartRun& action) {
  RunStarted answer;
  answer.run_id = action.run_id;
  auto stub = stubs_.Get(context_.workers, action.trainer);
  if (!stub.ok()) {
    answer.status = stub.status();
    context_.DeliverLater(std::move(answer));
    return;
  }
  pb::StartRunRequest request;
  request.set_request_id(action.run_id + "-start");
  request.set_orchestrator_epoch(context_.epoch);
  request.set_run_id(action.run_id);
  *request.mutable_spec() = ToProto(*action.spec);
  rpc::CallUnaryThen(context_.client, **stub, &Async::StartRun, std::move(request),
                     rpc::Milliseconds(action.deadline_ms),
                     [this, answer, trainer = action.trainer,
                      stub = *stub](StatusOr<pb::StartRunResponse> reply) mutable {
                       answer.status = reply.status();
                       if (reply.ok()) answer.weights_digest = reply->weights_digest();
                       DeliverFailure(trainer, reply.status(), answer);
                     });
}

void GrpcTrainerPort::Train(const TrainStep& action) {
  StepTrained answer;
  answer.run_id = action.run_id;
  answer.step = action.step;
  auto stub = stubs_.Get(context_.workers, action.trainer);
  if (!stub.ok()) {
    answer.status = stub.status();
    context_.DeliverLater(std::move(answer));
    return;
  }
  // Messages are made as the stream takes them; the samples are shared, not copied.
  auto shared = std::make_shared<const TrainStep>(action);
  auto sent = std::make_shared<size_t>(0);
  const uint64_t epoch = context_.epoch;
  auto next = [shared, sent, epoch]() -> std::optional<pb::TrainStepRequest> {
    const size_t at = (*sent)++;
    if (at == 0) return Header(*shared, epoch);
    if (at > shared->samples.size()) return std::nullopt;
    return Sample(shared->samples[at - 1], *shared->dataset);
  };
  auto stream = rpc::CallClientStream(context_.client, **stub, &Async::TrainStep, std::move(next),
                                      rpc::Milliseconds(action.deadline_ms),
                                      [this, answer, trainer = action.trainer, stub = *stub](
                                          StatusOr<pb::TrainStepResponse> reply) mutable {
                                        answer.status = reply.status();
                                        if (reply.ok()) answer.result = FromProto(*reply);
                                        steps_.erase(answer.run_id);
                                        DeliverFailure(trainer, reply.status(), answer);
                                      });
  steps_[action.run_id] = {action.trainer, std::move(stream)};
}

void GrpcTrainerPort::DeliverFailure(const WorkerName& trainer, const Status& status,
                                     Event answer) {
  const WorkerRecord* record = context_.workers.Find(trainer.worker_id);
  if (status.code() != StatusCode::kUnavailable || record == nullptr ||
      record->ready.name != trainer) {
    context_.deliver(answer);
    return;
  }
  // It may be the trainer that is gone, or the weight store, which a trainer cannot do without.
  const std::string gone = " broke and nothing listens at its address any more";
  const auto store_probed = [this, gone, answer](Presence store) {
    if (store == Presence::kGone) context_.store_lost("the trainer's connection to it" + gone);
    context_.deliver(answer);
  };
  const auto trainer_probed = [this, gone, trainer, answer, store_probed](Presence it) {
    if (it != Presence::kGone) {
      ProbePeer(context_.client.control(), context_.weightstore_address, store_probed);
      return;
    }
    context_.lost(trainer, "the connection to it" + gone);
    context_.deliver(answer);
  };
  ProbePeer(context_.client.control(), record->address, trainer_probed);
}

void GrpcTrainerPort::End(const EndRun& action, std::function<void()> done) {
  const auto step = steps_.find(action.run_id);
  if (step != steps_.end()) step->second.stream.Cancel();
  auto stub = stubs_.Get(context_.workers, action.trainer);
  if (!stub.ok()) {
    asio::post(context_.client.control(), std::move(done));
    return;
  }
  pb::EndRunRequest request;
  request.set_request_id(action.run_id + "-end");
  request.set_orchestrator_epoch(context_.epoch);
  request.set_run_id(action.run_id);
  // The trainer answers once the step that it works on is over.
  rpc::CallUnaryThen(context_.client, **stub, &Async::EndRun, std::move(request),
                     context_.BulkDeadline(),
                     [this, done = std::move(done), stub = *stub](StatusOr<pb::EndRunResponse>) {
                       if (!context_.stopping()) done();
                     });
}

void GrpcTrainerPort::Forget(const WorkerName& name) {
  for (auto& [run_id, step] : steps_) {
    if (step.trainer == name) step.stream.Cancel();
  }
  stubs_.Forget(name);
}

}  // namespace titan::orchestrator
