// SPDX-License-Identifier: Apache-2.0
//
// The leader's part of the weight store: StoreState's decisions, the index and the clock. It holds
// no memory of slots: hosts do (HostPort), and tell it what becomes of slots and readers
// (HostEvents). Services put gRPC in front of it.
//
//   trainers, readers, operators --> Leader: StoreState, Index --HostCommand--> Host, one or
//   several
//                                           <--HostEvents---
//
// What is answered has been carried out by the host that it depends on: the grant number of a slot
// is raised before its writer or reader hears the new one.
//
// Calls may block (synced writes, hashing, copies, waiting for the ring or a host) and belong on
// threads that may. Two locks, taken in this order: `registry_mutex_` orders what is written to the
// index, `mutex_` guards the state and is never held over I/O, hashing or copying. Commands are
// sent under `mutex_`, so that each host gets them in the order in which they were decided.
#ifndef TITAN_WEIGHTSTORE_LEADER_H_
#define TITAN_WEIGHTSTORE_LEADER_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/base/hash.h"
#include "core/base/status.h"
#include "core/storage/key_value_store.h"
#include "weightstore/client/leader_port.h"
#include "weightstore/client/manifest.h"
#include "weightstore/host.h"
#include "weightstore/host_port.h"
#include "weightstore/index.h"
#include "weightstore/library.h"
#include "weightstore/store_state.h"

namespace titan::weightstore {

struct LeaderOptions {
  int64_t lease_ttl_ms = 10'000;          // of leases that are not mapped
  int64_t map_deadline_ms = 15'000;       // to release a RETIRED version, when its slot is wanted
  uint64_t first_number = 1;              // differs between lives of the daemon (StoreState)
  std::function<int64_t()> unix_ms;       // wall clock, for records only
  std::function<int64_t()> monotonic_ms;  // for leases
  // Has the kept versions that may be evaluated; must outlive the leader. Null: none.
  Library* library = nullptr;
  std::function<StatusOr<Hash128>()> make_token;  // of leases; empty: the system's random source
  // Called when ChangesSince has news, and at Shutdown, on any thread, under the leader's lock:
  // must not call the leader.
  std::function<void()> on_change;
};

// Where readers on other machines get what a host holds.
struct DataPlane {
  std::vector<Lane> lanes;  // that it serves; none: its versions are for readers on the host
  std::string address;      // host:port
};

// For metrics.
struct LeaderStats {
  uint64_t slot_bytes = 0;          // memory of all slots
  uint64_t bytes_being_made = 0;    // of slots that are not there yet; they count towards the limit
  uint64_t memory_limit_bytes = 0;  // of all hosts
  uint64_t num_slots = 0;           // whose memory is there
  SlotCounts slots;
  uint64_t num_leases = 0;
  uint64_t versions_committed = 0;  // since the start
  uint64_t verify_failures = 0;     // slots whose bytes were not what their writer hashed, those
                                    // that readers offer too
  uint64_t begin_blocked = 0;       // BeginVersion calls that found the ring full
  double commit_seconds = 0;        // since the start, with the synced records
};

// Thread-safe.
class Leader final : public LeaderPort, public HostEvents {
 public:
  // Reads the index. index_store must outlive the leader. DataLoss: damaged records.
  static StatusOr<std::unique_ptr<Leader>> Open(storage::KeyValueStore& index_store,
                                                LeaderOptions options);
  ~Leader() override;

  // A host is there, with what it reports; its slots together may take that much memory. It gets
  // commands from here on, and its events count. Takes the place of what was known under that name.
  void AttachHost(const std::string& name, std::shared_ptr<HostPort> port,
                  uint64_t memory_limit_bytes, DataPlane data_plane, const HostReport& report);
  // The host cannot be reached through `port` (any more), which may be dropped; nothing else is
  // decided yet: its readers read on, and it may attach again with what it has.
  void DetachHost(const std::string& name, const HostPort* port);
  // A detached host is given up: what it had is LOST, its leases end.
  void ForgetHost(const std::string& name);

  // Calls that wait end with Unavailable, and so do later ones.
  void Shutdown();

  // LeaderPort.
  StatusOr<Registration> RegisterTrainer(const std::string& request_id, const std::string& run_id,
                                         const Manifest& manifest, uint32_t max_age,
                                         uint32_t evaluation_slots,
                                         const std::string& host) override;
  StatusOr<BeginResult> BeginVersion(const std::string& run_id, uint64_t epoch, uint64_t version,
                                     std::chrono::milliseconds wait) override;
  Status PutDone(const std::string& run_id, uint64_t epoch, uint64_t version, uint64_t grant,
                 const Hash128& digest) override;
  StatusOr<int64_t> CommitVersion(const std::string& run_id, uint64_t epoch, uint64_t version,
                                  const Hash128& digest, const std::string& plan_digest,
                                  uint64_t train_step) override;
  StatusOr<Lease> AcquireLease(const std::string& holder, const std::string& run_id,
                               uint64_t version, bool evaluation) override;
  StatusOr<RemoteLease> AcquireRemoteLease(const std::string& holder, const std::string& run_id,
                                           uint64_t version, bool evaluation,
                                           const Reach& reach) override;
  Status ReleaseLease(uint64_t lease_id) override;

  // BeginVersion without waiting.
  struct BeginTry {
    std::optional<BeginResult> result;  // nullopt: to be tried again
    bool ring_full = false;  // then: because of that; else a slot or a host's word is waited for
    std::string blockers;    // what is waited for; with a result, whose leases were ended for it

    // What to answer who waits no longer. ResourceExhausted for a full ring, else Unavailable.
    Status Expired(uint64_t version, std::chrono::milliseconds waited) const;
  };
  StatusOr<BeginTry> TryBeginVersion(const std::string& run_id, uint64_t epoch, uint64_t version);

  // Copies a committed version into an evaluation slot, when that is made, or brings one that is in
  // no ring any more from disk, and verifies every byte. Idempotent while pinned.
  // ResourceExhausted: the slots are in use, naming by what, or there is no memory for one.
  // DataLoss: the bytes differ; of what is on disk the file is named.
  StatusOr<Hash128> PinForEvaluation(const std::string& run_id, uint64_t version);
  Status UnpinEvaluation(const std::string& run_id, uint64_t version);

  // StoreState::ListVersions.
  StatusOr<std::vector<VersionInfo>> ListVersions(
      const std::string& run_id, uint64_t from_version = 0,
      size_t max_versions = std::numeric_limits<size_t>::max());
  // StoreState::ChangesSince; Unavailable after Shutdown.
  StatusOr<StoreState::Changes> ChangesSince(const std::string& run_id, uint64_t cursor,
                                             uint64_t from_version, size_t max_versions);
  // StoreState::CheckTrainer.
  Status CheckTrainer(const std::string& run_id, uint64_t epoch);
  bool GoesOn(const std::string& run_id);   // StoreState::GoesOn
  std::vector<std::string> RunsThatGoOn();  // as GoesOn
  // A committed version whose slot is held, so that it can be written to disk while the ring moves
  // on. The leader must outlive it.
  struct DiskSource {
    uint64_t version = 0;
    Hash128 digest;
    std::shared_ptr<const Manifest> manifest;
    ViewPart view;               // codes of HostPort::ViewSlot
    std::shared_ptr<void> hold;  // releases the slot with its last copy
  };
  // Codes of AcquireLease.
  StatusOr<DiskSource> HoldForDisk(const std::string& run_id, uint64_t version);
  // The newest version that a host has; nullopt: there is none. After Shutdown, too: nothing newer
  // comes then.
  StatusOr<std::optional<DiskSource>> HoldNewestForDisk(const std::string& run_id);
  // Gives back the run's slots; readers find their grant number changed. Records stay.
  Status EndRun(const std::string& run_id, uint64_t epoch);
  // Takes a version from the readers that hold it.
  Status FenceReaders(const std::string& run_id, uint64_t version);
  // A repeated request_id gets the epoch that it got before.
  StatusOr<uint64_t> AdvanceOrchestratorEpoch(const std::string& request_id);

  // Also ends the leases whose time is over.
  LeaderStats Stats();

  // HostEvents.
  void SlotMade(uint64_t slot_id) override;
  void SlotNotMade(uint64_t slot_id, const Status& why) override;
  void LeaseMapped(uint64_t lease_id) override;
  void LeaseEnded(uint64_t lease_id) override;
  void WriterGone(const std::string& run_id, uint64_t epoch) override;
  void SlotOffered(const std::string& host, const SlotOffer& offer) override;
  void CommandsDone() override;

 private:
  struct HostEntry {
    std::shared_ptr<HostPort> port;  // null: detached
    uint64_t memory_limit_bytes = 0;
    DataPlane data_plane;
    uint64_t num_sent = 0;  // commands
  };
  // A command of a host, by its place among those that were sent through that port.
  struct SentCommand {
    std::string host;
    std::shared_ptr<HostPort> port;
    uint64_t number = 0;
  };

  Leader(storage::KeyValueStore& index_store, LeaderOptions options);
  // Under mutex_: has carried out what the state decided and wakes who waits.
  void Settle();
  // Under mutex_: leases that ran out.
  void Expire();
  // Under mutex_. Unavailable: no such host is attached.
  StatusOr<std::shared_ptr<HostPort>> PortOf(const std::string& host) const;
  // Under mutex_. Unavailable: the host was lost sight of.
  StatusOr<bool> IsDone(const SentCommand& command) const;
  SentCommand LastSentTo(const std::string& host) const;
  // Under mutex_.
  void TakeReport(const std::string& host, const HostReport& report);
  // Under mutex_: adopts it, or says why not.
  void TakeOffer(const std::string& host, const SlotOffer& offer);
  Status TryAdopt(const std::string& host, const SlotOffer& offer);
  // Unavailable: the host does not do it in time, or Shutdown.
  Status WaitFor(std::unique_lock<std::mutex>& lock, const SentCommand& command);
  // Under mutex_: where the slots of a registration go. Unavailable, InvalidArgument: asked for
  // none where there are several.
  StatusOr<std::string> ChooseHost(const std::string& asked) const;
  // Refuses slots that do not fit beside those that there are or will be, less what is given back.
  Status CheckMemory(const std::string& run_id, const std::string& host, uint64_t num_new,
                     uint64_t slot_bytes, uint64_t dropped_bytes) const;
  // Under mutex_.
  StatusOr<DiskSource> HoldLocked(const std::string& run_id, uint64_t version);
  // What is kept of a version on disk.
  std::optional<StoredModel> FindKept(const std::string& run_id, uint64_t version) const;
  // For a run that has fewer than it may have, on that host or (empty) on any. REQUIRES: no lock.
  Status AddEvaluationSlot(const std::string& run_id, const std::string& wanted_on);
  // Fills an evaluation slot with the version, if none holds it. The lock is held before and after,
  // and not while bytes move.
  StatusOr<Hash128> BringIn(std::unique_lock<std::mutex>& lock, const std::string& run_id,
                            uint64_t version, bool pin);
  StatusOr<Hash128> FillFromDisk(HostPort& host, const StoreState::PinPlan& plan,
                                 const std::shared_ptr<const Manifest>& manifest,
                                 const StoredModel& kept) const;
  // Writes the record and has the slots made. REQUIRES: registry_mutex_.
  StatusOr<Registration> Enroll(const std::string& request_id, const std::string& run_id,
                                const Manifest& manifest, uint32_t max_age,
                                uint32_t evaluation_slots, const std::string& host);
  // None: the host is not there.
  DataPlane DataPlaneOf(const std::string& host) const;
  // A lease that its host knows.
  StatusOr<StoreState::LeaseGrant> GrantLease(std::unique_lock<std::mutex>& lock,
                                              const std::string& holder, const std::string& run_id,
                                              uint64_t version, bool evaluation,
                                              const LeaseTerms& terms);
  // Until the ring has its first slot.
  Status WaitForFirstSlot(const std::string& run_id, uint64_t epoch);

  const LeaderOptions options_;
  std::mutex registry_mutex_;  // guards index_ and the two maps of requests
  Index index_;
  std::map<std::string, std::pair<std::string, Registration>> last_registration_;  // by run
  std::pair<std::string, uint64_t> last_orchestrator_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  bool shut_down_ = false;
  StoreState state_;
  std::map<std::string, HostEntry> hosts_;
  std::map<uint64_t, SentCommand> header_of_slot_;  // the last one that was sent
  LeaderStats stats_;
};

}  // namespace titan::weightstore

#endif  // TITAN_WEIGHTSTORE_LEADER_H_
