// SPDX-License-Identifier: Apache-2.0
#include "weightstore/transport/rma_transport.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "weightstore/client/reason.h"
#include "weightstore/client/slot_header.h"
#include "weightstore/transport/rma_lane.h"

namespace titan::weightstore::lanes {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using titan::transport::RmaPeer;
using titan::transport::RmaWindow;

Status Silent(const RmaTransportOptions& options) {
  return Unavailable("the source did not answer a read of at most " +
                     std::to_string(options.step_bytes) + " bytes within " +
                     std::to_string(options.stall_timeout.count()) + " ms");
}

class RmaSlot final : public RemoteSlot {
 public:
  RmaSlot(titan::transport::RmaDomain& domain, const RmaSource& source, PullGrant grant,
          const RmaTransportOptions& options, RmaPeer peer, RmaWindow landing, RmaWindow header)
      : domain_(domain),
        source_(source),
        grant_(std::move(grant)),
        options_(options),
        peer_(std::move(peer)),
        landing_(std::move(landing)),
        header_(std::move(header)) {}

  uint64_t slot_bytes() const override { return source_.bytes.bytes; }
  bool can_pack() const override { return false; }

  Status Read(std::span<const Piece> pieces, SteadyTime deadline) override {
    for (const Piece& piece : pieces) {
      TITAN_RETURN_IF_ERROR(CheckPiece(piece, slot_bytes()));
      if (!piece.loops.empty()) {
        return InvalidArgument("one-sided reads cannot pack at the source; plan with can_pack off");
      }
    }
    for (const Piece& piece : pieces) TITAN_RETURN_IF_ERROR(ReadPiece(piece, deadline));
    return Confirm(deadline);
  }

  // A read of its own, after all others have ended: pieces of one may arrive in any order.
  Status Confirm(SteadyTime deadline) override {
    TITAN_RETURN_IF_ERROR(ReadStep(source_.header, 0, header_, 0, kSlotHeaderBytes, deadline));
    if (steady_clock::now() >= grant_.expires) {
      return WithReason(Aborted("lease " + std::to_string(grant_.lease.lease_id) +
                                " ended while its version was read"),
                        kLeaseExpired);
    }
    SlotHeaderFields found;
    if (!SlotHeaderPage(header_.memory().data()).Read(&found) || found.slot_id != source_.slot_id ||
        found.grant != grant_.lease.grant) {
      return WithReason(Aborted("slot " + std::to_string(source_.slot_id) +
                                " was taken from its readers, or is being"),
                        kStaleHandle);
    }
    if (found.version != grant_.lease.version || found.digest != grant_.lease.digest) {
      return DataLoss("the slot holds version " + std::to_string(found.version) + " with digest " +
                      ToHex(found.digest) + ", the lease is for version " +
                      std::to_string(grant_.lease.version) + " with digest " +
                      ToHex(grant_.lease.digest));
    }
    return OkStatus();
  }

 private:
  Status ReadPiece(const Piece& piece, SteadyTime deadline) {
    const std::span<std::byte> to = piece.destination;
    const auto landing = landing_.registered() ? landing_.memory() : std::span<std::byte>();
    const bool lands = !landing.empty() && to.data() >= landing.data() &&
                       to.data() + to.size() <= landing.data() + landing.size();
    if (!lands && !bounce_.has_value()) {
      TITAN_ASSIGN_OR_RETURN(bounce_, domain_.Allocate(options_.step_bytes));
    }
    for (uint64_t done = 0; done < to.size();) {
      const uint64_t size = std::min<uint64_t>(options_.step_bytes, to.size() - done);
      const RmaWindow& window = lands ? landing_ : *bounce_;
      const uint64_t at = lands ? static_cast<uint64_t>(to.data() - landing.data()) + done : 0;
      TITAN_RETURN_IF_ERROR(
          ReadStep(source_.bytes, piece.source_offset + done, window, at, size, deadline));
      if (!lands) std::memcpy(to.data() + done, bounce_->memory().data(), size);
      done += size;
    }
    return OkStatus();
  }

  Status ReadStep(const titan::transport::RmaWindowKey& from, uint64_t from_offset,
                  const RmaWindow& to, uint64_t to_offset, uint64_t size, SteadyTime deadline) {
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - steady_clock::now());
    if (left.count() <= 0) return DeadlineExceeded("one-sided reads: the deadline passed");
    const Status status =
        peer_.Read(from, from_offset, to, to_offset, size, std::min(left, options_.stall_timeout));
    if (status.code() == StatusCode::kDeadlineExceeded && left > options_.stall_timeout) {
      return Silent(options_);
    }
    return status;
  }

  titan::transport::RmaDomain& domain_;
  const RmaSource source_;
  const PullGrant grant_;
  const RmaTransportOptions options_;
  RmaPeer peer_;
  const RmaWindow landing_, header_;
  std::optional<RmaWindow> bounce_;
};

}  // namespace

StatusOr<std::unique_ptr<RmaTransport>> RmaTransport::Create(titan::transport::RmaDomain& domain,
                                                             RmaSource source, RmaWindow landing,
                                                             const RmaTransportOptions& options) {
  if (options.step_bytes < 1 || options.stall_timeout.count() < 1) {
    return InvalidArgument("rma: step_bytes, stall_timeout: must be at least 1");
  }
  if (source.header.bytes < kSlotHeaderBytes) {
    return InvalidArgument("rma: the source's header window has " +
                           std::to_string(source.header.bytes) + " bytes, not 4096");
  }
  return std::unique_ptr<RmaTransport>(
      new RmaTransport(domain, std::move(source), std::move(landing), options));
}

Lane RmaTransport::lane() const { return LaneOf(domain_); }

StatusOr<std::unique_ptr<RemoteSlot>> RmaTransport::Open(const PullGrant& grant,
                                                         SteadyTime deadline) {
  const auto left = std::chrono::duration_cast<milliseconds>(deadline - steady_clock::now());
  if (left.count() <= 0) return DeadlineExceeded("one-sided reads: the deadline passed");
  auto peer = domain_.Connect(source_.address, std::min(left, options_.stall_timeout));
  if (peer.status().code() == StatusCode::kDeadlineExceeded && left > options_.stall_timeout) {
    return Silent(options_);
  }
  TITAN_RETURN_IF_ERROR(peer.status());
  TITAN_ASSIGN_OR_RETURN(RmaWindow header, domain_.Allocate(kSlotHeaderBytes));
  auto slot = std::make_unique<RmaSlot>(domain_, source_, grant, options_, *std::move(peer),
                                        landing_, std::move(header));
  TITAN_RETURN_IF_ERROR(slot->Confirm(deadline));
  return std::unique_ptr<RemoteSlot>(std::move(slot));
}

}  // namespace titan::weightstore::lanes
