// SPDX-License-Identifier: Apache-2.0
//
// The RPCs that look: CheckJob, ListRollouts, and data files. They change no job.
#include <algorithm>
#include <filesystem>
#include <functional>
#include <optional>
#include <utility>

#include "core/runtime/co_status.h"
#include "core/runtime/machine.h"
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

// The field that an error of PrepareData speaks of.
std::string FieldOf(const std::string& message) {
  for (const char* field : {"model.path", "model.id", "model.max_sequence_tokens", "data.held_out",
                            "data.id", "data.system_prompt"}) {
    if (message.starts_with(std::string(field) + ":")) return field;
  }
  return "data.path";
}

}  // namespace

asio::awaitable<StatusOr<v1::CheckJobResponse>> OrchestratorDaemon::CheckJob(
    v1::CheckJobRequest request) {
  const auto spec = std::make_shared<const JobSpec>(FromProto(request.spec()));
  const SpecCheck check = CheckJobSpec(*spec);
  v1::CheckJobResponse response;
  *response.mutable_resolved() = ToProto(*spec);
  for (const std::string& warning : check.warnings) response.add_warnings(warning);
  const auto add_problem = [&](const std::string& path, const std::string& description) {
    response.add_problems()->set_path(path);
    response.mutable_problems(response.problems_size() - 1)->set_description(description);
  };
  for (const FieldProblem& problem : check.problems) add_problem(problem.path, problem.description);
  response.set_journal_bytes_per_step(JournalBytesPerStep(*spec));
  std::error_code unknown;
  const auto space = std::filesystem::space(config_.daemon().data_folder(), unknown);
  if (!unknown) response.set_disk_available_bytes(space.available);
  const double journal_bytes = static_cast<double>(response.journal_bytes_per_step()) *
                               static_cast<double>(spec->schedule.steps);
  if (!unknown && journal_bytes > static_cast<double>(space.available)) {
    add_problem("schedule.steps", "the journal of that many steps may need more than the " +
                                      std::to_string(space.available >> 20) +
                                      " MiB that are free in the orchestrator's data folder");
  }
  response.set_memory_available_bytes(runtime::AvailableMemory().value_or(0));
  if (response.problems_size() > 0) co_return response;
  // Named: g++ 12 destroys a temporary closure inside a co_await expression twice.
  const std::function<StatusOr<PreparedData>()> prepare = [this, spec] {
    return PrepareData(*spec, data_files_, *models_);
  };
  const StatusOr<PreparedData> prepared = co_await context_.blocking.Run(prepare);
  if (!prepared.ok()) {
    const std::string message = MessageOf(prepared.status());
    const std::string field = FieldOf(message);
    add_problem(field,
                message.starts_with(field + ": ") ? message.substr(field.size() + 2) : message);
    co_return response;
  }
  const auto data = std::make_shared<const PreparedData>(*prepared);
  const GrpcRewardPort::Checked reward = co_await rewards_.Check(spec, data);
  for (const FieldProblem& problem : reward.problems)
    add_problem(problem.path, problem.description);
  for (const std::string& warning : reward.warnings) response.add_warnings(warning);
  for (const std::string& warning : WorkerWarnings(*spec)) response.add_warnings(warning);
  response.set_data_rows(prepared->dataset->rows.size());
  size_t longest = 0;
  for (const DataRow& row : prepared->dataset->rows) {
    longest = std::max(longest, row.prompt_token_ids.size());
  }
  response.set_prompt_tokens_max(longest);
  const std::vector<MemoryNeed> needs = MemoryNeeds(prepared->renderer->config(), *spec);
  if (const std::string memory = MemoryRefusal(needs); !memory.empty()) {
    add_problem("schedule.max_age", memory + "; lower it, use a smaller model or end programs");
  }
  for (const MemoryNeed& need : needs) {
    auto& out = *response.add_memory();
    out.set_holder(need.holder);
    out.set_bytes(need.bytes);
    out.set_what(need.what);
  }
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
