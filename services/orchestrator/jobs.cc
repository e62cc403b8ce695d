// SPDX-License-Identifier: Apache-2.0
//
// The RPCs of jobs, and what watchers and the log are told.
#include <algorithm>
#include <utility>

#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "core/base/hash.h"
#include "core/runtime/co_status.h"
#include "core/runtime/log.h"
#include "services/orchestrator/convert.h"
#include "services/orchestrator/daemon.h"
#include "services/orchestrator/prompts.h"
#include "services/rpc/status_convert.h"

namespace titan::orchestrator {
namespace {

constexpr size_t kMaxRequestIdBytes = 256;
constexpr size_t kMaxReasonBytes = 1024;  // of a cancellation; it stays in the job

Status SpecProblems(const std::vector<FieldProblem>& problems) {
  type::v1::ErrorInfo info;
  info.set_reason("INVALID_JOB_SPEC");
  info.set_fix("correct the fields that are named and submit again");
  std::string text = "the job spec has " + std::to_string(problems.size()) + " problem" +
                     (problems.size() == 1 ? "" : "s");
  for (const FieldProblem& problem : problems) {
    text += "\n" + problem.path + ": " + problem.description;
    auto& field = *info.add_fields();
    field.set_path(problem.path);
    field.set_description(problem.description);
  }
  return rpc::WithErrorInfo(InvalidArgument(text), info);
}

// NotFound for a job that is not there.
Status NoSuchJob(const std::string& job_id) {
  return rpc::WithReason(NotFound("no job '" + job_id + "'"), "NO_SUCH_JOB",
                         "titanctl list shows the ids of the jobs");
}

}  // namespace

asio::awaitable<void> OrchestratorDaemon::Durable() {
  auto timer =
      std::make_shared<asio::steady_timer>(context_.control, asio::steady_timer::time_point::max());
  auto durable = std::make_shared<bool>(false);
  driver_->WhenDurable([timer, durable] {
    *durable = true;
    timer->cancel();
  });
  while (!*durable) {
    boost::system::error_code woken;
    co_await timer->async_wait(asio::redirect_error(asio::use_awaitable, woken));
  }
}

asio::awaitable<StatusOr<v1::SubmitJobResponse>> OrchestratorDaemon::SubmitJob(
    v1::SubmitJobRequest request) {
  if (request.request_id().empty()) co_return InvalidArgument("request_id: is required");
  if (request.request_id().size() > kMaxRequestIdBytes) {
    co_return InvalidArgument("request_id: is longer than 256 bytes");
  }
  const std::string digest = ToHex(Hash64(request.spec().SerializeAsString()));
  const std::string id = request.request_id();
  while (submissions_.count(id) != 0 && submissions_[id].job_id.empty()) {
    co_await Sleep(rpc::Milliseconds(20));  // the same request is under way
    if (stopping_) co_return Unavailable("the orchestrator is shutting down");
  }
  if (const auto known = submissions_.find(id); known != submissions_.end()) {
    if (known->second.spec_digest != digest) {
      co_return rpc::WithReason(
          AlreadyExists("request_id '" + id + "' was used for another job spec"),
          "REQUEST_ID_REUSED", "use a new request_id");
    }
    v1::SubmitJobResponse response;
    response.set_job_id(known->second.job_id);
    response.set_journal_bytes_per_step(known->second.journal_bytes_per_step);
    for (const std::string& warning : known->second.warnings) response.add_warnings(warning);
    co_await Durable();  // the first request may still wait for this
    co_return response;
  }
  const std::string& data_id = request.spec().data().id();
  if (removing_data_.count(data_id) != 0) {
    co_return NotFound("data.id: data '" + data_id + "' is being deleted");
  }
  submissions_[id].spec_digest = digest;
  submissions_[id].data_id = data_id;
  Submission submission;
  submission.spec_digest = digest;
  StatusOr<v1::SubmitJobResponse> response = Internal("not prepared");
  try {
    response = co_await Prepare(request, &submission);
  } catch (...) {
    submissions_.erase(id);
    throw;
  }
  if (response.ok()) {
    submissions_[id] = std::move(submission);
    co_await Durable();
  } else {
    submissions_.erase(id);
  }
  co_return response;
}

asio::awaitable<StatusOr<v1::SubmitJobResponse>> OrchestratorDaemon::Prepare(
    const v1::SubmitJobRequest& request, Submission* submission) {
  auto spec = std::make_shared<const JobSpec>(FromProto(request.spec()));
  StatusOr<Examined> examined = co_await Examine(spec);
  if (!examined.ok()) co_return examined.status();
  if (!examined->problems.empty()) co_return SpecProblems(examined->problems);
  submission->warnings = std::move(examined->warnings);
  submission->journal_bytes_per_step = examined->journal_bytes_per_step;
  PreparedData& prepared = *examined->prepared;

  struct SubmitJob submit;
  submit.job_id = "job-" + std::to_string(next_job_++);
  submit.run_id = NewRunId(submit.job_id, request.request_id());
  submit.request_id = request.request_id();
  // A name may stand for another model one day; the job is of the one it stands for now.
  config::v1::JobSpec resolved = request.spec();
  if (!prepared.model_id.empty()) resolved.mutable_model()->set_id(prepared.model_id);
  submit.spec = std::make_shared<const JobSpec>(FromProto(resolved));
  submit.spec_bytes = resolved.SerializeAsString();
  submit.data_digest = prepared.data_digest;
  submit.spec_digest = submission->spec_digest;
  submit.dataset = prepared.dataset;
  submit.stop_token_ids = prepared.renderer->stop_token_ids();
  submission->job_id = submit.job_id;
  ports_.runs[submit.run_id] = std::move(prepared);
  v1::SubmitJobResponse response;
  response.set_job_id(submit.job_id);
  response.set_journal_bytes_per_step(submission->journal_bytes_per_step);
  for (const std::string& warning : submission->warnings) response.add_warnings(warning);
  driver_->Deliver(submit);
  co_return response;
}

std::vector<std::string> OrchestratorDaemon::WorkerWarnings() const {
  bool trainer = false, generator = false;
  for (const auto& [id, record] : workers_.workers()) {
    trainer = trainer || record.ready.role == WorkerRole::kTrainer;
    generator = generator || record.ready.role == WorkerRole::kGenerator;
  }
  std::string missing;
  const auto add = [&missing](const char* what) {
    missing += std::string(missing.empty() ? "no " : " and no ") + what;
  };
  if (!trainer) add("trainer");
  if (!generator) add("generator");
  if (!weight_store_name_.has_value()) add("weight store");
  if (missing.empty()) return {};
  return {missing +
          " is registered now; the job stays queued until what is missing is there; titanctl "
          "status says what runs and how to start the cluster anew"};
}

// Unique for ever in the weight store; no result depends on it.
std::string OrchestratorDaemon::NewRunId(const std::string& job_id,
                                         const std::string& request_id) const {
  return job_id + "-" + ToHex(Hash64(request_id + context_.incarnation)).substr(0, 8);
}

asio::awaitable<void> OrchestratorDaemon::PrepareQueued() {
  for (const std::string& job_id : queued_before_) {
    const JobInfo& job = driver_->engine().jobs().at(job_id);
    if (job.state != JobState::kQueued) continue;  // cancelled meanwhile
    const std::shared_ptr<const JobSpec> spec = job.spec;
    const std::function<StatusOr<PreparedData>()> prepare = [this, spec] {
      return PrepareData(*spec, data_files_, *models_);
    };
    StatusOr<PreparedData> prepared = Internal("not prepared");
    for (;;) {
      prepared = co_await context_.blocking.Run(prepare);
      if (stopping_) co_return;                   // queued it stays
      if (job.state != JobState::kQueued) break;  // cancelled meanwhile: the next one's turn
      const StatusCode code = prepared.status().code();
      const bool silent = code == StatusCode::kUnavailable || code == StatusCode::kDeadlineExceeded;
      if (!silent) break;
      const Status waits = Unavailable(MessageOf(prepared.status()));
      driver_->Deliver(JobPrepared{job_id, waits, nullptr, {}});
      co_await Sleep(kRetry);  // until the weight store answers
    }
    if (job.state != JobState::kQueued) continue;
    JobPrepared event;
    event.job_id = job_id;
    event.status = prepared.status();
    if (prepared.ok() && !job.data_digest.empty() && job.data_digest != prepared->data_digest) {
      const bool by_id = !spec->data.id.empty();
      event.status = FailedPrecondition(
          (by_id ? "data.id: '" + spec->data.id : "data.path: '" + spec->data.path) +
          "' was changed since the job was submitted");
    } else if (prepared.ok()) {
      event.dataset = prepared->dataset;
      event.stop_token_ids = prepared->renderer->stop_token_ids();
      ports_.runs[job.run_id] = *std::move(prepared);
    }
    driver_->Deliver(event);
  }
}

// What is told about jobs is durable: the state of now is told once its facts are.
asio::awaitable<StatusOr<v1::GetJobResponse>> OrchestratorDaemon::GetJob(
    v1::GetJobRequest request) {
  const auto found = driver_->engine().jobs().find(request.job_id());
  if (found == driver_->engine().jobs().end()) co_return NoSuchJob(request.job_id());
  v1::GetJobResponse response;
  *response.mutable_job() = ToProto(found->second);
  co_await Durable();
  co_return response;
}

asio::awaitable<StatusOr<v1::ListJobsResponse>> OrchestratorDaemon::ListJobs() {
  std::vector<const JobInfo*> jobs;
  for (const auto& [id, job] : driver_->engine().jobs()) jobs.push_back(&job);
  std::sort(jobs.begin(), jobs.end(),
            [](const JobInfo* a, const JobInfo* b) { return SubmittedBefore(*a, *b); });
  v1::ListJobsResponse response;
  for (const JobInfo* job : jobs) *response.add_jobs() = ToProto(*job);
  co_await Durable();
  co_return response;
}

asio::awaitable<Status> OrchestratorDaemon::WatchJob(
    v1::WatchJobRequest request, std::shared_ptr<rpc::ResponseStream<v1::WatchJobResponse>> out) {
  if (driver_->engine().jobs().count(request.job_id()) == 0) co_return NoSuchJob(request.job_id());
  out->OnCancel([this] { log_.WakeAll(); });  // a watcher that goes is let go at once
  uint64_t sequence = request.after_sequence();
  for (;;) {
    while (const v1::WatchJobResponse* event = log_.Find(request.job_id(), sequence + 1)) {
      const bool last = event->has_state_changed() &&
                        IsFinal(static_cast<JobState>(event->state_changed().state()));
      ++sequence;
      TITAN_CO_RETURN_IF_ERROR(co_await out->Write(*event));
      if (last) co_return OkStatus();
    }
    // Asked for what comes after the end.
    const v1::WatchJobResponse* newest = log_.Newest(request.job_id());
    if (newest != nullptr && newest->sequence() <= sequence && newest->has_state_changed() &&
        IsFinal(static_cast<JobState>(newest->state_changed().state()))) {
      co_return OkStatus();
    }
    if (out->cancelled()) co_return Cancelled("the watcher has gone");
    if (stopping_) co_return Unavailable("the orchestrator is shutting down");
    co_await log_.Wait();
  }
}

asio::awaitable<StatusOr<v1::CancelJobResponse>> OrchestratorDaemon::CancelJob(
    v1::CancelJobRequest request) {
  if (request.request_id().empty()) co_return InvalidArgument("request_id: is required");
  if (driver_->engine().jobs().count(request.job_id()) == 0) co_return NoSuchJob(request.job_id());
  if (request.request_id().size() > kMaxRequestIdBytes) {
    co_return InvalidArgument("request_id: is longer than 256 bytes");
  }
  if (request.reason().size() > kMaxReasonBytes) {
    co_return InvalidArgument("reason: is longer than " + std::to_string(kMaxReasonBytes) +
                              " bytes");
  }
  const std::string reason = request.reason().empty() ? "cancelled by user" : request.reason();
  driver_->Deliver(orchestrator::CancelJob{request.job_id(), request.request_id(), reason});
  v1::CancelJobResponse response;
  *response.mutable_job() = ToProto(driver_->engine().jobs().at(request.job_id()));
  co_await Durable();
  co_return response;
}

v1::WatchJobResponse OrchestratorDaemon::NewEvent() const {
  v1::WatchJobResponse event;
  event.set_unix_ms(UnixMs(driver_->Now()));
  return event;
}

void OrchestratorDaemon::OnJob(const JobInfo& job) {
  TITAN_LOG(kInfo, "job_state", {"job_id", job.job_id}, {"state", NameOf(job.state)},
            {"reason", job.reason}, {"steps_done", job.steps_done});
  v1::WatchJobResponse event = NewEvent();
  *event.mutable_state_changed() = ToProto(job);
  log_.Add(job.job_id, std::move(event));
  if (IsFinal(job.state)) {
    metrics_.OnJobEnded(job.state);
    ports_.runs.erase(job.run_id);
  }
}

void OrchestratorDaemon::OnStep(const std::string& job_id, const StepReport& report) {
  TITAN_LOG(kInfo, "step_done", {"job_id", job_id}, {"step", report.step},
            {"weights_digest", report.weights_digest}, {"reward_mean", report.reward_mean},
            {"groups_trained", report.groups_trained}, {"seconds", report.phases.wall},
            {"tokens_compared", report.parity.tokens_compared},
            {"tokens_differing", report.parity.tokens_differing});
  metrics_.OnStep(report);
  v1::WatchJobResponse event = NewEvent();
  *event.mutable_step_done() = ToProto(report);
  log_.Add(job_id, std::move(event));
}

void OrchestratorDaemon::OnEvaluation(const std::string& job_id, const EvaluationReport& report) {
  TITAN_LOG(kInfo, "evaluation_done", {"job_id", job_id}, {"version", report.version},
            {"accuracy", report.accuracy}, {"skipped_reason", report.skipped_reason});
  metrics_.OnEvaluation(report);
  v1::WatchJobResponse event = NewEvent();
  *event.mutable_evaluation_done() = ToProto(report);
  log_.Add(job_id, std::move(event));
}

void OrchestratorDaemon::OnMessage(const std::string& job_id, const std::string& text) {
  TITAN_LOG(kInfo, "job_message", {"job_id", job_id}, {"text", text});
  v1::WatchJobResponse event = NewEvent();
  event.set_message(text);
  log_.Add(job_id, std::move(event));
}

}  // namespace titan::orchestrator
