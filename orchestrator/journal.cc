// SPDX-License-Identifier: Apache-2.0
#include "orchestrator/journal.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/check.h"
#include "core/base/hash.h"
#include "orchestrator/canonical.h"
#include "titan/storage/v1/storage.pb.h"

namespace titan::orchestrator {
namespace {

namespace pb = storage::v1;

constexpr char kFacts[] = "f/";
constexpr char kIndex[] = "i/";

std::string Prefix(const char* kind, const std::string& job_id) { return kind + job_id + "/"; }

bool IsListed(const Fact& fact) {
  return std::holds_alternative<JobSubmitted>(fact.body) ||
         std::holds_alternative<StateChanged>(fact.body) ||
         std::holds_alternative<StepDone>(fact.body) ||
         std::holds_alternative<EvaluationDone>(fact.body) ||
         std::holds_alternative<CommandGiven>(fact.body) ||
         std::holds_alternative<MessageTold>(fact.body);
}

// u32 n, n x i32 token ids, n x f32 log-probs, little-endian.
std::string EncodeReply(const Reply& reply) {
  const auto num = static_cast<uint32_t>(reply.token_ids.size());
  std::string bytes(4 + size_t{8} * num, '\0');
  std::memcpy(bytes.data(), &num, 4);
  std::memcpy(bytes.data() + 4, reply.token_ids.data(), size_t{4} * num);
  std::memcpy(bytes.data() + 4 + size_t{4} * num, reply.logprobs.data(), size_t{4} * num);
  return bytes;
}

StatusOr<std::shared_ptr<const Reply>> DecodeReply(const std::string& bytes) {
  uint32_t num = 0;
  if (bytes.size() < 4) return DataLoss("a reply is shorter than its count");
  std::memcpy(&num, bytes.data(), 4);
  if (bytes.size() != 4 + size_t{8} * num)
    return DataLoss("a reply has another size than its count");
  auto reply = std::make_shared<Reply>();
  reply->token_ids.resize(num);
  reply->logprobs.resize(num);
  std::memcpy(reply->token_ids.data(), bytes.data() + 4, size_t{4} * num);
  std::memcpy(reply->logprobs.data(), bytes.data() + 4 + size_t{4} * num, size_t{4} * num);
  return std::shared_ptr<const Reply>(std::move(reply));
}

}  // namespace

void Apply(const Fact& fact, JobInfo* job) {
  if (const auto* f = std::get_if<JobSubmitted>(&fact.body)) {
    if (job->run_id.empty()) job->submitted_unix_ms = UnixMs(fact.at);  // later: another run of it
    job->request_id = f->request_id;
    job->run_id = f->run_id;
    job->data_digest = f->data_digest;
    job->spec_digest = f->spec_digest;
  } else if (const auto* f = std::get_if<StateChanged>(&fact.body)) {
    job->state = f->state;
    job->reason = f->reason;
    if (f->state == JobState::kRunning) job->running_unix_ms = UnixMs(fact.at);
    if (IsFinal(f->state)) job->ended_unix_ms = UnixMs(fact.at);
  } else if (const auto* f = std::get_if<StepDone>(&fact.body)) {
    job->last_step = f->report;
    job->steps_done = f->report.step + 1;
    job->parity.Add(f->report.parity);
  } else if (const auto* f = std::get_if<EvaluationDone>(&fact.body)) {
    job->evaluations.push_back(f->report);
  }
}

Journal::Journal(std::unique_ptr<storage::KeyValueStore> store,
                 std::unique_ptr<storage::SegmentLog> segments, JournalCodec codec)
    : store_(std::move(store)), segments_(std::move(segments)), codec_(std::move(codec)) {}

StatusOr<std::unique_ptr<Journal>> Journal::Create(std::unique_ptr<storage::KeyValueStore> store,
                                                   std::unique_ptr<storage::SegmentLog> segments,
                                                   JournalCodec codec) {
  std::unique_ptr<Journal> journal(
      new Journal(std::move(store), std::move(segments), std::move(codec)));
  // One record a job: its last fact.
  std::string start = kFacts;
  for (;;) {
    std::string job_id;
    TITAN_RETURN_IF_ERROR(
        journal->store_->Scan(kFacts, start, [&](std::string_view key, std::string_view) {
          if (key.size() > 11) job_id = std::string(key.substr(2, key.size() - 11));
          return false;
        }));
    if (job_id.empty()) return journal;
    const std::string prefix = Prefix(kFacts, job_id);
    TITAN_ASSIGN_OR_RETURN(const auto last, journal->store_->Last(prefix));
    TITAN_CHECK(last.has_value());
    const auto number =
        storage::NumberFromBigEndianKey(std::string_view(last->key).substr(prefix.size()));
    if (!number.has_value()) return DataLoss("journal: a key of job " + job_id + " has no number");
    journal->next_[job_id] = *number + 1;
    start = storage::PrefixEnd(prefix);
  }
}

StatusOr<pb::Fact> Journal::Encode(const Fact& fact) {
  pb::Fact out;
  out.set_unix_ms(UnixMs(fact.at));
  if (const auto* f = std::get_if<JobSubmitted>(&fact.body)) {
    auto& m = *out.mutable_job_submitted();
    m.set_spec(f->spec_bytes);
    m.set_spec_digest(f->spec_digest);
    m.set_request_id(f->request_id);
    m.set_run_id(f->run_id);
    m.set_data_digest(f->data_digest);
  } else if (const auto* f = std::get_if<StateChanged>(&fact.body)) {
    out.mutable_state_changed()->set_state(static_cast<uint32_t>(f->state));
    out.mutable_state_changed()->set_reason(f->reason);
  } else if (const auto* f = std::get_if<GroupAdmitted>(&fact.body)) {
    auto& m = *out.mutable_group_admitted();
    m.set_group_id(f->group.value);
    m.set_data_row(f->data_row);
    m.set_version(f->version);
  } else if (const auto* f = std::get_if<RolloutStarted>(&fact.body)) {
    auto& m = *out.mutable_rollout_started();
    m.set_group_id(f->group.value);
    m.set_attempt(f->attempt);
    m.set_worker_id(f->worker_id);
  } else if (const auto* f = std::get_if<SampleGenerated>(&fact.body)) {
    TITAN_ASSIGN_OR_RETURN(const storage::SegmentPlace place,
                           segments_->Append(EncodeReply(*f->reply)));
    auto& m = *out.mutable_sample_generated();
    m.set_group_id(f->group.value);
    m.set_sample_index(f->sample_index);
    m.set_sample_id(f->sample.value);
    m.set_attempt(f->attempt);
    m.set_worker_id(f->worker_id);
    m.set_finish_reason(static_cast<uint32_t>(f->finish));
    m.set_version(f->version);
    m.mutable_tokens()->set_segment(place.segment);
    m.mutable_tokens()->set_offset(place.offset);
    m.mutable_tokens()->set_length(place.length);
    m.mutable_tokens()->set_crc32c(place.crc32c);
  } else if (const auto* f = std::get_if<SampleScored>(&fact.body)) {
    auto& m = *out.mutable_score();
    m.set_sample_id(f->sample.value);
    m.set_value(f->value);
    for (const auto& [name, value] : f->components) (*m.mutable_components())[name] = value;
    m.set_grader(f->grader);
    m.set_grader_version(f->grader_version);
    m.set_model_fault(f->model_fault);
  } else if (const auto* f = std::get_if<GroupClosed>(&fact.body)) {
    auto& m = *out.mutable_group_closed();
    m.set_group_id(f->group.value);
    m.set_trainable(f->trainable);
    m.set_reason(f->reason);
  } else if (const auto* f = std::get_if<StepPlanned>(&fact.body)) {
    auto& m = *out.mutable_step_planned();
    m.set_step(f->step);
    for (const SampleId sample : f->samples) m.add_sample_ids(sample.value);
    m.set_plan_digest(f->plan_digest);
  } else if (const auto* f = std::get_if<StepDone>(&fact.body)) {
    auto& m = *out.mutable_step_done();
    m.set_step(f->report.step);
    m.set_weights_digest(f->report.weights_digest);
    m.set_report(codec_.encode_step(f->report));
  } else if (const auto* f = std::get_if<EvaluationDone>(&fact.body)) {
    out.mutable_evaluation_done()->set_report(codec_.encode_evaluation(f->report));
  } else if (const auto* f = std::get_if<CommandGiven>(&fact.body)) {
    auto& m = *out.mutable_command();
    m.set_kind(f->kind);
    m.set_request_id(f->request_id);
    m.set_reason(f->reason);
  } else if (const auto* f = std::get_if<MessageTold>(&fact.body)) {
    out.mutable_message_told()->set_text(f->text);
  }
  return out;
}

Status Journal::Commit(const std::vector<Fact>& facts) {
  storage::WriteBatch batch;
  for (const Fact& fact : facts) {
    TITAN_ASSIGN_OR_RETURN(const pb::Fact encoded, Encode(fact));
    const std::string number = storage::BigEndianKey(next_[fact.job_id]++);
    batch.Put(Prefix(kFacts, fact.job_id) + number, encoded.SerializeAsString());
    if (IsListed(fact)) batch.Put(Prefix(kIndex, fact.job_id) + number, "");
  }
  if (batch.empty()) return OkStatus();
  TITAN_RETURN_IF_ERROR(segments_->Sync());
  return store_->Write(batch, storage::Durability::kSynced);
}

StatusOr<Fact> Journal::Decode(const std::string& job_id, std::string_view bytes,
                               const WithTokens& with_tokens) const {
  pb::Fact in;
  if (!in.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return DataLoss("journal: a fact of job " + job_id + " cannot be parsed");
  }
  Fact fact;
  fact.job_id = job_id;
  fact.at = Instant(Millis(static_cast<uint64_t>(in.unix_ms())));
  switch (in.fact_case()) {
    case pb::Fact::kJobSubmitted: {
      const auto& m = in.job_submitted();
      fact.body =
          JobSubmitted{m.spec(), m.request_id(), m.run_id(), m.data_digest(), m.spec_digest()};
      break;
    }
    case pb::Fact::kStateChanged:
      fact.body = StateChanged{static_cast<JobState>(in.state_changed().state()),
                               in.state_changed().reason()};
      break;
    case pb::Fact::kGroupAdmitted: {
      const auto& m = in.group_admitted();
      fact.body = GroupAdmitted{{m.group_id()}, m.data_row(), m.version()};
      break;
    }
    case pb::Fact::kRolloutStarted: {
      const auto& m = in.rollout_started();
      fact.body = RolloutStarted{{m.group_id()}, m.attempt(), m.worker_id()};
      break;
    }
    case pb::Fact::kSampleGenerated: {
      const auto& m = in.sample_generated();
      SampleGenerated body{{m.group_id()},  m.sample_index(),
                           {m.sample_id()}, m.attempt(),
                           m.worker_id(),   static_cast<FinishReason>(m.finish_reason()),
                           m.version(),     nullptr};
      if (with_tokens(body)) {
        const auto& t = m.tokens();
        TITAN_ASSIGN_OR_RETURN(const std::string payload,
                               segments_->Read({t.segment(), t.offset(), t.length(), t.crc32c()}));
        TITAN_ASSIGN_OR_RETURN(body.reply, DecodeReply(payload));
      }
      fact.body = std::move(body);
      break;
    }
    case pb::Fact::kScore: {
      const auto& m = in.score();
      SampleScored body{{m.sample_id()}, m.value(),          {},
                        m.grader(),      m.grader_version(), m.model_fault()};
      for (const auto& [name, value] : m.components()) body.components[name] = value;
      fact.body = std::move(body);
      break;
    }
    case pb::Fact::kGroupClosed: {
      const auto& m = in.group_closed();
      fact.body = GroupClosed{{m.group_id()}, m.trainable(), m.reason()};
      break;
    }
    case pb::Fact::kStepPlanned: {
      const auto& m = in.step_planned();
      StepPlanned body{m.step(), {}, m.plan_digest()};
      for (const uint64_t id : m.sample_ids()) body.samples.push_back({id});
      fact.body = std::move(body);
      break;
    }
    case pb::Fact::kStepDone: {
      TITAN_ASSIGN_OR_RETURN(StepReport report, codec_.decode_step(in.step_done().report()));
      fact.body = StepDone{std::move(report)};
      break;
    }
    case pb::Fact::kEvaluationDone: {
      TITAN_ASSIGN_OR_RETURN(EvaluationReport report,
                             codec_.decode_evaluation(in.evaluation_done().report()));
      fact.body = EvaluationDone{std::move(report)};
      break;
    }
    case pb::Fact::kCommand: {
      const auto& m = in.command();
      fact.body = CommandGiven{m.kind(), m.request_id(), m.reason()};
      break;
    }
    case pb::Fact::kMessageTold:
      fact.body = MessageTold{in.message_told().text()};
      break;
    case pb::Fact::FACT_NOT_SET:
      return DataLoss("journal: a fact of job " + job_id +
                      " is of a kind this version does not know; start the version that wrote it");
  }
  return fact;
}

StatusOr<std::vector<Fact>> Journal::ReadFacts(const std::string& job_id, bool with_tokens) const {
  return ReadFacts(job_id, [with_tokens](const SampleGenerated&) { return with_tokens; });
}

StatusOr<std::vector<Fact>> Journal::ReadFacts(const std::string& job_id,
                                               const WithTokens& with_tokens) const {
  std::vector<Fact> facts;
  Status failure;
  TITAN_RETURN_IF_ERROR(
      store_->ScanPrefix(Prefix(kFacts, job_id), [&](std::string_view, std::string_view value) {
        auto fact = Decode(job_id, value, with_tokens);
        if (!fact.ok()) {
          failure = fact.status();
          return false;
        }
        facts.push_back(*std::move(fact));
        return true;
      }));
  TITAN_RETURN_IF_ERROR(failure);
  return facts;
}

StatusOr<std::vector<std::string>> Journal::ReadCanonical(const std::string& job_id) const {
  TITAN_ASSIGN_OR_RETURN(const std::vector<Fact> facts, ReadFacts(job_id, /*with_tokens=*/true));
  if (facts.empty()) return NotFound("no job " + job_id + " in the journal");
  return CanonicalForm(facts);
}

StatusOr<std::vector<JournaledJob>> Journal::ReadJobs() const {
  std::vector<JournaledJob> jobs;
  for (const auto& [job_id, next] : next_) {
    std::vector<std::string> keys;
    const std::string prefix = Prefix(kIndex, job_id);
    TITAN_RETURN_IF_ERROR(store_->ScanPrefix(prefix, [&](std::string_view key, std::string_view) {
      keys.push_back(Prefix(kFacts, job_id) + std::string(key.substr(prefix.size())));
      return true;
    }));
    JournaledJob job;
    JobInfo& info = job.info;
    info.job_id = job_id;
    bool cancel_given = false;
    for (const std::string& key : keys) {
      TITAN_ASSIGN_OR_RETURN(const auto value, store_->Get(key));
      if (!value.has_value()) return DataLoss("journal: job " + job_id + " lacks a listed fact");
      TITAN_ASSIGN_OR_RETURN(Fact fact,
                             Decode(job_id, *value, [](const SampleGenerated&) { return false; }));
      if (const auto* f = std::get_if<JobSubmitted>(&fact.body)) {
        job.spec_bytes = f->spec_bytes;
        if (!info.run_id.empty()) job.past_run_ids.push_back(info.run_id);
        TITAN_ASSIGN_OR_RETURN(JobSpec spec, codec_.decode_spec(f->spec_bytes));
        info.spec = std::make_shared<const JobSpec>(std::move(spec));
      } else if (const auto* f = std::get_if<StateChanged>(&fact.body)) {
        if (f->state == JobState::kStopping) job.cancelled = cancel_given;
      } else if (const auto* f = std::get_if<CommandGiven>(&fact.body)) {
        cancel_given = cancel_given || f->kind == "cancel";
      }
      Apply(fact, &info);
      job.facts.push_back(std::move(fact));
    }
    if (info.spec == nullptr) return DataLoss("journal: job " + job_id + " has no submission");
    jobs.push_back(std::move(job));
  }
  std::sort(jobs.begin(), jobs.end(), [](const JournaledJob& a, const JournaledJob& b) {
    return SubmittedBefore(a.info, b.info);
  });
  return jobs;
}

}  // namespace titan::orchestrator
