// SPDX-License-Identifier: Apache-2.0
#include "clients/cluster/job_client.h"

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <random>
#include <thread>

#include "core/base/hash.h"
#include "services/rpc/channel.h"
#include "services/rpc/config.h"
#include "services/rpc/status_convert.h"

namespace titan::cluster {

using namespace orchestrator::v1;  // NOLINT: every name here is of the orchestrator's protocol
using std::chrono::milliseconds;
using std::chrono::steady_clock;

namespace {

constexpr milliseconds kCallDeadline{10000};
constexpr milliseconds kRetryPause{300};
constexpr milliseconds kWatchPatience{15000};
constexpr std::chrono::hours kStreamDeadline{24};

void SetDeadline(grpc::ClientContext* context, std::chrono::system_clock::duration from_now) {
  context->set_deadline(std::chrono::system_clock::now() + from_now);
}

// An idempotency key: random, so that two submissions of one file are two jobs.
std::string NewRequestId() {
  std::random_device device;
  return ToHex(HashFields(static_cast<uint64_t>(device()) << 32 | device(),
                          static_cast<uint64_t>(getpid()),
                          static_cast<uint64_t>(steady_clock::now().time_since_epoch().count())));
}

Status ResolvePath(const std::string& folder, const std::string& field, std::string* path) {
  if (path->empty()) return InvalidArgument(field + ": is required");
  std::filesystem::path resolved = *path;
  if (resolved.is_relative()) resolved = std::filesystem::path(folder) / resolved;
  std::error_code error;
  resolved = std::filesystem::weakly_canonical(resolved, error);
  if (error || !std::filesystem::exists(resolved, error)) {
    return InvalidArgument(field + ": '" + *path + "' does not exist (looked at '" +
                           resolved.string() + "')");
  }
  *path = resolved.string();
  return OkStatus();
}

// A connection problem is worth another try with the same request id.
template <typename Call>
grpc::Status Retried(Call call) {
  const auto give_up = steady_clock::now() + kCallDeadline;
  for (;;) {
    const grpc::Status status = call();
    if (status.error_code() != grpc::StatusCode::UNAVAILABLE || steady_clock::now() > give_up) {
      return status;
    }
    std::this_thread::sleep_for(kRetryPause);
  }
}

}  // namespace

StatusOr<config::v1::JobSpec> ReadJobFile(const std::string& file) {
  config::v1::JobSpec spec;
  rpc::ConfigOrigins origins;
  TITAN_RETURN_IF_ERROR(rpc::ReadConfigFile(file, &spec, &origins));
  std::error_code error;
  const std::string folder = std::filesystem::absolute(file, error).parent_path().string();
  const Status model = ResolvePath(folder, "model.path", spec.mutable_model()->mutable_path());
  if (!model.ok()) return Annotate(model, file);
  const Status data = ResolvePath(folder, "data.path", spec.mutable_data()->mutable_path());
  if (!data.ok()) return Annotate(data, file);
  return spec;
}

bool IsFinal(JobState state) {
  return state == JOB_STATE_SUCCEEDED || state == JOB_STATE_FAILED || state == JOB_STATE_CANCELLED;
}

std::string NameOf(JobState state) {
  const std::string name = JobState_Name(state);
  constexpr std::string_view kPrefix = "JOB_STATE_";
  return name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : "UNKNOWN";
}

StatusOr<std::unique_ptr<JobClient>> JobClient::Connect(const std::string& orchestrator_address) {
  TITAN_ASSIGN_OR_RETURN(auto channel, rpc::MakeChannel(orchestrator_address));
  return std::unique_ptr<JobClient>(new JobClient(OrchestratorService::NewStub(channel)));
}

StatusOr<SubmitJobResponse> JobClient::Submit(const config::v1::JobSpec& spec) {
  SubmitJobRequest request;
  request.set_request_id(NewRequestId());
  *request.mutable_spec() = spec;
  SubmitJobResponse response;
  const grpc::Status status = Retried([&] {
    grpc::ClientContext context;
    SetDeadline(&context, 3 * kCallDeadline);  // the orchestrator reads and tokenizes the data
    return stub_->SubmitJob(&context, request, &response);
  });
  if (!status.ok()) return rpc::FromGrpc(status);
  return response;
}

StatusOr<Job> JobClient::Get(const std::string& job_id) {
  GetJobRequest request;
  request.set_job_id(job_id);
  GetJobResponse response;
  grpc::ClientContext context;
  SetDeadline(&context, kCallDeadline);
  const grpc::Status status = stub_->GetJob(&context, request, &response);
  if (!status.ok()) return rpc::FromGrpc(status);
  return response.job();
}

StatusOr<Job> JobClient::Cancel(const std::string& job_id, const std::string& reason) {
  CancelJobRequest request;
  request.set_request_id(NewRequestId());
  request.set_job_id(job_id);
  request.set_reason(reason);
  CancelJobResponse response;
  const grpc::Status status = Retried([&] {
    grpc::ClientContext context;
    SetDeadline(&context, kCallDeadline);
    return stub_->CancelJob(&context, request, &response);
  });
  if (!status.ok()) return rpc::FromGrpc(status);
  return response.job();
}

StatusOr<ListJobsResponse> JobClient::ListJobs() {
  ListJobsResponse response;
  grpc::ClientContext context;
  SetDeadline(&context, kCallDeadline);
  const grpc::Status status = stub_->ListJobs(&context, ListJobsRequest(), &response);
  if (!status.ok()) return rpc::FromGrpc(status);
  return response;
}

StatusOr<ListWorkersResponse> JobClient::ListWorkers() {
  ListWorkersResponse response;
  grpc::ClientContext context;
  SetDeadline(&context, kCallDeadline);
  const grpc::Status status = stub_->ListWorkers(&context, ListWorkersRequest(), &response);
  if (!status.ok()) return rpc::FromGrpc(status);
  return response;
}

StatusOr<Job> JobClient::Watch(const std::string& job_id, uint64_t after_sequence,
                               const std::function<void(const WatchJobResponse&)>& on_event) {
  bool broken = false;
  auto broken_since = steady_clock::now();
  for (;;) {
    WatchJobRequest request;
    request.set_job_id(job_id);
    request.set_after_sequence(after_sequence);
    grpc::ClientContext context;
    SetDeadline(&context, kStreamDeadline);
    {
      std::lock_guard lock(mutex_);
      if (stop_watching_) return Cancelled("watching was ended");
      watching_ = &context;
    }
    const auto opened = steady_clock::now();
    auto reader = stub_->WatchJob(&context, request);
    WatchJobResponse event;
    while (reader->Read(&event)) {
      broken = false;
      after_sequence = std::max(after_sequence, event.sequence());
      on_event(event);
    }
    const grpc::Status status = reader->Finish();
    {
      std::lock_guard lock(mutex_);
      watching_ = nullptr;
      if (stop_watching_) return Cancelled("watching was ended");
    }
    if (status.error_code() == grpc::StatusCode::NOT_FOUND) return rpc::FromGrpc(status);
    if (status.ok()) {
      auto job = Get(job_id);
      if (job.ok() && IsFinal(job->state())) return job;
      if (!job.ok() && job.status().code() != StatusCode::kUnavailable) return job.status();
    }
    // From the first break on; a stream that was open for longer than that was whole.
    const auto now = steady_clock::now();
    if (!broken || now - opened > kWatchPatience) broken_since = now;
    broken = true;
    if (now - broken_since > kWatchPatience) {
      return status.ok()
                 ? Unavailable("the event stream of " + job_id + " ends before the job does")
                 : Annotate(rpc::FromGrpc(status), "watching " + job_id);
    }
    std::this_thread::sleep_for(kRetryPause);
  }
}

void JobClient::StopWatching() {
  std::lock_guard lock(mutex_);
  stop_watching_ = true;
  if (watching_ != nullptr) watching_->TryCancel();
}

}  // namespace titan::cluster
