// SPDX-License-Identifier: Apache-2.0
// Memory of readers whose daemon is gone. Everything else: host.cc.
#include <utility>

#include "weightstore/client/reason.h"
#include "weightstore/client/weights_digest.h"
#include "weightstore/host.h"
#include "weightstore/store_state.h"
#include "weightstore/transport/wire.h"

namespace titan::weightstore {

// ----------------------------------------------------------------------------------------- socket

StatusOr<SlotDescriptors> Host::OfferSlot(uint64_t connection, SlotOffer offer, UniqueFd bytes) {
  Status form = CheckRunId(offer.run_id);
  if (form.ok()) form = SlotMemory::CheckSealed(bytes, offer.num_bytes);
  {
    std::lock_guard lock(mutex_);
    const auto [entry, added] = offers_.try_emplace(connection);
    if (!added) return FailedPrecondition("this connection has offered a slot; open another one");
    entry->second.facts = offer;
    entry->second.bytes = std::make_shared<const UniqueFd>(std::move(bytes));
    if (!form.ok()) Refuse(entry->second, form);
  }
  if (form.ok()) events_.SlotOffered(options_.name, offer);
  return OfferState(connection);
}

bool Host::IsAdopted(const Offer& offer) const {
  const auto slot = slots_.find(offer.slot_id);
  return slot != slots_.end() && slot->second.header.digest != Hash128{};
}

StatusOr<SlotDescriptors> Host::OfferState(uint64_t connection) {
  std::lock_guard lock(mutex_);
  const auto found = offers_.find(connection);
  if (found == offers_.end()) return FailedPrecondition("this connection has offered no slot");
  const Offer& offer = found->second;
  TITAN_RETURN_IF_ERROR(offer.refused);
  if (IsAdopted(offer)) return SlotDescriptors{.slot_id = offer.slot_id};
  if (offer.slot_id != 0 && !slots_.contains(offer.slot_id)) {
    return Unavailable("the slot was given up before it was adopted; offer it again");
  }
  return SlotDescriptors{};
}

// --------------------------------------------------------------------------------------- commands

void Host::Do(const AdoptSlot& command) {
  if (slots_.contains(command.slot_id)) return;  // as for MakeSlot
  const auto offer = offers_.find(command.offer_id);
  Slot& slot = slots_[command.slot_id];
  slot.run_id = command.run_id;
  slot.num_bytes = command.manifest->slot_bytes;
  slot.epoch = kNoTrainer;
  slot.header.slot_id = command.slot_id;
  slot.adoption = std::make_shared<Adoption>();
  slot.adoption->digest = command.digest;
  slot.adoption->manifest = command.manifest;
  if (offer != offers_.end()) {
    slot.adoption->bytes = offer->second.bytes;
    offer->second.slot_id = command.slot_id;
    offer->second.refused = OkStatus();
  }
  maker_.Add({.slot_id = command.slot_id,
              .num_bytes = slot.num_bytes,
              .writer = SlotMemory::Writer::kNobody});
}

void Host::Do(const RefuseOffer& command) {
  const auto offer = offers_.find(command.offer_id);
  // What is adopted was decided before.
  if (offer != offers_.end() && offer->second.slot_id == 0) Refuse(offer->second, command.why);
}

void Host::Refuse(Offer& offer, const Status& why) {
  offer.refused = why;
  offer.bytes.reset();
  if (why.code() != StatusCode::kUnavailable) ++stats_.refused_offers;
}

// ------------------------------------------------------------------------------------------ bytes

SlotMaker::Made Host::Adopt(const SlotRequest& request, Adoption& adoption) const {
  if (adoption.bytes == nullptr) return Aborted("the reader that offered the slot has gone");
  if (options_.windows_alone) {
    return Unavailable(
        "an adopted slot has no windows, and this store, with require_rdma, lets other machines "
        "read by windows alone; its trainer makes the version again");
  }
  TITAN_ASSIGN_OR_RETURN(std::unique_ptr<SlotMemory> memory,
                         SlotMemory::Adopt(request.slot_id, request.num_bytes, *adoption.bytes));
  if (options_.hash_tiles) {
    adoption.tiles =
        std::make_shared<const TileHashes>(lanes::TileHashes(memory->bytes(), options_.threads));
  }
  const Hash128 digest = WeightsDigest(*adoption.manifest, memory->bytes(), options_.threads);
  if (digest == adoption.digest) return memory;
  return WithReason(DataLoss("the offered slot holds " + ToHex(digest) +
                             ", the version is recorded with digest " + ToHex(adoption.digest)),
                    kDigestMismatch);
}

}  // namespace titan::weightstore
