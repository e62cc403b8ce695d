// SPDX-License-Identifier: Apache-2.0
#include "services/trainer/trainer_service.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "core/runtime/co_status.h"
#include "core/runtime/log.h"
#include "services/contract/contract.h"

namespace titan::services {

namespace asio = boost::asio;
namespace v1 = trainer::v1;

namespace {

constexpr uint32_t kMaxSamples = 1 << 20;
constexpr auto kIdlePoll = std::chrono::milliseconds(20);

Status Busy() { return Unavailable("the trainer is busy with another call; ask again"); }

}  // namespace

TrainerService::TrainerService(const config::v1::TrainerConfig& config,
                               std::unique_ptr<weightstore::GrpcLeader> leader,
                               rpc::DaemonContext& context)
    : config_(config),
      context_(context),
      leader_(std::move(leader)),
      pool_(static_cast<int>(config.kernels().threads())),
      contract_(ProcessContract(pool_, /*training=*/true)),
      steps_(context.metrics.AddCounter("titan_trainer_steps_total", "Committed training steps")),
      tokens_trained_(
          context.metrics.AddCounter("titan_trainer_tokens_total", "Reply tokens trained")),
      tokens_compared_(context.metrics.AddCounter("titan_trainer_parity_tokens_total",
                                                  "Tokens whose log-probs were compared")),
      tokens_differing_(context.metrics.AddCounter(
          "titan_trainer_parity_differing_tokens_total",
          "Compared tokens whose log-prob differed from the rollout's: must stay 0")),
      checkpoint_seconds_(context.metrics.AddHistogram(
          "titan_trainer_checkpoint_seconds", "Time to write a checkpoint, beside training",
          runtime::SecondsBuckets())),
      checkpoint_version_(context.metrics.AddGauge("titan_trainer_checkpoint_version",
                                                   "Version of the newest durable checkpoint")),
      checkpoint_failures_(
          context.metrics.AddCounter("titan_trainer_checkpoint_failures_total",
                                     "Checkpoints that could not be written; training went on")),
      pull_corrupt_(context.metrics.AddCounter(
          "titan_trainer_pull_corrupt_total",
          "Answers, or whole versions, that did not arrive as they were sent; must stay 0")),
      pull_memory_(context.metrics.AddGauge("titan_trainer_pull_memory_bytes",
                                            "Memory of the version that is compared, if another "
                                            "host has it")),
      engine_({.threads = 1, .max_queued = 16}) {}

TrainerService::~TrainerService() {
  engine_.Stop();
  job_.reset();  // its checkpointer counts
}

void TrainerService::Count(const CheckpointOutcome& outcome) {
  if (!outcome.status.ok()) return checkpoint_failures_.Add();
  checkpoint_seconds_.Observe(outcome.seconds);
  checkpoint_version_.Set(static_cast<double>(outcome.version));
}

void TrainerService::CountPull(const weightstore::lanes::PullReport& report) {
  if (report.corrupt == 0) return;
  pull_corrupt_.Add(static_cast<double>(report.corrupt));
  TITAN_LOG(kError, "pull_corrupt", {"lane", weightstore::NameOf(report.lane)},
            {"corrupt", report.corrupt}, {"bytes", report.num_bytes});
}

asio::awaitable<Status> TrainerService::Start() {
  rpc::WorkerAgent::Options options;
  options.orchestrator_address = config_.orchestrator_address();
  *options.registration.mutable_contract() = contract_;
  options.on_registered = [this](uint64_t epoch) { epoch_ = std::max(epoch_, epoch); };
  TITAN_CO_ASSIGN_OR_RETURN(agent_, rpc::WorkerAgent::Create(context_, std::move(options)));
  agent_->Start();
  co_return OkStatus();
}

asio::awaitable<void> TrainerService::Drain() {
  stopping_ = true;
  if (stepping_ != nullptr) stepping_->Cancel();
  if (agent_ != nullptr) co_await agent_->Stop();
  if (!busy_) co_await DropJob();
}

asio::awaitable<void> TrainerService::DropJob() {
  if (job_ == nullptr) co_return;
  const auto job = std::make_shared<std::unique_ptr<TrainJob>>(std::move(job_));
  const auto drop = [job]() -> Status {
    job->reset();
    return OkStatus();
  };
  busy_ = true;
  (void)co_await engine_.Run(drop);
  busy_ = false;
}

Status TrainerService::CheckEpoch(uint64_t epoch) {
  if (epoch < epoch_) {
    return rpc::WithReason(Aborted("orchestrator_epoch " + std::to_string(epoch) +
                                   " is superseded by " + std::to_string(epoch_)),
                           "EPOCH_SUPERSEDED",
                           "another orchestrator has taken over; stop this one");
  }
  epoch_ = epoch;
  return OkStatus();
}

asio::awaitable<Status> TrainerService::WhenIdle() {
  while (busy_ && !stopping_) {
    asio::steady_timer timer(context_.control, kIdlePoll);
    co_await timer.async_wait(asio::use_awaitable);
  }
  co_return stopping_ ? Cancelled("the trainer is shutting down") : OkStatus();
}

asio::awaitable<StatusOr<v1::StartRunResponse>> TrainerService::DoStartRun(
    v1::StartRunRequest request) {
  TITAN_CO_RETURN_IF_ERROR(CheckEpoch(request.orchestrator_epoch()));
  if (request.run_id().empty()) co_return InvalidArgument("run_id: must not be empty");
  // The last step of a run that was cancelled may still be at work.
  TITAN_CO_RETURN_IF_ERROR(co_await WhenIdle());
  TITAN_CO_RETURN_IF_ERROR(CheckEpoch(request.orchestrator_epoch()));
  if (ended_runs_.contains(request.run_id())) {
    co_return FailedPrecondition("run " + request.run_id() + " was ended");
  }
  const Instant start = context_.clock.Now();
  // A broken one is begun anew from its checkpoint.
  if (job_ == nullptr || job_->run_id() != request.run_id() ||
      (request.from_checkpoint() && job_->broken())) {
    TrainJob::Options options;
    options.config = config_;
    options.run_id = request.run_id();
    options.spec = request.spec();
    options.request_id =
        context_.incarnation + "/" + request.run_id() + "/" + std::to_string(++starts_);
    options.from_checkpoint = request.from_checkpoint();
    options.on_checkpoint = [this](const CheckpointOutcome& outcome) { Count(outcome); };
    options.on_pull = [this](const weightstore::lanes::PullReport& report) { CountPull(report); };
    options.on_pull_memory = [this](double num_bytes) { pull_memory_.Add(num_bytes); };
    co_await DropJob();
    busy_ = true;
    // Named, here and below: g++ 12 destroys a temporary closure inside a co_await expression
    // twice.
    const auto begin = [this, options]() -> Status {
      auto job = TrainJob::Start({*leader_, *leader_, *leader_}, pool_, context_.clock, options);
      if (!job.ok()) return job.status();
      job_ = *std::move(job);
      return OkStatus();
    };
    const Status started = co_await engine_.Run(begin);
    busy_ = false;
    TITAN_CO_RETURN_IF_ERROR(started);
  }
  v1::StartRunResponse response;
  response.set_weights_digest(job_->digest());
  response.set_version(job_->version());
  response.set_num_parameters(static_cast<uint64_t>(job_->num_parameters()));
  response.set_seconds(Seconds(context_.clock.Now() - start));
  co_return response;
}

asio::awaitable<StatusOr<v1::TrainStepResponse>> TrainerService::DoTrainStep(
    std::shared_ptr<StepStream> stream) {
  v1::StepHeader header;
  auto samples = std::make_shared<std::vector<trainer::TrainingSample>>();
  bool have_header = false;
  while (true) {
    TITAN_CO_ASSIGN_OR_RETURN(const auto part, co_await stream->Next());
    if (!part.has_value()) break;
    if (!have_header) {
      if (!part->has_header()) co_return InvalidArgument("header: must be the first message");
      header = part->header();
      have_header = true;
      if (header.num_samples() > kMaxSamples) {
        co_return InvalidArgument("header.num_samples: more than " + std::to_string(kMaxSamples));
      }
      continue;
    }
    if (!part->has_sample()) co_return InvalidArgument("sample: expected after the header");
    if (samples->size() == header.num_samples()) {
      co_return InvalidArgument("more samples than header.num_samples");
    }
    TITAN_CO_ASSIGN_OR_RETURN(auto sample, ParseSample(part->sample()));
    samples->push_back(std::move(sample));
  }
  if (!have_header) co_return InvalidArgument("header: the stream ended before it");
  if (samples->size() != header.num_samples()) {
    co_return InvalidArgument("header.num_samples is " + std::to_string(header.num_samples()) +
                              ", " + std::to_string(samples->size()) + " samples came");
  }
  TITAN_CO_RETURN_IF_ERROR(CheckEpoch(header.orchestrator_epoch()));
  if (busy_) co_return Busy();
  if (job_ == nullptr || job_->run_id() != header.run_id()) {
    co_return FailedPrecondition("run " + header.run_id() +
                                 " is not on this trainer; StartRun first");
  }
  if (stopping_) co_return Cancelled("the trainer is shutting down");
  busy_ = true;
  stepping_ = job_.get();
  const auto train = [this, header, samples] { return job_->TrainStep(header, *samples); };
  auto response = co_await engine_.Run(train);
  stepping_ = nullptr;
  busy_ = false;
  if (response.ok()) {
    steps_.Add();
    tokens_trained_.Add(static_cast<double>(response->tokens_trained()));
    tokens_compared_.Add(static_cast<double>(response->tokens_compared()));
    tokens_differing_.Add(static_cast<double>(response->tokens_differing()));
    if (response->tokens_differing() > 0) {
      TITAN_LOG(kError, "log_probs_differ", {"step", header.step()},
                {"tokens_differing", response->tokens_differing()},
                {"first_sample", ToHex(response->differences(0).sample_id())},
                {"first_token", response->differences(0).token_index()});
    }
  }
  co_return response;
}

asio::awaitable<StatusOr<v1::EndRunResponse>> TrainerService::DoEndRun(v1::EndRunRequest request) {
  TITAN_CO_RETURN_IF_ERROR(CheckEpoch(request.orchestrator_epoch()));
  ended_runs_.insert(request.run_id());  // a StartRun that still waits must not begin it
  TITAN_CO_RETURN_IF_ERROR(co_await WhenIdle());
  if (job_ != nullptr && job_->run_id() == request.run_id()) co_await DropJob();
  co_return v1::EndRunResponse();
}

grpc::ServerUnaryReactor* TrainerService::StartRun(grpc::CallbackServerContext* context,
                                                   const v1::StartRunRequest* request,
                                                   v1::StartRunResponse* response) {
  return rpc::ServeUnary(
      context_.server, context, request, response,
      [this](v1::StartRunRequest message) { return DoStartRun(std::move(message)); });
}

grpc::ServerReadReactor<v1::TrainStepRequest>* TrainerService::TrainStep(
    grpc::CallbackServerContext* context, v1::TrainStepResponse* response) {
  return rpc::ServeClientStream<v1::TrainStepRequest>(
      context_.server, context, response,
      [this](std::shared_ptr<StepStream> stream) { return DoTrainStep(std::move(stream)); });
}

grpc::ServerUnaryReactor* TrainerService::EndRun(grpc::CallbackServerContext* context,
                                                 const v1::EndRunRequest* request,
                                                 v1::EndRunResponse* response) {
  return rpc::ServeUnary(
      context_.server, context, request, response,
      [this](v1::EndRunRequest message) { return DoEndRun(std::move(message)); });
}

}  // namespace titan::services
