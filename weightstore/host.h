// SPDX-License-Identifier: Apache-2.0
//
// The host daemon's part of the weight store: the memory of the slots on this host, and who may map
// them. It decides nothing about versions. The leader tells it what a slot holds and which leases
// there are (HostPort); from that it answers its clients, on the unix socket and on the lanes of
// its data plane, alone and at once.
//
//   leader --HostCommand--> Host: tables of slots and leases <--SlotSource-- SocketServer
//          <--HostEvents---       SlotMaker's threads        <--SlotReads--- TcpServer
//
// The tables are what counts for clients: a lease that the leader allowed or ended is so once the
// command has been carried out here.
#ifndef TITAN_WEIGHTSTORE_HOST_H_
#define TITAN_WEIGHTSTORE_HOST_H_

#include <atomic>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "core/base/hash.h"
#include "core/base/status.h"
#include "core/transport/rma.h"
#include "weightstore/host_port.h"
#include "weightstore/slot_maker.h"
#include "weightstore/slot_memory.h"
#include "weightstore/socket_server.h"
#include "weightstore/transport/slot_reads.h"

namespace titan::weightstore {

// What a host tells its leader. Called on any thread, without a lock of the host's; slots, leases
// and writers that the leader does not know (any more) are ignored. Must not wait for long.
class HostEvents {
 public:
  HostEvents() = default;
  HostEvents(const HostEvents&) = delete;
  HostEvents& operator=(const HostEvents&) = delete;
  virtual ~HostEvents() = default;

  virtual void SlotMade(uint64_t slot_id) = 0;
  virtual void SlotNotMade(uint64_t slot_id, const Status& why) = 0;
  virtual void LeaseMapped(uint64_t lease_id) = 0;
  // Its reader's connection closed.
  virtual void LeaseEnded(uint64_t lease_id) = 0;
  // Its connection closed.
  virtual void WriterGone(const std::string& run_id, uint64_t epoch) = 0;
  // OfferSlot of that host's socket: AdoptSlot or RefuseOffer is to follow.
  virtual void SlotOffered(const std::string& host, const SlotOffer& offer) = 0;
  // HostPort::num_done has grown.
  virtual void CommandsDone() = 0;
};

struct HostOptions {
  std::string name = "local";
  int threads = 1;          // that hash; at least 1
  bool hash_tiles = false;  // for the TCP lane, while a slot is verified
  // Of all slots; the leader, which knows it, asks for no more.
  uint64_t memory_limit_bytes = std::numeric_limits<uint64_t>::max();
  SlotMaker::Make make_slot;  // empty: SlotMemory::Create
  // Other machines read slots by their windows or not at all, so that a slot without windows, as an
  // adopted one is, would be of no use to them.
  bool windows_alone = false;
  // With which slots are registered for one-sided reads; null: with none.
  std::shared_ptr<titan::transport::RmaDomain> rma;
};

// For metrics; seconds are since the start.
struct HostStats {
  uint64_t slot_bytes = 0;        // memory of all slots
  uint64_t huge_bytes = 0;        // of it in huge pages
  double make_slot_seconds = 0;   // taking memory, with the rests between
  double verify_seconds = 0;      // hashing what a writer wrote
  double evaluation_seconds = 0;  // filling evaluation slots
  uint64_t adopted_slots = 0;     // taken over from readers
  uint64_t refused_offers = 0;    // of readers, but those that may come again at once
};

// Thread-safe.
class Host final : public HostPort, public SlotSource, public lanes::SlotReads {
 public:
  // events must outlive the host.
  Host(HostOptions options, HostEvents& events);
  ~Host() override;

  // Slots that are being made are broken off.
  void Shutdown();
  HostReport Report() const;
  HostStats Stats() const;

  // HostPort.
  void Send(std::vector<HostCommand> commands) override;
  uint64_t num_done() const override { return num_done_; }
  StatusOr<Hash128> HashWritten(uint64_t slot_id, uint64_t grant,
                                std::shared_ptr<const Manifest> manifest) override;
  StatusOr<Hash128> CopySlot(uint64_t from_slot, uint64_t to_slot, uint64_t to_grant,
                             std::shared_ptr<const Manifest> manifest) override;
  StatusOr<Hash128> FillSlot(uint64_t to_slot, uint64_t to_grant,
                             std::shared_ptr<const Manifest> manifest,
                             const ReadTensor& read) override;
  StatusOr<SlotView> ViewSlot(uint64_t slot_id, uint64_t offset, uint64_t num_bytes) override;
  // A part of what FillSlot brings. InvalidArgument: it ends outside of the slot.
  Status WriteSlot(uint64_t slot_id, uint64_t grant, uint64_t offset,
                   std::span<const std::byte> bytes);

  // SlotSource.
  StatusOr<SlotDescriptors> MapLease(uint64_t connection, uint64_t lease_id,
                                     uint64_t grant) override;
  StatusOr<SlotDescriptors> MapForWriting(uint64_t connection, uint64_t epoch,
                                          uint64_t grant) override;
  Status WriterHasMapped(uint64_t connection, uint64_t slot_id, uint64_t grant) override;
  StatusOr<SlotDescriptors> OfferSlot(uint64_t connection, SlotOffer offer,
                                      UniqueFd bytes) override;
  StatusOr<SlotDescriptors> OfferState(uint64_t connection) override;
  const std::string& host_name() const override { return options_.name; }
  void ConnectionClosed(uint64_t connection) override;

  // SlotReads.
  StatusOr<lanes::ReadableSlot> OpenForRead(const lanes::ReadHandle& handle) override;
  Status CheckReadable(const lanes::ReadHandle& handle) override;

 private:
  using TileHashes = std::vector<uint64_t>;
  // Memory of a reader that is to be a slot's.
  struct Adoption {
    std::shared_ptr<const UniqueFd> bytes;
    Hash128 digest;  // that it must have
    std::shared_ptr<const Manifest> manifest;
    std::shared_ptr<const TileHashes> tiles;  // once it is verified
  };
  struct Offer {
    SlotOffer facts;
    std::shared_ptr<const UniqueFd> bytes;
    uint64_t slot_id = 0;  // that adopts it
    Status refused;        // OK: it is not
  };
  struct Slot {
    std::string run_id;
    uint64_t num_bytes = 0;
    uint64_t epoch = 0;  // of the writer; 0: this host fills it
    std::shared_ptr<SlotMemory>
        memory;  // shared with who hashes, copies or reads; null: being made
    std::shared_ptr<Adoption> adoption;       // null: its memory is made anew, or is there
    SlotHeaderFields header;                  // as in the header page
    std::shared_ptr<const TileHashes> tiles;  // of the verified bytes; null: none were made
    bool open_for_writing = false;
    bool writer_mapped = false;
  };
  struct Writer {
    std::string run_id;
    uint64_t epoch = 0;
    friend auto operator<=>(const Writer&, const Writer&) = default;
  };

  // Under mutex_.
  void Do(const MakeSlot& command);
  void Do(const DropSlot& command);
  void Do(const WriteHeader& command);
  void Do(const AllowLease& command);
  void Do(const EndLease& command);
  void Do(const HurrySlots& command);
  void Do(const AdoptSlot& command);
  void Do(const RefuseOffer& command);
  void Refuse(Offer& offer, const Status& why);
  bool HasSlotOf(const Writer& writer) const;
  // Its bytes are those of a slot whose header stands.
  bool IsAdopted(const Offer& offer) const;
  // The slot, if its memory is there and its grant number is that one.
  StatusOr<Slot*> FindSlot(uint64_t slot_id, uint64_t grant);
  // The slot that the handle opens. Codes of OpenForRead.
  StatusOr<Slot*> FindReadable(const lanes::ReadHandle& handle);
  // The weights digest of a slot that is not locked; makes its tiles' hashes, too.
  Hash128 Verify(const SlotMemory& memory, const Manifest& manifest, uint64_t slot_id,
                 uint64_t grant);
  // The memory of one that this host itself fills.
  StatusOr<std::shared_ptr<SlotMemory>> FindOwnMemory(uint64_t slot_id, uint64_t grant);
  // On the maker's threads.
  SlotMaker::Made MakeMemory(const SlotRequest& request, const SlotMemory::Wanted& wanted);
  SlotMaker::Made Adopt(const SlotRequest& request, Adoption& adoption) const;
  void TakeSlot(const SlotRequest& request, SlotMaker::Made made);

  const HostOptions options_;
  HostEvents& events_;
  std::atomic<uint64_t> num_done_{0};

  mutable std::mutex mutex_;  // guards what follows; not held while HostEvents are called
  std::map<uint64_t, Slot> slots_;
  std::map<uint64_t, LeaseReport> leases_;
  std::map<uint64_t, std::set<uint64_t>> leases_of_connection_;
  std::map<uint64_t, Writer> writer_of_connection_;
  std::set<Writer> gone_writers_;      // that have slots here
  std::map<uint64_t, Offer> offers_;   // by connection, which is their id
  std::set<uint64_t> dropped_unmade_;  // slots, by the commands of one Send
  HostStats stats_;
  SlotMaker maker_;  // last: its threads use all of the above. Called with mutex_, never waits.
};

}  // namespace titan::weightstore

#endif  // TITAN_WEIGHTSTORE_HOST_H_
