// SPDX-License-Identifier: Apache-2.0
#include "services/generator/generator_service.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "core/runtime/co_status.h"
#include "core/runtime/log.h"
#include "services/contract/contract.h"

namespace titan::services {

namespace asio = boost::asio;
namespace v1 = generator::v1;
using generator::VersionKey;

namespace {

// 8 bytes a token and its log-prob on the wire, some framing: below 1 MiB.
constexpr size_t kTokensPerChunk = 65536;
constexpr int kMaxPromptTokens = 1 << 18;  // 1 MiB
constexpr int kMaxSamples = 65536;
// Between two looks for versions whose store daemon is gone.
constexpr std::chrono::milliseconds kKeepPeriod{250};

template <typename Request>
StatusOr<VersionKey> KeyOf(const Request& request) {
  if (request.run_id().empty()) return InvalidArgument("run_id: must not be empty");
  return VersionKey{request.run_id(), request.version(), request.evaluation()};
}

}  // namespace

StatusOr<generator::GroupRequest> ParseGroupRequest(const v1::GenerateGroupRequest& message) {
  generator::GroupRequest request;
  TITAN_ASSIGN_OR_RETURN(request.version, KeyOf(message));
  if (message.prompt_token_ids_size() > kMaxPromptTokens) {
    return InvalidArgument("prompt_token_ids: more than " + std::to_string(kMaxPromptTokens));
  }
  if (message.sample_indexes_size() != message.sample_ids_size()) {
    return InvalidArgument("sample_ids: must be parallel to sample_indexes");
  }
  if (message.sample_indexes_size() > kMaxSamples) {
    return InvalidArgument("sample_indexes: more than " + std::to_string(kMaxSamples));
  }
  std::vector<uint32_t> indexes(message.sample_indexes().begin(), message.sample_indexes().end());
  std::sort(indexes.begin(), indexes.end());
  if (std::adjacent_find(indexes.begin(), indexes.end()) != indexes.end()) {
    return InvalidArgument("sample_indexes: one stands twice");
  }
  if (message.sampling().max_new_tokens() > 1u << 24) {
    return InvalidArgument("sampling.max_new_tokens: more than 2^24");
  }
  request.group = {message.group_id()};
  request.seed = message.seed();
  request.priority = message.priority();
  request.prompt.assign(message.prompt_token_ids().begin(), message.prompt_token_ids().end());
  for (int i = 0; i < message.sample_indexes_size(); ++i) {
    request.samples.push_back({message.sample_indexes(i), SampleId{message.sample_ids(i)}});
  }
  request.temperature = message.sampling().temperature();
  request.max_new_tokens = static_cast<int32_t>(message.sampling().max_new_tokens());
  request.stop_tokens.assign(message.sampling().stop_token_ids().begin(),
                             message.sampling().stop_token_ids().end());
  return request;
}

std::vector<v1::GenerateGroupResponse> ToResponses(const generator::SampleResult& result,
                                                   PolicyVersion version) {
  std::vector<v1::GenerateGroupResponse> chunks;
  size_t at = 0;
  do {
    v1::GenerateGroupResponse chunk;
    chunk.set_sample_index(result.sample_index);
    const size_t end = std::min(result.tokens.size(), at + kTokensPerChunk);
    chunk.mutable_token_ids()->Add(result.tokens.begin() + static_cast<ptrdiff_t>(at),
                                   result.tokens.begin() + static_cast<ptrdiff_t>(end));
    chunk.mutable_logprobs()->Add(result.log_probs.begin() + static_cast<ptrdiff_t>(at),
                                  result.log_probs.begin() + static_cast<ptrdiff_t>(end));
    at = end;
    chunks.push_back(std::move(chunk));
  } while (at < result.tokens.size());
  v1::GenerateGroupResponse& last = chunks.back();
  last.set_done(true);
  last.set_finish_reason(result.reason == generator::FinishReason::kStop
                             ? type::v1::FINISH_REASON_STOP
                             : type::v1::FINISH_REASON_LENGTH);
  type::v1::VersionSpan* span = last.add_spans();
  span->set_version(version);
  span->set_num_tokens(static_cast<uint32_t>(result.tokens.size()));
  last.set_sequences_running_max(result.sequences_running_max);
  last.set_batch_fingerprint(result.batch_fingerprint);
  return chunks;
}

GeneratorService::GeneratorService(const config::v1::GeneratorConfig& config,
                                   std::unique_ptr<weightstore::LeaderPort> leader,
                                   rpc::DaemonContext& context,
                                   std::shared_ptr<transport::RmaDomain> rma)
    : config_(config),
      context_(context),
      leader_(std::move(leader)),
      host_(config, *leader_, context, std::move(rma)),
      contract_(ProcessContract(host_.pool(), /*training=*/false)),
      keep_timer_(context.control),
      tokens_(context.metrics.AddCounter("titan_generator_tokens_total",
                                         "Reply tokens of finished samples")),
      samples_(context.metrics.AddCounter("titan_generator_samples_total", "Finished samples")),
      groups_(context.metrics.AddCounter("titan_generator_groups_total", "Groups accepted")),
      versions_(context.metrics.AddGauge("titan_generator_versions_held_count",
                                         "Weight versions held now")) {}

asio::awaitable<Status> GeneratorService::Start() {
  rpc::WorkerAgent::Options options;
  options.orchestrator_address = config_.orchestrator_address();
  *options.registration.mutable_contract() = contract_;
  options.registration.set_max_versions(config_.max_versions());
  options.registration.set_max_running_sequences(config_.max_running_sequences());
  options.on_registered = [this](uint64_t epoch) { epoch_ = std::max(epoch_, epoch); };
  TITAN_CO_ASSIGN_OR_RETURN(agent_, rpc::WorkerAgent::Create(context_, std::move(options)));
  agent_->Start();
  asio::co_spawn(context_.control, KeepHeld(), asio::detached);
  co_return OkStatus();
}

void GeneratorService::OnHeld() {
  versions_.Set(static_cast<double>(host_.held().size()));
  if (watch_ == nullptr) return;
  std::set<std::string> runs;
  for (const auto& [key, held] : host_.held()) {
    // Slots for evaluation are never retired, and what was pulled keeps no slot.
    if (!key.evaluation && held.slot->mapped()) runs.insert(key.run_id);
  }
  watch_->Follow(runs);
}

void GeneratorService::OnChange(const std::string& run_id, std::optional<uint64_t> version,
                                weightstore::VersionWatch::Change change) {
  if (change == weightstore::VersionWatch::Change::kMoved) return host_.OnMoved(run_id, version);
  const VersionKey key{.run_id = run_id, .version = *version, .evaluation = false};
  if (!host_.held().contains(key)) return;
  TITAN_LOG(kInfo, "version_wanted_back", {"run", run_id}, {"version", *version});
  ReleaseLater(key);
}

asio::awaitable<void> GeneratorService::KeepHeld() {
  while (!draining_) {
    keep_timer_.expires_after(kKeepPeriod);
    boost::system::error_code woken;
    co_await keep_timer_.async_wait(asio::redirect_error(asio::use_awaitable, woken));
    if (draining_) break;
    const std::vector<VersionKey> unwanted = co_await host_.RenewOrphans();
    for (const VersionKey& key : unwanted) ReleaseLater(key);
  }
}

void GeneratorService::ReleaseLater(const VersionKey& key) {
  const auto release = [this, key]() -> asio::awaitable<void> {
    const Status released = co_await host_.Release(key);
    if (!released.ok()) TITAN_LOG(kWarning, "version_not_released", {"status", released});
    OnHeld();
  };
  asio::co_spawn(context_.control, release, asio::detached);
}

asio::awaitable<void> GeneratorService::Drain() {
  draining_ = true;
  keep_timer_.cancel();
  watch_.reset();
  if (agent_ != nullptr) co_await agent_->Stop();
  host_.Stop();
}

Status GeneratorService::CheckEpoch(uint64_t epoch) {
  if (epoch < epoch_) {
    return rpc::WithReason(Aborted("orchestrator_epoch " + std::to_string(epoch) +
                                   " is superseded by " + std::to_string(epoch_)),
                           "EPOCH_SUPERSEDED",
                           "another orchestrator has taken over; stop this one");
  }
  epoch_ = epoch;
  return OkStatus();
}

grpc::ServerUnaryReactor* GeneratorService::LoadVersion(grpc::CallbackServerContext* context,
                                                        const v1::LoadVersionRequest* request,
                                                        v1::LoadVersionResponse* response) {
  return rpc::ServeUnary(
      context_.server, context, request, response,
      [this](v1::LoadVersionRequest message) -> asio::awaitable<StatusOr<v1::LoadVersionResponse>> {
        TITAN_CO_RETURN_IF_ERROR(CheckEpoch(message.orchestrator_epoch()));
        TITAN_CO_ASSIGN_OR_RETURN(const VersionKey key, KeyOf(message));
        const Instant start = context_.clock.Now();
        v1::LoadVersionResponse reply;
        TITAN_CO_ASSIGN_OR_RETURN(*reply.mutable_weights_digest(), co_await host_.Load(key));
        reply.set_seconds(Seconds(context_.clock.Now() - start));
        OnHeld();
        co_return reply;
      });
}

grpc::ServerUnaryReactor* GeneratorService::ReleaseVersion(grpc::CallbackServerContext* context,
                                                           const v1::ReleaseVersionRequest* request,
                                                           v1::ReleaseVersionResponse* response) {
  return rpc::ServeUnary(context_.server, context, request, response,
                         [this](v1::ReleaseVersionRequest message)
                             -> asio::awaitable<StatusOr<v1::ReleaseVersionResponse>> {
                           TITAN_CO_RETURN_IF_ERROR(CheckEpoch(message.orchestrator_epoch()));
                           TITAN_CO_ASSIGN_OR_RETURN(const VersionKey key, KeyOf(message));
                           TITAN_CO_RETURN_IF_ERROR(co_await host_.Release(key));
                           OnHeld();
                           co_return v1::ReleaseVersionResponse();
                         });
}

void GeneratorService::Generate(const v1::GenerateGroupRequest& request,
                                std::shared_ptr<Stream> stream) {
  if (const Status epoch = CheckEpoch(request.orchestrator_epoch()); !epoch.ok()) {
    stream->Finish(epoch);
    return;
  }
  auto group = ParseGroupRequest(request);
  if (!group.ok()) {
    stream->Finish(group.status());
    return;
  }
  const auto engine = host_.engine();
  if (!engine.ok()) {
    stream->Finish(engine.status());
    return;
  }
  groups_.Add();
  const PolicyVersion version = group->version.version;
  generator::EngineThread::Listener listener;
  listener.on_sample = [this, stream, version](generator::SampleResult result) {
    tokens_.Add(static_cast<double>(result.tokens.size()));
    samples_.Add();
    for (auto& chunk : ToResponses(result, version)) {
      if (!stream->Push(std::move(chunk)).ok()) return;  // the peer has gone: OnCancel cleans up
    }
  };
  listener.on_end = [stream](Status status) { stream->Finish(status); };
  generator::EngineThread* thread = *engine;
  const auto ticket = thread->Submit(*std::move(group), std::move(listener));
  stream->OnCancel([this, ticket] {
    if (const auto running = host_.engine(); running.ok()) (*running)->Cancel(ticket);
  });
}

grpc::ServerWriteReactor<v1::GenerateGroupResponse>* GeneratorService::GenerateGroup(
    grpc::CallbackServerContext* context, const v1::GenerateGroupRequest* request) {
  // Every chunk of a group may wait: 64 Ki samples is the cap of a request.
  constexpr size_t kMaxQueued = 1 << 17;
  return rpc::ServeStreamThen<v1::GenerateGroupRequest, v1::GenerateGroupResponse>(
      context_.server, context, request, kMaxQueued,
      [this](const v1::GenerateGroupRequest& message, std::shared_ptr<Stream> stream) {
        Generate(message, std::move(stream));
      });
}

grpc::ServerUnaryReactor* GeneratorService::GetStatus(grpc::CallbackServerContext* context,
                                                      const v1::GetStatusRequest* request,
                                                      v1::GetStatusResponse* response) {
  return rpc::ServeUnary(
      context_.server, context, request, response,
      [this](v1::GetStatusRequest) -> asio::awaitable<StatusOr<v1::GetStatusResponse>> {
        v1::GetStatusResponse reply;
        const auto add = [&reply](const generator::VersionKey& key, const std::string& digest) {
          v1::HeldVersion* version = reply.add_versions();
          version->set_run_id(key.run_id);
          version->set_version(key.version);
          version->set_evaluation(key.evaluation);
          version->set_weights_digest(digest);
        };
        for (const auto& [key, held] : host_.held()) add(key, held.digest);
        for (const auto& key : host_.loading()) add(key, "");
        const auto stats = host_.stats();
        reply.set_sequences_running(static_cast<uint32_t>(stats.running));
        reply.set_groups_queued(static_cast<uint32_t>(stats.queued));
        reply.set_tokens_generated(stats.tokens_generated);
        reply.set_sequences_running_max(static_cast<uint32_t>(stats.running_max));
        v1::EngineMemory& memory = *reply.mutable_memory();
        memory.set_kv_cache_bytes(config_.kv_cache_bytes());
        memory.set_max_batch_tokens(config_.max_batch_tokens());
        memory.set_max_running_sequences(config_.max_running_sequences());
        memory.set_taken_bytes(host_.engine_bytes());
        co_return reply;
      });
}

}  // namespace titan::services
