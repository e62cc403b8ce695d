// SPDX-License-Identifier: Apache-2.0
#include "weightstore/host.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <utility>

#include "core/base/check.h"
#include "weightstore/client/reason.h"
#include "weightstore/client/weights_digest.h"
#include "weightstore/transport/wire.h"

namespace titan::weightstore {
namespace {

class Stopwatch {
 public:
  double Seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

Status CheckRange(const SlotMemory& memory, uint64_t offset, uint64_t num_bytes) {
  if (offset <= memory.num_bytes() && num_bytes <= memory.num_bytes() - offset) return OkStatus();
  return InvalidArgument("offset: " + std::to_string(num_bytes) + " bytes from " +
                         std::to_string(offset) + " end outside of the slot");
}

// A manifest that does not come from the slot's run.
Status CheckFits(const Manifest& manifest, const SlotMemory& memory) {
  if (manifest.slot_bytes <= memory.num_bytes()) return OkStatus();
  return InvalidArgument("manifest.slot_bytes: is " + std::to_string(manifest.slot_bytes) +
                         ", the slot has " + std::to_string(memory.num_bytes()) + " bytes");
}

Status StaleGrant(uint64_t grant) {
  return Aborted("grant " + std::to_string(grant) + " opens no slot: it is stale");
}

}  // namespace

Host::Host(HostOptions options, HostEvents& events)
    : options_(std::move(options)),
      events_(events),
      maker_([this](const SlotRequest& request,
                    const SlotMemory::Wanted& wanted) { return MakeMemory(request, wanted); },
             [this](const SlotRequest& request, SlotMaker::Made made) {
               TakeSlot(request, std::move(made));
             }) {
  TITAN_CHECK(options_.threads >= 1);
}

Host::~Host() = default;

void Host::Shutdown() { maker_.Stop(); }

HostStats Host::Stats() const {
  std::lock_guard lock(mutex_);
  HostStats stats = stats_;
  for (const auto& [slot_id, slot] : slots_) {
    if (slot.memory == nullptr) continue;
    stats.slot_bytes += slot.memory->num_bytes();
    stats.huge_bytes += slot.memory->huge_bytes();
  }
  return stats;
}

// --------------------------------------------------------------------------------------- commands

void Host::Send(std::vector<HostCommand> commands) {
  std::lock_guard lock(mutex_);
  for (const HostCommand& command : commands) {
    std::visit([this](const auto& one) { Do(one); }, command);
  }
  // All at once: the end of one would let the maker begin the next that nobody wants.
  maker_.Forget(std::exchange(dropped_unmade_, {}));
  num_done_ += commands.size();
}

void Host::Do(const MakeSlot& command) {
  if (slots_.contains(command.slot_id)) return;  // a leader that names two slots alike
  Slot& slot = slots_[command.slot_id];
  slot.run_id = command.run_id;
  slot.num_bytes = command.num_bytes;
  slot.epoch = command.epoch;
  slot.header.slot_id = command.slot_id;
  maker_.Add(
      {.slot_id = command.slot_id,
       .num_bytes = command.num_bytes,
       .writer = command.epoch == 0 ? SlotMemory::Writer::kDaemon : SlotMemory::Writer::kClient,
       .order = command.order});
}

SlotMaker::Made Host::MakeMemory(const SlotRequest& request, const SlotMemory::Wanted& wanted) {
  std::shared_ptr<Adoption> adoption;
  {
    std::lock_guard lock(mutex_);
    const auto slot = slots_.find(request.slot_id);
    if (slot != slots_.end()) adoption = slot->second.adoption;
  }
  if (adoption != nullptr) return Adopt(request, *adoption);
  // Of what is adopted the leader has thought.
  const uint64_t used = Stats().slot_bytes;
  const uint64_t limit = options_.memory_limit_bytes;
  if (used > limit || request.num_bytes > limit - used) {
    return ResourceExhausted("a slot of " + std::to_string(request.num_bytes) + " bytes beside " +
                             std::to_string(used) + " is more than memory_limit_bytes, which is " +
                             std::to_string(limit));
  }
  if (options_.make_slot) return options_.make_slot(request, wanted);
  return SlotMemory::Create(request.slot_id, request.num_bytes, request.writer, wanted,
                            options_.rma);
}

void Host::TakeSlot(const SlotRequest& request, SlotMaker::Made made) {
  const bool good = made.ok();
  {
    std::lock_guard lock(mutex_);
    stats_.make_slot_seconds += request.seconds;
    const auto found = slots_.find(request.slot_id);
    if (found == slots_.end()) return;  // dropped meanwhile
    Slot& slot = found->second;
    if (good) {
      slot.memory = *std::move(made);
      if (slot.adoption != nullptr) {
        slot.tiles = std::move(slot.adoption->tiles);
        slot.adoption.reset();
        ++stats_.adopted_slots;
      }
    } else {
      slots_.erase(found);
      for (auto& [connection, offer] : offers_) {
        if (offer.slot_id == request.slot_id) Refuse(offer, made.status());
      }
    }
  }
  if (good) {
    events_.SlotMade(request.slot_id);
  } else {
    events_.SlotNotMade(request.slot_id, made.status());
  }
}

void Host::Do(const DropSlot& command) {
  const auto slot = slots_.find(command.slot_id);
  if (slot == slots_.end()) return;
  if (slot->second.memory == nullptr) dropped_unmade_.insert(command.slot_id);
  maker_.Free(std::move(slot->second.memory));
  slots_.erase(slot);
}

void Host::Do(const WriteHeader& command) {
  const auto found = slots_.find(command.fields.slot_id);
  if (found == slots_.end()) return;
  Slot& slot = found->second;
  slot.header = command.fields;
  if (command.fields.digest == Hash128{}) slot.tiles.reset();  // its bytes may change
  slot.open_for_writing = command.open_for_writing;
  if (slot.memory != nullptr) slot.memory->WriteHeader(command.fields);
}

void Host::Do(const AllowLease& command) {
  leases_[command.lease_id] = {command, /*mapped=*/false};
}

void Host::Do(const EndLease& command) { leases_.erase(command.lease_id); }

void Host::Do(const HurrySlots&) { maker_.Hurry(); }

bool Host::HasSlotOf(const Writer& writer) const {
  return std::any_of(slots_.begin(), slots_.end(), [&](const auto& entry) {
    return Writer{entry.second.run_id, entry.second.epoch} == writer;
  });
}

HostReport Host::Report() const {
  std::lock_guard lock(mutex_);
  HostReport report;
  for (const auto& [slot_id, slot] : slots_) {
    report.slots.push_back({slot.run_id, slot.epoch, slot.num_bytes, slot.memory != nullptr,
                            slot.header, slot.open_for_writing});
  }
  for (const auto& [lease_id, lease] : leases_) report.leases.push_back(lease);
  for (const Writer& writer : gone_writers_) {
    if (HasSlotOf(writer)) report.gone_writers.push_back({writer.run_id, writer.epoch});
  }
  for (const auto& [connection, offer] : offers_) {
    if (offer.refused.ok() && !IsAdopted(offer)) report.offers.push_back(offer.facts);
  }
  return report;
}

// ------------------------------------------------------------------------------------------ bytes

StatusOr<Host::Slot*> Host::FindSlot(uint64_t slot_id, uint64_t grant) {
  const auto found = slots_.find(slot_id);
  if (found == slots_.end() || found->second.memory == nullptr ||
      found->second.header.grant != grant) {
    return StaleGrant(grant);
  }
  return &found->second;
}

Hash128 Host::Verify(const SlotMemory& memory, const Manifest& manifest, uint64_t slot_id,
                     uint64_t grant) {
  std::shared_ptr<const TileHashes> tiles;
  // Before the digest: bytes that turn in between are then found by whoever pulls.
  if (options_.hash_tiles) {
    tiles = std::make_shared<const TileHashes>(lanes::TileHashes(memory.bytes(), options_.threads));
  }
  const Hash128 digest = WeightsDigest(manifest, memory.bytes(), options_.threads);
  std::lock_guard lock(mutex_);
  if (const auto slot = FindSlot(slot_id, grant); slot.ok()) (*slot)->tiles = std::move(tiles);
  return digest;
}

StatusOr<Hash128> Host::HashWritten(uint64_t slot_id, uint64_t grant,
                                    std::shared_ptr<const Manifest> manifest) {
  std::shared_ptr<SlotMemory> memory;
  {
    std::lock_guard lock(mutex_);
    TITAN_ASSIGN_OR_RETURN(const Slot* slot, FindSlot(slot_id, grant));
    if (!slot->writer_mapped) {
      return FailedPrecondition("version " + std::to_string(slot->header.version) + " of run " +
                                slot->run_id + ": its slot was never mapped for writing");
    }
    memory = slot->memory;
  }
  TITAN_RETURN_IF_ERROR(CheckFits(*manifest, *memory));
  const Stopwatch watch;
  const Hash128 read = Verify(*memory, *manifest, slot_id, grant);
  std::lock_guard lock(mutex_);
  stats_.verify_seconds += watch.Seconds();
  return read;
}

StatusOr<Hash128> Host::CopySlot(uint64_t from_slot, uint64_t to_slot, uint64_t to_grant,
                                 std::shared_ptr<const Manifest> manifest) {
  TITAN_ASSIGN_OR_RETURN(const SlotView from, ViewSlot(from_slot, 0, manifest->slot_bytes));
  TITAN_ASSIGN_OR_RETURN(const std::shared_ptr<SlotMemory> to, FindOwnMemory(to_slot, to_grant));
  TITAN_RETURN_IF_ERROR(CheckFits(*manifest, *to));
  const Stopwatch watch;
  std::memcpy(to->writable_bytes().data(), from.bytes.data(), manifest->slot_bytes);
  const Hash128 copied = Verify(*to, *manifest, to_slot, to_grant);
  std::lock_guard lock(mutex_);
  stats_.evaluation_seconds += watch.Seconds();
  return copied;
}

StatusOr<Hash128> Host::FillSlot(uint64_t to_slot, uint64_t to_grant,
                                 std::shared_ptr<const Manifest> manifest, const ReadTensor& read) {
  TITAN_ASSIGN_OR_RETURN(const std::shared_ptr<SlotMemory> to, FindOwnMemory(to_slot, to_grant));
  TITAN_RETURN_IF_ERROR(CheckFits(*manifest, *to));
  const Stopwatch watch;
  for (size_t i = 0; i < manifest->tensors.size(); ++i) {
    const TensorEntry& tensor = manifest->tensors[i];
    TITAN_RETURN_IF_ERROR(read(i, to->writable_bytes().subspan(tensor.offset, tensor.num_bytes)));
  }
  const Hash128 filled = Verify(*to, *manifest, to_slot, to_grant);
  std::lock_guard lock(mutex_);
  stats_.evaluation_seconds += watch.Seconds();
  return filled;
}

StatusOr<std::shared_ptr<SlotMemory>> Host::FindOwnMemory(uint64_t slot_id, uint64_t grant) {
  std::lock_guard lock(mutex_);
  TITAN_ASSIGN_OR_RETURN(const Slot* slot, FindSlot(slot_id, grant));
  if (slot->memory->writer() != SlotMemory::Writer::kDaemon) {
    return FailedPrecondition("slot " + std::to_string(slot_id) + " is written by a trainer");
  }
  return slot->memory;
}

Status Host::WriteSlot(uint64_t slot_id, uint64_t grant, uint64_t offset,
                       std::span<const std::byte> bytes) {
  TITAN_ASSIGN_OR_RETURN(const std::shared_ptr<SlotMemory> to, FindOwnMemory(slot_id, grant));
  TITAN_RETURN_IF_ERROR(CheckRange(*to, offset, bytes.size()));
  std::memcpy(to->writable_bytes().data() + offset, bytes.data(), bytes.size());
  return OkStatus();
}

StatusOr<SlotView> Host::ViewSlot(uint64_t slot_id, uint64_t offset, uint64_t num_bytes) {
  std::lock_guard lock(mutex_);
  const auto slot = slots_.find(slot_id);
  if (slot == slots_.end() || slot->second.memory == nullptr) {
    return Aborted("slot " + std::to_string(slot_id) + " is not there any more");
  }
  const std::shared_ptr<SlotMemory>& memory = slot->second.memory;
  TITAN_RETURN_IF_ERROR(CheckRange(*memory, offset, num_bytes));
  return SlotView{memory->bytes().subspan(offset, num_bytes), memory};
}

// ------------------------------------------------------------------------------------- data plane

StatusOr<Host::Slot*> Host::FindReadable(const lanes::ReadHandle& handle) {
  const auto found = leases_.find(handle.lease_id);
  if (found == leases_.end()) {
    return WithReason(Aborted("lease " + std::to_string(handle.lease_id) + " has ended"),
                      lanes::kLeaseExpired);
  }
  const AllowLease& lease = found->second.lease;
  // All bits are looked at, so that the time says nothing about how many are right.
  const uint64_t differing =
      (lease.token.low ^ handle.token.low) | (lease.token.high ^ handle.token.high);
  if (differing != 0) return FailedPrecondition("the token is not the lease's");
  if (lease.epoch != handle.epoch) {
    return WithReason(Aborted("epoch " + std::to_string(handle.epoch) + " is superseded"),
                      kEpochSuperseded);
  }
  const StatusOr<Slot*> slot = FindSlot(lease.slot_id, handle.grant);
  if (lease.grant != handle.grant || !slot.ok()) {
    return WithReason(StaleGrant(handle.grant), lanes::kStaleHandle);
  }
  return slot;
}

StatusOr<lanes::ReadableSlot> Host::OpenForRead(const lanes::ReadHandle& handle) {
  struct Owner {
    std::shared_ptr<const SlotMemory> memory;
    std::shared_ptr<const TileHashes> tiles;
  };
  std::lock_guard lock(mutex_);
  TITAN_ASSIGN_OR_RETURN(const Slot* slot, FindReadable(handle));
  const auto owner = std::make_shared<const Owner>(Owner{slot->memory, slot->tiles});
  lanes::ReadableSlot readable;
  readable.fd = slot->memory->reader_fd();
  readable.bytes = slot->memory->bytes();
  readable.facts = {slot->memory->num_bytes(), slot->header.version, slot->header.digest};
  if (owner->tiles != nullptr) readable.tile_hashes = *owner->tiles;
  readable.windows = slot->memory->windows();
  readable.owner = owner;
  return readable;
}

Status Host::CheckReadable(const lanes::ReadHandle& handle) {
  std::lock_guard lock(mutex_);
  return FindReadable(handle).status();
}

// ----------------------------------------------------------------------------------------- socket

StatusOr<SlotDescriptors> Host::MapLease(uint64_t connection, uint64_t lease_id, uint64_t grant) {
  SlotDescriptors descriptors;
  {
    std::lock_guard lock(mutex_);
    const std::string name = "lease " + std::to_string(lease_id);
    const auto found = leases_.find(lease_id);
    if (found == leases_.end()) return Aborted(name + " does not exist or has ended");
    const AllowLease& lease = found->second.lease;
    const StatusOr<Slot*> slot = FindSlot(lease.slot_id, grant);
    if (lease.grant != grant || !slot.ok()) {
      return Aborted(name + ": grant " + std::to_string(grant) + " is stale");
    }
    if (found->second.mapped) return FailedPrecondition(name + " is mapped");
    const SlotMemory& memory = *(*slot)->memory;
    descriptors.slot_id = lease.slot_id;
    descriptors.slot_bytes = memory.num_bytes();
    TITAN_ASSIGN_OR_RETURN(UniqueFd bytes, memory.DuplicateForReader());
    TITAN_ASSIGN_OR_RETURN(UniqueFd header, memory.DuplicateHeader());
    descriptors.fds.push_back(std::move(bytes));
    descriptors.fds.push_back(std::move(header));
    found->second.mapped = true;
    leases_of_connection_[connection].insert(lease_id);  // it ends with it from here on
  }
  events_.LeaseMapped(lease_id);
  return descriptors;
}

StatusOr<SlotDescriptors> Host::MapForWriting(uint64_t connection, uint64_t epoch, uint64_t grant) {
  std::lock_guard lock(mutex_);
  const Slot* slot = nullptr;
  SlotDescriptors descriptors;
  for (const auto& [slot_id, candidate] : slots_) {
    if (candidate.memory == nullptr || candidate.epoch == 0 || candidate.epoch != epoch ||
        candidate.header.grant != grant || !candidate.open_for_writing) {
      continue;
    }
    slot = &candidate;
    descriptors.slot_id = slot_id;
  }
  if (slot == nullptr) {
    return Aborted("grant " + std::to_string(grant) + " of epoch " + std::to_string(epoch) +
                   " opens no slot: it is stale");
  }
  const Writer writer = {slot->run_id, epoch};
  for (const auto& [other, known] : writer_of_connection_) {
    if (known == writer && other != connection) {
      return FailedPrecondition("epoch " + std::to_string(epoch) + " of run " + slot->run_id +
                                " writes through another connection");
    }
  }
  const auto [entry, added] = writer_of_connection_.emplace(connection, writer);
  if (entry->second != writer) {
    return FailedPrecondition("this connection writes for run " + entry->second.run_id +
                              ", epoch " + std::to_string(entry->second.epoch) +
                              "; open another one");
  }
  descriptors.slot_bytes = slot->memory->num_bytes();
  if (!slot->writer_mapped) {
    TITAN_ASSIGN_OR_RETURN(UniqueFd bytes, slot->memory->DuplicateForWriter());
    descriptors.fds.push_back(std::move(bytes));
  }
  return descriptors;
}

Status Host::WriterHasMapped(uint64_t connection, uint64_t slot_id, uint64_t grant) {
  std::lock_guard lock(mutex_);
  const auto writer = writer_of_connection_.find(connection);
  if (writer == writer_of_connection_.end()) {
    return FailedPrecondition("this connection has no slot to write");
  }
  TITAN_ASSIGN_OR_RETURN(Slot * slot, FindSlot(slot_id, grant));
  if (writer->second != Writer{slot->run_id, slot->epoch}) return StaleGrant(grant);
  TITAN_RETURN_IF_ERROR(slot->memory->SealWriters());
  slot->writer_mapped = true;
  return OkStatus();
}

void Host::ConnectionClosed(uint64_t connection) {
  std::set<uint64_t> ended;
  std::optional<Writer> gone;
  {
    std::lock_guard lock(mutex_);
    offers_.erase(connection);
    const auto leases = leases_of_connection_.find(connection);
    if (leases != leases_of_connection_.end()) {
      ended = std::move(leases->second);
      leases_of_connection_.erase(leases);
    }
    for (const uint64_t lease_id : ended) leases_.erase(lease_id);
    const auto writer = writer_of_connection_.find(connection);
    if (writer != writer_of_connection_.end()) {
      gone = std::move(writer->second);
      writer_of_connection_.erase(writer);
      std::erase_if(gone_writers_, [&](const Writer& one) { return !HasSlotOf(one); });
      if (HasSlotOf(*gone)) gone_writers_.insert(*gone);
    }
  }
  for (const uint64_t lease_id : ended) events_.LeaseEnded(lease_id);
  if (gone.has_value()) events_.WriterGone(gone->run_id, gone->epoch);
}

}  // namespace titan::weightstore
