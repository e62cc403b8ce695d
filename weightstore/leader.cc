// SPDX-License-Identifier: Apache-2.0
#include "weightstore/leader.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/base/check.h"
#include "weightstore/client/reason.h"

namespace titan::weightstore {
namespace {

// A waiting BeginVersion looks for leases that ran out at least this often.
constexpr std::chrono::milliseconds kExpiryPeriod{100};
// A host that has not carried out a command after this is as good as gone for who waits for it.
constexpr std::chrono::milliseconds kHostPatience{2'000};

class Stopwatch {
 public:
  double Seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// Of a lease; nobody can guess it.
StatusOr<Hash128> MakeToken() {
  Hash128 token;
  if (::getrandom(&token, sizeof(token), 0) != sizeof(token)) {
    return Unavailable(std::string("getrandom: ") + std::strerror(errno));
  }
  return token;
}

Status ShutDown() { return Unavailable("the weight store is shutting down"); }

bool PullsByTcp(const std::vector<Lane>& lanes) {
  return std::find(lanes.begin(), lanes.end(), Lane::kTcp) != lanes.end();
}

// Why a reader and the host of a version have no lane in common, and what to set.
Status NoLane(const std::string& host, const DataPlane& data_plane, const std::string& holder,
              const Reach& reach) {
  std::string why = "host " + host + " serves none of the lanes that " + holder + " can pull by";
  if (data_plane.lanes.empty()) {
    why +=
        "; set data_plane_address of the weight store, or weightstore_socket of a reader on its "
        "host";
  } else if (!PullsByTcp(data_plane.lanes)) {
    why += ": it has require_rdma, and " + holder +
           " no RDMA device; give it one, or unset require_rdma of the weight store";
  } else if (!PullsByTcp(reach.lanes)) {
    why += ": " + holder +
           " has require_rdma, and that host no RDMA device; give it one, or unset "
           "require_rdma of " +
           holder;
  }
  return WithReason(FailedPrecondition(why), kNoRemoteLane);
}

}  // namespace

Leader::Leader(storage::KeyValueStore& index_store, LeaderOptions options)
    : options_(std::move(options)),
      index_(index_store),
      state_(options_.first_number, options_.lease_ttl_ms, options_.map_deadline_ms) {}

Leader::~Leader() = default;

StatusOr<std::unique_ptr<Leader>> Leader::Open(storage::KeyValueStore& index_store,
                                               LeaderOptions options) {
  TITAN_CHECK(options.unix_ms && options.monotonic_ms);
  if (!options.make_token) options.make_token = MakeToken;
  std::unique_ptr<Leader> leader(new Leader(index_store, std::move(options)));
  TITAN_RETURN_IF_ERROR(leader->index_.Restore(leader->state_));
  return leader;
}

void Leader::Shutdown() {
  std::lock_guard lock(mutex_);
  shut_down_ = true;
  changed_.notify_all();
  if (options_.on_change) options_.on_change();
}

void Leader::Settle() {
  Effects effects = state_.TakeEffects();
  std::map<std::string, std::vector<HostCommand>> commands;
  for (auto& [name, command] : effects.commands) {
    // What is to become of a host that is not attached is decided when it attaches.
    const auto found = hosts_.find(name);
    if (found != hosts_.end() && found->second.port != nullptr) ++found->second.num_sent;
    const SentCommand sent = LastSentTo(name);
    if (const auto* header = std::get_if<WriteHeader>(&command); header != nullptr) {
      header_of_slot_[header->fields.slot_id] = sent;
    } else if (const auto* dropped = std::get_if<DropSlot>(&command); dropped != nullptr) {
      header_of_slot_.erase(dropped->slot_id);
    }
    if (sent.port != nullptr) commands[name].push_back(std::move(command));
  }
  for (auto& [name, list] : commands) hosts_.at(name).port->Send(std::move(list));
  if (effects.versions_changed && options_.on_change) options_.on_change();
  if (effects.slots_changed) changed_.notify_all();
}

void Leader::Expire() {
  state_.ExpireLeases(options_.monotonic_ms());
  Settle();
}

// ------------------------------------------------------------------------------------------ hosts

void Leader::AttachHost(const std::string& name, std::shared_ptr<HostPort> port,
                        uint64_t memory_limit_bytes, DataPlane data_plane,
                        const HostReport& report) {
  std::lock_guard lock(mutex_);
  HostEntry& host = hosts_[name];
  host.num_sent = port->num_done();
  host.port = std::move(port);
  host.memory_limit_bytes = memory_limit_bytes;
  host.data_plane = std::move(data_plane);
  TakeReport(name, report);
}

void Leader::TakeReport(const std::string& host, const HostReport& report) {
  std::erase_if(header_of_slot_, [&](const auto& entry) { return entry.second.host == host; });
  state_.AttachHost(host, report, options_.monotonic_ms());
  for (const SlotOffer& offer : report.offers) TakeOffer(host, offer);
  Settle();
  changed_.notify_all();
}

void Leader::DetachHost(const std::string& name, const HostPort* port) {
  std::lock_guard lock(mutex_);
  const auto host = hosts_.find(name);
  if (host == hosts_.end() || host->second.port.get() != port) return;
  host->second.port = nullptr;
  changed_.notify_all();
}

void Leader::ForgetHost(const std::string& name) {
  std::lock_guard lock(mutex_);
  const auto host = hosts_.find(name);
  if (host == hosts_.end() || host->second.port != nullptr) return;
  hosts_.erase(host);
  TakeReport(name, HostReport());
}

StatusOr<std::shared_ptr<HostPort>> Leader::PortOf(const std::string& host) const {
  const auto found = hosts_.find(host);
  if (found == hosts_.end() || found->second.port == nullptr) {
    return Unavailable("host " + host + " is not attached at the moment");
  }
  return found->second.port;
}

StatusOr<bool> Leader::IsDone(const SentCommand& command) const {
  TITAN_ASSIGN_OR_RETURN(const std::shared_ptr<HostPort> port, PortOf(command.host));
  if (port != command.port) {
    return Unavailable("host " + command.host + " was lost sight of meanwhile");
  }
  return port->num_done() >= command.number;
}

Leader::SentCommand Leader::LastSentTo(const std::string& host) const {
  const auto found = hosts_.find(host);
  if (found == hosts_.end()) return {host, nullptr, 0};
  return {host, found->second.port, found->second.num_sent};
}

Status Leader::WaitFor(std::unique_lock<std::mutex>& lock, const SentCommand& command) {
  const auto deadline = std::chrono::steady_clock::now() + kHostPatience;
  for (;;) {
    if (shut_down_) return ShutDown();
    TITAN_ASSIGN_OR_RETURN(const bool done, IsDone(command));
    if (done) return OkStatus();
    if (std::chrono::steady_clock::now() >= deadline) {
      return Unavailable("host " + command.host + " has not answered for " +
                         std::to_string(kHostPatience.count()) + " ms");
    }
    changed_.wait_until(lock, deadline);
  }
}

void Leader::SlotMade(uint64_t slot_id) {
  std::lock_guard lock(mutex_);
  state_.SlotMade(slot_id);
  Settle();
}

void Leader::SlotNotMade(uint64_t slot_id, const Status& why) {
  std::lock_guard lock(mutex_);
  // Of an adopted one.
  if (state_.IsBeingMade(slot_id) && why.code() == StatusCode::kDataLoss) ++stats_.verify_failures;
  state_.SlotNotMade(slot_id, why);
  Settle();
}

void Leader::LeaseMapped(uint64_t lease_id) {
  std::lock_guard lock(mutex_);
  state_.LeaseMapped(lease_id, options_.monotonic_ms());
}

void Leader::LeaseEnded(uint64_t lease_id) {
  std::lock_guard lock(mutex_);
  state_.ReleaseLease(lease_id);
  Settle();
}

void Leader::WriterGone(const std::string& run_id, uint64_t epoch) {
  std::lock_guard lock(mutex_);
  state_.AbandonWriter(run_id, epoch);
  Settle();
}

void Leader::SlotOffered(const std::string& host, const SlotOffer& offer) {
  std::lock_guard lock(mutex_);
  TakeOffer(host, offer);
  Settle();
}

void Leader::TakeOffer(const std::string& host, const SlotOffer& offer) {
  const Status adopted = TryAdopt(host, offer);
  if (!adopted.ok()) state_.RefuseOffer(host, offer.offer_id, adopted);
}

Status Leader::TryAdopt(const std::string& host, const SlotOffer& offer) {
  TITAN_ASSIGN_OR_RETURN(const std::optional<uint64_t> room, state_.PlanAdoption(host, offer));
  if (!room.has_value()) return OkStatus();
  TITAN_RETURN_IF_ERROR(PortOf(host).status());
  // As in AddEvaluationSlot; who calls cannot wait for a disk.
  const std::unique_lock registry(registry_mutex_, std::try_to_lock);
  if (!registry.owns_lock()) {
    return Unavailable("slots are being given out; offer it again");
  }
  const StoreState::SlotBytes bytes = state_.CountBytes(host);
  const uint64_t kept = bytes.made + bytes.being_made;
  const uint64_t limit = hosts_.at(host).memory_limit_bytes;
  if (kept > limit || *room > limit - kept) {
    return WithReason(
        ResourceExhausted("to adopt version " + std::to_string(offer.version) + " of run " +
                          offer.run_id + " and to have room for the trainers that may come back " +
                          "takes " + std::to_string(*room) + " bytes beside " +
                          std::to_string(kept) + " bytes of slots in use; memory_limit_bytes is " +
                          std::to_string(limit)),
        kMemoryLimit);
  }
  state_.ApplyAdoption(host, offer);
  return OkStatus();
}

void Leader::CommandsDone() {
  std::lock_guard lock(mutex_);
  changed_.notify_all();
}

// --------------------------------------------------------------------------------------- trainers

Status Leader::CheckMemory(const std::string& run_id, const std::string& host, uint64_t num_new,
                           uint64_t slot_bytes, uint64_t dropped_bytes) const {
  const StoreState::SlotBytes bytes = state_.CountBytes(host);
  const uint64_t kept = bytes.made + bytes.being_made - dropped_bytes;
  const uint64_t limit = hosts_.at(host).memory_limit_bytes;
  if (kept <= limit && slot_bytes <= (limit - kept) / num_new) return OkStatus();
  return WithReason(
      ResourceExhausted("run " + run_id + " needs " + std::to_string(num_new) + " slots of " +
                        std::to_string(slot_bytes) + " bytes beside " + std::to_string(kept) +
                        " bytes of slots in use; memory_limit_bytes is " + std::to_string(limit) +
                        ": raise it, or lower the schedule's max age, the number of evaluation "
                        "slots or the model's size"),
      kMemoryLimit);
}

StatusOr<std::string> Leader::ChooseHost(const std::string& asked) const {
  if (!asked.empty()) {
    TITAN_RETURN_IF_ERROR(PortOf(asked).status());
    return asked;
  }
  if (hosts_.empty()) return Unavailable("no host daemon is there to take the slots of a run");
  if (hosts_.size() > 1) {
    std::string names;
    for (const auto& [name, entry] : hosts_) names += (names.empty() ? "" : ", ") + name;
    return InvalidArgument("host: there are several, " + names + "; name the trainer's");
  }
  const std::string& only = hosts_.begin()->first;
  TITAN_RETURN_IF_ERROR(PortOf(only).status());
  return only;
}

StatusOr<Registration> Leader::Enroll(const std::string& request_id, const std::string& run_id,
                                      const Manifest& manifest, uint32_t max_age,
                                      uint32_t evaluation_slots, const std::string& host) {
  StoreState::RegistrationPlan plan;
  {
    std::lock_guard lock(mutex_);
    if (shut_down_) return ShutDown();
    Expire();
    TITAN_ASSIGN_OR_RETURN(const std::string slots_on, ChooseHost(host));
    TITAN_ASSIGN_OR_RETURN(
        plan, state_.PlanRegistration(run_id, manifest, max_age, slots_on, evaluation_slots));
    TITAN_RETURN_IF_ERROR(CheckMemory(run_id, plan.host, plan.ring_slots + plan.evaluation_slots,
                                      plan.slot_bytes, plan.dropped_bytes));
  }
  TITAN_RETURN_IF_ERROR(index_.PutRun(run_id, plan.record));
  const Registration registration = {plan.record.trainer_epoch, plan.ring_slots};
  last_registration_[run_id] = {request_id, registration};
  std::lock_guard lock(mutex_);
  state_.ApplyRegistration(run_id, plan, options_.monotonic_ms());
  Settle();
  return registration;
}

StatusOr<Registration> Leader::RegisterTrainer(const std::string& request_id,
                                               const std::string& run_id, const Manifest& manifest,
                                               uint32_t max_age, uint32_t evaluation_slots,
                                               const std::string& host) {
  Registration registration;
  {
    std::lock_guard registry(registry_mutex_);
    const auto last = last_registration_.find(run_id);
    if (!request_id.empty() && last != last_registration_.end() &&
        last->second.first == request_id) {
      registration = last->second.second;
    } else {
      TITAN_ASSIGN_OR_RETURN(registration,
                             Enroll(request_id, run_id, manifest, max_age, evaluation_slots, host));
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

Status Leader::WaitForFirstSlot(const std::string& run_id, uint64_t epoch) {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (shut_down_) return ShutDown();
    TITAN_ASSIGN_OR_RETURN(const bool made, state_.HasSlot(run_id, epoch));
    if (made) return OkStatus();
    changed_.wait(lock);
  }
}

// --------------------------------------------------------------------------------------- versions

StatusOr<Leader::BeginTry> Leader::TryBeginVersion(const std::string& run_id, uint64_t epoch,
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
      if (const auto header = header_of_slot_.find(outcome.slot_id);
          header != header_of_slot_.end()) {
        const StatusOr<bool> opened = IsDone(header->second);
        if (!opened.ok() || !*opened) {
          begun.blockers = opened.ok()
                               ? "host " + header->second.host + " has not opened the slot yet"
                               : MessageOf(opened.status());
          break;
        }
      }
      begun.result = BeginResult{outcome.grant, std::nullopt};
      break;
    case StoreState::BeginOutcome::Kind::kRecorded:
      begun.result = BeginResult{0, outcome.digest};
      break;
    case StoreState::BeginOutcome::Kind::kBlocked:
      begun.ring_full = true;
      break;
    case StoreState::BeginOutcome::Kind::kBeingMade:
      break;
  }
  return begun;
}

Status Leader::BeginTry::Expired(uint64_t version, std::chrono::milliseconds waited) const {
  const std::string text = "version " + std::to_string(version) + " waited " +
                           std::to_string(waited.count()) + " ms: " + blockers;
  if (ring_full) return WithReason(ResourceExhausted(text), kRingFull);
  return Unavailable(text);
}

StatusOr<BeginResult> Leader::BeginVersion(const std::string& run_id, uint64_t epoch,
                                           uint64_t version, std::chrono::milliseconds wait) {
  const auto deadline = std::chrono::steady_clock::now() + wait;
  bool blocked = false;
  for (;;) {
    TITAN_ASSIGN_OR_RETURN(const BeginTry begun, TryBeginVersion(run_id, epoch, version));
    if (begun.result.has_value()) return *begun.result;
    std::unique_lock lock(mutex_);
    if (begun.ring_full && !std::exchange(blocked, true)) ++stats_.begin_blocked;
    const auto now = std::chrono::steady_clock::now();
    if (now >= deadline) return begun.Expired(version, wait);
    // A change between the try and this wait costs at most one period.
    changed_.wait_until(lock, std::min(deadline, now + kExpiryPeriod));
  }
}

Status Leader::PutDone(const std::string& run_id, uint64_t epoch, uint64_t version, uint64_t grant,
                       const Hash128& digest) {
  StatusOr<std::shared_ptr<HostPort>> host = Internal("");
  StoreState::SlotToVerify slot;
  std::shared_ptr<const Manifest> manifest;
  {
    std::lock_guard lock(mutex_);
    if (shut_down_) return ShutDown();
    TITAN_ASSIGN_OR_RETURN(const auto started,
                           state_.StartVerify(run_id, epoch, version, grant, digest));
    if (!started.has_value()) return OkStatus();
    slot = *started;
    host = PortOf(slot.host);
    manifest = state_.ManifestOf(run_id);
  }
  const StatusOr<Hash128> read =
      host.ok() ? (*host)->HashWritten(slot.slot_id, grant, manifest) : host.status();
  std::lock_guard lock(mutex_);
  const Status sealed = state_.FinishVerify(run_id, epoch, version, grant, digest, read);
  if (read.ok() && sealed.code() == StatusCode::kDataLoss) ++stats_.verify_failures;
  Settle();
  return sealed;
}

StatusOr<int64_t> Leader::CommitVersion(const std::string& run_id, uint64_t epoch, uint64_t version,
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
  stats_.commit_seconds += watch.Seconds();
  Settle();
  return record.committed_unix_ms;
}

// ---------------------------------------------------------------------------------------- readers

StatusOr<StoreState::LeaseGrant> Leader::GrantLease(std::unique_lock<std::mutex>& lock,
                                                    const std::string& holder,
                                                    const std::string& run_id, uint64_t version,
                                                    bool evaluation, const LeaseTerms& terms) {
  if (shut_down_) return ShutDown();
  Expire();
  const auto acquire = [&] {
    return state_.AcquireLease(holder, run_id, version, evaluation, options_.monotonic_ms(), terms);
  };
  StatusOr<StoreState::LeaseGrant> acquired = acquire();
  if (evaluation && ReasonOf(acquired.status()) == kVersionNotServed &&
      FindKept(run_id, version).has_value()) {
    TITAN_RETURN_IF_ERROR(BringIn(lock, run_id, version, /*pin=*/false).status());
    acquired = acquire();  // under the same lock: nobody took the slot meanwhile
  }
  if (!acquired.ok()) return acquired.status();
  const StoreState::LeaseGrant& grant = *acquired;
  Settle();
  if (const Status allowed = WaitFor(lock, LastSentTo(grant.host)); !allowed.ok()) {
    state_.ReleaseLease(grant.lease_id);
    Settle();
    return allowed;
  }
  return grant;
}

StatusOr<Lease> Leader::AcquireLease(const std::string& holder, const std::string& run_id,
                                     uint64_t version, bool evaluation) {
  LeaseTerms terms;
  TITAN_ASSIGN_OR_RETURN(terms.token, options_.make_token());
  std::unique_lock lock(mutex_);
  TITAN_ASSIGN_OR_RETURN(const StoreState::LeaseGrant grant,
                         GrantLease(lock, holder, run_id, version, evaluation, terms));
  return Lease{grant.lease_id, grant.grant, run_id, version, grant.digest, grant.manifest};
}

DataPlane Leader::DataPlaneOf(const std::string& host) const {
  const auto found = hosts_.find(host);
  return found != hosts_.end() ? found->second.data_plane : DataPlane{};
}

StatusOr<RemoteLease> Leader::AcquireRemoteLease(const std::string& holder,
                                                 const std::string& run_id, uint64_t version,
                                                 bool evaluation, const Reach& reach) {
  LeaseTerms terms{.token = {}, .remote = true, .reader_host = reach.host};
  TITAN_ASSIGN_OR_RETURN(terms.token, options_.make_token());
  std::unique_lock lock(mutex_);
  if (shut_down_) return ShutDown();
  // Who can pull by no lane is not to wait for a host that it cannot read from.
  if (const auto host = state_.HostOf(run_id, version);
      reach.lanes.empty() && !evaluation && host.has_value() && *host != reach.host) {
    return NoLane(*host, DataPlaneOf(*host), holder, reach);
  }
  TITAN_ASSIGN_OR_RETURN(const StoreState::LeaseGrant grant,
                         GrantLease(lock, holder, run_id, version, evaluation, terms));
  RemoteLease remote;
  remote.lease = {grant.lease_id, grant.grant, run_id, version, grant.digest, grant.manifest};
  remote.ttl = std::chrono::milliseconds(grant.ttl_ms);
  if (grant.host == reach.host) {
    remote.lane = Lane::kMap;
    return remote;
  }
  const DataPlane data_plane = DataPlaneOf(grant.host);
  const auto lane = std::find_first_of(reach.lanes.begin(), reach.lanes.end(),
                                       data_plane.lanes.begin(), data_plane.lanes.end());
  if (lane == reach.lanes.end()) {
    state_.ReleaseLease(grant.lease_id);
    Settle();
    return NoLane(grant.host, data_plane, holder, reach);
  }
  remote.epoch = grant.epoch;
  remote.token = terms.token;
  remote.lane = *lane;
  remote.address = data_plane.address;
  return remote;
}

Status Leader::ReleaseLease(uint64_t lease_id) {
  std::lock_guard lock(mutex_);
  state_.ReleaseLease(lease_id);
  Settle();
  return OkStatus();
}

Status Leader::FenceReaders(const std::string& run_id, uint64_t version) {
  std::unique_lock lock(mutex_);
  TITAN_ASSIGN_OR_RETURN(const std::string host, state_.FenceReaders(run_id, version));
  Settle();
  return WaitFor(lock, LastSentTo(host));
}

// ------------------------------------------------------------------------------------- evaluation

std::optional<StoredModel> Leader::FindKept(const std::string& run_id, uint64_t version) const {
  if (options_.library == nullptr) return std::nullopt;
  StatusOr<StoredModel> kept = options_.library->FindVersion(run_id, version);
  return kept.ok() ? std::optional(*std::move(kept)) : std::nullopt;
}

Status Leader::AddEvaluationSlot(const std::string& run_id, const std::string& wanted_on) {
  // With the registry's lock: nobody registers a trainer with memory that was free before.
  std::lock_guard registry(registry_mutex_);
  std::lock_guard lock(mutex_);
  std::string host = wanted_on;
  for (const auto& [name, entry] : hosts_) {
    if (host.empty() && entry.port != nullptr) host = name;
  }
  if (host.empty()) return Unavailable("no host daemon is there to take a slot for evaluation");
  TITAN_RETURN_IF_ERROR(PortOf(host).status());
  TITAN_RETURN_IF_ERROR(
      CheckMemory(run_id, host, 1, state_.ManifestOf(run_id)->slot_bytes, /*dropped_bytes=*/0));
  state_.AddEvaluationSlot(run_id, host);
  Settle();
  return OkStatus();
}

StatusOr<Hash128> Leader::BringIn(std::unique_lock<std::mutex>& lock, const std::string& run_id,
                                  uint64_t version, bool pin) {
  const std::optional<StoredModel> kept = FindKept(run_id, version);
  StoreState::PinOutcome outcome;
  for (;;) {
    if (shut_down_) return ShutDown();
    Expire();
    TITAN_ASSIGN_OR_RETURN(
        outcome, state_.PlanPin(run_id, version, kept.has_value(), pin, options_.monotonic_ms()));
    Settle();
    if (outcome.slot_wanted) {
      lock.unlock();
      const Status added = AddEvaluationSlot(run_id, outcome.wanted_on);
      lock.lock();
      TITAN_RETURN_IF_ERROR(added);
    } else if (outcome.not_yet) {
      changed_.wait(lock);
    } else {
      break;
    }
  }
  if (!outcome.copy.has_value()) return outcome.digest;
  const StoreState::PinPlan plan = *outcome.copy;
  const StatusOr<std::shared_ptr<HostPort>> host = PortOf(plan.host);
  const std::shared_ptr<const Manifest> manifest = state_.ManifestOf(run_id);
  lock.unlock();
  const StatusOr<Hash128> filled =
      !host.ok()       ? host.status()
      : plan.from_disk ? FillFromDisk(**host, plan, manifest, *kept)
                       : (*host)->CopySlot(plan.from_slot, plan.to_slot, plan.grant, manifest);
  lock.lock();
  const bool good = filled.ok() && *filled == plan.digest;
  if (!good && (filled.ok() || filled.status().code() == StatusCode::kDataLoss)) {
    ++stats_.verify_failures;
  }
  const Status finished = state_.FinishPin(run_id, version, plan, good);
  Settle();
  if (!filled.ok() && finished.code() == StatusCode::kDataLoss) return filled.status();
  if (!finished.ok()) return finished;
  return filled;
}

StatusOr<Hash128> Leader::FillFromDisk(HostPort& host, const StoreState::PinPlan& plan,
                                       const std::shared_ptr<const Manifest>& manifest,
                                       const StoredModel& kept) const {
  const std::string name =
      "version " + std::to_string(kept.version) + " of run " + kept.run_id + " on disk";
  if (kept.manifest->tensors != manifest->tensors) {
    return DataLoss(name + " has another layout than the run's manifest");
  }
  if (kept.manifest->contract_forward != manifest->contract_forward ||
      kept.manifest->contract_training != manifest->contract_training ||
      kept.manifest->numerics_mode != manifest->numerics_mode) {
    const std::string item = DifferingItem(kept.manifest->contract_items, manifest->contract_items);
    return FailedPrecondition(name +
                              " was made under another numerics contract than the run is "
                              "recorded with" +
                              (item.empty() ? "" : ": " + item));
  }
  TITAN_ASSIGN_OR_RETURN(const std::shared_ptr<void> files,
                         options_.library->HoldVersion(kept.run_id, kept.version));
  const auto filled = host.FillSlot(plan.to_slot, plan.grant, manifest,
                                    [&](size_t tensor, std::span<std::byte> out) {
                                      return options_.library->ReadTensor(kept, tensor, out);
                                    });
  if (filled.ok()) return filled;
  const Status status = Annotate(filled.status(), name);
  return status.code() == StatusCode::kDataLoss ? WithReason(status, kDigestMismatch) : status;
}

StatusOr<Hash128> Leader::PinForEvaluation(const std::string& run_id, uint64_t version) {
  std::unique_lock lock(mutex_);
  return BringIn(lock, run_id, version, /*pin=*/true);
}

Status Leader::UnpinEvaluation(const std::string& run_id, uint64_t version) {
  std::lock_guard lock(mutex_);
  const Status unpinned = state_.Unpin(run_id, version);
  Settle();
  return unpinned;
}

// -------------------------------------------------------------------------------------- operators

StatusOr<std::vector<VersionInfo>> Leader::ListVersions(const std::string& run_id,
                                                        uint64_t from_version,
                                                        size_t max_versions) {
  std::lock_guard lock(mutex_);
  Expire();
  return state_.ListVersions(run_id, from_version, max_versions);
}

StatusOr<StoreState::Changes> Leader::ChangesSince(const std::string& run_id, uint64_t cursor,
                                                   uint64_t from_version, size_t max_versions) {
  std::lock_guard lock(mutex_);
  if (shut_down_) return ShutDown();
  return state_.ChangesSince(run_id, cursor, from_version, max_versions);
}

Status Leader::CheckTrainer(const std::string& run_id, uint64_t epoch) {
  std::lock_guard lock(mutex_);
  if (shut_down_) return ShutDown();
  return state_.CheckTrainer(run_id, epoch);
}

bool Leader::GoesOn(const std::string& run_id) {
  std::lock_guard lock(mutex_);
  return state_.GoesOn(run_id);
}

std::vector<std::string> Leader::RunsThatGoOn() {
  std::lock_guard lock(mutex_);
  return state_.RunsThatGoOn();
}

StatusOr<Leader::DiskSource> Leader::HoldLocked(const std::string& run_id, uint64_t version) {
  TITAN_ASSIGN_OR_RETURN(
      const StoreState::LeaseGrant lease,
      state_.HoldForCopy("copy to disk", run_id, version, options_.monotonic_ms()));
  DiskSource source;
  source.version = version;
  source.digest = lease.digest;
  source.manifest = lease.manifest;
  source.view = [host = PortOf(lease.host), slot_id = lease.slot_id](
                    uint64_t offset, uint64_t num_bytes) -> StatusOr<SlotView> {
    if (!host.ok()) return host.status();
    return (*host)->ViewSlot(slot_id, offset, num_bytes);
  };
  source.hold = std::shared_ptr<void>(
      nullptr, [this, lease_id = lease.lease_id](void*) { (void)ReleaseLease(lease_id); });
  return source;
}

StatusOr<Leader::DiskSource> Leader::HoldForDisk(const std::string& run_id, uint64_t version) {
  std::lock_guard lock(mutex_);
  if (shut_down_) return ShutDown();
  return HoldLocked(run_id, version);
}

StatusOr<std::optional<Leader::DiskSource>> Leader::HoldNewestForDisk(const std::string& run_id) {
  std::lock_guard lock(mutex_);
  const std::optional<uint64_t> newest = state_.NewestCommitted(run_id);
  if (!newest.has_value()) return std::optional<DiskSource>();
  TITAN_ASSIGN_OR_RETURN(DiskSource source, HoldLocked(run_id, *newest));
  return std::optional(std::move(source));
}

Status Leader::EndRun(const std::string& run_id, uint64_t epoch) {
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

StatusOr<uint64_t> Leader::AdvanceOrchestratorEpoch(const std::string& request_id) {
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

LeaderStats Leader::Stats() {
  std::lock_guard lock(mutex_);
  Expire();
  LeaderStats stats = stats_;
  stats.slots = state_.CountSlots();
  stats.num_slots = state_.num_slots() - stats.slots.being_made;
  stats.num_leases = state_.num_leases();
  const StoreState::SlotBytes bytes = state_.CountBytes();
  stats.slot_bytes = bytes.made;
  stats.bytes_being_made = bytes.being_made;
  for (const auto& [name, host] : hosts_) stats.memory_limit_bytes += host.memory_limit_bytes;
  return stats;
}

}  // namespace titan::weightstore
