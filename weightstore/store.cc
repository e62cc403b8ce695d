// SPDX-License-Identifier: Apache-2.0
#include "weightstore/store.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/check.h"
#include "weightstore/client/reason.h"
#include "weightstore/client/weights_digest.h"

namespace titan::weightstore {
namespace {

// A waiting BeginVersion looks for leases that ran out at least this often.
constexpr std::chrono::milliseconds kExpiryPeriod{100};

class Stopwatch {
 public:
  double Seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

Status ShutDown() { return Unavailable("the weight store is shutting down"); }

}  // namespace

Store::Store(storage::KeyValueStore& index_store, StoreOptions options)
    : options_(std::move(options)),
      index_(index_store),
      state_(options_.first_number, options_.lease_ttl_ms, options_.reader_patience_ms),
      maker_(options_.make_slot
                 ? options_.make_slot
                 : [](const SlotRequest& slot, const SlotMemory::Wanted& wanted) {
                     return SlotMemory::Create(slot.slot_id, slot.num_bytes, slot.writer, wanted);
                   },
             [this](const SlotRequest& request, SlotMaker::Made made) {
               TakeSlot(request, std::move(made));
             }) {
  stats_.memory_limit_bytes = options_.memory_limit_bytes;
}

Store::~Store() = default;

StatusOr<std::unique_ptr<Store>> Store::Open(storage::KeyValueStore& index_store,
                                             StoreOptions options) {
  TITAN_CHECK(options.threads >= 1 && options.unix_ms && options.monotonic_ms);
  std::unique_ptr<Store> store(new Store(index_store, std::move(options)));
  TITAN_RETURN_IF_ERROR(store->index_.Restore(store->state_));
  return store;
}

void Store::Shutdown() {
  std::lock_guard lock(mutex_);
  shut_down_ = true;
  maker_.Stop();
  changed_.notify_all();
  if (options_.on_change) options_.on_change();
}

void Store::Settle() {
  Effects effects = state_.TakeEffects();
  for (const SlotHeaderFields& header : effects.headers) {
    const auto memory = memories_.find(header.slot_id);
    if (memory != memories_.end()) memory->second->WriteHeader(header);
  }
  for (const uint64_t slot_id : effects.dropped_slots) {
    memories_.erase(slot_id);
    if (bytes_to_make_.erase(slot_id) > 0) maker_.Forget(slot_id);
  }
  if (effects.versions_changed && options_.on_change) options_.on_change();
  // Whoever waits for a slot that was dropped learns why.
  if (effects.slots_freed || !effects.dropped_slots.empty()) changed_.notify_all();
}

void Store::Expire() {
  state_.ExpireLeases(options_.monotonic_ms());
  Settle();
}

// --------------------------------------------------------------------------------------- trainers

Status Store::CheckMemory(const std::string& run_id,
                          const StoreState::RegistrationPlan& plan) const {
  uint64_t in_use = 0;
  for (const auto& [slot_id, memory] : memories_) in_use += memory->num_bytes();
  for (const auto& [slot_id, num_bytes] : bytes_to_make_) in_use += num_bytes;
  const uint64_t kept = in_use - plan.num_dropped * plan.slot_bytes;
  const uint64_t num_new = plan.ring_slots + (plan.evaluation_slot ? 1 : 0);
  const uint64_t limit = options_.memory_limit_bytes;
  if (kept <= limit && plan.slot_bytes <= (limit - kept) / num_new) return OkStatus();
  return WithReason(
      ResourceExhausted("run " + run_id + " needs " + std::to_string(num_new) + " slots of " +
                        std::to_string(plan.slot_bytes) + " bytes beside " + std::to_string(kept) +
                        " bytes of slots in use; memory_limit_bytes is " + std::to_string(limit) +
                        ": raise it, or lower the schedule's max age or the model's size"),
      kMemoryLimit);
}

StatusOr<Registration> Store::Enroll(const std::string& request_id, const std::string& run_id,
                                     const Manifest& manifest, uint32_t max_age) {
  StoreState::RegistrationPlan plan;
  {
    std::lock_guard lock(mutex_);
    if (shut_down_) return ShutDown();
    Expire();
    TITAN_ASSIGN_OR_RETURN(plan, state_.PlanRegistration(run_id, manifest, max_age));
    TITAN_RETURN_IF_ERROR(CheckMemory(run_id, plan));
  }
  TITAN_RETURN_IF_ERROR(index_.PutRun(run_id, plan.record));
  const Registration registration = {plan.record.trainer_epoch, plan.ring_slots};
  last_registration_[run_id] = {request_id, registration};
  std::lock_guard lock(mutex_);
  const auto slots = state_.ApplyRegistration(run_id, plan);
  Settle();
  for (uint32_t i = 0; i < slots.size(); ++i) {
    bytes_to_make_[slots[i].slot_id] = plan.slot_bytes;
    maker_.Add(
        {.slot_id = slots[i].slot_id,
         .num_bytes = plan.slot_bytes,
         .writer = slots[i].evaluation ? SlotMemory::Writer::kDaemon : SlotMemory::Writer::kClient,
         .order = i});
  }
  return registration;
}

StatusOr<Registration> Store::RegisterTrainer(const std::string& request_id,
                                              const std::string& run_id, const Manifest& manifest,
                                              uint32_t max_age) {
  Registration registration;
  {
    std::lock_guard registry(registry_mutex_);
    const auto last = last_registration_.find(run_id);
    if (!request_id.empty() && last != last_registration_.end() &&
        last->second.first == request_id) {
      registration = last->second.second;
    } else {
      TITAN_ASSIGN_OR_RETURN(registration, Enroll(request_id, run_id, manifest, max_age));
    }
  }
  const Status first = WaitForFirstSlot(run_id, registration.epoch);
  if (first.ok()) return registration;
  std::lock_guard registry(registry_mutex_);
  const auto last = last_registration_.find(run_id);
  if (last != last_registration_.end() && last->second.second.epoch == registration.epoch) {
    last_registration_.erase(last);  // a retry tries anew
  }
  return first;
}

Status Store::WaitForFirstSlot(const std::string& run_id, uint64_t epoch) {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (shut_down_) return ShutDown();
    TITAN_ASSIGN_OR_RETURN(const bool made, state_.HasSlot(run_id, epoch));
    if (made) return OkStatus();
    changed_.wait(lock);
  }
}

void Store::TakeSlot(const SlotRequest& request, SlotMaker::Made made) {
  std::lock_guard lock(mutex_);
  stats_.seconds.make_slot += request.seconds;
  bytes_to_make_.erase(request.slot_id);
  if (!made.ok()) {
    state_.SlotNotMade(request.slot_id, made.status());
  } else if (state_.SlotMade(request.slot_id)) {
    memories_[request.slot_id] = *std::move(made);
  }
  Settle();
}

// --------------------------------------------------------------------------------------- versions

StatusOr<Store::BeginTry> Store::TryBeginVersion(const std::string& run_id, uint64_t epoch,
                                                 uint64_t version) {
  std::lock_guard lock(mutex_);
  if (shut_down_) return ShutDown();
  Expire();
  TITAN_ASSIGN_OR_RETURN(StoreState::BeginOutcome outcome,
                         state_.BeginVersion(run_id, epoch, version, options_.monotonic_ms()));
  Settle();
  BeginTry begun;
  begun.blockers = std::move(outcome.blockers);
  switch (outcome.kind) {
    case StoreState::BeginOutcome::Kind::kOpened:
      begun.result = BeginResult{outcome.grant, std::nullopt};
      break;
    case StoreState::BeginOutcome::Kind::kRecorded:
      begun.result = BeginResult{0, outcome.digest};
      break;
    case StoreState::BeginOutcome::Kind::kBlocked:
      break;
    case StoreState::BeginOutcome::Kind::kBeingMade:
      begun.being_made = true;
      maker_.Hurry();
      break;
  }
  return begun;
}

Status Store::BeginTry::Expired(uint64_t version, std::chrono::milliseconds waited) const {
  const std::string text = "version " + std::to_string(version) + " waited " +
                           std::to_string(waited.count()) + " ms: " + blockers;
  if (being_made) return Unavailable(text);
  return WithReason(ResourceExhausted(text), kRingFull);
}

StatusOr<BeginResult> Store::BeginVersion(const std::string& run_id, uint64_t epoch,
                                          uint64_t version, std::chrono::milliseconds wait) {
  const auto deadline = std::chrono::steady_clock::now() + wait;
  bool blocked = false;
  for (;;) {
    TITAN_ASSIGN_OR_RETURN(const BeginTry begun, TryBeginVersion(run_id, epoch, version));
    if (begun.result.has_value()) return *begun.result;
    std::unique_lock lock(mutex_);
    if (!begun.being_made && !std::exchange(blocked, true)) ++stats_.begin_blocked;
    const auto now = std::chrono::steady_clock::now();
    if (now >= deadline) return begun.Expired(version, wait);
    // A change between the try and this wait costs at most one period.
    changed_.wait_until(lock, std::min(deadline, now + kExpiryPeriod));
  }
}

Status Store::PutDone(const std::string& run_id, uint64_t epoch, uint64_t version, uint64_t grant,
                      const Hash128& digest) {
  std::shared_ptr<SlotMemory> memory;
  std::shared_ptr<const Manifest> manifest;
  {
    std::lock_guard lock(mutex_);
    if (shut_down_) return ShutDown();
    TITAN_ASSIGN_OR_RETURN(const std::optional<uint64_t> slot_id,
                           state_.StartVerify(run_id, epoch, version, grant, digest));
    if (!slot_id.has_value()) return OkStatus();
    memory = memories_.at(*slot_id);
    manifest = state_.ManifestOf(run_id);
  }
  const Stopwatch watch;
  const Hash128 read = WeightsDigest(*manifest, memory->bytes(), options_.threads);
  const double seconds = watch.Seconds();
  std::lock_guard lock(mutex_);
  stats_.seconds.verify += seconds;
  const Status sealed = state_.FinishVerify(run_id, epoch, version, grant, digest, read);
  if (sealed.code() == StatusCode::kDataLoss) ++stats_.verify_failures;
  Settle();
  return sealed;
}

StatusOr<int64_t> Store::CommitVersion(const std::string& run_id, uint64_t epoch, uint64_t version,
                                       const Hash128& digest, const std::string& plan_digest,
                                       uint64_t train_step) {
  const Stopwatch watch;
  if (plan_digest.size() > 256) return InvalidArgument("plan_digest: at most 256 bytes");
  std::lock_guard registry(registry_mutex_);
  StoreState::CommitPlan plan;
  {
    std::lock_guard lock(mutex_);
    if (shut_down_) return ShutDown();
    TITAN_ASSIGN_OR_RETURN(plan, state_.PlanCommit(run_id, epoch, version, digest));
  }
  if (plan.done) return plan.recorded->committed_unix_ms;
  VersionRecord record;
  if (plan.recorded.has_value()) {
    record = *plan.recorded;
  } else {
    record = {digest, plan_digest, train_step, options_.unix_ms()};
    TITAN_RETURN_IF_ERROR(index_.PutVersion(run_id, version, record));
  }
  std::lock_guard lock(mutex_);
  state_.ApplyCommit(run_id, epoch, version, record);
  ++stats_.versions_committed;
  stats_.seconds.commit += watch.Seconds();
  Settle();
  return record.committed_unix_ms;
}

// ---------------------------------------------------------------------------------------- readers

StatusOr<Lease> Store::AcquireLease(const std::string& holder, const std::string& run_id,
                                    uint64_t version, bool evaluation) {
  std::lock_guard lock(mutex_);
  if (shut_down_) return ShutDown();
  Expire();
  TITAN_ASSIGN_OR_RETURN(
      const StoreState::LeaseGrant grant,
      state_.AcquireLease(holder, run_id, version, evaluation, options_.monotonic_ms()));
  return Lease{grant.lease_id, grant.grant, run_id, version, grant.digest, grant.manifest};
}

Status Store::ReleaseLease(uint64_t lease_id) {
  std::lock_guard lock(mutex_);
  state_.ReleaseLease(lease_id);
  Settle();
  return OkStatus();
}

Status Store::FenceReaders(const std::string& run_id, uint64_t version) {
  std::lock_guard lock(mutex_);
  const Status fenced = state_.FenceReaders(run_id, version);
  Settle();
  return fenced;
}

// ------------------------------------------------------------------------------------- evaluation

StatusOr<Hash128> Store::PinForEvaluation(const std::string& run_id, uint64_t version) {
  std::shared_ptr<SlotMemory> from, to;
  std::shared_ptr<const Manifest> manifest;
  StoreState::PinPlan plan;
  {
    std::unique_lock lock(mutex_);
    StoreState::PinOutcome outcome;
    for (;;) {
      if (shut_down_) return ShutDown();
      Expire();
      TITAN_ASSIGN_OR_RETURN(outcome, state_.PlanPin(run_id, version, options_.monotonic_ms()));
      Settle();
      if (!outcome.being_made) break;
      maker_.Hurry();
      changed_.wait(lock);
    }
    if (!outcome.copy.has_value()) return outcome.digest;
    plan = *outcome.copy;
    from = memories_.at(plan.from_slot);
    to = memories_.at(plan.to_slot);
    manifest = state_.ManifestOf(run_id);
  }
  const Stopwatch watch;
  std::memcpy(to->writable_bytes().data(), from->bytes().data(), manifest->slot_bytes);
  const Hash128 copied = WeightsDigest(*manifest, to->bytes(), options_.threads);
  std::lock_guard lock(mutex_);
  stats_.seconds.evaluation_copy += watch.Seconds();
  const bool good = copied == plan.digest;
  if (!good) ++stats_.verify_failures;
  const Status finished = state_.FinishPin(run_id, version, plan, good);
  Settle();
  if (!finished.ok()) return finished;
  return copied;
}

Status Store::UnpinEvaluation(const std::string& run_id, uint64_t version) {
  std::lock_guard lock(mutex_);
  return state_.Unpin(run_id, version);
}

// -------------------------------------------------------------------------------------- operators

StatusOr<std::vector<VersionInfo>> Store::ListVersions(const std::string& run_id) {
  std::lock_guard lock(mutex_);
  Expire();
  return state_.ListVersions(run_id);
}

StatusOr<StoreState::Changes> Store::ChangesSince(const std::string& run_id, uint64_t cursor,
                                                  uint64_t from_version, size_t max_versions) {
  std::lock_guard lock(mutex_);
  if (shut_down_) return ShutDown();
  return state_.ChangesSince(run_id, cursor, from_version, max_versions);
}

std::optional<Store::Newest> Store::NewestOf(const std::string& run_id) {
  std::lock_guard lock(mutex_);
  const std::optional<StoreState::CommittedSlot> slot = state_.NewestCommitted(run_id);
  if (!slot.has_value()) return std::nullopt;
  return Newest{slot->version, slot->digest, state_.ManifestOf(run_id),
                memories_.at(slot->slot_id)};
}

Status Store::EndRun(const std::string& run_id, uint64_t epoch) {
  std::lock_guard registry(registry_mutex_);
  std::optional<RunRecord> record;
  {
    std::lock_guard lock(mutex_);
    if (shut_down_) return ShutDown();
    TITAN_ASSIGN_OR_RETURN(record, state_.PlanEndRun(run_id, epoch));
  }
  if (!record.has_value()) return OkStatus();
  TITAN_RETURN_IF_ERROR(index_.PutRun(run_id, *record));
  std::lock_guard lock(mutex_);
  state_.ApplyEndRun(run_id);
  Settle();
  return OkStatus();
}

StatusOr<uint64_t> Store::AdvanceOrchestratorEpoch(const std::string& request_id) {
  std::lock_guard registry(registry_mutex_);
  if (!request_id.empty() && last_orchestrator_.first == request_id) {
    return last_orchestrator_.second;
  }
  uint64_t epoch;
  {
    std::lock_guard lock(mutex_);
    if (shut_down_) return ShutDown();
    epoch = state_.orchestrator_epoch() + 1;
  }
  TITAN_RETURN_IF_ERROR(index_.PutOrchestratorEpoch(epoch));
  std::lock_guard lock(mutex_);
  state_.RestoreOrchestratorEpoch(epoch);
  last_orchestrator_ = {request_id, epoch};
  return epoch;
}

StoreStats Store::Stats() {
  std::lock_guard lock(mutex_);
  Expire();
  StoreStats stats = stats_;
  stats.num_slots = memories_.size();
  stats.slots = state_.CountSlots();
  stats.num_leases = state_.num_leases();
  for (const auto& [slot_id, memory] : memories_) {
    stats.slot_bytes += memory->num_bytes();
    stats.huge_bytes += memory->huge_bytes();
  }
  for (const auto& [slot_id, num_bytes] : bytes_to_make_) stats.bytes_being_made += num_bytes;
  return stats;
}

// ----------------------------------------------------------------------------------------- socket

StatusOr<SlotDescriptors> Store::MapLease(uint64_t connection, uint64_t lease_id, uint64_t grant) {
  std::lock_guard lock(mutex_);
  Expire();
  TITAN_ASSIGN_OR_RETURN(const uint64_t slot_id,
                         state_.MapLease(lease_id, grant, options_.monotonic_ms()));
  leases_of_connection_[connection].insert(lease_id);  // it ends with the connection from here on
  const SlotMemory& memory = *memories_.at(slot_id);
  SlotDescriptors descriptors;
  descriptors.slot_id = slot_id;
  descriptors.slot_bytes = memory.num_bytes();
  TITAN_ASSIGN_OR_RETURN(UniqueFd bytes, memory.DuplicateForReader());
  TITAN_ASSIGN_OR_RETURN(UniqueFd header, memory.DuplicateHeader());
  descriptors.fds.push_back(std::move(bytes));
  descriptors.fds.push_back(std::move(header));
  return descriptors;
}

StatusOr<SlotDescriptors> Store::MapForWriting(uint64_t connection, uint64_t epoch,
                                               uint64_t grant) {
  std::lock_guard lock(mutex_);
  TITAN_ASSIGN_OR_RETURN(const StoreState::WriterSlot slot, state_.FindWriterSlot(epoch, grant));
  const Writer writer = {slot.run_id, epoch};
  for (const auto& [other, known] : writer_of_connection_) {
    if (known == writer && other != connection) {
      return FailedPrecondition("epoch " + std::to_string(epoch) + " of run " + slot.run_id +
                                " writes through another connection");
    }
  }
  const auto [entry, added] = writer_of_connection_.emplace(connection, writer);
  if (entry->second != writer) {
    return FailedPrecondition("this connection writes for run " + entry->second.run_id +
                              ", epoch " + std::to_string(entry->second.epoch) +
                              "; open another one");
  }
  const SlotMemory& memory = *memories_.at(slot.slot_id);
  SlotDescriptors descriptors;
  descriptors.slot_id = slot.slot_id;
  descriptors.slot_bytes = memory.num_bytes();
  if (!slot.mapped_before) {
    TITAN_ASSIGN_OR_RETURN(UniqueFd bytes, memory.DuplicateForWriter());
    descriptors.fds.push_back(std::move(bytes));
  }
  return descriptors;
}

Status Store::WriterHasMapped(uint64_t connection, uint64_t slot_id, uint64_t grant) {
  std::lock_guard lock(mutex_);
  if (!writer_of_connection_.contains(connection)) {
    return FailedPrecondition("this connection has no slot to write");
  }
  TITAN_RETURN_IF_ERROR(state_.WriterHasMapped(slot_id, grant));
  return memories_.at(slot_id)->SealWriters();
}

void Store::ConnectionClosed(uint64_t connection) {
  std::lock_guard lock(mutex_);
  const auto leases = leases_of_connection_.find(connection);
  if (leases != leases_of_connection_.end()) {
    for (const uint64_t lease_id : leases->second) state_.ReleaseLease(lease_id);
    leases_of_connection_.erase(leases);
  }
  const auto writer = writer_of_connection_.find(connection);
  if (writer != writer_of_connection_.end()) {
    state_.AbandonWriter(writer->second.run_id, writer->second.epoch);
    writer_of_connection_.erase(writer);
  }
  Settle();
}

}  // namespace titan::weightstore
