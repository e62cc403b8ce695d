// SPDX-License-Identifier: Apache-2.0
// Versions that are LOST and that readers still map. Hosts: store_state_hosts.cc.
#include <limits>
#include <string>
#include <utility>

#include "weightstore/store_state.h"
#include "weightstore/store_state_errors.h"

namespace titan::weightstore {
namespace {

// The largest number stands for what is more.
uint64_t AddSlots(uint64_t bytes, uint64_t num_slots, uint64_t slot_bytes) {
  uint64_t sum = 0;
  const bool more = __builtin_mul_overflow(num_slots, slot_bytes, &sum) ||
                    __builtin_add_overflow(bytes, sum, &sum);
  return more ? std::numeric_limits<uint64_t>::max() : sum;
}

}  // namespace

StatusOr<std::optional<uint64_t>> StoreState::PlanAdoption(const std::string& host,
                                                           const SlotOffer& offer) const {
  TITAN_ASSIGN_OR_RETURN(const Run* run, FindRun(offer.run_id));
  const std::string name = Named(offer.run_id, offer.version);
  if (run->record.ended) return NotServed("run " + offer.run_id + " has ended");
  const Manifest& manifest = *run->record.manifest;
  if (offer.num_bytes != manifest.slot_bytes) {
    return InvalidArgument("slot_bytes: " + std::to_string(offer.num_bytes) + ", but " + name +
                           " has " + std::to_string(manifest.slot_bytes));
  }
  if (offer.manifest_id != ManifestId(manifest)) {
    return InvalidArgument("manifest_id: " + name + " is recorded with another manifest");
  }
  const auto found = run->versions.find(offer.version);
  if (found == run->versions.end() || !found->second.record.has_value()) {
    return NotFound(name + " was never committed");
  }
  const Version& version = found->second;
  if (version.record->digest != offer.digest) {
    return Divergence(offer.run_id, offer.version, version.record->digest, offer.digest);
  }
  switch (version.state) {
    case VersionState::kLost:
      break;
    case VersionState::kOpen:
    case VersionState::kSealed:
      return Unavailable(name + " is being made again by its trainer");
    case VersionState::kCommitted:
      return Unavailable(name + " is served on host " + slots_.at(version.slot_id).host +
                         ": take a lease");
    default:
      return NotServed(name + " is " + std::string(NameOf(version.state)) +
                       ": nobody needs it any more");
  }
  if (const uint64_t slot_id = FindAdoption(offer.run_id, offer.version); slot_id != 0) {
    const Slot& slot = slots_.at(slot_id);
    if (slot.host == host && slot.offer_id == offer.offer_id) return std::optional<uint64_t>();
    return Unavailable(name + " is being adopted from another reader");
  }
  const uint64_t oldest_needed = OldestNeeded(*run, run->num_records);
  if (offer.version < oldest_needed) {
    return NotServed(name + " is not needed any more; the oldest that is is version " +
                     std::to_string(oldest_needed));
  }
  uint64_t room = offer.num_bytes;
  for (const auto& [run_id, other] : runs_) {
    if (other.record.ended || other.writer_alive) continue;
    const uint64_t evaluations = other.record.evaluation_slots - other.evaluations.size();
    room = AddSlots(room, other.record.max_age + kSparesOfRing + evaluations,
                    other.record.manifest->slot_bytes);
  }
  return std::optional<uint64_t>(room);
}

void StoreState::ApplyAdoption(const std::string& host, const SlotOffer& offer) {
  const uint64_t slot_id = NextNumber();
  const Run& run = runs_.at(offer.run_id);
  slots_[slot_id] = {.run_id = offer.run_id,
                     .host = host,
                     .epoch = kNoTrainer,
                     .version = offer.version,
                     .offer_id = offer.offer_id};
  Command(host, AdoptSlot{.offer_id = offer.offer_id,
                          .slot_id = slot_id,
                          .run_id = offer.run_id,
                          .digest = run.versions.at(offer.version).record->digest,
                          .manifest = run.record.manifest});
}

void StoreState::RefuseOffer(const std::string& host, uint64_t offer_id, const Status& why) {
  Command(host, weightstore::RefuseOffer{offer_id, why});
}

uint64_t StoreState::FindAdoption(const std::string& run_id, uint64_t version) const {
  for (const auto& [slot_id, slot] : slots_) {
    if (slot.epoch == kNoTrainer && !slot.made && slot.run_id == run_id &&
        slot.version == version) {
      return slot_id;
    }
  }
  return 0;
}

void StoreState::FinishAdoption(uint64_t slot_id) {
  const Slot& slot = slots_.at(slot_id);
  Version& version = runs_.at(slot.run_id).versions.at(*slot.version);
  if (version.state != VersionState::kLost) {  // another host came back with it
    RemoveSlot(slot_id);
    return;
  }
  version.slot_id = slot_id;
  version.digest = version.record->digest;
  RaiseGrant(slot_id, *slot.version, version.digest);
  SetState(version, VersionState::kCommitted);
}

}  // namespace titan::weightstore
