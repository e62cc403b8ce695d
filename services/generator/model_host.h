// SPDX-License-Identifier: Apache-2.0
//
// The model that this generator serves: decoder, engine and the versions that it holds. The model
// is that of the first version loaded (its config and numerics mode stand in the version's
// manifest); another model or mode is accepted once no version is held.
//
// Everything on the control strand; blocking calls go to the blocking pool, the engine has its
// thread.
#ifndef TITAN_SERVICES_GENERATOR_MODEL_HOST_H_
#define TITAN_SERVICES_GENERATOR_MODEL_HOST_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/kernels/pool.h"
#include "core/model/decoder.h"
#include "core/runtime/machine.h"
#include "generator/engine_thread.h"
#include "services/generator/pull_metrics.h"
#include "services/rpc/daemon.h"
#include "titan/config/v1/daemons.pb.h"
#include "weightstore/client/held_version.h"
#include "weightstore/client/subscriber.h"
#include "weightstore/transport/puller.h"

namespace titan::services {

class ModelHost {
 public:
  struct Held {
    std::string digest;  // 32 hex digits
    std::shared_ptr<weightstore::HeldVersion> slot;
    bool settled = false;  // an orphan that RenewOrphans need not ask for
  };

  // The bytes of memory that are free; an error: not known. Called by the blocking pool.
  using FreeMemory = std::function<StatusOr<uint64_t>()>;
  // leader and context must outlive the host. rma: by which it pulls where the store's host has it;
  // null: pulls go over TCP.
  ModelHost(const config::v1::GeneratorConfig& config, weightstore::LeaderPort& leader,
            rpc::DaemonContext& context, std::shared_ptr<transport::RmaDomain> rma = nullptr,
            FreeMemory free_memory = runtime::AvailableMemory);
  ~ModelHost();

  // Takes a version, mapped or pulled, and hands it to the engine; answers its digest. Idempotent.
  // ResourceExhausted: no place (names what is held), or the model does not fit into memory (with
  // the numbers, and what to lower). FailedPrecondition: another model or contract. Cancelled:
  // after Stop. Codes of Subscriber::Acquire.
  rpc::asio::awaitable<StatusOr<std::string>> Load(generator::VersionKey key);
  // Gives a version back; waits for samples that use it, DeadlineExceeded if they do not end.
  // Unavailable: it is being loaded.
  rpc::asio::awaitable<Status> Release(generator::VersionKey key);
  // Ties mapped versions whose store daemon is gone to the one that is there now; the engine runs
  // on meanwhile. Answers those that nobody wants any more: to be released. What is mapped for
  // evaluation is the reader's alone then, and stays as it is; so does what another host has, until
  // OnMoved.
  rpc::asio::awaitable<std::vector<generator::VersionKey>> RenewOrphans();
  // The store has lost, made or freed that version, or ended the run: if it is held, RenewOrphans
  // asks for it again, and finds out whether anybody wants it.
  void OnMoved(const std::string& run_id, std::optional<uint64_t> version);

  // FailedPrecondition before a version is held.
  StatusOr<generator::EngineThread*> engine();
  // For work before the engine exists (the contract's canned vectors).
  kernels::Pool& pool() { return *pool_; }
  const std::map<generator::VersionKey, Held>& held() const { return held_; }
  const std::set<generator::VersionKey>& loading() const { return loading_; }
  generator::EngineThread::Stats stats() const;
  // What the model that is served has taken of this machine's memory, without weights.
  uint64_t engine_bytes() const { return model_.engine_bytes; }
  // Ends every request; nothing may be loaded afterwards.
  void Stop();

 private:
  struct Model {
    std::string config_json;
    std::string numerics_mode;
    uint64_t engine_bytes = 0;
    std::unique_ptr<const model::Decoder> decoder;
    std::unique_ptr<generator::EngineThread> engine;  // must end before its decoder
  };

  bool Serves(const weightstore::Manifest& manifest) const;
  // Decoder, contract and engine; takes seconds, hence on the blocking pool. REQUIRES: the turn to
  // take memory, until it returns; what it looks at as free it has then taken.
  StatusOr<Model> MakeModel(const weightstore::HeldVersion& version) const;
  // The version, and the model that runs it.
  rpc::asio::awaitable<StatusOr<std::shared_ptr<weightstore::HeldVersion>>> Acquire(
      generator::VersionKey key);
  // nullopt: somebody keeps it too long, or the host is stopped.
  rpc::asio::awaitable<std::optional<runtime::MemoryTurn>> AwaitMemoryTurn();
  // Makes the version's model the one that is served; waits for another call that is at it.
  rpc::asio::awaitable<Status> ServeModelOf(std::shared_ptr<weightstore::HeldVersion> slot);
  // Cancelled: the host is stopped, or the engine has gone.
  rpc::asio::awaitable<Status> OnEngine(std::function<Status(generator::Engine&)> f);

  const config::v1::GeneratorConfig config_;
  rpc::DaemonContext& context_;
  const FreeMemory free_memory_;
  PullMetrics pull_metrics_;
  const std::unique_ptr<weightstore::lanes::Puller> puller_;  // of what this host does not have
  weightstore::Subscriber subscriber_;
  std::unique_ptr<kernels::Pool> pool_;
  Model model_;
  bool making_model_ = false;
  std::map<generator::VersionKey, Held> held_;
  std::set<generator::VersionKey> loading_;
  std::set<generator::VersionKey> renewing_;
  bool stopped_ = false;
};

}  // namespace titan::services

#endif  // TITAN_SERVICES_GENERATOR_MODEL_HOST_H_
