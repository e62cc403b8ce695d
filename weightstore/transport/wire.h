// SPDX-License-Identifier: Apache-2.0
//
// What client and server of the TCP lane say to each other. Little-endian, fixed sizes.
//
//   request, 144 bytes:
//     u32 magic "TWR1" | u16 protocol | u16 kind | u64 request id | u64 lease | u64 epoch | u64
//     grant | u64 token low | u64 token high | u64 offset | u64 length | u16 loops | 6 bytes 0 | 3
//     x (u64 count, u64 stride) | 8 bytes 0 | u64 check
//   answer, 40 bytes, then `length` bytes:
//     u32 magic "TWA1" | u16 protocol | u16 status code | u64 request id | u64 length | u64 hash
//     | u64 check
//
// kRead: length bytes from offset, or with loops the runs of length bytes that they name, outermost
// loop first, packed. kConfirm: the answer is SlotFacts. kWindows: an RmaSource (rma_source.h). A
// code other than 0: the bytes are the reason, a 0 byte, the message. check = xxh3-64 of all bytes
// before it; hash = xxh3-64 of the bytes that follow. Pure functions, any thread.
#ifndef TITAN_WEIGHTSTORE_TRANSPORT_WIRE_H_
#define TITAN_WEIGHTSTORE_TRANSPORT_WIRE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "weightstore/transport/byte_transport.h"

namespace titan::weightstore::lanes {

inline constexpr size_t kRequestBytes = 144;
inline constexpr size_t kAnswerBytes = 40;
inline constexpr uint16_t kProtocol = 1;
// Of one answer.
inline constexpr uint64_t kMaxAnswerBytes = 4 << 20;
inline constexpr uint64_t kMaxErrorBytes = 1024;

enum class RequestKind : uint16_t { kRead = 1, kConfirm = 2, kWindows = 3 };

struct ReadRequest {
  RequestKind kind = RequestKind::kRead;
  uint64_t request_id = 0;
  ReadHandle handle;
  uint64_t offset = 0;
  uint64_t length = 0;
  uint16_t num_loops = 0;
  std::array<PackLoop, kMaxPackLoops> loops;

  friend bool operator==(const ReadRequest&, const ReadRequest&) = default;
};

std::array<std::byte, kRequestBytes> EncodeRequest(const ReadRequest& request);
// DataLoss: not a request of this form, so what follows on the stream cannot be understood either.
// FailedPrecondition: another protocol, naming both. Ranges are not looked at.
StatusOr<ReadRequest> ParseRequest(std::span<const std::byte, kRequestBytes> bytes);

// The bytes that a request asks for. InvalidArgument: outside of the slot, nothing, or (with loops)
// a count of 0 or a product that is no number of 64 bits.
StatusOr<uint64_t> CheckRange(const ReadRequest& request, uint64_t slot_bytes);

struct Answer {
  StatusCode code = StatusCode::kOk;
  uint64_t request_id = 0;
  uint64_t length = 0;
  uint64_t hash = 0;

  friend bool operator==(const Answer&, const Answer&) = default;
};

// Fills in the hash of `payload`, of answer.length bytes.
void HashPayload(Answer* answer, std::span<const std::byte> payload);

// Slots are hashed in tiles of this size, the last one shorter: once, when a slot is verified. A
// reader of a tile then finds what changed in the slot ever since, and nobody hashes again to send.
inline constexpr uint64_t kTileBytes = 1 << 20;
// By num_threads threads (the calling one included; at least 1).
std::vector<uint64_t> TileHashes(std::span<const std::byte> slot, int num_threads);
// Is `payload` what the answer's sender hashed?
bool PayloadMatches(const Answer& answer, std::span<const std::byte> payload);
std::array<std::byte, kAnswerBytes> EncodeAnswer(const Answer& answer);
// DataLoss: not an answer of this form and protocol, or longer than allowed.
StatusOr<Answer> ParseAnswer(std::span<const std::byte, kAnswerBytes> bytes);

// The bytes of an error, cut to kMaxErrorBytes, and back. REQUIRES: !status.ok().
std::string EncodeError(const Status& status);
Status DecodeError(StatusCode code, std::string_view bytes);

// What a confirmed handle is of.
struct SlotFacts {
  uint64_t slot_bytes = 0;
  uint64_t version = 0;
  Hash128 digest;

  friend bool operator==(const SlotFacts&, const SlotFacts&) = default;
};
inline constexpr size_t kSlotFactsBytes = 32;
std::array<std::byte, kSlotFactsBytes> EncodeFacts(const SlotFacts& facts);
SlotFacts ParseFacts(std::span<const std::byte, kSlotFactsBytes> bytes);

}  // namespace titan::weightstore::lanes

#endif  // TITAN_WEIGHTSTORE_TRANSPORT_WIRE_H_
