// SPDX-License-Identifier: Apache-2.0
#include "weightstore/transport/map_transport.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "weightstore/client/held_version.h"
#include "weightstore/client/reason.h"
#include "weightstore/transport/pack.h"

namespace titan::weightstore::lanes {
namespace {

// Of a copy, between two looks at the deadline: a tenth of a second. Not less: memcpy is a fifth
// faster in calls of hundreds of MiB, for which the C library takes several pages in turns.
constexpr uint64_t kStepBytes = uint64_t{1} << 30;

Status CheckTime(SteadyTime deadline) {
  return std::chrono::steady_clock::now() < deadline
             ? OkStatus()
             : DeadlineExceeded("reading a mapped slot: the deadline passed");
}

class MapSlot final : public RemoteSlot {
 public:
  explicit MapSlot(HeldVersion slot) : slot_(std::move(slot)) {}

  uint64_t slot_bytes() const override { return slot_.bytes().size(); }
  std::span<const std::byte> mapped() const override { return slot_.bytes(); }
  bool can_pack() const override { return true; }

  Status Read(std::span<const Piece> pieces, SteadyTime deadline) override {
    const std::span<const std::byte> bytes = slot_.bytes();
    for (const Piece& piece : pieces) TITAN_RETURN_IF_ERROR(CheckPiece(piece, bytes.size()));
    for (const Piece& piece : pieces) {
      if (!piece.loops.empty()) {
        TITAN_RETURN_IF_ERROR(CheckTime(deadline));
        PackRuns(bytes, piece.source_offset, piece.run_bytes, piece.loops,
                 piece.destination.data());
        continue;
      }
      for (uint64_t done = 0; done < piece.destination.size(); done += kStepBytes) {
        TITAN_RETURN_IF_ERROR(CheckTime(deadline));
        std::memcpy(piece.destination.data() + done, bytes.data() + piece.source_offset + done,
                    std::min(kStepBytes, piece.destination.size() - done));
      }
    }
    return Confirm(deadline);
  }

  Status Confirm(SteadyTime) override {
    if (slot_.HeaderUnchanged()) return OkStatus();
    return WithReason(Aborted("the slot of lease " + std::to_string(slot_.lease().lease_id) +
                              " was taken from its readers"),
                      kStaleHandle);
  }

 private:
  HeldVersion slot_;
};

}  // namespace

StatusOr<std::unique_ptr<MapTransport>> MapTransport::Create(std::string socket_path) {
  TITAN_RETURN_IF_ERROR(CheckSocketPath(socket_path));
  return std::unique_ptr<MapTransport>(new MapTransport(std::move(socket_path)));
}

StatusOr<std::unique_ptr<RemoteSlot>> MapTransport::Open(const PullGrant& grant,
                                                         SteadyTime deadline) {
  if (grant.lease.manifest == nullptr) return InvalidArgument("grant.lease: has no manifest");
  TITAN_ASSIGN_OR_RETURN(HeldVersion slot, HeldVersion::Map(socket_path_, grant.lease,
                                                            MappedMemory::Tables::kOnAccess));
  TITAN_RETURN_IF_ERROR(CheckTime(deadline));
  return std::unique_ptr<RemoteSlot>(std::make_unique<MapSlot>(std::move(slot)));
}

}  // namespace titan::weightstore::lanes
