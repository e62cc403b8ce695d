// SPDX-License-Identifier: Apache-2.0
#include "services/generator/model_host.h"

#include <algorithm>
#include <utility>

#include <boost/asio/steady_timer.hpp>

#include "core/base/check.h"
#include "core/formats/model_config.h"
#include "core/runtime/co_status.h"
#include "core/runtime/log.h"
#include "core/runtime/machine.h"
#include "services/contract/contract.h"
#include "weightstore/client/reason.h"

namespace titan::services {

namespace asio = boost::asio;
using generator::Engine;
using generator::VersionKey;

namespace {

constexpr auto kModelRetry = std::chrono::milliseconds(20);
constexpr auto kTurnRetry = std::chrono::milliseconds(20);
constexpr int kTurnTries = 3000;  // 60 s; another process may stand still with it
constexpr auto kReleaseRetry = std::chrono::milliseconds(20);
constexpr int kReleaseTries = 500;  // 10 s
// Of a pull, which receives, hashes and verifies while others generate.
constexpr int kMaxPullThreads = 4;

std::unique_ptr<weightstore::lanes::Puller> MakePuller(const config::v1::GeneratorConfig& config,
                                                       std::shared_ptr<transport::RmaDomain> rma,
                                                       PullMetrics& metrics) {
  weightstore::lanes::PullerOptions options;
  const int threads =
      std::clamp(static_cast<int>(config.kernels().threads()) / 2, 1, kMaxPullThreads);
  options.rma = std::move(rma);
  options.require_rdma = config.require_rdma();
  options.tcp.threads = std::min(threads, options.tcp.streams);
  options.hash_threads = threads;
  options.report = [&metrics](const auto& report) { metrics.Count(report); };
  options.memory = [&metrics](double num_bytes) { metrics.AddMemory(num_bytes); };
  auto puller = weightstore::lanes::Puller::Create(std::move(options));
  TITAN_CHECK(puller.ok());
  return *std::move(puller);
}

// ResourceExhausted: the parts, which settings make them, and what is free.
Status CheckMemory(const Engine::Memory& needed, uint64_t available) {
  if (static_cast<uint64_t>(needed.total()) <= available) return OkStatus();
  struct Part {
    const char* name;
    int64_t bytes;
    const char* setting;
  };
  const Part parts[] = {
      {"cache", needed.cache, "kv_cache_bytes in the generator's config"},
      {"activations", needed.activations, "max_batch_tokens in the generator's config"},
      {"logits", needed.logits, "max_running_sequences in the generator's config"},
      {"rotary tables", needed.rope, "max_position_embeddings in the model's config"},
      {"further pulled versions", needed.weights, "max_versions in the generator's config"}};
  const Part* largest = parts;
  std::string list;
  for (const Part& part : parts) {
    if (part.bytes > largest->bytes) largest = &part;
    if (part.bytes >> 20 == 0) continue;
    list += (list.empty() ? "" : ", ") + std::string(part.name) + " " +
            std::to_string(part.bytes >> 20);
  }
  return ResourceExhausted("serving this model needs " + std::to_string(needed.total() >> 20) +
                           " MiB (" + list + "), " + std::to_string(available >> 20) +
                           " MiB are free; lower " + largest->setting);
}

}  // namespace

ModelHost::ModelHost(const config::v1::GeneratorConfig& config, weightstore::LeaderPort& leader,
                     rpc::DaemonContext& context, std::shared_ptr<transport::RmaDomain> rma,
                     FreeMemory free_memory)
    : config_(config),
      context_(context),
      free_memory_(std::move(free_memory)),
      pull_metrics_(context.metrics),
      puller_(MakePuller(config, std::move(rma), pull_metrics_)),
      subscriber_(leader, config.weightstore_socket(), *puller_, config.daemon().worker_id()),
      pool_(std::make_unique<kernels::Pool>(static_cast<int>(config.kernels().threads()))) {
  std::vector<weightstore::Lane> lanes = puller_->lanes();
  if (!config.weightstore_socket().empty()) lanes.insert(lanes.begin(), weightstore::Lane::kMap);
  std::string names;
  for (const weightstore::Lane lane : lanes) {
    names += (names.empty() ? "" : ", else ") + std::string(weightstore::NameOf(lane));
  }
  pull_metrics_.Use(lanes.front());
  TITAN_LOG(kInfo, "weights_lane", {"lane", names});
}

ModelHost::~ModelHost() { Stop(); }

void ModelHost::Stop() {
  stopped_ = true;
  puller_->Cancel();
  subscriber_.Cancel();
  model_.engine.reset();
  held_.clear();
}

bool ModelHost::Serves(const weightstore::Manifest& manifest) const {
  return model_.engine != nullptr && manifest.model_config_json == model_.config_json &&
         manifest.numerics_mode == model_.numerics_mode;
}

StatusOr<ModelHost::Model> ModelHost::MakeModel(const weightstore::HeldVersion& version) const {
  const weightstore::Manifest& manifest = version.manifest();
  TITAN_ASSIGN_OR_RETURN(const formats::ModelConfig config,
                         formats::ParseHfConfig(manifest.model_config_json, "manifest"));
  const auto mode = model::ModeFromName(manifest.numerics_mode);
  if (!mode.ok()) return FailedPrecondition("manifest: " + MessageOf(mode.status()));
  // Before the rotary tables are made, which are part of what is needed.
  const auto available = free_memory_();  // a system that does not say is tried
  Model made;
  TITAN_ASSIGN_OR_RETURN(made.decoder, model::Decoder::Create(config, /*max_positions=*/0, *mode));
  const auto slot_bytes = static_cast<uint64_t>(made.decoder->table().slot_bytes());
  if (slot_bytes != manifest.slot_bytes) {
    return FailedPrecondition("the manifest's slot has " + std::to_string(manifest.slot_bytes) +
                              " bytes, this program's layout of the model " +
                              std::to_string(slot_bytes) +
                              ": trainer and generator are of different versions");
  }
  Engine::Limits limits;
  limits.max_running = static_cast<int>(config_.max_running_sequences());
  limits.max_batch_rows = static_cast<int>(config_.max_batch_tokens());
  limits.kv_cache_bytes = static_cast<int64_t>(config_.kv_cache_bytes());
  limits.max_queued_groups = static_cast<int>(config_.max_queued_groups());
  // Of pulled versions this one is there already.
  const int own_versions = version.mapped() ? 0 : static_cast<int>(config_.max_versions()) - 1;
  const Engine::Memory needed = Engine::MemoryNeeded(*made.decoder, limits, own_versions);
  if (available.ok()) TITAN_RETURN_IF_ERROR(CheckMemory(needed, *available));
  TITAN_RETURN_IF_ERROR(CheckRunContract(*pool_, config, *mode, manifest));
  TITAN_ASSIGN_OR_RETURN(auto engine, Engine::Create(*made.decoder, *pool_, limits));
  made.engine_bytes = static_cast<uint64_t>(needed.total() - needed.weights);
  made.engine = std::make_unique<generator::EngineThread>(std::move(engine));
  made.config_json = manifest.model_config_json;
  made.numerics_mode = manifest.numerics_mode;
  return made;
}

asio::awaitable<std::optional<runtime::MemoryTurn>> ModelHost::AwaitMemoryTurn() {
  asio::steady_timer timer(context_.control);
  std::optional<runtime::MemoryTurn> turn = runtime::MemoryTurn::Try();
  for (int tries = 0; !turn.has_value() && !stopped_ && tries < kTurnTries; ++tries) {
    timer.expires_after(kTurnRetry);
    co_await timer.async_wait(asio::use_awaitable);
    turn = runtime::MemoryTurn::Try();
  }
  if (!turn.has_value() && !stopped_) {
    TITAN_LOG(kWarning, "memory_turn_missed",
              {"because", "another process of this machine has it for a minute"},
              {"means", "what is free is looked at while that may take some of it"});
  }
  co_return turn;
}

asio::awaitable<Status> ModelHost::ServeModelOf(std::shared_ptr<weightstore::HeldVersion> slot) {
  asio::steady_timer timer(context_.control);
  while (making_model_) {  // of another version: the run's evaluation at its start
    timer.expires_after(kModelRetry);
    co_await timer.async_wait(asio::use_awaitable);
  }
  if (stopped_) co_return Cancelled("the generator is shutting down");
  if (Serves(slot->manifest())) co_return OkStatus();
  if (!held_.empty()) {
    co_return FailedPrecondition("this generator holds versions of another model or mode (" +
                                 ToString(held_.begin()->first) + "); release them first");
  }
  making_model_ = true;
  model_.engine.reset();  // before its decoder
  model_ = {};
  std::optional<runtime::MemoryTurn> turn = co_await AwaitMemoryTurn();
  if (stopped_) {
    making_model_ = false;
    co_return Cancelled("the generator is shutting down");
  }
  const auto make = [this, slot] { return MakeModel(*slot); };
  auto made = co_await context_.blocking.Run(make);
  turn.reset();
  making_model_ = false;
  if (!made.ok()) co_return made.status();
  if (stopped_) co_return Cancelled("the generator is shutting down");
  model_ = *std::move(made);
  co_return OkStatus();
}

asio::awaitable<Status> ModelHost::OnEngine(std::function<Status(Engine&)> f) {
  if (stopped_ || model_.engine == nullptr) co_return Cancelled("the generator is shutting down");
  auto executor = context_.control;
  auto start = [this, executor](auto handler, std::function<Status(Engine&)> work) {
    auto shared = std::make_shared<decltype(handler)>(std::move(handler));
    model_.engine->Do([shared, executor, work = std::move(work)](Engine& engine) {
      asio::post(executor, [shared, status = std::make_shared<Status>(work(engine))]() mutable {
        (*shared)(std::move(status));
      });
    });
  };
  auto status =
      co_await asio::async_initiate<decltype(asio::use_awaitable), void(std::shared_ptr<Status>)>(
          std::move(start), asio::use_awaitable, std::move(f));
  co_return *status;
}

asio::awaitable<StatusOr<std::shared_ptr<weightstore::HeldVersion>>> ModelHost::Acquire(
    VersionKey key) {
  const auto acquire = [this, key] {
    return subscriber_.Acquire(key.run_id, key.version, key.evaluation);
  };
  auto acquired = co_await context_.blocking.Run(acquire);
  if (!acquired.ok()) co_return acquired.status();
  if (stopped_) co_return Cancelled("the generator is shutting down");
  auto slot = std::make_shared<weightstore::HeldVersion>(*std::move(acquired));
  const Status served = co_await ServeModelOf(slot);
  if (!served.ok()) co_return served;
  co_return slot;
}

asio::awaitable<StatusOr<std::string>> ModelHost::Load(VersionKey key) {
  if (stopped_) co_return Cancelled("the generator is shutting down");
  if (const auto it = held_.find(key); it != held_.end()) {
    const std::string digest = it->second.digest;
    // Named, here and below: g++ 12 destroys a temporary closure inside a co_await expression
    // twice.
    const std::function<Status(Engine&)> look = [key](Engine& engine) {
      return engine.Holds(key) ? OkStatus() : NotFound("dropped by the engine");
    };
    const Status alive = co_await OnEngine(look);
    if (alive.ok()) co_return digest;
    if (alive.code() == StatusCode::kCancelled) co_return alive;
    held_.erase(key);  // its slot was taken back: take it anew
  }
  if (loading_.contains(key)) {
    co_return Unavailable("version " + ToString(key) + " is being loaded; ask again");
  }
  if (held_.size() + loading_.size() >= config_.max_versions()) {
    std::string names;
    for (const auto& [held, unused] : held_) names += (names.empty() ? "" : ", ") + ToString(held);
    co_return ResourceExhausted("max_versions (" + std::to_string(config_.max_versions()) +
                                ") are held: " + names);
  }
  loading_.insert(key);
  auto acquired = co_await Acquire(key);
  loading_.erase(key);
  if (!acquired.ok()) {
    TITAN_LOG(kWarning, "version_not_loaded", {"run", key.run_id}, {"version", key.version},
              {"evaluation", key.evaluation}, {"status", acquired.status()});
    co_return Annotate(acquired.status(), "version " + ToString(key));
  }
  const std::shared_ptr<weightstore::HeldVersion> slot = *std::move(acquired);
  const std::string digest = ToHex(slot->lease().digest);
  held_[key] = {.digest = digest, .slot = slot};
  const std::function<Status(Engine&)> add = [key, slot](Engine& engine) {
    return engine.AddVersion(key, slot->bytes().data(), [slot] { return slot->HeaderUnchanged(); });
  };
  const Status added = co_await OnEngine(add);
  if (!added.ok()) {
    held_.erase(key);
    co_return added;
  }
  const weightstore::Lane lane =
      slot->mapped() ? weightstore::Lane::kMap : pull_metrics_.last_lane();
  pull_metrics_.Use(lane);
  TITAN_LOG(kInfo, "version_loaded", {"run", key.run_id}, {"version", key.version},
            {"evaluation", key.evaluation}, {"digest", digest},
            {"lane", weightstore::NameOf(lane)});
  co_return digest;
}

asio::awaitable<Status> ModelHost::Release(VersionKey key) {
  if (loading_.contains(key)) {
    co_return Unavailable("version " + ToString(key) + " is being loaded; ask again");
  }
  if (!held_.contains(key)) co_return OkStatus();
  for (int i = 0;; ++i) {
    const std::function<Status(Engine&)> remove = [key](Engine& engine) {
      return engine.RemoveVersion(key);
    };
    const Status removed = co_await OnEngine(remove);
    if (removed.code() != StatusCode::kFailedPrecondition) break;  // gone, or was dropped already
    if (i == kReleaseTries) co_return DeadlineExceeded(MessageOf(removed));
    asio::steady_timer timer(context_.control, kReleaseRetry);
    co_await timer.async_wait(asio::use_awaitable);
  }
  const auto it = held_.find(key);
  if (it == held_.end()) co_return OkStatus();  // another call released it meanwhile
  auto slot = std::move(it->second.slot);
  held_.erase(it);
  if (!slot->mapped()) co_return OkStatus();  // its lease has ended long ago
  while (renewing_.contains(key)) {
    asio::steady_timer timer(context_.control, kReleaseRetry);
    co_await timer.async_wait(asio::use_awaitable);
  }
  const auto release = [this, slot] { return subscriber_.Release(std::move(*slot)); };
  const Status told = co_await context_.blocking.Run(release);
  if (!told.ok()) TITAN_LOG(kWarning, "lease_release_not_heard", {"status", told});
  co_return OkStatus();
}

asio::awaitable<std::vector<VersionKey>> ModelHost::RenewOrphans() {
  std::vector<VersionKey> orphans, unwanted;
  for (const auto& [key, held] : held_) {
    if (!key.evaluation && !held.settled && held.slot->orphaned()) orphans.push_back(key);
  }
  for (const VersionKey& key : orphans) {
    const auto it = held_.find(key);
    if (stopped_ || it == held_.end() || renewing_.contains(key)) continue;
    renewing_.insert(key);
    it->second.settled = true;  // taken back by what OnMoved hears from here on
    const auto slot = it->second.slot;
    const auto renew = [this, slot] { return subscriber_.Renew(*slot); };
    const Status renewed = co_await context_.blocking.Run(renew);
    renewing_.erase(key);
    if (stopped_) co_return std::vector<VersionKey>();
    const bool elsewhere = weightstore::ReasonOf(renewed) == weightstore::kServedElsewhere;
    // Another slot: it was loaded anew meanwhile.
    const auto now = held_.find(key);
    const bool same = now != held_.end() && now->second.slot == slot;
    if (same && !elsewhere) now->second.settled = false;
    if (renewed.ok()) {
      TITAN_LOG(kInfo, "version_kept", {"run", key.run_id}, {"version", key.version});
    } else if (elsewhere) {
      TITAN_LOG(kInfo, "version_kept_alone", {"run", key.run_id}, {"version", key.version},
                {"status", renewed});
    } else if (!weightstore::Subscriber::MayRenewLater(renewed)) {
      TITAN_LOG(kWarning, "version_not_kept", {"run", key.run_id}, {"version", key.version},
                {"status", renewed});
      if (same) unwanted.push_back(key);
    }
  }
  co_return unwanted;
}

void ModelHost::OnMoved(const std::string& run_id, std::optional<uint64_t> version) {
  for (auto& [key, held] : held_) {
    if (key.run_id == run_id && (!version.has_value() || key.version == *version)) {
      held.settled = false;
    }
  }
}

StatusOr<generator::EngineThread*> ModelHost::engine() {
  if (model_.engine == nullptr) return FailedPrecondition("no version is held; load one first");
  return model_.engine.get();
}

generator::EngineThread::Stats ModelHost::stats() const {
  return model_.engine == nullptr ? generator::EngineThread::Stats{} : model_.engine->stats();
}

}  // namespace titan::services
