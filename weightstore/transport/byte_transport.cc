// SPDX-License-Identifier: Apache-2.0
#include "weightstore/transport/byte_transport.h"

#include <string>

#include "weightstore/transport/wire.h"

namespace titan::weightstore::lanes {

Status CheckPiece(const Piece& piece, uint64_t slot_bytes) {
  const std::string where = "the piece at byte " + std::to_string(piece.source_offset);
  ReadRequest request;
  request.offset = piece.source_offset;
  request.length = piece.loops.empty() ? piece.destination.size() : piece.run_bytes;
  if (piece.loops.size() > kMaxPackLoops) {
    return InvalidArgument(where + ": more than 3 loops; split it");
  }
  request.num_loops = static_cast<uint16_t>(piece.loops.size());
  for (size_t i = 0; i < piece.loops.size(); ++i) request.loops[i] = piece.loops[i];
  TITAN_ASSIGN_OR_RETURN(const uint64_t bytes, CheckRange(request, slot_bytes));
  if (bytes != piece.destination.size()) {
    return InvalidArgument(where + ": " + std::to_string(bytes) + " bytes into a destination of " +
                           std::to_string(piece.destination.size()));
  }
  if (!piece.loops.empty() && bytes > kMaxPackedBytes) {
    return InvalidArgument(where + ": more than 4 MiB packed; split it");
  }
  return OkStatus();
}

}  // namespace titan::weightstore::lanes
