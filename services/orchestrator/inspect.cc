// SPDX-License-Identifier: Apache-2.0
//
// What looks and changes no job: what a spec asks for, CheckJob, ListRollouts, and data files.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <optional>
#include <utility>

#include "core/runtime/co_status.h"
#include "core/runtime/machine.h"
#include "orchestrator/disk_needs.h"
#include "orchestrator/memory_needs.h"
#include "services/orchestrator/convert.h"
#include "services/orchestrator/daemon.h"
#include "services/orchestrator/rollouts.h"
#include "services/rpc/status_convert.h"

namespace titan::orchestrator {
namespace {

constexpr size_t kMaxMessageBytes = 1u << 20;
constexpr size_t kMaxChunkBytes = 1u << 20;
constexpr size_t kMaxUploadBytes = size_t{1} << 30;  // it is held in memory while it is checked
constexpr size_t kMaxNameBytes = 256;

// The field that an error of PrepareData speaks of; a line of the data is named without it.
std::string FieldOf(const std::string& message, const JobSpec& spec) {
  for (const char* field : {"model.path", "model.id", "model.max_sequence_tokens", "data.held_out",
                            "data.id", "data.system_prompt"}) {
    if (message.starts_with(std::string(field) + ":")) return field;
  }
  return spec.data.id.empty() ? "data.path" : "data.id";
}

// In digits, also beyond 64 bits.
std::string WholeNumber(double value) {
  char text[400];
  std::snprintf(text, sizeof(text), "%.0f", value);
  return text;
}

}  // namespace

std::vector<WorkerName> OrchestratorDaemon::Generators() const {
  std::vector<WorkerName> names;
  for (const auto& [id, record] : workers_.workers()) {
    if (record.ready.role == WorkerRole::kGenerator) names.push_back(record.ready.name);
  }
  return names;
}

bool OrchestratorDaemon::IsElsewhere(const WorkerRecord& worker) const {
  return !worker.machine.empty() && worker.machine != machine_;
}

asio::awaitable<std::vector<GeneratorMemory>> OrchestratorDaemon::AskGeneratorMemory() {
  using Async = generator::v1::GeneratorService::StubInterface::async_interface;
  std::vector<GeneratorMemory> all;
  const std::vector<WorkerName> names = Generators();
  for (const WorkerName& name : names) {
    const WorkerRecord* const record = workers_.Find(name.worker_id);
    if (record == nullptr || IsElsewhere(*record)) continue;
    auto stub = generator_stubs_.Get(workers_, name);
    if (!stub.ok()) continue;
    const generator::v1::GetStatusRequest ask;
    const StatusOr<generator::v1::GetStatusResponse> status = co_await rpc::CallUnary(
        context_.client, **stub, &Async::GetStatus, ask, ports_.rpc_deadline);
    if (!status.ok()) continue;
    const generator::v1::EngineMemory& memory = status->memory();
    all.push_back({memory.kv_cache_bytes(), memory.max_batch_tokens(),
                   memory.max_running_sequences(), memory.taken_bytes()});
  }
  co_return all;
}

std::vector<MemoryNeed> OrchestratorDaemon::NeedsHere(
    const formats::ModelConfig& model, const JobSpec& spec,
    const std::vector<GeneratorMemory>& generators) const {
  std::vector<MemoryNeed> needs = MemoryNeeds(model, spec, generators);
  const auto& workers = workers_.workers();
  const bool trainer_elsewhere = std::any_of(workers.begin(), workers.end(), [&](const auto& w) {
    return w.second.ready.role == WorkerRole::kTrainer && IsElsewhere(w.second);
  });
  if (trainer_elsewhere) {
    std::erase_if(needs, [](const MemoryNeed& need) { return need.holder != "generators"; });
  }
  return needs;
}

asio::awaitable<StatusOr<OrchestratorDaemon::Examined>> OrchestratorDaemon::Examine(
    std::shared_ptr<const JobSpec> spec) {
  Examined found;
  SpecCheck check = CheckJobSpec(*spec);
  found.problems = std::move(check.problems);
  found.warnings = std::move(check.warnings);
  found.journal_bytes_per_step = JournalBytesPerStep(*spec);
  std::error_code unknown;
  const auto space = std::filesystem::space(config_.daemon().data_folder(), unknown);
  if (!unknown) found.disk_available_bytes = space.available;
  const double journal_bytes =
      static_cast<double>(found.journal_bytes_per_step) * static_cast<double>(spec->schedule.steps);
  if (!unknown && journal_bytes > static_cast<double>(space.available)) {
    found.problems.push_back(
        {"schedule.steps",
         "the journal of this job needs up to " + WholeNumber(journal_bytes) + " bytes (" +
             std::to_string(found.journal_bytes_per_step) + " a step), and the volume has " +
             std::to_string(space.available) +
             "; free the disk of the orchestrator's data folder or run fewer steps"});
  }
  if (!found.problems.empty()) co_return found;
  // Named: g++ 12 destroys a temporary closure inside a co_await expression twice.
  const std::function<StatusOr<PreparedData>()> prepare = [this, spec] {
    return PrepareData(*spec, data_files_, *models_);
  };
  StatusOr<PreparedData> prepared = co_await context_.blocking.Run(prepare);
  if (!prepared.ok()) {
    const StatusCode code = prepared.status().code();
    // No fault of the job's: its peer does not answer, or has lost what it stored.
    if (code == StatusCode::kUnavailable || code == StatusCode::kDeadlineExceeded ||
        code == StatusCode::kCancelled || code == StatusCode::kDataLoss) {
      co_return prepared.status();
    }
    const std::string message = MessageOf(prepared.status());
    const std::string field = FieldOf(message, *spec);
    found.problems.push_back(
        {field, message.starts_with(field + ": ") ? message.substr(field.size() + 2) : message});
    co_return found;
  }
  const auto data = std::make_shared<const PreparedData>(*prepared);
  GrpcRewardPort::Checked reward = co_await rewards_.Check(spec, data);
  found.problems = std::move(reward.problems);
  for (std::string& warning : reward.warnings) found.warnings.push_back(std::move(warning));
  for (std::string& warning : WorkerWarnings()) found.warnings.push_back(std::move(warning));
  const std::vector<GeneratorMemory> generators = co_await AskGeneratorMemory();
  found.memory = NeedsHere(prepared->renderer->config(), *spec, generators);
  found.prepared = *std::move(prepared);
  const std::function<StatusOr<weightstore::DiskUse>()> ask_disk = [this] {
    return models_->Disk();
  };
  const StatusOr<weightstore::DiskUse> disk = co_await context_.blocking.Run(ask_disk);
  ExamineRoom(*spec, disk, &found);
  co_return found;
}

bool OrchestratorDaemon::Idle() const {
  const auto& jobs = driver_->engine().jobs();
  return std::all_of(jobs.begin(), jobs.end(),
                     [](const auto& job) { return IsFinal(job.second.state); });
}

void OrchestratorDaemon::ExamineRoom(const JobSpec& spec,
                                     const StatusOr<weightstore::DiskUse>& disk,
                                     Examined* found) const {
  if (!Idle()) return;
  const auto memory = runtime::AvailableMemory();
  if (const std::string problem = memory.ok() ? MemoryProblem(found->memory, *memory) : "";
      !problem.empty()) {
    found->problems.push_back(
        {"schedule.max_age", problem + "; lower it, or kv_cache_bytes of the generators, use a "
                                       "smaller model or end other programs"});
  }
  if (!disk.ok() || disk->keeps_nothing) return;
  const DiskNeeds needs = DiskNeedsOf(found->prepared->renderer->config(), spec);
  if (const std::string problem = DiskProblem(needs, disk->available_bytes); !problem.empty()) {
    found->problems.push_back(
        {"model",
         problem + "; free the volume, delete stored weights (titanctl weights ls, rm), or keep "
                   "nothing with weightstore.disk_limit_bytes 0 of the cluster's configuration"});
  } else if (std::string warning = CheckpointWarning(needs, disk->available_bytes);
             !warning.empty()) {
    found->warnings.push_back(std::move(warning));
  }
}

asio::awaitable<StatusOr<v1::CheckJobResponse>> OrchestratorDaemon::CheckJob(
    v1::CheckJobRequest request) {
  const auto spec = std::make_shared<const JobSpec>(FromProto(request.spec()));
  StatusOr<Examined> examined = co_await Examine(spec);
  if (!examined.ok()) co_return examined.status();
  v1::CheckJobResponse response;
  *response.mutable_resolved() = ToProto(*spec);
  for (const std::string& warning : examined->warnings) response.add_warnings(warning);
  for (const FieldProblem& problem : examined->problems) {
    auto& out = *response.add_problems();
    out.set_path(problem.path);
    out.set_description(problem.description);
  }
  response.set_journal_bytes_per_step(examined->journal_bytes_per_step);
  response.set_disk_available_bytes(examined->disk_available_bytes);
  response.set_memory_available_bytes(runtime::AvailableMemory().value_or(0));
  for (const MemoryNeed& need : examined->memory) {
    auto& out = *response.add_memory();
    out.set_holder(need.holder);
    out.set_bytes(need.bytes);
    out.set_what(need.what);
  }
  if (!examined->prepared.has_value()) co_return response;
  const Dataset& dataset = *examined->prepared->dataset;
  response.set_data_rows(dataset.rows.size());
  size_t longest = 0;
  for (const DataRow& row : dataset.rows) longest = std::max(longest, row.prompt_token_ids.size());
  response.set_prompt_tokens_max(longest);
  co_return response;
}

asio::awaitable<StatusOr<PreparedData>> OrchestratorDaemon::DataOf(std::string job_id) {
  const JobInfo& job = driver_->engine().jobs().at(job_id);
  if (const auto live = ports_.runs.find(job.run_id); live != ports_.runs.end()) {
    co_return live->second;
  }
  if (inspected_job_ == job_id) co_return inspected_data_;
  const std::shared_ptr<const JobSpec> spec = job.spec;
  const std::function<StatusOr<PreparedData>()> prepare = [this, spec] {
    return PrepareData(*spec, data_files_, *models_);
  };
  StatusOr<PreparedData> prepared = co_await context_.blocking.Run(prepare);
  if (prepared.ok()) {
    inspected_job_ = job_id;
    inspected_data_ = *prepared;
  }
  co_return prepared;
}

asio::awaitable<Status> OrchestratorDaemon::ListRollouts(
    v1::ListRolloutsRequest request,
    std::shared_ptr<rpc::ResponseStream<v1::ListRolloutsResponse>> out) {
  if (driver_->engine().jobs().count(request.job_id()) == 0) {
    co_return rpc::WithReason(NotFound("no job '" + request.job_id() + "'"), "NO_SUCH_JOB",
                              "titanctl list shows the ids of the jobs");
  }
  const RolloutQuery query = FromProto(request);
  // Without the data the tokens are still worth seeing.
  const StatusOr<PreparedData> data = co_await DataOf(request.job_id());
  using Rollouts = std::vector<v1::ListRolloutsResponse>;
  const std::function<StatusOr<Rollouts>()> read =
      [journal = journal_.get(), job_id = request.job_id(), query, data]() -> StatusOr<Rollouts> {
    TITAN_ASSIGN_OR_RETURN(const std::vector<Fact> facts,
                           journal->ReadFacts(job_id, [&query](const SampleGenerated& sample) {
                             return query.Wants(sample.group);
                           }));
    return CollectRollouts(facts, query, data.ok() ? &*data : nullptr);
  };
  StatusOr<Rollouts> rollouts = co_await context_.blocking.Run(read);
  if (!rollouts.ok()) co_return rollouts.status();
  if (rollouts->empty()) {
    const JobInfo& job = driver_->engine().jobs().at(request.job_id());
    co_return rpc::WithReason(
        NotFound("no rollout of " + request.job_id() + " matches; the job is " + NameOf(job.state) +
                 " with " + std::to_string(job.steps_done) + " steps done"),
        "NO_SUCH_ROLLOUT", "steps count from 0; leave step and group out to see all");
  }
  for (v1::ListRolloutsResponse& group : *rollouts) {
    for (v1::ListRolloutsResponse& part : SplitRollout(std::move(group), kMaxMessageBytes)) {
      TITAN_CO_RETURN_IF_ERROR(co_await out->Write(std::move(part)));
    }
  }
  co_return OkStatus();
}

asio::awaitable<StatusOr<v1::UploadDataResponse>> OrchestratorDaemon::UploadData(
    std::shared_ptr<rpc::RequestStream<v1::UploadDataRequest>> in) {
  std::string bytes, name, request_id;
  bool first = true;
  for (;;) {
    StatusOr<std::optional<v1::UploadDataRequest>> next = co_await in->Next();
    if (!next.ok()) co_return next.status();
    if (!next->has_value()) break;
    v1::UploadDataRequest& part = **next;
    if (first) {
      request_id = part.request_id();
      name = part.name().empty() ? "data" : part.name();
      if (request_id.empty()) co_return InvalidArgument("request_id: is required");
      if (name.size() > kMaxNameBytes) {
        co_return InvalidArgument("name: is longer than " + std::to_string(kMaxNameBytes) +
                                  " bytes");
      }
      first = false;
    }
    if (part.chunk().size() > kMaxChunkBytes) {
      co_return InvalidArgument("chunk: has more than 1 MiB");
    }
    if (bytes.size() + part.chunk().size() > kMaxUploadBytes) {
      co_return InvalidArgument("chunk: the file has more than " +
                                std::to_string(kMaxUploadBytes >> 20) +
                                " MiB; name it by data.path instead");
    }
    bytes += part.chunk();
  }
  if (first) co_return InvalidArgument("request_id: is required; the stream has no message");
  auto existed = std::make_shared<bool>(false);
  const std::function<StatusOr<v1::DataInfo>()> store =
      [this, name, existed, shared = std::make_shared<const std::string>(std::move(bytes)),
       now = context_.clock.UnixMs()] {
        return data_files_.Store(name, *shared, now, existed.get());
      };
  StatusOr<v1::DataInfo> stored = co_await context_.blocking.Run(store);
  if (!stored.ok()) co_return stored.status();
  v1::UploadDataResponse response;
  *response.mutable_data() = *std::move(stored);
  response.set_existed(*existed);
  co_return response;
}

asio::awaitable<StatusOr<v1::RemoveDataResponse>> OrchestratorDaemon::RemoveData(
    v1::RemoveDataRequest request) {
  if (request.request_id().empty()) co_return InvalidArgument("request_id: is required");
  const std::string id = request.data_id();
  if (id.empty()) co_return InvalidArgument("data_id: is required");
  std::string users;
  const auto add = [&users](const std::string& user) {
    users += (users.empty() ? "" : ", ") + user;
  };
  for (const auto& [job_id, job] : driver_->engine().jobs()) {
    if (IsFinal(job.state) || job.spec->data.id != id) continue;
    add(job_id + " (" + NameOf(job.state) + ")");
  }
  for (const auto& [request_id, submission] : submissions_) {
    if (submission.job_id.empty() && submission.data_id == id) add("a job that is being submitted");
  }
  if (!users.empty()) {
    co_return rpc::WithReason(FailedPrecondition("data '" + id + "' is used by " + users),
                              "DATA_IN_USE",
                              "wait for the end of these jobs, or end them with: titanctl cancel");
  }
  const std::function<StatusOr<v1::DataInfo>()> remove = [this, id] {
    return data_files_.Remove(id);
  };
  if (!removing_data_.insert(id).second) {
    co_return NotFound("data_id: data '" + id + "' is being deleted");
  }
  StatusOr<v1::DataInfo> removed = co_await context_.blocking.Run(remove);
  removing_data_.erase(id);
  if (!removed.ok()) co_return removed.status();
  v1::RemoveDataResponse response;
  *response.mutable_data() = *std::move(removed);
  co_return response;
}

asio::awaitable<StatusOr<v1::ListDataResponse>> OrchestratorDaemon::ListData() {
  using Infos = std::vector<v1::DataInfo>;
  const std::function<StatusOr<Infos>()> list = [this] { return data_files_.List(); };
  StatusOr<Infos> all = co_await context_.blocking.Run(list);
  if (!all.ok()) co_return all.status();
  v1::ListDataResponse response;
  for (v1::DataInfo& info : *all) *response.add_data() = std::move(info);
  co_return response;
}

}  // namespace titan::orchestrator
