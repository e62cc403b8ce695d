// SPDX-License-Identifier: Apache-2.0
#include "weightstore/transport/wire.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "core/base/check.h"
#include "weightstore/client/reason.h"

namespace titan::weightstore::lanes {
namespace {

constexpr uint32_t kRequestMagic = 0x31525754;  // "TWR1"
constexpr uint32_t kAnswerMagic = 0x31415754;   // "TWA1"
constexpr auto kLastCode = static_cast<uint16_t>(StatusCode::kUnauthenticated);

class Writer {
 public:
  explicit Writer(std::span<std::byte> out) : rest_(out) {}
  template <typename Int>
  void Put(Int value) {
    std::memcpy(rest_.data(), &value, sizeof(value));
    rest_ = rest_.subspan(sizeof(value));
  }
  void Skip(size_t bytes) { rest_ = rest_.subspan(bytes); }

 private:
  std::span<std::byte> rest_;
};

// Over bytes whose size was checked.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : rest_(bytes) {}
  template <typename Int>
  Int Get() {
    Int value;
    std::memcpy(&value, rest_.data(), sizeof(value));
    rest_ = rest_.subspan(sizeof(value));
    return value;
  }
  bool SkipZeros(size_t bytes) {
    const auto skipped = rest_.first(bytes);
    rest_ = rest_.subspan(bytes);
    return std::all_of(skipped.begin(), skipped.end(),
                       [](std::byte b) { return b == std::byte{}; });
  }

 private:
  std::span<const std::byte> rest_;
};

}  // namespace

std::array<std::byte, kRequestBytes> EncodeRequest(const ReadRequest& request) {
  TITAN_CHECK(request.num_loops <= kMaxPackLoops);
  std::array<std::byte, kRequestBytes> bytes = {};
  Writer out(bytes);
  out.Put(kRequestMagic);
  out.Put(kProtocol);
  out.Put(static_cast<uint16_t>(request.kind));
  out.Put(request.request_id);
  out.Put(request.handle.lease_id);
  out.Put(request.handle.epoch);
  out.Put(request.handle.grant);
  out.Put(request.handle.token.low);
  out.Put(request.handle.token.high);
  out.Put(request.offset);
  out.Put(request.length);
  out.Put(request.num_loops);
  out.Skip(6);
  for (size_t i = 0; i < kMaxPackLoops; ++i) {
    const PackLoop loop = i < request.num_loops ? request.loops[i] : PackLoop{0, 0};
    out.Put(loop.count);
    out.Put(loop.stride);
  }
  const uint64_t check = Hash64(bytes.data(), kRequestBytes - sizeof(check));
  out.Skip(8);
  out.Put(check);
  return bytes;
}

StatusOr<ReadRequest> ParseRequest(std::span<const std::byte, kRequestBytes> bytes) {
  Reader in(bytes);
  if (in.Get<uint32_t>() != kRequestMagic) {
    return DataLoss("not a request of the weight store's TCP lane");
  }
  const auto protocol = in.Get<uint16_t>();
  if (protocol != kProtocol) {
    return FailedPrecondition("the request is of protocol " + std::to_string(protocol) +
                              ", this daemon speaks " + std::to_string(kProtocol) +
                              "; run both from one release");
  }
  Reader check(bytes.last<sizeof(uint64_t)>());
  if (check.Get<uint64_t>() != Hash64(bytes.data(), kRequestBytes - sizeof(uint64_t))) {
    return DataLoss("a request of the weight store's TCP lane is damaged: its check differs");
  }
  ReadRequest request;
  const auto kind = in.Get<uint16_t>();
  request.kind = static_cast<RequestKind>(kind);
  request.request_id = in.Get<uint64_t>();
  request.handle.lease_id = in.Get<uint64_t>();
  request.handle.epoch = in.Get<uint64_t>();
  request.handle.grant = in.Get<uint64_t>();
  request.handle.token.low = in.Get<uint64_t>();
  request.handle.token.high = in.Get<uint64_t>();
  request.offset = in.Get<uint64_t>();
  request.length = in.Get<uint64_t>();
  request.num_loops = in.Get<uint16_t>();
  bool form = kind >= static_cast<uint16_t>(RequestKind::kRead) &&
              kind <= static_cast<uint16_t>(RequestKind::kWindows);
  form &= request.num_loops <= kMaxPackLoops;
  form &= in.SkipZeros(6);
  for (size_t i = 0; i < kMaxPackLoops; ++i) {
    const auto count = in.Get<uint64_t>();
    const auto stride = in.Get<uint64_t>();
    if (i < request.num_loops) {
      request.loops[i] = {count, stride};
    } else {
      form &= count == 0 && stride == 0;
    }
  }
  form &= in.SkipZeros(8);
  if (!form) return DataLoss("a request of the weight store's TCP lane has unknown fields");
  return request;
}

StatusOr<uint64_t> CheckRange(const ReadRequest& request, uint64_t slot_bytes) {
  const std::string where = "offset " + std::to_string(request.offset) + ", length " +
                            std::to_string(request.length) + ": ";
  if (request.length == 0) return InvalidArgument(where + "nothing to read");
  uint64_t end = request.offset, bytes = request.length;
  bool fits = !__builtin_add_overflow(end, request.length, &end);
  for (size_t i = 0; fits && i < request.num_loops; ++i) {
    const PackLoop& loop = request.loops[i];
    uint64_t step;
    fits = loop.count > 0 && !__builtin_mul_overflow(loop.count - 1, loop.stride, &step) &&
           !__builtin_add_overflow(end, step, &end) &&
           !__builtin_mul_overflow(bytes, loop.count, &bytes);
  }
  if (!fits || end > slot_bytes) {
    return InvalidArgument(where + "the range does not lie within the slot of " +
                           std::to_string(slot_bytes) + " bytes");
  }
  return bytes;
}

void HashPayload(Answer* answer, std::span<const std::byte> payload) {
  TITAN_CHECK(answer->length == payload.size());
  answer->hash = Hash64(payload.data(), payload.size());
}

std::vector<uint64_t> TileHashes(std::span<const std::byte> slot, int num_threads) {
  TITAN_CHECK(num_threads >= 1);
  std::vector<uint64_t> hashes((slot.size() + kTileBytes - 1) / kTileBytes);
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < hashes.size();) {
      const uint64_t begin = i * kTileBytes;
      hashes[i] = Hash64(slot.data() + begin, std::min<uint64_t>(kTileBytes, slot.size() - begin));
    }
  };
  std::vector<std::jthread> helpers;
  for (int i = 1; i < num_threads; ++i) helpers.emplace_back(work);
  work();
  helpers.clear();
  return hashes;
}

bool PayloadMatches(const Answer& answer, std::span<const std::byte> payload) {
  return answer.length == payload.size() && answer.hash == Hash64(payload.data(), payload.size());
}

std::array<std::byte, kAnswerBytes> EncodeAnswer(const Answer& answer) {
  std::array<std::byte, kAnswerBytes> bytes = {};
  Writer out(bytes);
  out.Put(kAnswerMagic);
  out.Put(kProtocol);
  out.Put(static_cast<uint16_t>(answer.code));
  out.Put(answer.request_id);
  out.Put(answer.length);
  out.Put(answer.hash);
  out.Put(Hash64(bytes.data(), kAnswerBytes - sizeof(uint64_t)));
  return bytes;
}

StatusOr<Answer> ParseAnswer(std::span<const std::byte, kAnswerBytes> bytes) {
  Reader in(bytes);
  Reader check(bytes.last<sizeof(uint64_t)>());
  const auto magic = in.Get<uint32_t>();
  const auto protocol = in.Get<uint16_t>();
  const auto code = in.Get<uint16_t>();
  Answer answer;
  answer.request_id = in.Get<uint64_t>();
  answer.length = in.Get<uint64_t>();
  answer.hash = in.Get<uint64_t>();
  if (magic != kAnswerMagic || protocol != kProtocol || code > kLastCode ||
      answer.length > (code == 0 ? kMaxAnswerBytes : kMaxErrorBytes) ||
      check.Get<uint64_t>() != Hash64(bytes.data(), kAnswerBytes - sizeof(uint64_t))) {
    return DataLoss("what answers is no weight store's TCP lane, or the answer is damaged");
  }
  answer.code = static_cast<StatusCode>(code);
  return answer;
}

std::string EncodeError(const Status& status) {
  std::string bytes = ReasonOf(status) + std::string(1, '\0') + MessageOf(status);
  bytes.resize(std::min<size_t>(bytes.size(), kMaxErrorBytes));
  return bytes;
}

Status DecodeError(StatusCode code, std::string_view bytes) {
  const size_t end = bytes.find('\0');
  if (end == std::string_view::npos) return MakeStatus(code, bytes);
  const Status status = MakeStatus(code, bytes.substr(end + 1));
  return end == 0 ? status : WithReason(status, bytes.substr(0, end));
}

std::array<std::byte, kSlotFactsBytes> EncodeFacts(const SlotFacts& facts) {
  std::array<std::byte, kSlotFactsBytes> bytes;
  Writer out(bytes);
  out.Put(facts.slot_bytes);
  out.Put(facts.version);
  out.Put(facts.digest.low);
  out.Put(facts.digest.high);
  return bytes;
}

SlotFacts ParseFacts(std::span<const std::byte, kSlotFactsBytes> bytes) {
  Reader in(bytes);
  SlotFacts facts;
  facts.slot_bytes = in.Get<uint64_t>();
  facts.version = in.Get<uint64_t>();
  facts.digest.low = in.Get<uint64_t>();
  facts.digest.high = in.Get<uint64_t>();
  return facts;
}

}  // namespace titan::weightstore::lanes
