// SPDX-License-Identifier: Apache-2.0
//
// Goal: what is encoded is parsed back, what is not of the form is refused, ranges are checked
// without overflow. Method: a round trip, every single bit of a request and an answer turned, edge
// ranges.
#include "weightstore/transport/wire.h"

#include <gtest/gtest.h>

#include "weightstore/client/reason.h"

namespace titan::weightstore::lanes {
namespace {

ReadRequest SomeRequest() {
  return {.request_id = 5,
          .handle = {1, 2, 3, {4, 5}},
          .offset = 6,
          .length = 7,
          .num_loops = 2,
          .loops = {PackLoop{8, 9}, PackLoop{10, 11}, PackLoop{}}};
}

TEST(WireTest, RequestsAndAnswersComeBack) {
  const auto request = ParseRequest(EncodeRequest(SomeRequest()));
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(*request, SomeRequest());
  Answer answer = {.request_id = 9, .length = 3};
  HashPayload(&answer, std::as_bytes(std::span("abc", 3)));
  const auto parsed = ParseAnswer(EncodeAnswer(answer));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(*parsed, answer);
  EXPECT_TRUE(PayloadMatches(*parsed, std::as_bytes(std::span("abc", 3))));
  EXPECT_FALSE(PayloadMatches(*parsed, std::as_bytes(std::span("abd", 3))));
  const SlotFacts facts = {1, 2, {3, 4}};
  EXPECT_EQ(ParseFacts(EncodeFacts(facts)), facts);
  const Status status = DecodeError(StatusCode::kAborted,
                                    EncodeError(WithReason(Aborted("it ended"), kLeaseExpired)));
  EXPECT_EQ(status.code(), StatusCode::kAborted);
  EXPECT_EQ(MessageOf(status), "it ended");
  EXPECT_EQ(ReasonOf(status), kLeaseExpired);
  EXPECT_LE(EncodeError(Internal(std::string(10'000, 'x'))).size(), kMaxErrorBytes);
}

TEST(WireTest, EveryTurnedBitIsRefused) {
  const auto request = EncodeRequest(SomeRequest());
  for (size_t bit = 0; bit < 8 * kRequestBytes; ++bit) {
    auto turned = request;
    turned[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    EXPECT_FALSE(ParseRequest(turned).ok()) << "bit " << bit;
  }
  const auto answer = EncodeAnswer({.request_id = 9, .length = 3, .hash = 11});
  for (size_t bit = 0; bit < 8 * kAnswerBytes; ++bit) {
    auto turned = answer;
    turned[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    EXPECT_FALSE(ParseAnswer(turned).ok()) << "bit " << bit;
  }
}

TEST(WireTest, AnotherProtocolIsNamed) {
  auto bytes = EncodeRequest(SomeRequest());
  bytes[4] = std::byte{2};
  const Status status = ParseRequest(bytes).status();
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(MessageOf(status).find("protocol 2, this daemon speaks 1"), std::string::npos);
}

TEST(WireTest, RangesAreCheckedWithoutOverflow) {
  const uint64_t most = ~uint64_t{0};
  const auto size = [](uint64_t offset, uint64_t length, std::vector<PackLoop> loops = {}) {
    ReadRequest request = {.offset = offset, .length = length};
    request.num_loops = static_cast<uint16_t>(loops.size());
    std::copy(loops.begin(), loops.end(), request.loops.begin());
    return CheckRange(request, 100).value_or(0);
  };
  EXPECT_EQ(size(0, 100), 100u);
  EXPECT_EQ(size(99, 1), 1u);
  EXPECT_EQ(size(100, 1), 0u);
  EXPECT_EQ(size(0, 0), 0u);
  EXPECT_EQ(size(1, most), 0u);
  EXPECT_EQ(size(most, 1), 0u);
  EXPECT_EQ(size(most, most), 0u);
  EXPECT_EQ(size(0, 4, {{5, 24}}), 20u);
  EXPECT_EQ(size(1, 4, {{5, 24}}), 0u);
  EXPECT_EQ(size(0, 4, {{0, 1}}), 0u);
  EXPECT_EQ(size(0, 1, {{most, 0}}), most);  // the caller's limit on an answer refuses it
  EXPECT_EQ(size(0, 2, {{most, 0}}), 0u);
  EXPECT_EQ(size(0, 1, {{3, most}}), 0u);
  EXPECT_EQ(size(0, 1, {{uint64_t{1} << 32, 0}, {uint64_t{1} << 32, 0}}), 0u);
}

TEST(WireTest, TilesAreHashedAlikeByAnyNumberOfThreads) {
  std::vector<std::byte> slot(3 * kTileBytes + 5);
  for (size_t i = 0; i < slot.size(); i += 97) slot[i] = static_cast<std::byte>(i);
  const auto hashes = TileHashes(slot, 1);
  ASSERT_EQ(hashes.size(), 4u);
  EXPECT_EQ(hashes[1], Hash64(&slot[kTileBytes], kTileBytes));
  EXPECT_EQ(hashes[3], Hash64(&slot[3 * kTileBytes], 5));
  EXPECT_EQ(TileHashes(slot, 3), hashes);
  EXPECT_TRUE(TileHashes({}, 2).empty());
}

}  // namespace
}  // namespace titan::weightstore::lanes
