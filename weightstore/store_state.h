// SPDX-License-Identifier: Apache-2.0
//
// What a weight store's leader decides: versions, slots, leases, epochs. No I/O, no clock, no
// threads: the caller passes the time, has the Effects carried out and writes records, so that a
// test can drive every interleaving.
//
//              Begin            PutDone verified      Commit recorded
//   (none) ---------> OPEN ---------------> SEALED ----------------> COMMITTED --> RETIRED --> FREE
//              ^        |  writer gone, fenced, wrong bytes |           ^ |  restart: no memory
//              |        +--------> ABORTED <----------------+   adopted | v
//              +---------------------------------------------------------LOST
//
// Invariants: at most one version of a run is OPEN or SEALED. A slot under a lease keeps its grant
// number until the lease ends. The grant number of a slot is raised before its bytes may change. A
// slot is written only by the writer that holds the current epoch. Records of a run are consecutive
// from 0 and a version's digest never changes. A COMMITTED version n stays while version n + S + 1
// is not begun. A version is adopted from a reader or made again by its trainer, never both. A slot
// for evaluation is the daemon's own: it holds a copy of a version, or what
// was kept of it on disk, whatever becomes of the version itself.
#ifndef TITAN_WEIGHTSTORE_STORE_STATE_H_
#define TITAN_WEIGHTSTORE_STORE_STATE_H_

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/hash.h"
#include "core/base/status.h"
#include "weightstore/client/manifest.h"
#include "weightstore/host_port.h"

namespace titan::weightstore {

enum class VersionState : uint8_t {  // numbers of the protocol
  kOpen = 1,
  kSealed = 2,
  kCommitted = 3,
  kRetired = 4,
  kFree = 5,
  kAborted = 6,
  kLost = 7,
};
std::string_view NameOf(VersionState state);

// What a commit writes down.
struct VersionRecord {
  Hash128 digest;
  std::string plan_digest;
  uint64_t train_step = 0;
  int64_t committed_unix_ms = 0;

  friend bool operator==(const VersionRecord&, const VersionRecord&) = default;
};

struct RunRecord {
  uint64_t trainer_epoch = 0;
  uint32_t max_age = 0;
  bool ended = false;
  std::shared_ptr<const Manifest> manifest;
  uint32_t evaluation_slots = 1;
};

struct VersionInfo {
  uint64_t version = 0;
  VersionState state = VersionState::kOpen;
  std::optional<VersionRecord> record;
  std::vector<std::string> holders;  // workers that hold leases, in order of lease id
};

// What hosts are to do, in this order, before the request that caused it is answered with something
// that depends on it.
struct Effects {
  std::vector<std::pair<std::string, HostCommand>> commands;  // the host's name is first
  bool slots_changed = false;                                 // who waits for a slot may look again
  bool versions_changed = false;                              // ChangesSince has news
};

// Slots by what they hold.
struct SlotCounts {
  uint64_t being_made = 0;
  uint64_t free = 0;
  uint64_t open = 0;
  uint64_t sealed = 0;
  uint64_t committed = 0;
  uint64_t retired = 0;
  uint64_t evaluation = 0;
};

// Slots per run: S + 3 in the ring (S + 1 that generators may need, one that is written, one that a
// slow reader may still hold) and those for evaluation.
inline constexpr uint32_t kSparesOfRing = 3;
inline constexpr uint32_t kMaxEvaluationSlots = 8;

// A reader on another machine has this much time for its version, beside the ttl of all leases: a
// link that is slower than a tenth of Gigabit Ethernet does not carry versions.
inline constexpr uint64_t kSlowestLinkBytesPerSecond = uint64_t{16} << 20;

struct LeaseTerms {
  Hash128 token;            // what the host is to ask for besides the numbers
  bool remote = false;      // never mapped: lasts longer, by what a pull takes on a slow link
  std::string reader_host;  // then: mapped all the same if this host has it
};

// Not thread-safe.
class StoreState {
 public:
  // first_number: where grant numbers, lease ids and slot ids start; must differ between lives of a
  // daemon, so that a stale number of an earlier life is refused. Leases that are not mapped end
  // after lease_ttl_ms. RETIRED is the request to release a version, of which watchers are told;
  // who still holds it map_deadline_ms later is fenced when the slot is wanted.
  StoreState(uint64_t first_number, int64_t lease_ttl_ms, int64_t map_deadline_ms = 15'000);

  // --- from the index, before anything else. Versions come back as LOST. DataLoss: records of a
  // run are not consecutive from 0, or a version of no run.
  void RestoreRun(const std::string& run_id, RunRecord record);
  Status RestoreVersion(const std::string& run_id, uint64_t version, VersionRecord record);
  void RestoreOrchestratorEpoch(uint64_t epoch) { orchestrator_epoch_ = epoch; }

  // --- hosts. What the host has is taken as it reports it, whatever was thought of it before: a
  // verified slot whose digest is recorded is COMMITTED, the open one of the present epoch stays
  // OPEN or SEALED, slots and leases that nobody has a use for are ended, and what the host does
  // not have any more is LOST. A host that is gone reports nothing.
  void AttachHost(const std::string& host, const HostReport& report, int64_t now_ms);

  // --- versions that readers on a host still map. PlanAdoption changes nothing; OK: the caller
  // checks that the host has that many bytes left (for the adopted slot, and for those that the
  // next trainers of this and of all other runs without one need, wherever they will be), then
  // calls ApplyAdoption: the host takes the memory and verifies it, SlotMade makes the version
  // COMMITTED. Else the offer is refused with
  //   Unavailable         it may be offered again, or a lease on it taken
  //   NotFound            no such run or version
  //   InvalidArgument     not the size or manifest of the run
  //   FailedPrecondition  the version is not needed any more, or recorded with another digest
  // nullopt: the same offer is being adopted.
  StatusOr<std::optional<uint64_t>> PlanAdoption(const std::string& host,
                                                 const SlotOffer& offer) const;
  void ApplyAdoption(const std::string& host, const SlotOffer& offer);
  void RefuseOffer(const std::string& host, uint64_t offer_id, const Status& why);

  // --- trainers. PlanRegistration changes nothing; the caller checks the host's memory and writes
  // the run's record, then calls ApplyRegistration, which has the slots made there in the order in
  // which they will be needed. One is enough to begin with: what finds no other waits for those
  // that are being made.
  struct RegistrationPlan {
    std::string host;
    RunRecord record;               // to be written; its epoch is the new one
    uint32_t ring_slots = 0;        // to be made
    uint32_t evaluation_slots = 0;  // to be made too
    uint64_t slot_bytes = 0;
    uint64_t num_dropped = 0;    // slots of the run that Apply gives back
    uint64_t dropped_bytes = 0;  // of those on that host
  };
  StatusOr<RegistrationPlan> PlanRegistration(const std::string& run_id, const Manifest& manifest,
                                              uint32_t max_age, const std::string& host,
                                              uint32_t evaluation_slots = 1) const;
  void ApplyRegistration(const std::string& run_id, const RegistrationPlan& plan, int64_t now_ms);
  // False: the slot was dropped meanwhile, nobody wants its memory.
  bool IsBeingMade(uint64_t slot_id) const;
  bool SlotMade(uint64_t slot_id);
  // The memory of a slot that is being made cannot be had. Versions that are committed are served
  // on; the run begins no other one until a trainer registers again.
  void SlotNotMade(uint64_t slot_id, const Status& why);
  // Whether the ring has its first slot. Fails as BeginVersion would.
  StatusOr<bool> HasSlot(const std::string& run_id, uint64_t epoch) const;

  // Whether this is the run's trainer. Codes of BeginVersion.
  Status CheckTrainer(const std::string& run_id, uint64_t epoch) const;
  // It is known and has not ended.
  bool GoesOn(const std::string& run_id) const;
  std::vector<std::string> RunsThatGoOn() const;

  // --- versions
  struct BeginOutcome {
    enum class Kind { kOpened, kRecorded, kBlocked, kBeingMade } kind = Kind::kOpened;
    uint64_t slot_id = 0;  // kOpened
    uint64_t grant = 0;    // kOpened
    Hash128 digest;        // kRecorded
    std::string blockers;  // kBlocked, kBeingMade: what is waited for; kOpened: the leases that
                           // were ended for it
  };
  StatusOr<BeginOutcome> BeginVersion(const std::string& run_id, uint64_t epoch, uint64_t version,
                                      int64_t now_ms);
  // What its host must hash now; nullopt: it has been verified with this digest before.
  struct SlotToVerify {
    std::string host;
    uint64_t slot_id = 0;
  };
  StatusOr<std::optional<SlotToVerify>> StartVerify(const std::string& run_id, uint64_t epoch,
                                                    uint64_t version, uint64_t grant,
                                                    const Hash128& writers);
  // SEALED when both digests agree; else ABORTED and DataLoss. Aborted: fenced meanwhile. What the
  // host failed with is returned and leaves the version OPEN.
  Status FinishVerify(const std::string& run_id, uint64_t epoch, uint64_t version, uint64_t grant,
                      const Hash128& writers, const StatusOr<Hash128>& read);
  struct CommitPlan {
    bool done = false;                      // nothing is left to do
    std::optional<VersionRecord> recorded;  // set: keep it (a LOST version comes back to life)
  };
  // What is missing: write a record unless there is one, then ApplyCommit. FailedPrecondition: not
  // SEALED, or divergence from the record.
  StatusOr<CommitPlan> PlanCommit(const std::string& run_id, uint64_t epoch, uint64_t version,
                                  const Hash128& digest) const;
  // REQUIRES: PlanCommit said so and no other call of the index came between.
  void ApplyCommit(const std::string& run_id, uint64_t epoch, uint64_t version,
                   const VersionRecord& record);
  // The writer's connection closed: what it left open is aborted.
  void AbandonWriter(const std::string& run_id, uint64_t epoch);

  // --- readers
  struct LeaseGrant {
    uint64_t lease_id = 0;
    std::string host;  // that has the slot
    uint64_t slot_id = 0;
    uint64_t grant = 0;
    uint64_t epoch = 0;  // of the slot's writer; 0: of the evaluation slot
    int64_t ttl_ms = 0;  // until it is mapped
    Hash128 digest;
    std::shared_ptr<const Manifest> manifest;
  };
  // evaluation: of a version that is in an evaluation slot, pinned or not taken for another yet.
  StatusOr<LeaseGrant> AcquireLease(const std::string& holder, const std::string& run_id,
                                    uint64_t version, bool evaluation, int64_t now_ms,
                                    const LeaseTerms& terms = {});
  // For a copy that the leader itself makes: without a ttl, unknown to the host, never fenced; who
  // takes it sees to it that it ends in time, by ReleaseLease. what: shown as the holder.
  StatusOr<LeaseGrant> HoldForCopy(const std::string& what, const std::string& run_id,
                                   uint64_t version, int64_t now_ms);
  // From here on the lease has no ttl. False: there is none.
  bool LeaseMapped(uint64_t lease_id, int64_t now_ms);
  // False: there is none.
  bool ReleaseLease(uint64_t lease_id);
  // Leases that were not mapped in time, and maps past their deadline of slots that an earlier
  // token left.
  void ExpireLeases(int64_t now_ms);
  // Of a committed version; nullopt: it cannot be read.
  std::optional<std::string> HostOf(const std::string& run_id, uint64_t version) const;
  // Takes a committed version from its present readers; new leases get a new grant number. The name
  // of its host.
  StatusOr<std::string> FenceReaders(const std::string& run_id, uint64_t version);

  // --- evaluation: plan, fill, finish.
  struct PinPlan {
    std::string host;        // of both slots
    bool from_disk = false;  // else a copy of from_slot
    uint64_t from_slot = 0;
    uint64_t to_slot = 0;
    uint64_t copy_lease = 0;  // keeps from_slot until FinishPin
    uint64_t grant = 0;
    Hash128 digest;
  };
  struct PinOutcome {
    Hash128 digest;
    std::optional<PinPlan> copy;  // nullopt: the version is in its slot already
    bool not_yet = false;         // a slot is made or filled with this version: ask again
    bool slot_wanted = false;     // the run may have one more: AddEvaluationSlot, and ask again
    std::string wanted_on;        // then: the host; empty: any
  };
  // on_disk: what the version's record says is kept on disk, to be used if no memory serves it.
  // pin: the version stays in its slot until Unpin; else as long as it has leases and the slot is
  // not wanted for another. ResourceExhausted: every slot is in use, naming by what; codes of
  // AcquireLease.
  StatusOr<PinOutcome> PlanPin(const std::string& run_id, uint64_t version, bool on_disk, bool pin,
                               int64_t now_ms);
  // Unless another call did so since PlanPin. REQUIRES: the caller has checked the host's memory.
  void AddEvaluationSlot(const std::string& run_id, const std::string& host);
  // good: the slot holds the bytes of the plan's digest. DataLoss: it does not.
  Status FinishPin(const std::string& run_id, uint64_t version, const PinPlan& plan, bool good);
  Status Unpin(const std::string& run_id, uint64_t version);

  // --- operators
  // At most max_versions, by number, from that one on.
  StatusOr<std::vector<VersionInfo>> ListVersions(
      const std::string& run_id, uint64_t from_version = 0,
      size_t max_versions = std::numeric_limits<size_t>::max()) const;
  // Versions that are COMMITTED, RETIRED, FREE or LOST and came to be so after `cursor` (0: all),
  // in that order; a version that changed twice is there once, as it is now.
  struct Changes {
    std::vector<VersionInfo> versions;
    uint64_t cursor = 0;  // for the next call
    bool ended = false;   // the run has, and nothing will follow
  };
  StatusOr<Changes> ChangesSince(const std::string& run_id, uint64_t cursor, uint64_t from_version,
                                 size_t max_versions) const;
  // The newest version that is COMMITTED; nullopt: there is none.
  std::optional<uint64_t> NewestCommitted(const std::string& run_id) const;
  // The record to be written before ApplyEndRun; nullopt: it has ended already. epoch 0: not
  // checked.
  StatusOr<std::optional<RunRecord>> PlanEndRun(const std::string& run_id, uint64_t epoch) const;
  void ApplyEndRun(const std::string& run_id);
  uint64_t orchestrator_epoch() const { return orchestrator_epoch_; }
  // REQUIRES: the run is registered.
  std::shared_ptr<const Manifest> ManifestOf(const std::string& run_id) const {
    return runs_.at(run_id).record.manifest;
  }

  Effects TakeEffects();

  // For metrics and tests.
  size_t num_leases() const { return leases_.size(); }
  size_t num_slots() const { return slots_.size(); }
  SlotCounts CountSlots() const;
  // Memory of slots, of one host or (empty) of all.
  struct SlotBytes {
    uint64_t made = 0;
    uint64_t being_made = 0;
  };
  SlotBytes CountBytes(const std::string& host = "") const;

 private:
  struct Slot {
    std::string run_id;
    std::string host;
    uint64_t epoch = 0;  // of the writer; 0: the host's own (evaluation)
    uint64_t grant = 0;
    std::optional<uint64_t> version;
    bool made = false;      // else its memory is being made, or adopted
    uint64_t offer_id = 0;  // that is adopted
  };
  struct Version {
    VersionState state = VersionState::kOpen;
    std::optional<VersionRecord> record;
    uint64_t slot_id = 0;    // valid for OPEN, SEALED, COMMITTED, RETIRED
    uint64_t changed = 0;    // when its state did, counted in changes of any version
    int64_t retired_ms = 0;  // when its holders were asked to release it
    bool verifying = false;
    Hash128 digest;  // as the writer said, from SEALED on
  };
  struct Evaluation {
    enum class State : uint8_t { kEmpty, kFilling, kFilled };
    uint64_t slot_id = 0;
    State state = State::kEmpty;
    bool pinned = false;
    uint64_t version = 0;
    Hash128 digest;
  };
  struct Run {
    RunRecord record;
    bool writer_alive = false;  // the current epoch has slots and its writer is connected
    Status slots_failed;        // why a slot could not be made
    std::map<uint64_t, Version> versions;
    std::optional<uint64_t> in_progress;  // the version that is OPEN or SEALED
    uint64_t newest_opened = 0;           // by the current epoch
    std::vector<Evaluation> evaluations;  // at most record.evaluation_slots
    uint64_t num_records = 0;             // they are 0..num_records-1
  };
  struct LeaseState {
    std::string holder;
    std::string run_id;
    uint64_t version = 0;
    uint64_t slot_id = 0;
    uint64_t grant = 0;
    bool mapped = false;
    int64_t since_ms = 0;
    int64_t ttl_ms = 0;  // while it is not mapped
    bool copy = false;   // HoldForCopy
  };

  uint64_t NextNumber() { return next_number_++; }
  // The run, for a caller of this epoch. Aborted, NotFound, FailedPrecondition.
  StatusOr<Run*> FindRun(const std::string& run_id);
  StatusOr<const Run*> FindRun(const std::string& run_id) const;
  Status CheckEpoch(const std::string& run_id, const Run& run, uint64_t epoch) const;
  StatusOr<Version*> FindInProgress(const std::string& run_id, uint64_t epoch, uint64_t version);

  // OK: the version is COMMITTED; else the failure of who wants to read it.
  Status CheckServed(const std::string& run_id, const Run& run, uint64_t version) const;

  void SetState(Version& version, VersionState state);
  VersionInfo InfoOf(const std::string& run_id, uint64_t number, const Version& version) const;
  void Command(const std::string& host, HostCommand command);
  void RaiseGrant(uint64_t slot_id, uint64_t version, const Hash128& digest,
                  bool open_for_writing = false);
  // REQUIRES: the run's record is there.
  uint64_t AddSlot(const std::string& run_id, uint64_t epoch, const std::string& host,
                   uint32_t order);
  void RemoveSlot(uint64_t slot_id);
  // The slot that adopts the version; 0: none does.
  uint64_t FindAdoption(const std::string& run_id, uint64_t version) const;
  void FinishAdoption(uint64_t slot_id);
  // Parts of AttachHost.
  void TakeSlot(const std::string& host, const SlotReport& report, bool writer_gone);
  bool TakeEvaluationSlot(Run& run, const SlotReport& report);
  bool TakeVersion(Run& run, const SlotReport& report);
  void ForgetSlots(const std::string& host, const std::map<uint64_t, Slot>& before);
  void CompleteRing(const std::string& host);

  // The version gives its slot back: to the ring of the living writer, else to nobody.
  void ReleaseSlot(Run& run, Version& version);
  void AbortInProgress(Run& run);
  bool IsLeased(uint64_t slot_id) const;
  StatusOr<LeaseGrant> GrantLease(const std::string& holder, const std::string& run_id,
                                  uint64_t version, bool evaluation, int64_t now_ms);
  void EndLeasesOf(uint64_t slot_id);
  // The oldest version that generators may still need while `beginning` is written.
  static uint64_t OldestNeeded(const Run& run, uint64_t beginning);
  void RetireUnneeded(Run& run, uint64_t beginning, bool ring_is_full, int64_t now_ms);
  // The version is RETIRED, and who was to release it has not done so in time. Copies into an
  // evaluation slot are left alone: they end by themselves.
  bool IsOverdue(const Version& version, int64_t now_ms) const;
  // Takes the slot of a RETIRED version from its holders; says whose it was.
  std::string FenceHolders(Run& run, uint64_t number, Version& version);
  // The same for the oldest overdue version of the ring; empty: there is none.
  std::string FenceOldestOverdue(Run& run, int64_t now_ms);
  std::optional<uint64_t> FindFreeSlot(const std::string& run_id, const Run& run) const;
  std::string DescribeBlockers(const std::string& run_id, const Run& run, int64_t now_ms) const;
  // Of the ring of the current epoch.
  uint32_t NumBeingMade(const std::string& run_id, const Run& run) const;
  // The slot (on that host) that may be filled now; null: there is none.
  Evaluation* FindFreeEvaluation(Run& run, const std::optional<std::string>& host);
  std::string DescribeEvaluations(const Run& run) const;
  // Nobody uses it, and the versions of a trainer on that host cannot be copied there.
  bool IsIdleElsewhere(const Evaluation& evaluation, const std::string& host) const;
  // A run that has ended gives back each evaluation slot that is not in use.
  void DropUnusedEvaluations(Run& run);

  const int64_t lease_ttl_ms_;
  const int64_t map_deadline_ms_;
  uint64_t next_number_;
  uint64_t orchestrator_epoch_ = 0;
  uint64_t num_changes_ = 0;
  std::map<std::string, Run> runs_;
  std::map<uint64_t, Slot> slots_;
  std::map<uint64_t, LeaseState> leases_;
  Effects effects_;
};

// InvalidArgument: not 1 to 128 of [A-Za-z0-9._-].
Status CheckRunId(const std::string& run_id);

}  // namespace titan::weightstore

#endif  // TITAN_WEIGHTSTORE_STORE_STATE_H_
