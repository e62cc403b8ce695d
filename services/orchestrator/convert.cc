// SPDX-License-Identifier: Apache-2.0
#include "services/orchestrator/convert.h"

#include <utility>

namespace titan::orchestrator {
namespace {

// Copies an optional field that is there and remembers its path.
#define TITAN_TAKE(part, field)               \
  do {                                        \
    if (proto.part().has_##field()) {         \
      spec.part.field = proto.part().field(); \
      spec.given.insert(#part "." #field);    \
    }                                         \
  } while (false)
// The same for text, where empty means not there.
#define TITAN_TAKE_TEXT(part, field)          \
  do {                                        \
    if (!proto.part().field().empty()) {      \
      spec.part.field = proto.part().field(); \
      spec.given.insert(#part "." #field);    \
    }                                         \
  } while (false)

}  // namespace

JobSpec FromProto(const config::v1::JobSpec& proto) {
  JobSpec spec;
  spec.name = proto.name();
  if (!proto.kind().empty()) spec.kind = proto.kind();
  spec.seed = proto.seed();
  TITAN_TAKE_TEXT(model, path);
  TITAN_TAKE_TEXT(model, id);
  TITAN_TAKE_TEXT(model, mode);
  TITAN_TAKE(model, max_sequence_tokens);
  TITAN_TAKE_TEXT(data, path);
  TITAN_TAKE(data, held_out);
  TITAN_TAKE_TEXT(data, system_prompt);
  TITAN_TAKE_TEXT(data, id);
  TITAN_TAKE_TEXT(schedule, kind);
  TITAN_TAKE(schedule, max_age);
  spec.schedule.steps = proto.schedule().steps();
  spec.schedule.groups_per_step = proto.schedule().groups_per_step();
  TITAN_TAKE_TEXT(schedule, on_untrainable);
  TITAN_TAKE(schedule, max_candidates);
  TITAN_TAKE_TEXT(schedule, on_empty_slot);
  spec.rollout.samples_per_group = proto.rollout().samples_per_group();
  TITAN_TAKE(rollout, temperature);
  spec.rollout.max_new_tokens = proto.rollout().max_new_tokens();
  TITAN_TAKE_TEXT(reward, grader);
  TITAN_TAKE_TEXT(reward, grader_parameters_json);
  TITAN_TAKE_TEXT(training, advantage);
  TITAN_TAKE(training, advantage_epsilon);
  TITAN_TAKE(training, clip_low);
  TITAN_TAKE(training, clip_high);
  TITAN_TAKE_TEXT(training, aggregation);
  TITAN_TAKE(training, learning_rate);
  TITAN_TAKE(training, beta1);
  TITAN_TAKE(training, beta2);
  TITAN_TAKE(training, epsilon);
  TITAN_TAKE(training, weight_decay);
  TITAN_TAKE(training, max_gradient_norm);
  TITAN_TAKE(training, shards);
  TITAN_TAKE(training, shared_group_tokens);
  TITAN_TAKE(training, checkpoint_every_steps);
  TITAN_TAKE(evaluation, every_steps);
  TITAN_TAKE(evaluation, max_new_tokens);
  TITAN_TAKE(evaluation, slots);
  TITAN_TAKE(parity, share);
  TITAN_TAKE_TEXT(parity, on_difference);
  TITAN_TAKE(deadlines, first_step_ms);
  TITAN_TAKE(deadlines, step_ms);
  TITAN_TAKE(deadlines, reward_ms);
  TITAN_TAKE(deadlines, workers_ms);
  return spec;
}

#undef TITAN_TAKE
#undef TITAN_TAKE_TEXT

config::v1::JobSpec ToProto(const JobSpec& spec) {
  config::v1::JobSpec out;
  out.set_name(spec.name);
  out.set_kind(spec.kind);
  out.set_seed(spec.seed);
  out.mutable_model()->set_path(spec.model.path);
  out.mutable_model()->set_id(spec.model.id);
  out.mutable_model()->set_mode(spec.model.mode);
  out.mutable_model()->set_max_sequence_tokens(spec.model.max_sequence_tokens);
  out.mutable_data()->set_path(spec.data.path);
  out.mutable_data()->set_held_out(spec.data.held_out);
  out.mutable_data()->set_system_prompt(spec.data.system_prompt);
  out.mutable_data()->set_id(spec.data.id);
  auto& schedule = *out.mutable_schedule();
  schedule.set_kind(spec.schedule.kind);
  schedule.set_max_age(spec.schedule.max_age);
  schedule.set_steps(spec.schedule.steps);
  schedule.set_groups_per_step(spec.schedule.groups_per_step);
  schedule.set_on_untrainable(spec.schedule.on_untrainable);
  schedule.set_max_candidates(spec.schedule.max_candidates);
  schedule.set_on_empty_slot(spec.schedule.on_empty_slot);
  out.mutable_rollout()->set_samples_per_group(spec.rollout.samples_per_group);
  out.mutable_rollout()->set_temperature(spec.rollout.temperature);
  out.mutable_rollout()->set_max_new_tokens(spec.rollout.max_new_tokens);
  out.mutable_reward()->set_grader(spec.reward.grader);
  out.mutable_reward()->set_grader_parameters_json(spec.reward.grader_parameters_json);
  auto& training = *out.mutable_training();
  training.set_advantage(spec.training.advantage);
  training.set_advantage_epsilon(spec.training.advantage_epsilon);
  training.set_clip_low(spec.training.clip_low);
  training.set_clip_high(spec.training.clip_high);
  training.set_aggregation(spec.training.aggregation);
  training.set_learning_rate(spec.training.learning_rate);
  training.set_beta1(spec.training.beta1);
  training.set_beta2(spec.training.beta2);
  training.set_epsilon(spec.training.epsilon);
  training.set_weight_decay(spec.training.weight_decay);
  training.set_max_gradient_norm(spec.training.max_gradient_norm);
  training.set_shards(spec.training.shards);
  training.set_shared_group_tokens(spec.training.shared_group_tokens);
  training.set_checkpoint_every_steps(spec.training.checkpoint_every_steps);
  out.mutable_evaluation()->set_every_steps(spec.evaluation.every_steps);
  out.mutable_evaluation()->set_max_new_tokens(spec.EvaluationTokens());
  out.mutable_evaluation()->set_slots(spec.evaluation.slots);
  out.mutable_parity()->set_share(spec.parity.share);
  out.mutable_parity()->set_on_difference(spec.parity.on_difference);
  out.mutable_deadlines()->set_first_step_ms(spec.deadlines.first_step_ms);
  out.mutable_deadlines()->set_step_ms(spec.deadlines.step_ms);
  out.mutable_deadlines()->set_reward_ms(spec.deadlines.reward_ms);
  out.mutable_deadlines()->set_workers_ms(spec.deadlines.workers_ms);
  return out;
}

namespace {

void SetParity(const ParityTotals& from, v1::ParityTotals* to) {
  to->set_logprob_difference_max(from.logprob_difference_max);
  to->set_tokens_differing(from.tokens_differing);
  to->set_tokens_compared(from.tokens_compared);
}

}  // namespace

v1::StepReport ToProto(const StepReport& r) {
  v1::StepReport out;
  out.set_step(r.step);
  out.set_version(r.version);
  out.set_weights_digest(r.weights_digest);
  out.set_reward_mean(r.reward_mean);
  out.set_groups_trained(r.groups_trained);
  out.set_groups_untrainable(r.groups_untrainable);
  out.set_samples(r.samples);
  out.set_tokens_generated(r.tokens_generated);
  out.set_tokens_trained(r.tokens_trained);
  out.set_sample_tokens_max(r.sample_tokens_max);
  out.set_completion_tokens_mean(r.completion_tokens_mean);
  out.set_loss(r.loss);
  out.set_gradient_norm(r.gradient_norm);
  out.set_clip_fraction(r.clip_fraction);
  out.set_ratio_max(r.ratio_max);
  out.set_learning_rate(r.learning_rate);
  SetParity(r.parity, out.mutable_parity());
  out.set_age(r.age);
  auto& phases = *out.mutable_phases();
  phases.set_wall(r.phases.wall);
  phases.set_generate(r.phases.generate);
  phases.set_score(r.phases.score);
  phases.set_wait_for_samples(r.phases.wait_for_samples);
  phases.set_parity_forward(r.phases.parity_forward);
  phases.set_forward(r.phases.forward);
  phases.set_backward(r.phases.backward);
  phases.set_optimizer(r.phases.optimizer);
  phases.set_publish(r.phases.publish);
  out.set_samples_per_pack_min(r.samples_per_pack_min);
  out.set_sequences_running_max(r.sequences_running_max);
  out.set_generated_tokens_per_second(r.generated_tokens_per_second);
  for (const GeneratorShare& share : r.generator_shares) {
    auto& s = *out.add_generator_shares();
    s.set_worker_id(share.worker_id);
    s.set_tokens(share.tokens);
    s.set_batch_fingerprint(share.batch_fingerprint);
  }
  out.set_generated_before_previous_commit(r.generated_before_previous_commit);
  return out;
}

StepReport FromProto(const v1::StepReport& p) {
  StepReport r;
  r.step = p.step();
  r.version = p.version();
  r.weights_digest = p.weights_digest();
  r.reward_mean = p.reward_mean();
  r.groups_trained = p.groups_trained();
  r.groups_untrainable = p.groups_untrainable();
  r.samples = p.samples();
  r.tokens_generated = p.tokens_generated();
  r.tokens_trained = p.tokens_trained();
  r.sample_tokens_max = p.sample_tokens_max();
  r.completion_tokens_mean = p.completion_tokens_mean();
  r.loss = p.loss();
  r.gradient_norm = p.gradient_norm();
  r.clip_fraction = p.clip_fraction();
  r.ratio_max = p.ratio_max();
  r.learning_rate = p.learning_rate();
  r.parity = {p.parity().logprob_difference_max(), p.parity().tokens_differing(),
              p.parity().tokens_compared()};
  r.age = p.age();
  const auto& t = p.phases();
  r.phases = {t.wall(),    t.generate(), t.score(),     t.wait_for_samples(), t.parity_forward(),
              t.forward(), t.backward(), t.optimizer(), t.publish()};
  r.samples_per_pack_min = p.samples_per_pack_min();
  r.sequences_running_max = p.sequences_running_max();
  r.generated_tokens_per_second = p.generated_tokens_per_second();
  for (const auto& s : p.generator_shares()) {
    r.generator_shares.push_back({s.worker_id(), s.tokens(), s.batch_fingerprint()});
  }
  r.generated_before_previous_commit = p.generated_before_previous_commit();
  return r;
}

v1::EvaluationReport ToProto(const EvaluationReport& r) {
  v1::EvaluationReport out;
  out.set_version(r.version);
  out.set_questions(r.questions);
  out.set_correct(r.correct);
  out.set_accuracy(r.accuracy);
  out.set_seconds_since_running(r.seconds_since_running);
  out.set_completion_tokens_mean(r.completion_tokens_mean);
  out.set_skipped_reason(r.skipped_reason);
  return out;
}

EvaluationReport FromProto(const v1::EvaluationReport& p) {
  return {p.version(),
          p.questions(),
          p.correct(),
          p.accuracy(),
          p.seconds_since_running(),
          p.completion_tokens_mean(),
          p.skipped_reason()};
}

v1::Job ToProto(const JobInfo& job) {
  v1::Job out;
  out.set_job_id(job.job_id);
  out.set_state(static_cast<v1::JobState>(job.state));
  out.set_reason(job.reason);
  out.set_steps_done(job.steps_done);
  out.set_run_id(job.run_id);
  out.set_submitted_unix_ms(job.submitted_unix_ms);
  out.set_running_unix_ms(job.running_unix_ms);
  out.set_ended_unix_ms(job.ended_unix_ms);
  if (job.spec != nullptr) {
    out.set_name(job.spec->name);
    out.set_steps_total(job.spec->schedule.steps);
    *out.mutable_spec() = ToProto(*job.spec);
  }
  if (job.last_step.has_value()) *out.mutable_last_step() = ToProto(*job.last_step);
  for (const EvaluationReport& report : job.evaluations) *out.add_evaluations() = ToProto(report);
  SetParity(job.parity, out.mutable_parity());
  return out;
}

WorkerName NameOf(const type::v1::WorkerIdentity& identity) {
  return {identity.worker_id(), identity.incarnation()};
}

StatusOr<WorkerRecord> FromProto(const v1::RegisterWorkerRequest& request) {
  WorkerRecord record;
  record.ready.name = NameOf(request.worker());
  switch (request.worker().role()) {
    case type::v1::WORKER_ROLE_GENERATOR:
      record.ready.role = WorkerRole::kGenerator;
      break;
    case type::v1::WORKER_ROLE_TRAINER:
      record.ready.role = WorkerRole::kTrainer;
      break;
    case type::v1::WORKER_ROLE_REWARD:
      record.ready.role = WorkerRole::kReward;
      break;
    default:
      return InvalidArgument("worker.role: must be generator, trainer or reward");
  }
  record.ready.max_versions = request.max_versions();
  record.ready.max_running_sequences = request.max_running_sequences();
  record.ready.graders = {request.graders().begin(), request.graders().end()};
  record.address = request.worker().address();
  record.pid = request.worker().pid();
  record.machine = request.machine();
  record.contract.forward = request.contract().forward();
  record.contract.training = request.contract().training();
  for (const auto& item : request.contract().items()) {
    record.contract.items[item.name()] = item.value();
  }
  return record;
}

type::v1::WorkerIdentity ToIdentity(const WorkerRecord& record) {
  type::v1::WorkerIdentity out;
  out.set_worker_id(record.ready.name.worker_id);
  out.set_incarnation(record.ready.name.incarnation);
  out.set_role(static_cast<type::v1::WorkerRole>(record.ready.role));
  out.set_address(record.address);
  out.set_pid(record.pid);
  return out;
}

JournalCodec MakeJournalCodec() {
  JournalCodec codec;
  codec.encode_step = [](const StepReport& r) { return ToProto(r).SerializeAsString(); };
  codec.decode_step = [](const std::string& bytes) -> StatusOr<StepReport> {
    v1::StepReport proto;
    if (!proto.ParseFromString(bytes)) return DataLoss("journal: a step report cannot be parsed");
    return FromProto(proto);
  };
  codec.encode_evaluation = [](const EvaluationReport& r) {
    return ToProto(r).SerializeAsString();
  };
  codec.decode_evaluation = [](const std::string& bytes) -> StatusOr<EvaluationReport> {
    v1::EvaluationReport proto;
    if (!proto.ParseFromString(bytes)) {
      return DataLoss("journal: an evaluation report cannot be parsed");
    }
    return FromProto(proto);
  };
  codec.decode_spec = [](const std::string& bytes) -> StatusOr<JobSpec> {
    config::v1::JobSpec proto;
    if (!proto.ParseFromString(bytes)) return DataLoss("journal: a job spec cannot be parsed");
    return FromProto(proto);
  };
  return codec;
}

}  // namespace titan::orchestrator
