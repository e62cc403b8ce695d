// SPDX-License-Identifier: Apache-2.0
//
// The weight store of one process, leader and host in one: StoreState's decisions carried out on
// slot memory, the index and the clock. Services put gRPC in front of it, SocketServer the unix
// socket.
//
// Calls may block (synced writes, hashing, copies, waiting for the ring) and belong on threads that
// may. Two locks, taken in this order: `registry_mutex_` orders what is written to the index,
// `mutex_` guards the state and is never held over I/O, hashing or copying.
#ifndef TITAN_WEIGHTSTORE_STORE_H_
#define TITAN_WEIGHTSTORE_STORE_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/base/hash.h"
#include "core/base/status.h"
#include "core/storage/key_value_store.h"
#include "weightstore/client/leader_port.h"
#include "weightstore/client/manifest.h"
#include "weightstore/index.h"
#include "weightstore/slot_maker.h"
#include "weightstore/slot_memory.h"
#include "weightstore/socket_server.h"
#include "weightstore/store_state.h"

namespace titan::weightstore {

struct StoreOptions {
  uint64_t memory_limit_bytes = 0;        // of all slots together
  int64_t lease_ttl_ms = 10'000;          // of leases that are not mapped
  int64_t reader_patience_ms = 15'000;    // a full ring waits this long for late readers
  int threads = 1;                        // that hash; at least 1
  uint64_t first_number = 1;              // differs between lives of the daemon (StoreState)
  std::function<int64_t()> unix_ms;       // wall clock, for records only
  std::function<int64_t()> monotonic_ms;  // for leases
  SlotMaker::Make make_slot;              // empty: SlotMemory::Create
  // Called when ChangesSince has news, and at Shutdown, on any thread, under the store's lock: must
  // not call the store.
  std::function<void()> on_change;
};

// Since the start.
struct PhaseSeconds {
  double make_slot = 0;  // taking memory, with the rests between
  double verify = 0;     // hashing what a writer wrote
  double commit = 0;     // with its synced record
  double evaluation_copy = 0;
};

// For metrics.
struct StoreStats {
  uint64_t slot_bytes = 0;        // memory of all slots
  uint64_t bytes_being_made = 0;  // of slots that are not there yet; they count towards the limit
  uint64_t huge_bytes = 0;        // of it in huge pages
  uint64_t memory_limit_bytes = 0;
  uint64_t num_slots = 0;  // whose memory is there
  SlotCounts slots;
  uint64_t num_leases = 0;
  uint64_t versions_committed = 0;  // since the start
  uint64_t verify_failures = 0;     // slots whose bytes were not what their writer hashed
  uint64_t begin_blocked = 0;       // BeginVersion calls that found the ring full
  PhaseSeconds seconds;
};

// Thread-safe.
class Store final : public LeaderPort, public SlotSource {
 public:
  // Reads the index. index_store must outlive the store. DataLoss: damaged records.
  static StatusOr<std::unique_ptr<Store>> Open(storage::KeyValueStore& index_store,
                                               StoreOptions options);
  ~Store() override;

  // Calls that wait end with Unavailable, and so do later ones.
  void Shutdown();

  // LeaderPort.
  StatusOr<Registration> RegisterTrainer(const std::string& request_id, const std::string& run_id,
                                         const Manifest& manifest, uint32_t max_age) override;
  StatusOr<BeginResult> BeginVersion(const std::string& run_id, uint64_t epoch, uint64_t version,
                                     std::chrono::milliseconds wait) override;
  Status PutDone(const std::string& run_id, uint64_t epoch, uint64_t version, uint64_t grant,
                 const Hash128& digest) override;
  StatusOr<int64_t> CommitVersion(const std::string& run_id, uint64_t epoch, uint64_t version,
                                  const Hash128& digest, const std::string& plan_digest,
                                  uint64_t train_step) override;
  StatusOr<Lease> AcquireLease(const std::string& holder, const std::string& run_id,
                               uint64_t version, bool evaluation) override;
  Status ReleaseLease(uint64_t lease_id) override;

  // BeginVersion without waiting.
  struct BeginTry {
    std::optional<BeginResult> result;  // nullopt: to be tried again
    bool being_made = false;            // then: because a slot is being made; else the ring is full
    std::string blockers;  // who holds the ring; with a result, whose leases were ended for it

    // What to answer who waits no longer. ResourceExhausted, or Unavailable if a slot is made.
    Status Expired(uint64_t version, std::chrono::milliseconds waited) const;
  };
  StatusOr<BeginTry> TryBeginVersion(const std::string& run_id, uint64_t epoch, uint64_t version);

  // Copies a committed version into the evaluation slot, when that is made, and verifies the copy.
  // Idempotent while pinned. ResourceExhausted: the slot is in use, naming by what. DataLoss: the
  // copy differs.
  StatusOr<Hash128> PinForEvaluation(const std::string& run_id, uint64_t version);
  Status UnpinEvaluation(const std::string& run_id, uint64_t version);

  StatusOr<std::vector<VersionInfo>> ListVersions(const std::string& run_id);
  // StoreState::ChangesSince; Unavailable after Shutdown.
  StatusOr<StoreState::Changes> ChangesSince(const std::string& run_id, uint64_t cursor,
                                             uint64_t from_version, size_t max_versions);
  // The newest version of a run whose weights are here; the memory stays readable while the result
  // lives, though its writer may change it once the version is retired.
  struct Newest {
    uint64_t version = 0;
    Hash128 digest;
    std::shared_ptr<const Manifest> manifest;
    std::shared_ptr<SlotMemory> memory;
  };
  std::optional<Newest> NewestOf(const std::string& run_id);
  // Gives back the run's slots; readers find their grant number changed. Records stay.
  Status EndRun(const std::string& run_id, uint64_t epoch);
  // Takes a version from the readers that hold it.
  Status FenceReaders(const std::string& run_id, uint64_t version);
  // A repeated request_id gets the epoch that it got before.
  StatusOr<uint64_t> AdvanceOrchestratorEpoch(const std::string& request_id);

  StoreStats Stats();

  // SlotSource.
  StatusOr<SlotDescriptors> MapLease(uint64_t connection, uint64_t lease_id,
                                     uint64_t grant) override;
  StatusOr<SlotDescriptors> MapForWriting(uint64_t connection, uint64_t epoch,
                                          uint64_t grant) override;
  Status WriterHasMapped(uint64_t connection, uint64_t slot_id, uint64_t grant) override;
  void ConnectionClosed(uint64_t connection) override;

 private:
  struct Writer {
    std::string run_id;
    uint64_t epoch = 0;
    friend auto operator<=>(const Writer&, const Writer&) = default;
  };

  Store(storage::KeyValueStore& index_store, StoreOptions options);
  // Under mutex_: carries out what the state decided and wakes who waits.
  void Settle();
  // Under mutex_: leases that ran out.
  void Expire();
  // Refuses slots that do not fit beside those that there are or will be.
  Status CheckMemory(const std::string& run_id, const StoreState::RegistrationPlan& plan) const;
  // Writes the record and has the slots made. REQUIRES: registry_mutex_.
  StatusOr<Registration> Enroll(const std::string& request_id, const std::string& run_id,
                                const Manifest& manifest, uint32_t max_age);
  // Until the ring has its first slot.
  Status WaitForFirstSlot(const std::string& run_id, uint64_t epoch);
  // On the maker's thread.
  void TakeSlot(const SlotRequest& request, SlotMaker::Made made);

  const StoreOptions options_;
  std::mutex registry_mutex_;  // guards index_ and the two maps of requests
  Index index_;
  std::map<std::string, std::pair<std::string, Registration>> last_registration_;  // by run
  std::pair<std::string, uint64_t> last_orchestrator_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  bool shut_down_ = false;
  StoreState state_;
  // Shared with threads that hash or copy a slot while it may be dropped.
  std::map<uint64_t, std::shared_ptr<SlotMemory>> memories_;
  std::map<uint64_t, uint64_t> bytes_to_make_;  // of slots that are being made
  std::map<uint64_t, std::set<uint64_t>> leases_of_connection_;
  std::map<uint64_t, Writer> writer_of_connection_;
  StoreStats stats_;
  SlotMaker maker_;  // last: its thread uses all of the above. Called with mutex_, never waits.
};

}  // namespace titan::weightstore

#endif  // TITAN_WEIGHTSTORE_STORE_H_
