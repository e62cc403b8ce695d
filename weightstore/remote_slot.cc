// SPDX-License-Identifier: Apache-2.0
#include "weightstore/remote_slot.h"

#include <fmt/format.h>

namespace titan::weightstore {

Status ReadSlot(transport::RmaPeer& peer, const RemoteSlot& slot, const transport::RmaWindow& to,
                const transport::RmaWindow& header, std::chrono::milliseconds deadline) {
  if (header.memory().size() < kSlotHeaderBytes) {
    return InvalidArgument("the window for the slot's header is too small");
  }
  const auto end = std::chrono::steady_clock::now() + deadline;
  TITAN_RETURN_IF_ERROR(peer.Read(slot.bytes, 0, to, 0, to.memory().size(), deadline));
  // A read of its own: pieces of one read may arrive in any order.
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
  TITAN_RETURN_IF_ERROR(peer.Read(slot.header, 0, header, 0, kSlotHeaderBytes, left));
  SlotHeaderFields found;
  if (!SlotHeaderPage(header.memory().data()).Read(&found)) {
    return Aborted("the peer's window holds no slot header");
  }
  if (found.slot_id == slot.slot_id && found.version == slot.version && found.grant == slot.grant) {
    return OkStatus();
  }
  return Aborted(fmt::format(
      "slot {} was taken away while it was read: version {} under grant {} became version {} under "
      "grant {}",
      slot.slot_id, slot.version, slot.grant, found.version, found.grant));
}

}  // namespace titan::weightstore
