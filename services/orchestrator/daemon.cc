// SPDX-License-Identifier: Apache-2.0
//
// The life of the daemon: start, workers, loops, journal, end. The RPCs of jobs: jobs.cc.
#include "services/orchestrator/daemon.h"

#include <algorithm>
#include <utility>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "core/runtime/log.h"
#include "core/runtime/machine.h"
#include "core/storage/rocksdb_store.h"
#include "core/storage/segment_log.h"
#include "services/orchestrator/convert.h"
#include "services/orchestrator/probe.h"
#include "services/orchestrator/service.h"
#include "services/rpc/wait_notice.h"
#include "services/settings/daemon_spec.h"

namespace titan::orchestrator {
namespace {

constexpr rpc::Milliseconds kTick{50};

Status WithReasonOfRefusal(const Status& refused) {
  switch (refused.code()) {
    case StatusCode::kUnavailable:
      return refused;  // the worker asks again
    case StatusCode::kAlreadyExists:
      return rpc::WithReason(refused, "WORKER_ID_TAKEN",
                             "give one of the two processes another daemon.worker_id");
    case StatusCode::kFailedPrecondition:
      return rpc::WithReason(refused, "CONTRACT_DIFFERS",
                             "start the worker from the same build and configuration");
    default:
      return rpc::WithReason(refused, "INVALID_REGISTRATION",
                             "start the worker from the same build and configuration");
  }
}

}  // namespace

StatusOr<std::unique_ptr<Journal>> OpenJournal(const std::string& data_folder) {
  TITAN_ASSIGN_OR_RETURN(auto store, storage::OpenRocksDbStore(data_folder + "/journal"));
  TITAN_ASSIGN_OR_RETURN(auto segments, storage::SegmentLog::Open(data_folder + "/segments"));
  return Journal::Create(std::move(store), std::move(segments), MakeJournalCodec());
}

rpc::DaemonSpec<config::v1::OrchestratorConfig> MakeDaemonSpec() {
  using Config = config::v1::OrchestratorConfig;
  rpc::DaemonSpec<Config> spec;
  spec.role = "orchestrator";
  spec.description = "Runs jobs: schedule, journal, prompts; tells the other daemons what to do";
  settings::UseSettings(&spec);
  spec.create = [](const Config& config,
                   rpc::DaemonContext& context) -> StatusOr<std::unique_ptr<rpc::DaemonService>> {
    TITAN_ASSIGN_OR_RETURN(auto daemon, OrchestratorDaemon::Create(config, context));
    return std::unique_ptr<rpc::DaemonService>(std::move(daemon));
  };
  return spec;
}

StatusOr<std::unique_ptr<OrchestratorDaemon>> OrchestratorDaemon::Create(
    const config::v1::OrchestratorConfig& config, rpc::DaemonContext& context) {
  TITAN_ASSIGN_OR_RETURN(auto journal, OpenJournal(config.daemon().data_folder()));
  TITAN_ASSIGN_OR_RETURN(auto jobs, journal->ReadJobs());
  std::unique_ptr<OrchestratorDaemon> daemon(
      new OrchestratorDaemon(config, context, std::move(journal)));
  TITAN_RETURN_IF_ERROR(daemon->data_files_.MakeFolder());
  TITAN_ASSIGN_OR_RETURN(daemon->models_, weightstore::GrpcLeader::Create(
                                              context.client, config.weightstore_address()));
  TITAN_ASSIGN_OR_RETURN(daemon->weight_store_,
                         GrpcWeightStorePort::Create(daemon->ports_, config.weightstore_address()));
  daemon->driver_ =
      std::make_unique<Driver>(Ports{daemon->generators_, daemon->trainer_, daemon->rewards_,
                                     *daemon->weight_store_, *daemon, *daemon},
                               context.clock);
  daemon->Restore(std::move(jobs));
  return daemon;
}

OrchestratorDaemon::OrchestratorDaemon(const config::v1::OrchestratorConfig& config,
                                       rpc::DaemonContext& context,
                                       std::unique_ptr<Journal> journal)
    : config_(config),
      context_(context),
      machine_(runtime::MemoryName()),
      journal_(std::move(journal)),
      data_files_(config.daemon().data_folder() + "/data"),
      workers_(Millis(config.worker_timeout_ms())),
      ports_{context.client,
             workers_,
             rpc::Milliseconds(config.rpc_deadline_ms()),
             0,
             // The end of this daemon cancels its calls, which is no fault of who was called.
             [this](const Event& event) {
               if (!stopping_) driver_->Deliver(event);
             },
             [this](const WorkerName& name, const std::string& reason) {
               if (!stopping_ && workers_.Remove(name)) Lose(name, reason);
             },
             [this](const std::string& reason) { LoseWeightStore(reason); },
             [this] { return stopping_; },
             config.weightstore_address(),
             {},
             {}},
      generators_(ports_),
      trainer_(ports_),
      rewards_(ports_),
      log_(context.control),
      metrics_(context.metrics),
      service_(std::make_unique<Service>(*this, context.server)) {}

OrchestratorDaemon::~OrchestratorDaemon() = default;

std::vector<grpc::Service*> OrchestratorDaemon::services() { return {service_.get()}; }

void OrchestratorDaemon::Restore(std::vector<JournaledJob> jobs) {
  std::vector<RestoredJob> restored;
  for (JournaledJob& job : jobs) {
    const std::string& id = job.info.job_id;
    submissions_[job.info.request_id] = {job.info.spec_digest, id,
                                         CheckJobSpec(*job.info.spec).warnings,
                                         JournalBytesPerStep(*job.info.spec)};
    if (id.starts_with("job-")) {
      next_job_ = std::max<uint64_t>(next_job_, std::strtoull(id.c_str() + 4, nullptr, 10) + 1);
    }
    JobInfo past;  // as it was at each event
    past.job_id = id;
    past.spec = job.info.spec;
    for (const Fact& fact : job.facts) {
      Apply(fact, &past);
      v1::WatchJobResponse event;
      event.set_unix_ms(UnixMs(fact.at));
      if (std::holds_alternative<StateChanged>(fact.body)) {
        *event.mutable_state_changed() = ToProto(past);
      } else if (const auto* f = std::get_if<StepDone>(&fact.body)) {
        *event.mutable_step_done() = ToProto(f->report);
      } else if (const auto* f = std::get_if<EvaluationDone>(&fact.body)) {
        *event.mutable_evaluation_done() = ToProto(f->report);
      } else if (const auto* f = std::get_if<MessageTold>(&fact.body)) {
        event.set_message(f->text);
      } else {
        continue;
      }
      log_.Add(id, std::move(event));
    }
    const JobState state = job.info.state;
    if (state == JobState::kQueued || state == JobState::kStarting) queued_before_.push_back(id);
    std::string next_run_id = NewRunId(id, job.info.request_id);
    restored.push_back({job.info, std::move(job.spec_bytes), job.cancelled, std::move(next_run_id),
                        std::move(job.past_run_ids)});
  }
  driver_->Restore(std::move(restored));
}

asio::awaitable<Status> OrchestratorDaemon::Start() {
  context_.set_ready(false, "waiting for the weight store");
  Spawn(TickLoop());
  Spawn(WeightStoreLoop());
  Spawn(PrepareQueued());
  co_return OkStatus();
}

asio::awaitable<void> OrchestratorDaemon::Drain() {
  stopping_ = true;
  log_.WakeAll();
  for (asio::steady_timer* timer : sleeping_) timer->cancel();
  asio::steady_timer poll(context_.control);
  while (num_loops_ > 0) {
    poll.expires_after(rpc::Milliseconds(5));
    boost::system::error_code ignored;
    co_await poll.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }
}

void OrchestratorDaemon::Spawn(asio::awaitable<void> loop) {
  ++num_loops_;
  asio::co_spawn(context_.control, std::move(loop), [this](std::exception_ptr failure) {
    --num_loops_;
    if (failure) {  // a bug of ours, without which nothing would go on
      context_.request_shutdown(Internal("a loop of the orchestrator ended with an exception"));
    }
  });
}

asio::awaitable<void> OrchestratorDaemon::Sleep(rpc::Milliseconds time) {
  if (stopping_) co_return;
  asio::steady_timer timer(context_.control, time);
  sleeping_.insert(&timer);
  boost::system::error_code ignored;
  co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  sleeping_.erase(&timer);
}

asio::awaitable<void> OrchestratorDaemon::TickLoop() {
  while (!stopping_) {
    for (const WorkerName& name : workers_.Expire(driver_->Now())) {
      Lose(name, "no heartbeat for " + std::to_string(config_.worker_timeout_ms()) + " ms");
    }
    driver_->Tick();
    metrics_.OnTick(workers_, driver_->num_held());
    co_await Sleep(kTick);
  }
}

asio::awaitable<void> OrchestratorDaemon::WeightStoreLoop() {
  const std::string request_id = "orchestrator-" + context_.incarnation;
  const rpc::Milliseconds pause =
      std::max(rpc::Milliseconds(100), rpc::Milliseconds(config_.worker_timeout_ms() / 5));
  Instant last_answer = driver_->Now();
  rpc::WaitNotice notice;
  while (!stopping_) {
    // The calls answer on this strand; a timer lets this coroutine wait for them.
    auto answered = std::make_shared<asio::steady_timer>(context_.control,
                                                         asio::steady_timer::time_point::max());
    auto status = std::make_shared<Status>(Unavailable("no answer"));
    if (ports_.epoch == 0) {
      weight_store_->AdvanceEpoch(request_id, [this, answered, status](StatusOr<uint64_t> epoch) {
        *status = epoch.status();
        if (epoch.ok()) ports_.epoch = *epoch;
        answered->cancel();
      });
    } else {
      weight_store_->Probe([answered, status](Status probe) {
        *status = std::move(probe);
        answered->cancel();
      });
    }
    boost::system::error_code woken;
    co_await answered->async_wait(asio::redirect_error(asio::use_awaitable, woken));
    if (stopping_) break;
    const Instant now = driver_->Now();
    if (status->ok()) {
      last_answer = now;
      notice.Over();
      if (!weight_store_name_.has_value()) {
        weight_store_name_ = {"weightstore", std::to_string(++weight_store_lives_)};
        TITAN_LOG(kInfo, "weight_store_found", {"address", config_.weightstore_address()},
                  {"epoch", ports_.epoch});
        context_.set_ready(true, "");
        driver_->Deliver(WorkerReady{*weight_store_name_, WorkerRole::kWeightStore, 0, 0, {}});
      }
    } else if (weight_store_name_.has_value() &&
               now - last_answer > Millis(config_.worker_timeout_ms())) {
      LoseWeightStore("it does not answer: " + MessageOf(*status));
    }
    if (const titan::Instant at = context_.clock.Now(); !status->ok() && notice.Due(at)) {
      TITAN_LOG(kWarning, "weight_store_silent", {"address", config_.weightstore_address()},
                {"waited_s", notice.Waited(at).count()}, {"status", *status},
                {"next", "asks again until the weight store answers"});
    }
    co_await Sleep(ports_.epoch == 0 ? rpc::Milliseconds(100) : pause);
  }
}

void OrchestratorDaemon::LoseWeightStore(const std::string& reason) {
  if (stopping_ || !weight_store_name_.has_value()) return;
  TITAN_LOG(kError, "weight_store_lost", {"reason", reason});
  context_.set_ready(false, "the weight store does not answer");
  driver_->Deliver(WorkerLost{*std::exchange(weight_store_name_, std::nullopt), reason});
}

// ---- workers ----

void OrchestratorDaemon::RegisterWorker(
    const v1::RegisterWorkerRequest& request,
    std::function<void(StatusOr<v1::RegisterWorkerResponse>)> reply) {
  StatusOr<WorkerRecord> record = FromProto(request);
  if (!record.ok()) return reply(record.status());
  AdmitOnceProbed(*std::move(record), std::move(reply));
}

void OrchestratorDaemon::AdmitOnceProbed(
    WorkerRecord record, std::function<void(StatusOr<v1::RegisterWorkerResponse>)> reply) {
  const WorkerRecord* rival = workers_.Rival(record);
  if (rival == nullptr || stopping_) return reply(Admit(std::move(record)));
  // A killed worker's successor takes its place at once: nobody listens at the old address then.
  ProbePeer(context_.control, rival->address,
            [this, old = rival->ready.name, record = std::move(record),
             reply = std::move(reply)](Presence presence) mutable {
              const WorkerRecord* now = workers_.Rival(record);
              if (now == nullptr || stopping_) return reply(Admit(std::move(record)));
              // Another one came meanwhile: of that nothing is known.
              if (now->ready.name != old) {
                return AdmitOnceProbed(std::move(record), std::move(reply));
              }
              if (presence == Presence::kUnknown) {
                return reply(Unavailable(
                    "another process is registered as worker " + old.worker_id + " (pid " +
                    std::to_string(now->pid) + ", listens at " + now->address +
                    "), and it cannot be found out whether it is still there; ask again"));
              }
              if (presence == Presence::kGone && workers_.Remove(old)) {
                Lose(old, "a new process took its place");
              }
              reply(Admit(std::move(record)));
            });
}

StatusOr<v1::RegisterWorkerResponse> OrchestratorDaemon::Admit(WorkerRecord record) {
  if (stopping_) return Unavailable("the orchestrator is shutting down");
  if (ports_.epoch == 0) return Unavailable("the orchestrator waits for the weight store");
  const WorkerName name = record.ready.name;
  const std::string address = record.address;
  const auto channel = rpc::MakeChannel(address);
  if (!channel.ok()) return Annotate(channel.status(), "worker.address");
  const auto registered = workers_.Register(std::move(record), driver_->Now());
  if (!registered.ok()) {
    TITAN_LOG(kWarning, "worker_refused", {"worker_id", name.worker_id},
              {"incarnation", name.incarnation}, {"address", address},
              {"status", registered.status()});
    return WithReasonOfRefusal(registered.status());
  }
  if (registered->replaced.has_value()) {
    Lose(*registered->replaced, "a new process took its place");
  }
  if (registered->fresh) {
    TITAN_LOG(kInfo, "worker_registered", {"worker_id", name.worker_id},
              {"incarnation", name.incarnation}, {"address", address});
    Introduce(name);
  }
  v1::RegisterWorkerResponse response;
  response.set_orchestrator_epoch(ports_.epoch);
  response.set_heartbeat_ms(std::max(20u, config_.worker_timeout_ms() / 5));
  return response;
}

StatusOr<v1::HeartbeatResponse> OrchestratorDaemon::Heartbeat(const v1::HeartbeatRequest& request) {
  TITAN_RETURN_IF_ERROR(workers_.Heartbeat(NameOf(request.worker()), driver_->Now()));
  return v1::HeartbeatResponse();
}

bool OrchestratorDaemon::IsRegistered(const WorkerName& name) const {
  const WorkerRecord* record = workers_.Find(name.worker_id);
  return record != nullptr && record->ready.name == name;
}

void OrchestratorDaemon::Introduce(const WorkerName& name) {
  // A worker that was lost and is back may still be asked because of its earlier registration.
  if (introducing_.insert(name).second) TryIntroduce(name);
}

void OrchestratorDaemon::TryIntroduce(const WorkerName& name) {
  if (stopping_ || !IsRegistered(name)) {
    introducing_.erase(name);
    return;
  }
  const WorkerReady ready = workers_.Find(name.worker_id)->ready;
  const auto asked = [this, name, ready](const Status& status) {
    if (stopping_ || !IsRegistered(name)) {
      introducing_.erase(name);
      return;
    }
    if (status.ok()) {
      introducing_.erase(name);
      driver_->Deliver(ready);
      return;
    }
    TITAN_LOG(kWarning, "worker_does_not_answer", {"worker_id", name.worker_id},
              {"status", status});
    driver_->Deliver(WorkerSilent{name, ready.role,
                                  "does not answer what it is asked first: " + MessageOf(status)});
    auto timer = std::make_shared<asio::steady_timer>(context_.control, kRetry);
    timer->async_wait([this, name, timer](boost::system::error_code) { TryIntroduce(name); });
  };
  if (ready.role == WorkerRole::kGenerator) {
    generators_.Reset(name, asked);
  } else if (ready.role == WorkerRole::kReward) {
    rewards_.Describe(name, asked);
  } else {
    introducing_.erase(name);
    driver_->Deliver(ready);
  }
}

void OrchestratorDaemon::Lose(const WorkerName& name, const std::string& reason) {
  TITAN_LOG(kWarning, "worker_lost", {"worker_id", name.worker_id}, {"reason", reason});
  generators_.Forget(name);
  trainer_.Forget(name);
  rewards_.Forget(name);
  generator_stubs_.Forget(name);
  driver_->Deliver(WorkerLost{name, reason});
}

v1::ListWorkersResponse OrchestratorDaemon::ListWorkers() const {
  v1::ListWorkersResponse response;
  for (const auto& [id, record] : workers_.workers()) {
    auto& info = *response.add_workers();
    *info.mutable_worker() = ToIdentity(record);
    info.set_state(workers_.StateOf(record, driver_->Now()));
    info.set_doing(driver_->engine().DescribeGenerator(id));
  }
  auto& store = *response.add_workers();
  store.mutable_worker()->set_worker_id("weightstore");
  store.mutable_worker()->set_role(type::v1::WORKER_ROLE_WEIGHTSTORE);
  store.mutable_worker()->set_address(config_.weightstore_address());
  store.set_state(weight_store_name_.has_value() ? "ready" : "gone");
  return response;
}

// ---- journal ----

void OrchestratorDaemon::Commit(std::vector<Fact> facts, std::function<void(Status)> done) {
  const titan::Instant begin = context_.clock.Now();
  const size_t num = facts.size();
  auto shared = std::make_shared<const std::vector<Fact>>(std::move(facts));
  const auto finish = [this, num, begin, done = std::move(done)](Status status) {
    asio::post(context_.control, [this, num, begin, done, status = std::move(status)] {
      if (status.ok()) metrics_.OnCommit(num, titan::Seconds(context_.clock.Now() - begin));
      done(status);
    });
  };
  const Status posted = context_.blocking.Post(
      [journal = journal_.get(), shared, finish] { finish(journal->Commit(*shared)); });
  if (!posted.ok()) finish(posted);
}

void OrchestratorDaemon::OnJournalFailure(const Status& status) {
  context_.request_shutdown(
      Annotate(status, "the journal cannot be written; free the disk and start again"));
}

}  // namespace titan::orchestrator
