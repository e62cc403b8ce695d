// SPDX-License-Identifier: Apache-2.0
#include "services/weightstore/host_messages.h"

#include <memory>
#include <set>
#include <string>
#include <utility>

#include "services/weightstore_client/convert.h"
#include "weightstore/store_state.h"

namespace titan::weightstore {
namespace {

// Of a digest that may be missing.
std::string HexOf(const Hash128& digest) { return digest == Hash128{} ? "" : ToHex(digest); }

StatusOr<Hash128> DigestOf(const std::string& hex) {
  if (hex.empty()) return Hash128{};
  return DigestFromProto("weights_digest", hex);
}

v1::AllowLease LeaseToProto(const AllowLease& lease) {
  v1::AllowLease message;
  message.set_lease_id(lease.lease_id);
  message.set_slot_id(lease.slot_id);
  message.set_grant(lease.grant);
  message.set_epoch(lease.epoch);
  message.set_token(ToHex(lease.token));
  message.set_holder(lease.holder);
  message.set_ttl_ms(lease.ttl_ms);
  return message;
}

StatusOr<AllowLease> LeaseFromProto(const v1::AllowLease& message) {
  AllowLease lease;
  lease.lease_id = message.lease_id();
  lease.slot_id = message.slot_id();
  lease.grant = message.grant();
  lease.epoch = message.epoch();
  TITAN_ASSIGN_OR_RETURN(lease.token, DigestFromProto("token", message.token()));
  if (message.holder().empty() || message.holder().size() > 256) {
    return InvalidArgument("holder: must have 1 to 256 bytes");
  }
  lease.holder = message.holder();
  if (message.ttl_ms() < 0) return InvalidArgument("ttl_ms: must not be negative");
  lease.ttl_ms = message.ttl_ms();
  return lease;
}

struct Filler {
  v1::HostCommand* out;

  void operator()(const MakeSlot& command) const {
    v1::MakeSlot& message = *out->mutable_make_slot();
    message.set_slot_id(command.slot_id);
    message.set_num_bytes(command.num_bytes);
    message.set_run_id(command.run_id);
    message.set_epoch(command.epoch);
    message.set_order(command.order);
  }
  void operator()(const DropSlot& command) const {
    out->mutable_drop_slot()->set_slot_id(command.slot_id);
  }
  void operator()(const WriteHeader& command) const {
    v1::WriteHeader& message = *out->mutable_write_header();
    message.set_slot_id(command.fields.slot_id);
    message.set_version(command.fields.version);
    message.set_grant(command.fields.grant);
    message.set_weights_digest(HexOf(command.fields.digest));
    message.set_open_for_writing(command.open_for_writing);
  }
  void operator()(const AllowLease& command) const {
    *out->mutable_allow_lease() = LeaseToProto(command);
  }
  void operator()(const EndLease& command) const {
    out->mutable_end_lease()->set_lease_id(command.lease_id);
  }
  void operator()(const HurrySlots&) const { out->mutable_hurry_slots(); }
  void operator()(const AdoptSlot& command) const {
    v1::AdoptSlot& message = *out->mutable_adopt_slot();
    message.set_offer_id(command.offer_id);
    message.set_slot_id(command.slot_id);
    message.set_run_id(command.run_id);
    message.set_weights_digest(ToHex(command.digest));
    *message.mutable_manifest() = ToProto(*command.manifest);
  }
  void operator()(const RefuseOffer& command) const {
    v1::RefuseOffer& message = *out->mutable_refuse_offer();
    message.set_offer_id(command.offer_id);
    *message.mutable_why() = FailureToProto(command.why);
  }
};

}  // namespace

v1::HostCommand ToProto(const HostCommand& command) {
  v1::HostCommand message;
  std::visit(Filler{&message}, command);
  return message;
}

StatusOr<HostCommand> FromProto(const v1::HostCommand& message) {
  switch (message.command_case()) {
    case v1::HostCommand::kMakeSlot: {
      const v1::MakeSlot& make = message.make_slot();
      if (make.slot_id() == 0) return InvalidArgument("make_slot.slot_id: must not be 0");
      if (make.num_bytes() == 0) return InvalidArgument("make_slot.num_bytes: must not be 0");
      TITAN_RETURN_IF_ERROR(CheckRunId(make.run_id()));
      return HostCommand(MakeSlot{.slot_id = make.slot_id(),
                                  .num_bytes = make.num_bytes(),
                                  .run_id = make.run_id(),
                                  .epoch = make.epoch(),
                                  .order = make.order()});
    }
    case v1::HostCommand::kDropSlot:
      return HostCommand(DropSlot{message.drop_slot().slot_id()});
    case v1::HostCommand::kWriteHeader: {
      const v1::WriteHeader& header = message.write_header();
      TITAN_ASSIGN_OR_RETURN(const Hash128 digest, DigestOf(header.weights_digest()));
      return HostCommand(WriteHeader{{header.slot_id(), header.version(), header.grant(), digest},
                                     header.open_for_writing()});
    }
    case v1::HostCommand::kAllowLease: {
      TITAN_ASSIGN_OR_RETURN(AllowLease lease, LeaseFromProto(message.allow_lease()));
      return HostCommand(std::move(lease));
    }
    case v1::HostCommand::kEndLease:
      return HostCommand(EndLease{message.end_lease().lease_id()});
    case v1::HostCommand::kHurrySlots:
      return HostCommand(HurrySlots{});
    case v1::HostCommand::kAdoptSlot: {
      const v1::AdoptSlot& adopt = message.adopt_slot();
      if (adopt.slot_id() == 0) return InvalidArgument("adopt_slot.slot_id: must not be 0");
      TITAN_RETURN_IF_ERROR(CheckRunId(adopt.run_id()));
      TITAN_ASSIGN_OR_RETURN(const Hash128 digest,
                             DigestFromProto("weights_digest", adopt.weights_digest()));
      TITAN_ASSIGN_OR_RETURN(Manifest manifest, FromProto(adopt.manifest()));
      return HostCommand(
          AdoptSlot{.offer_id = adopt.offer_id(),
                    .slot_id = adopt.slot_id(),
                    .run_id = adopt.run_id(),
                    .digest = digest,
                    .manifest = std::make_shared<const Manifest>(std::move(manifest))});
    }
    case v1::HostCommand::kRefuseOffer:
      return HostCommand(RefuseOffer{message.refuse_offer().offer_id(),
                                     FailureFromProto(message.refuse_offer().why())});
    default:
      return InvalidArgument("command: is none that this host knows");
  }
}

void ToProto(const HostReport& report, v1::AttachRequest* message) {
  for (const SlotReport& slot : report.slots) {
    v1::HostSlot& out = *message->add_slots();
    out.set_slot_id(slot.header.slot_id);
    out.set_run_id(slot.run_id);
    out.set_epoch(slot.epoch);
    out.set_num_bytes(slot.num_bytes);
    out.set_made(slot.made);
    out.set_version(slot.header.version);
    out.set_grant(slot.header.grant);
    out.set_weights_digest(HexOf(slot.header.digest));
    out.set_open_for_writing(slot.open_for_writing);
  }
  for (const LeaseReport& lease : report.leases) {
    v1::HostLease& out = *message->add_leases();
    *out.mutable_lease() = LeaseToProto(lease.lease);
    out.set_mapped(lease.mapped);
  }
  for (const WriterReport& writer : report.gone_writers) {
    v1::HostWriter& out = *message->add_gone_writers();
    out.set_run_id(writer.run_id);
    out.set_epoch(writer.epoch);
  }
  for (const SlotOffer& offer : report.offers) *message->add_offers() = ToProto(offer);
}

StatusOr<HostReport> FromProto(const v1::AttachRequest& message) {
  HostReport report;
  std::set<uint64_t> seen;
  for (const v1::HostSlot& slot : message.slots()) {
    TITAN_RETURN_IF_ERROR(CheckRunId(slot.run_id()));
    if (slot.slot_id() == 0) return InvalidArgument("slots: slot_id must not be 0");
    if (!seen.insert(slot.slot_id()).second) {
      return InvalidArgument("slots: slot " + std::to_string(slot.slot_id()) + " is there twice");
    }
    SlotReport taken;
    taken.run_id = slot.run_id();
    taken.epoch = slot.epoch();
    taken.num_bytes = slot.num_bytes();
    taken.made = slot.made();
    TITAN_ASSIGN_OR_RETURN(const Hash128 digest, DigestOf(slot.weights_digest()));
    taken.header = {slot.slot_id(), slot.version(), slot.grant(), digest};
    taken.open_for_writing = slot.open_for_writing();
    report.slots.push_back(std::move(taken));
  }
  seen.clear();
  for (const v1::HostLease& lease : message.leases()) {
    LeaseReport taken;
    TITAN_ASSIGN_OR_RETURN(taken.lease, LeaseFromProto(lease.lease()));
    if (!seen.insert(taken.lease.lease_id).second) {
      return InvalidArgument("leases: lease " + std::to_string(taken.lease.lease_id) +
                             " is there twice");
    }
    taken.mapped = lease.mapped();
    report.leases.push_back(std::move(taken));
  }
  for (const v1::HostWriter& writer : message.gone_writers()) {
    report.gone_writers.push_back({writer.run_id(), writer.epoch()});
  }
  for (const v1::SlotOffer& offered : message.offers()) {
    TITAN_ASSIGN_OR_RETURN(SlotOffer offer, FromProto(offered));
    report.offers.push_back(std::move(offer));
  }
  return report;
}

v1::SlotOffer ToProto(const SlotOffer& offer) {
  v1::SlotOffer message;
  message.set_offer_id(offer.offer_id);
  message.set_run_id(offer.run_id);
  message.set_version(offer.version);
  message.set_num_bytes(offer.num_bytes);
  message.set_weights_digest(ToHex(offer.digest));
  message.set_manifest_id(ToHex(offer.manifest_id));
  return message;
}

StatusOr<SlotOffer> FromProto(const v1::SlotOffer& message) {
  SlotOffer offer;
  offer.offer_id = message.offer_id();
  TITAN_RETURN_IF_ERROR(CheckRunId(message.run_id()));
  offer.run_id = message.run_id();
  offer.version = message.version();
  offer.num_bytes = message.num_bytes();
  TITAN_ASSIGN_OR_RETURN(offer.digest, DigestFromProto("weights_digest", message.weights_digest()));
  TITAN_ASSIGN_OR_RETURN(offer.manifest_id, DigestFromProto("manifest_id", message.manifest_id()));
  return offer;
}

v1::HostFailure FailureToProto(const Status& status) {
  v1::HostFailure failure;
  failure.set_code(static_cast<int32_t>(status.code()));
  failure.set_message(MessageOf(status));
  return failure;
}

Status FailureFromProto(const v1::HostFailure& message) {
  const int32_t code = message.code();
  if (code <= 0 || code > 16) return Unavailable("the host failed with " + message.message());
  return MakeStatus(static_cast<StatusCode>(code), message.message());
}

}  // namespace titan::weightstore
