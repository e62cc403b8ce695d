// SPDX-License-Identifier: Apache-2.0
#include "clients/cluster/job_client.h"

#include <unistd.h>

#include <chrono>
#include <random>
#include <thread>

#include "clients/cluster/cluster.h"
#include "clients/cluster/peer_status.h"
#include "clients/cluster/terminal.h"
#include "core/base/hash.h"
#include "services/rpc/channel.h"
#include "services/rpc/peer.h"
#include "services/rpc/status_convert.h"

namespace titan::cluster {

using namespace orchestrator::v1;  // NOLINT: every name here is of the orchestrator's protocol
using std::chrono::milliseconds;
using std::chrono::steady_clock;

namespace {

constexpr milliseconds kCallDeadline{10000};
constexpr milliseconds kReadPatience{3000};  // a reader would rather know
constexpr milliseconds kRetryPause{300};
constexpr milliseconds kWatchPatience{15000};
constexpr std::chrono::hours kStreamDeadline{24};
constexpr std::chrono::minutes kUploadDeadline{10};
constexpr size_t kChunkBytes = 1u << 20;

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

// A connection problem is worth another try with the same request id.
template <typename Call>
grpc::Status Retried(Call call, milliseconds patience = kCallDeadline) {
  const auto give_up = steady_clock::now() + patience;
  for (;;) {
    const grpc::Status status = call();
    if (status.error_code() != grpc::StatusCode::UNAVAILABLE || steady_clock::now() > give_up) {
      return status;
    }
    std::this_thread::sleep_for(kRetryPause);
  }
}

// Reads a stream to its end or until on_message answers false.
template <typename Message>
grpc::Status ReadAll(grpc::ClientContext& context, grpc::ClientReaderInterface<Message>& reader,
                     const std::function<bool(const Message&)>& on_message) {
  Message message;
  bool left = false;
  while (reader.Read(&message)) {
    if (!on_message(message)) {
      left = true;
      context.TryCancel();
      break;
    }
  }
  const grpc::Status status = reader.Finish();
  return left ? grpc::Status::OK : status;
}

}  // namespace

bool IsFinal(JobState state) {
  return state == JOB_STATE_SUCCEEDED || state == JOB_STATE_FAILED || state == JOB_STATE_CANCELLED;
}

std::string NameOf(JobState state) {
  const std::string name = JobState_Name(state);
  constexpr std::string_view kPrefix = "JOB_STATE_";
  return name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : "UNKNOWN";
}

StatusOr<std::unique_ptr<JobClient>> JobClient::Connect(const std::string& orchestrator_address,
                                                        const std::string& data_folder) {
  TITAN_ASSIGN_OR_RETURN(auto channel, rpc::MakeChannel(orchestrator_address));
  return std::unique_ptr<JobClient>(
      new JobClient(OrchestratorService::NewStub(channel), orchestrator_address, data_folder));
}

Status JobClient::Failed(const grpc::Status& status) const {
  std::string fix =
      "start an orchestrator that listens at " + address_ + ", or give another address";
  if (rpc::PeerOf(status) == rpc::Peer::kStranger) {
    fix = "give another address, or end what listens at " + address_;
  }
  return FromPeer(status, "orchestrator", "ORCHESTRATOR_DOWN",
                  data_folder_.empty() ? fix : FixOfGone(data_folder_));
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
  if (!status.ok()) return Failed(status);
  return response;
}

StatusOr<Job> JobClient::Get(const std::string& job_id) {
  GetJobRequest request;
  request.set_job_id(job_id);
  GetJobResponse response;
  const grpc::Status status = Retried(
      [&] {
        grpc::ClientContext context;
        SetDeadline(&context, kCallDeadline);
        return stub_->GetJob(&context, request, &response);
      },
      kReadPatience);
  if (!status.ok()) return Failed(status);
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
  if (!status.ok()) return Failed(status);
  return response.job();
}

StatusOr<ListJobsResponse> JobClient::ListJobs() {
  ListJobsResponse response;
  const grpc::Status status = Retried(
      [&] {
        grpc::ClientContext context;
        SetDeadline(&context, kCallDeadline);
        return stub_->ListJobs(&context, ListJobsRequest(), &response);
      },
      kReadPatience);
  if (!status.ok()) return Failed(status);
  return response;
}

StatusOr<ListWorkersResponse> JobClient::ListWorkers() {
  ListWorkersResponse response;
  const grpc::Status status = Retried(
      [&] {
        grpc::ClientContext context;
        SetDeadline(&context, kCallDeadline);
        return stub_->ListWorkers(&context, ListWorkersRequest(), &response);
      },
      kReadPatience);
  if (!status.ok()) return Failed(status);
  return response;
}

StatusOr<CheckJobResponse> JobClient::CheckJob(const config::v1::JobSpec& spec) {
  CheckJobRequest request;
  *request.mutable_spec() = spec;
  CheckJobResponse response;
  const grpc::Status status = Retried(
      [&] {
        grpc::ClientContext context;
        SetDeadline(&context, 3 * kCallDeadline);  // the orchestrator reads and tokenizes the data
        return stub_->CheckJob(&context, request, &response);
      },
      kReadPatience);
  if (!status.ok()) return Failed(status);
  return response;
}

StatusOr<ListDataResponse> JobClient::ListData() {
  ListDataResponse response;
  const grpc::Status status = Retried(
      [&] {
        grpc::ClientContext context;
        SetDeadline(&context, kCallDeadline);
        return stub_->ListData(&context, ListDataRequest(), &response);
      },
      kReadPatience);
  if (!status.ok()) return Failed(status);
  return response;
}

StatusOr<RemoveDataResponse> JobClient::RemoveData(const std::string& data_id) {
  RemoveDataRequest request;
  request.set_request_id(NewRequestId());
  request.set_data_id(data_id);
  RemoveDataResponse response;
  grpc::ClientContext context;
  SetDeadline(&context, kCallDeadline);
  const grpc::Status status = stub_->RemoveData(&context, request, &response);
  if (!status.ok()) return Failed(status);
  return response;
}

StatusOr<UploadDataResponse> JobClient::UploadData(const std::string& name,
                                                   const std::string& bytes) {
  UploadDataResponse response;
  grpc::ClientContext context;
  SetDeadline(&context, kUploadDeadline);
  auto writer = stub_->UploadData(&context, &response);
  UploadDataRequest request;
  request.set_request_id(NewRequestId());
  request.set_name(name);
  for (size_t at = 0; at < bytes.size() || at == 0; at += kChunkBytes) {
    request.set_chunk(bytes.substr(at, kChunkBytes));
    if (!writer->Write(request)) break;  // Finish says why
    request.Clear();
  }
  writer->WritesDone();
  const grpc::Status status = writer->Finish();
  if (!status.ok()) return Failed(status);
  return response;
}

Status JobClient::ListRollouts(const ListRolloutsRequest& request,
                               const std::function<bool(const ListRolloutsResponse&)>& on_message) {
  grpc::ClientContext context;
  SetDeadline(&context, kUploadDeadline);
  const auto reader = stub_->ListRollouts(&context, request);
  const grpc::Status status = ReadAll(context, *reader, on_message);
  return status.ok() ? OkStatus() : Failed(status);
}

Status JobClient::Chat(const ChatRequest& request,
                       const std::function<bool(const ChatResponse&)>& on_message) {
  grpc::ClientContext context;
  SetDeadline(&context, kUploadDeadline);
  const auto reader = stub_->Chat(&context, request);
  const grpc::Status status = ReadAll(context, *reader, on_message);
  return status.ok() ? OkStatus() : Failed(status);
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
    if (status.error_code() == grpc::StatusCode::NOT_FOUND ||
        status.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
      return Failed(status);
    }
    if (status.ok()) {
      auto job = Get(job_id);
      if (job.ok() && IsFinal(job->state())) return job;
      if (!job.ok() && job.status().code() != StatusCode::kUnavailable) return job.status();
    }
    if (!data_folder_.empty() && WasTakenDown(data_folder_)) {
      return rpc::WithReason(
          Unavailable("the cluster in '" + data_folder_ + "' was taken down while " + job_id +
                      " was watched; a job that had begun ends with it, a queued one stays"),
          "CLUSTER_DOWN",
          "start it again with: " + UpCommand(data_folder_) + "; come back with: titanctl watch " +
              job_id + " --data " + ShellWord(data_folder_));
    }
    // From the first break on; a stream that was open for longer than that was whole.
    const auto now = steady_clock::now();
    if (!broken || now - opened > kWatchPatience) broken_since = now;
    broken = true;
    if (now - broken_since > kWatchPatience) {
      return status.ok()
                 ? Unavailable("the event stream of " + job_id + " ends before the job does")
                 : Annotate(Failed(status), "watching " + job_id);
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
