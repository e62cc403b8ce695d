// SPDX-License-Identifier: Apache-2.0
//
// A blocking client of the orchestrator, for programs of people: each call has a deadline, is tried
// again for a few seconds while the orchestrator is unavailable, and returns Status.
#ifndef TITAN_CLIENTS_CLUSTER_JOB_CLIENT_H_
#define TITAN_CLIENTS_CLUSTER_JOB_CLIENT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "core/base/status.h"
#include "titan/orchestrator/v1/orchestrator.grpc.pb.h"

namespace titan::cluster {

// True for states that a job does not leave.
bool IsFinal(orchestrator::v1::JobState state);
// "RUNNING" for JOB_STATE_RUNNING.
std::string NameOf(orchestrator::v1::JobState state);

// Thread-safe.
class JobClient {
 public:
  // data_folder: of the cluster that the orchestrator belongs to, for what a person could do when
  // it is gone; empty: only its address is known.
  static StatusOr<std::unique_ptr<JobClient>> Connect(const std::string& orchestrator_address,
                                                      const std::string& data_folder = "");

  // With a fresh request id.
  StatusOr<orchestrator::v1::SubmitJobResponse> Submit(const config::v1::JobSpec& spec);
  StatusOr<orchestrator::v1::Job> Get(const std::string& job_id);
  StatusOr<orchestrator::v1::Job> Cancel(const std::string& job_id, const std::string& reason);
  StatusOr<orchestrator::v1::ListJobsResponse> ListJobs();
  StatusOr<orchestrator::v1::ListWorkersResponse> ListWorkers();
  StatusOr<orchestrator::v1::CheckJobResponse> CheckJob(const config::v1::JobSpec& spec);
  StatusOr<orchestrator::v1::ListDataResponse> ListData();
  // Tried once: what was deleted is not found again.
  StatusOr<orchestrator::v1::RemoveDataResponse> RemoveData(const std::string& data_id);
  // Sends the bytes in chunks, with a fresh request id.
  StatusOr<orchestrator::v1::UploadDataResponse> UploadData(const std::string& name,
                                                            const std::string& bytes);
  // Feeds every message until the stream ends; `on_message` answers false to end it early.
  Status ListRollouts(
      const orchestrator::v1::ListRolloutsRequest& request,
      const std::function<bool(const orchestrator::v1::ListRolloutsResponse&)>& on_message);
  Status Chat(const orchestrator::v1::ChatRequest& request,
              const std::function<bool(const orchestrator::v1::ChatResponse&)>& on_message);

  // Feeds every event after `after_sequence` to on_event until the job has ended; answers the job.
  // A stream that breaks is opened again where it stood, for up to 15 s after it broke, and not at
  // all once the cluster of the data folder was taken down: Unavailable says so.
  // Cancelled: StopWatching.
  StatusOr<orchestrator::v1::Job> Watch(
      const std::string& job_id, uint64_t after_sequence,
      const std::function<void(const orchestrator::v1::WatchJobResponse&)>& on_event);
  // Makes Watch return, from any thread; also a later one.
  void StopWatching();

 private:
  JobClient(std::unique_ptr<orchestrator::v1::OrchestratorService::StubInterface> stub,
            std::string address, std::string data_folder)
      : stub_(std::move(stub)),
        address_(std::move(address)),
        data_folder_(std::move(data_folder)) {}
  Status Failed(const grpc::Status& status) const;

  const std::unique_ptr<orchestrator::v1::OrchestratorService::StubInterface> stub_;
  const std::string address_;
  const std::string data_folder_;
  std::mutex mutex_;
  grpc::ClientContext* watching_ = nullptr;
  bool stop_watching_ = false;
};

}  // namespace titan::cluster

#endif  // TITAN_CLIENTS_CLUSTER_JOB_CLIENT_H_
