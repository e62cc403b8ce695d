// SPDX-License-Identifier: Apache-2.0
//
// The orchestrator's daemon: gRPC service, worker registry, driver, ports, journal.
//
//   gRPC threads --post--> control strand: service, registry, driver (engine), ports
//                                   | facts, one batch at a time
//                                   v
//                          blocking pool: journal (segments, RocksDB), data files, tokenizing
//
// Everything but the journal's commit and the preparation of a job's data runs on the control
// strand.
#ifndef TITAN_SERVICES_ORCHESTRATOR_DAEMON_H_
#define TITAN_SERVICES_ORCHESTRATOR_DAEMON_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>

#include "core/base/status.h"
#include "orchestrator/driver.h"
#include "orchestrator/journal.h"
#include "orchestrator/memory_needs.h"
#include "orchestrator/worker_registry.h"
#include "services/orchestrator/data_files.h"
#include "services/orchestrator/generator_port.h"
#include "services/orchestrator/job_log.h"
#include "services/orchestrator/metrics.h"
#include "services/orchestrator/port_context.h"
#include "services/orchestrator/reward_port.h"
#include "services/orchestrator/trainer_port.h"
#include "services/orchestrator/weight_store_port.h"
#include "services/rpc/daemon.h"
#include "services/rpc/rpc_server.h"
#include "services/weightstore_client/grpc_leader.h"
#include "titan/config/v1/daemons.pb.h"
#include "titan/orchestrator/v1/orchestrator.grpc.pb.h"

namespace titan::orchestrator {

// What DaemonMain needs (see main.cc).
rpc::DaemonSpec<config::v1::OrchestratorConfig> MakeDaemonSpec();

// Opens <data folder>/journal and <data folder>/segments.
StatusOr<std::unique_ptr<Journal>> OpenJournal(const std::string& data_folder);

// Between two tries of what did not answer.
inline constexpr rpc::Milliseconds kRetry{500};

class OrchestratorDaemon final : public rpc::DaemonService, private Observer, private JournalPort {
 public:
  static StatusOr<std::unique_ptr<OrchestratorDaemon>> Create(
      const config::v1::OrchestratorConfig& config, rpc::DaemonContext& context);
  ~OrchestratorDaemon() override;

  std::vector<grpc::Service*> services() override;
  asio::awaitable<Status> Start() override;
  asio::awaitable<void> Drain() override;

  // The RPCs; control strand.
  asio::awaitable<StatusOr<v1::SubmitJobResponse>> SubmitJob(v1::SubmitJobRequest request);
  asio::awaitable<StatusOr<v1::GetJobResponse>> GetJob(v1::GetJobRequest request);
  asio::awaitable<StatusOr<v1::ListJobsResponse>> ListJobs();
  asio::awaitable<Status> WatchJob(v1::WatchJobRequest request,
                                   std::shared_ptr<rpc::ResponseStream<v1::WatchJobResponse>> out);
  asio::awaitable<StatusOr<v1::CancelJobResponse>> CancelJob(v1::CancelJobRequest request);
  // Answers later when another process has the worker id: it is looked for at its address first.
  void RegisterWorker(const v1::RegisterWorkerRequest& request,
                      std::function<void(StatusOr<v1::RegisterWorkerResponse>)> reply);
  StatusOr<v1::HeartbeatResponse> Heartbeat(const v1::HeartbeatRequest& request);
  v1::ListWorkersResponse ListWorkers() const;
  asio::awaitable<StatusOr<v1::CheckJobResponse>> CheckJob(v1::CheckJobRequest request);
  asio::awaitable<Status> ListRollouts(
      v1::ListRolloutsRequest request,
      std::shared_ptr<rpc::ResponseStream<v1::ListRolloutsResponse>> out);
  asio::awaitable<Status> Chat(v1::ChatRequest request,
                               std::shared_ptr<rpc::ResponseStream<v1::ChatResponse>> out);
  asio::awaitable<StatusOr<v1::UploadDataResponse>> UploadData(
      std::shared_ptr<rpc::RequestStream<v1::UploadDataRequest>> in);
  asio::awaitable<StatusOr<v1::ListDataResponse>> ListData();
  asio::awaitable<StatusOr<v1::RemoveDataResponse>> RemoveData(v1::RemoveDataRequest request);

 private:
  class Service;
  // A generator that holds a version.
  struct ChatHolder {
    WorkerName name;
    std::shared_ptr<generator::v1::GeneratorService::StubInterface> stub;
    uint64_t version = 0;
    bool evaluation = false;
    uint32_t sequences_running = 0;
  };
  struct Submission {
    std::string spec_digest;  // of the spec as it was sent
    std::string job_id;       // empty: under way
    std::vector<std::string> warnings;
    uint64_t journal_bytes_per_step = 0;
    std::string data_id = {};  // while it is under way
  };

  OrchestratorDaemon(const config::v1::OrchestratorConfig& config, rpc::DaemonContext& context,
                     std::unique_ptr<Journal> journal);

  // JournalPort.
  void Commit(std::vector<Fact> facts, std::function<void(Status)> done) override;
  // Observer.
  void OnJob(const JobInfo& job) override;
  void OnStep(const std::string& job_id, const StepReport& report) override;
  void OnEvaluation(const std::string& job_id, const EvaluationReport& report) override;
  void OnMessage(const std::string& job_id, const std::string& text) override;
  void OnJournalFailure(const Status& status) override;

  void Restore(std::vector<JournaledJob> jobs);
  // Reads the data of the jobs that an earlier life queued, in their order.
  asio::awaitable<void> PrepareQueued();
  // What a job would wait for when its turn came now; empty: nothing. Reward services are not
  // among it: their port says more.
  std::vector<std::string> WorkerWarnings() const;
  // While a job lives, what it takes of memory and disk is not free, but will be: only an idle
  // fleet can say that another one has no room.
  bool Idle() const;
  // It takes memory of another machine or container, of which nothing is known here.
  bool IsElsewhere(const WorkerRecord& worker) const;
  // Of the generators that answer and take memory of this machine.
  asio::awaitable<std::vector<GeneratorMemory>> AskGeneratorMemory();
  // What a job takes of this machine: without what a trainer elsewhere takes, and the store there,
  // whose slots it fills.
  std::vector<MemoryNeed> NeedsHere(const formats::ModelConfig& model, const JobSpec& spec,
                                    const std::vector<GeneratorMemory>& generators) const;
  // What a spec asks for and lacks; one look for CheckJob and SubmitJob.
  struct Examined {
    std::vector<FieldProblem> problems;  // not empty: the rest is as far as it was looked at
    std::vector<std::string> warnings;
    uint64_t journal_bytes_per_step = 0;
    uint64_t disk_available_bytes = 0;  // 0: not known
    std::optional<PreparedData> prepared;
    std::vector<MemoryNeed> memory;
  };
  // Whether there is memory and disk for what the job takes of them.
  void ExamineRoom(const JobSpec& spec, const StatusOr<weightstore::DiskUse>& disk,
                   Examined* found) const;
  // Unavailable, DeadlineExceeded: the weight store, which knows the model, does not answer.
  // Cancelled: this daemon ends.
  asio::awaitable<StatusOr<Examined>> Examine(std::shared_ptr<const JobSpec> spec);
  std::string NewRunId(const std::string& job_id, const std::string& request_id) const;
  asio::awaitable<StatusOr<v1::SubmitJobResponse>> Prepare(const v1::SubmitJobRequest& request,
                                                           Submission* submission);
  // The prompts of a job: those it runs with, or read again for the last job that was asked about.
  asio::awaitable<StatusOr<PreparedData>> DataOf(std::string job_id);
  // All that are registered now.
  std::vector<WorkerName> Generators() const;
  // The newest version of the run that a generator holds, or `version`; the least busy holder.
  asio::awaitable<StatusOr<ChatHolder>> FindHolder(std::string run_id,
                                                   std::optional<uint64_t> version);
  // One reply of a holder, streamed to `out`; *started: part of it was.
  asio::awaitable<Status> ChatWith(ChatHolder holder, generator::v1::GenerateGroupRequest generate,
                                   std::shared_ptr<const PromptRenderer> renderer,
                                   std::shared_ptr<rpc::ResponseStream<v1::ChatResponse>> out,
                                   bool* started);
  // Until everything said so far is durable.
  asio::awaitable<void> Durable();
  // A registration, once it is known that no earlier life listens any more, or that one does.
  StatusOr<v1::RegisterWorkerResponse> Admit(WorkerRecord record);
  // Finds that out, of every rival that is there by then, and admits or refuses.
  void AdmitOnceProbed(WorkerRecord record,
                       std::function<void(StatusOr<v1::RegisterWorkerResponse>)> reply);
  // Tells the engine of a registered worker once it is known what it holds or offers.
  void Introduce(const WorkerName& name);
  void TryIntroduce(const WorkerName& name);
  void Lose(const WorkerName& name, const std::string& reason);
  void LoseWeightStore(const std::string& reason);
  bool IsRegistered(const WorkerName& name) const;
  void Spawn(asio::awaitable<void> loop);
  asio::awaitable<void> TickLoop();
  asio::awaitable<void> WeightStoreLoop();
  asio::awaitable<void> Sleep(rpc::Milliseconds time);
  v1::WatchJobResponse NewEvent() const;

  const config::v1::OrchestratorConfig config_;
  rpc::DaemonContext& context_;
  const std::string machine_;  // as workers say theirs
  std::unique_ptr<Journal> journal_;
  const DataFiles data_files_;
  std::unique_ptr<weightstore::GrpcLeader> models_;  // of the weight store; blocking pool only
  WorkerRegistry workers_;
  PortContext ports_;
  GrpcGeneratorPort generators_;
  GrpcTrainerPort trainer_;
  GrpcRewardPort rewards_;
  std::unique_ptr<GrpcWeightStorePort> weight_store_;
  std::unique_ptr<Driver> driver_;
  JobLog log_;
  OrchestratorMetrics metrics_;
  std::unique_ptr<Service> service_;
  std::map<std::string, Submission> submissions_;  // by request id
  std::set<std::string> removing_data_;     // ids that are being deleted; no job may begin on them
  std::vector<std::string> queued_before_;  // ids of jobs, see PrepareQueued
  uint64_t next_job_ = 1;
  std::optional<WorkerName> weight_store_name_;  // while it answers
  uint64_t weight_store_lives_ = 0;
  bool stopping_ = false;
  int num_loops_ = 0;
  std::set<asio::steady_timer*> sleeping_;
  std::string inspected_job_;  // of inspected_data_
  PreparedData inspected_data_;
  StubCache<generator::v1::GeneratorService> generator_stubs_;  // for questions
  uint64_t next_chat_ = 1;
  std::set<WorkerName> introducing_;  // asked what they hold; one inquiry a life at a time
};

}  // namespace titan::orchestrator

#endif  // TITAN_SERVICES_ORCHESTRATOR_DAEMON_H_
