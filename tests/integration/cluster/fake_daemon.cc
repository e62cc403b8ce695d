// SPDX-License-Identifier: Apache-2.0
// Stand-ins of the daemons for tests of titanctl, the supervisor and the demo program: one program
// that is the daemon its name says (titan-weightstore, titan-orchestrator, titan-trainer,
// titan-generator). It reads the real config with the real frame and registers as a worker; the
// orchestrator tells the story of a job that its seed names: 666 a parity difference, 777 a job
// that does not end, else a success.
#include <filesystem>
#include <iostream>
#include <map>
#include <utility>

#include "services/rpc/daemon.h"
#include "services/rpc/worker.h"
#include "services/settings/daemon_spec.h"
#include "titan/orchestrator/v1/orchestrator.grpc.pb.h"

namespace titan {
namespace {

using namespace orchestrator::v1;  // NOLINT: the orchestrator is most of this file
using rpc::DaemonContext;

class Worker final : public rpc::DaemonService {
 public:
  explicit Worker(std::unique_ptr<rpc::WorkerAgent> agent) : agent_(std::move(agent)) {}
  std::vector<grpc::Service*> services() override { return {&nothing_}; }
  rpc::asio::awaitable<Status> Start() override {
    agent_->Start();
    co_return OkStatus();
  }
  rpc::asio::awaitable<void> Drain() override { co_await agent_->Stop(); }

 private:
  OrchestratorService::CallbackService
      nothing_;  // a server wants a service; this one answers UNIMPLEMENTED
  std::unique_ptr<rpc::WorkerAgent> agent_;
};

class Store final : public rpc::DaemonService {
 public:
  explicit Store(DaemonContext& context) : context_(context) {}
  std::vector<grpc::Service*> services() override { return {&nothing_}; }
  rpc::asio::awaitable<Status> Start() override {
    context_.set_ready(true, "");
    co_return OkStatus();
  }
  rpc::asio::awaitable<void> Drain() override { co_return; }

 private:
  OrchestratorService::CallbackService nothing_;
  DaemonContext& context_;
};

class Orchestrator final : public rpc::DaemonService, public OrchestratorService::CallbackService {
 public:
  explicit Orchestrator(DaemonContext& context) : context_(context), stop_(context.control) {}

  std::vector<grpc::Service*> services() override { return {this}; }
  rpc::asio::awaitable<Status> Start() override {
    context_.set_ready(true, "");
    co_return OkStatus();
  }
  rpc::asio::awaitable<void> Drain() override {
    stopping_ = true;
    stop_.cancel();
    co_return;
  }

  grpc::ServerUnaryReactor* RegisterWorker(grpc::CallbackServerContext* context,
                                           const RegisterWorkerRequest* request,
                                           RegisterWorkerResponse* response) override {
    return rpc::ServeUnaryThen(context_.server, context, request, response,
                               [this](const RegisterWorkerRequest& r,
                                      std::function<void(StatusOr<RegisterWorkerResponse>)> reply) {
                                 workers_[r.worker().worker_id()] = r.worker();
                                 RegisterWorkerResponse made;
                                 made.set_orchestrator_epoch(1);
                                 made.set_heartbeat_ms(50);
                                 reply(made);
                               });
  }
  grpc::ServerUnaryReactor* Heartbeat(grpc::CallbackServerContext* context,
                                      const HeartbeatRequest* request,
                                      HeartbeatResponse* response) override {
    return rpc::ServeUnaryThen(
        context_.server, context, request, response,
        [](const HeartbeatRequest&, std::function<void(StatusOr<HeartbeatResponse>)> reply) {
          reply(HeartbeatResponse());
        });
  }
  grpc::ServerUnaryReactor* ListWorkers(grpc::CallbackServerContext* context,
                                        const ListWorkersRequest* request,
                                        ListWorkersResponse* response) override {
    return rpc::ServeUnaryThen(
        context_.server, context, request, response,
        [this](const ListWorkersRequest&,
               std::function<void(StatusOr<ListWorkersResponse>)> reply) {
          ListWorkersResponse made;
          for (const auto& [name, worker] : workers_) {
            *made.add_workers()->mutable_worker() = worker;
            made.mutable_workers(made.workers_size() - 1)->set_state("ready");
          }
          reply(made);
        });
  }
  grpc::ServerUnaryReactor* ListJobs(grpc::CallbackServerContext* context,
                                     const ListJobsRequest* request,
                                     ListJobsResponse* response) override {
    return rpc::ServeUnaryThen(
        context_.server, context, request, response,
        [this](const ListJobsRequest&, std::function<void(StatusOr<ListJobsResponse>)> reply) {
          ListJobsResponse made;
          if (!job_.job_id().empty()) *made.add_jobs() = job_;
          reply(made);
        });
  }
  grpc::ServerUnaryReactor* SubmitJob(grpc::CallbackServerContext* context,
                                      const SubmitJobRequest* request,
                                      SubmitJobResponse* response) override {
    return rpc::ServeUnaryThen(
        context_.server, context, request, response,
        [this](const SubmitJobRequest& r, std::function<void(StatusOr<SubmitJobResponse>)> reply) {
          job_.set_job_id("job-1");
          job_.set_name(r.spec().name());
          *job_.mutable_spec() = r.spec();
          job_.set_state(JOB_STATE_RUNNING);
          job_.set_steps_total(r.spec().schedule().steps());
          job_.set_running_unix_ms(1000);
          SubmitJobResponse made;
          made.set_job_id(job_.job_id());
          made.add_warnings("this orchestrator is a stand-in");
          reply(made);
        });
  }
  grpc::ServerUnaryReactor* GetJob(grpc::CallbackServerContext* context,
                                   const GetJobRequest* request,
                                   GetJobResponse* response) override {
    return rpc::ServeUnaryThen(
        context_.server, context, request, response,
        [this](const GetJobRequest& r, std::function<void(StatusOr<GetJobResponse>)> reply) {
          if (r.job_id() != job_.job_id()) {
            reply(NotFound("no job '" + r.job_id() + "'"));
            return;
          }
          GetJobResponse made;
          *made.mutable_job() = job_;
          reply(made);
        });
  }
  grpc::ServerUnaryReactor* CancelJob(grpc::CallbackServerContext* context,
                                      const CancelJobRequest* request,
                                      CancelJobResponse* response) override {
    return rpc::ServeUnaryThen(
        context_.server, context, request, response,
        [this](const CancelJobRequest& r, std::function<void(StatusOr<CancelJobResponse>)> reply) {
          job_.set_state(JOB_STATE_CANCELLED);
          job_.set_reason(r.reason());
          stop_.cancel();
          CancelJobResponse made;
          *made.mutable_job() = job_;
          reply(made);
        });
  }
  grpc::ServerWriteReactor<WatchJobResponse>* WatchJob(grpc::CallbackServerContext* context,
                                                       const WatchJobRequest* request) override {
    return rpc::ServeStream<WatchJobResponse>(
        context_.server, context, request, 16,
        [this](const WatchJobRequest& r,
               std::shared_ptr<rpc::ResponseStream<WatchJobResponse>> stream) {
          return Watch(r.job_id(), r.after_sequence(), std::move(stream));
        });
  }

 private:
  rpc::asio::awaitable<Status> Watch(
      std::string job_id, uint64_t after,
      std::shared_ptr<rpc::ResponseStream<WatchJobResponse>> stream) {
    if (job_id != job_.job_id()) co_return NotFound("no job '" + job_id + "'");
    uint64_t sequence = 0;
    for (WatchJobResponse& event : Story()) {
      event.set_sequence(++sequence);
      if (sequence > after) co_await stream->Write(std::move(event));
    }
    if (job_.spec().seed() == 777) {
      while (!stopping_ && !stream->cancelled() && job_.state() == JOB_STATE_RUNNING) {
        stop_.expires_after(std::chrono::milliseconds(20));
        boost::system::error_code ignored;
        co_await stop_.async_wait(rpc::asio::redirect_error(rpc::asio::use_awaitable, ignored));
      }
      if (stopping_ || stream->cancelled()) co_return Unavailable("shutting down");
    } else {
      job_.set_state(JOB_STATE_SUCCEEDED);
      job_.set_ended_unix_ms(31000);
    }
    WatchJobResponse end;
    end.set_sequence(++sequence);
    *end.mutable_state_changed() = job_;
    if (sequence > after) co_await stream->Write(std::move(end));
    co_return OkStatus();
  }

  std::vector<WatchJobResponse> Story() const {
    std::vector<WatchJobResponse> events(1);
    *events[0].mutable_state_changed() = job_;
    const auto evaluate = [&](uint64_t version, double accuracy) {
      auto* report = events.emplace_back().mutable_evaluation_done();
      report->set_version(version);
      report->set_questions(200);
      report->set_accuracy(accuracy);
      report->set_seconds_since_running(static_cast<double>(version) * 10 + 1);
    };
    evaluate(0, 0.25);
    for (uint64_t step = 0; step < job_.steps_total(); ++step) {
      auto* report = events.emplace_back().mutable_step_done();
      report->set_step(step);
      report->set_version(step + 1);
      report->set_weights_digest("digest-" + std::to_string(step + 1));
      report->set_reward_mean(0.5);
      report->mutable_parity()->set_tokens_compared(10);
      if (job_.spec().seed() == 666) report->mutable_parity()->set_tokens_differing(1);
    }
    evaluate(job_.steps_total(), 0.75);
    return events;
  }

  DaemonContext& context_;
  rpc::asio::steady_timer stop_;
  bool stopping_ = false;
  std::map<std::string, type::v1::WorkerIdentity> workers_;
  Job job_;
};

template <typename Config>
int WorkerMain(int argc, char** argv, const std::string& role, type::v1::WorkerRole worker_role) {
  rpc::DaemonSpec<Config> spec;
  spec.role = role;
  spec.worker_role = worker_role;
  settings::UseSettings(&spec);
  spec.create = [](const Config& config,
                   DaemonContext& context) -> StatusOr<std::unique_ptr<rpc::DaemonService>> {
    auto agent = rpc::WorkerAgent::Create(context, {config.orchestrator_address(), {}, {}});
    if (!agent.ok()) return agent.status();
    return std::unique_ptr<rpc::DaemonService>(new Worker(*std::move(agent)));
  };
  return rpc::DaemonMain(argc, argv, std::move(spec));
}

int Main(int argc, char** argv) {
  const std::string name = std::filesystem::path(argv[0]).filename().string();
  if (name == "titan-trainer") {
    return WorkerMain<config::v1::TrainerConfig>(argc, argv, "trainer",
                                                 type::v1::WORKER_ROLE_TRAINER);
  }
  if (name == "titan-generator") {
    return WorkerMain<config::v1::GeneratorConfig>(argc, argv, "generator",
                                                   type::v1::WORKER_ROLE_GENERATOR);
  }
  if (name == "titan-weightstore") {
    rpc::DaemonSpec<config::v1::WeightStoreConfig> spec;
    spec.role = "weightstore";
    settings::UseSettings(&spec);
    spec.create = [](const config::v1::WeightStoreConfig& config,
                     DaemonContext& context) -> StatusOr<std::unique_ptr<rpc::DaemonService>> {
      return std::unique_ptr<rpc::DaemonService>(new Store(context));
    };
    return rpc::DaemonMain(argc, argv, std::move(spec));
  }
  if (name == "titan-orchestrator") {
    rpc::DaemonSpec<config::v1::OrchestratorConfig> spec;
    spec.role = "orchestrator";
    settings::UseSettings(&spec);
    spec.create = [](const config::v1::OrchestratorConfig& config,
                     DaemonContext& context) -> StatusOr<std::unique_ptr<rpc::DaemonService>> {
      return std::unique_ptr<rpc::DaemonService>(new Orchestrator(context));
    };
    return rpc::DaemonMain(argc, argv, std::move(spec));
  }
  std::cerr << "no such stand-in: " << name << std::endl;
  return 2;
}

}  // namespace
}  // namespace titan

int main(int argc, char** argv) { return titan::Main(argc, argv); }
