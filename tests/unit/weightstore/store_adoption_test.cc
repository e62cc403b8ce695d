// SPDX-License-Identifier: Apache-2.0
//
// Goal: a store that starts again adopts from readers what it may, within its memory, and nothing
// else gets in by the socket. Method: a whole store in this process that is stopped as SIGKILL
// would, and started again; readers, and packets that no reader would send.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/child_process.h"
#include "tests/support/weightstore_host.h"
#include "weightstore/client/reason.h"
#include "weightstore/client/unix_socket.h"

namespace titan::weightstore {
namespace {

using testing::Fill;
using testing::Host;
using testing::NumberIn;
using testing::Publish;
using testing::SmallManifest;

UniqueFd Sealed(uint64_t number) {
  std::vector<std::byte> bytes(SmallManifest().slot_bytes);
  Fill(bytes, number);
  UniqueFd file(memfd_create("offered", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(write(file.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  EXPECT_EQ(fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE), 0);
  return file;
}

SocketOffer OfferOf(uint64_t version, const Hash128& digest, const std::string& run = "run") {
  SocketOffer offer;
  offer.version = version;
  offer.slot_bytes = SmallManifest().slot_bytes;
  offer.digest = digest;
  offer.manifest_id = ManifestId(SmallManifest());
  offer.run_id_bytes = run.size();
  std::memcpy(offer.run_id, run.data(), run.size());
  return offer;
}

// What becomes of an offer.
Status Offer(Host& host, const SocketOffer& offer, const UniqueFd& bytes) {
  auto connection = ConnectUnix(host.socket_path(), kSocketTimeout);
  TITAN_RETURN_IF_ERROR(connection.status());
  auto answer = CallOffer(connection->get(), offer, bytes.get());
  while (answer.ok() && answer->slot_id == 0) {
    answer = Call(connection->get(), {.kind = SocketRequestKind::kOfferState});
  }
  return answer.status();
}

TEST(StoreAdoptionTest, OtherBytesRaiseTheAlarmAndTheRightOnesAreTakenAfterwards) {
  Host host;
  auto publisher = host.Register(1);
  const Hash128 digest = Publish(*publisher, 0, 77);
  host.Stop();
  host.Start();
  const Status other = Offer(host, OfferOf(0, digest), Sealed(78));
  EXPECT_EQ(other.code(), StatusCode::kDataLoss) << other;
  EXPECT_EQ(host.leader().Stats().verify_failures, 1u);
  EXPECT_EQ(host.leader().Stats().num_slots, 0u);
  EXPECT_EQ(ReasonOf(host.leader().AcquireLease("g", "run", 0, false).status()), kVersionLost);
  EXPECT_EQ(Offer(host, OfferOf(0, digest, "other"), Sealed(77)).code(), StatusCode::kNotFound);
  EXPECT_EQ(Offer(host, OfferOf(1, digest), Sealed(77)).code(), StatusCode::kNotFound);
  EXPECT_EQ(Offer(host, OfferOf(0, {1, 2}), Sealed(77)).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(host.leader().Stats().verify_failures, 1u);
  const Status right = Offer(host, OfferOf(0, digest), Sealed(77));
  ASSERT_TRUE(right.ok()) << right;
  auto slot = host.Reader().Acquire("run", 0, false);
  ASSERT_TRUE(slot.ok()) << slot.status();
  EXPECT_EQ(NumberIn(slot->bytes()), 77u);
  EXPECT_EQ(host.slots().Stats().adopted_slots, 1u);
  EXPECT_EQ(host.slots().Stats().refused_offers, 4u);
}

TEST(StoreAdoptionTest, AdoptedSlotsLeaveRoomForTheNextRing) {
  // Four slots of a ring, one for evaluation, one more.
  Host host(6 * SmallManifest().slot_bytes);
  auto publisher = host.Register(1);
  Publish(*publisher, 0);
  Publish(*publisher, 1);
  const Subscriber reader = host.Reader();
  auto first = reader.Acquire("run", 0, false);
  auto second = reader.Acquire("run", 1, false);
  ASSERT_TRUE(first.ok() && second.ok());
  host.Stop();
  host.Start();
  const Subscriber again = host.Reader();
  ASSERT_TRUE(again.Renew(*second).ok());
  const Status full = again.Renew(*first);
  EXPECT_EQ(full.code(), StatusCode::kResourceExhausted) << full;
  EXPECT_NE(MessageOf(full).find("memory_limit_bytes"), std::string::npos) << full;
  EXPECT_TRUE(Subscriber::MayRenewLater(full));
  EXPECT_TRUE(first->HeaderUnchanged());
  publisher = host.Register(1);
  ASSERT_NE(publisher, nullptr);
  const auto begun = publisher->Begin(1, std::chrono::seconds(5));
  ASSERT_TRUE(begun.ok()) << begun.status();
  EXPECT_TRUE(begun->recorded);
  Publish(*publisher, 2);
}

TEST(StoreAdoptionTest, ManyReadersAndATrainerAtOnceEndWithOneSlot) {
  Host host;
  for (uint64_t round = 0; round < 8; ++round) {
    auto publisher = host.Register(1);
    ASSERT_NE(publisher, nullptr);
    if (round == 0) Publish(*publisher, 0, 5);
    std::vector<HeldVersion> held;
    for (int i = 0; i < 3; ++i) {
      auto slot = host.Reader("g" + std::to_string(i)).Acquire("run", 0, false);
      ASSERT_TRUE(slot.ok()) << slot.status();
      held.push_back(*std::move(slot));
    }
    host.Stop();
    host.Start();
    std::vector<std::thread> threads;
    for (size_t i = 0; i < held.size(); ++i) {
      threads.emplace_back([&, i] {
        const Subscriber reader = host.Reader("g" + std::to_string(i));
        Status last = reader.Renew(held[i]);
        while (!last.ok() && Subscriber::MayRenewLater(last)) last = reader.Renew(held[i]);
        EXPECT_TRUE(last.ok()) << last;
      });
    }
    auto next = host.Register(1);
    ASSERT_NE(next, nullptr);
    const auto begun = next->Begin(0, std::chrono::seconds(5));
    ASSERT_TRUE(begun.ok()) << begun.status();
    if (!begun->recorded) {
      Fill(begun->bytes, 5);
      ASSERT_TRUE(next->Finish().ok());
      ASSERT_TRUE(next->Commit("plan", 0).ok());
    }
    for (std::thread& thread : threads) thread.join();
    const auto versions = host.leader().ListVersions("run");
    EXPECT_EQ(versions->at(0).state, VersionState::kCommitted);
    EXPECT_EQ(versions->at(0).holders.size(), 3u);
    // The ring, the evaluation slot, and the adopted one, if the readers came first.
    const uint64_t adopted = host.slots().Stats().adopted_slots;
    EXPECT_EQ(adopted, begun->recorded ? 1u : 0u);
    EXPECT_TRUE(
        titan::testing::Eventually([&] { return host.leader().Stats().num_slots == 5 + adopted; }));
    for (const HeldVersion& one : held) {
      EXPECT_TRUE(one.HeaderUnchanged());
      EXPECT_EQ(NumberIn(one.bytes()), 5u);
    }
    ASSERT_TRUE(host.leader().FenceReaders("run", 0).ok());
    for (const HeldVersion& one : held) EXPECT_FALSE(one.HeaderUnchanged());
  }
}

TEST(StoreAdoptionTest, AReaderRunsOnWhileItIsTiedToTheSuccessor) {
  Host host;
  auto publisher = host.Register(1);
  Publish(*publisher, 0, 9);
  auto held = host.Reader().Acquire("run", 0, false);
  ASSERT_TRUE(held.ok());
  std::atomic<bool> done{false};
  std::thread engine([&] {
    while (!done) {
      EXPECT_EQ(NumberIn(held->bytes()), 9u);
      EXPECT_TRUE(held->HeaderUnchanged());
      EXPECT_EQ(held->lease().version, 0u);
    }
  });
  for (int i = 0; i < 5; ++i) {
    host.Stop();
    host.Start();
    const Status renewed = host.Reader().Renew(*held);
    EXPECT_TRUE(renewed.ok()) << renewed;
  }
  done = true;
  engine.join();
}

TEST(StoreAdoptionTest, PacketsOfAnotherFormAreCutOff) {
  Host host;
  struct {
    SocketRequest request{.kind = SocketRequestKind::kOfferSlot};
    SocketOffer offer = OfferOf(0, {1, 2});
  } packet;
  const UniqueFd bytes = Sealed(1);
  const auto cut_off = [&](size_t num_bytes, std::vector<int> fds) {
    auto connection = ConnectUnix(host.socket_path(), kSocketTimeout);
    EXPECT_TRUE(SendPacket(connection->get(), &packet, num_bytes, fds).ok());
    return ReceivePacket(connection->get(), 600).status().code() == StatusCode::kUnavailable;
  };
  EXPECT_TRUE(cut_off(sizeof(packet), {}));
  EXPECT_TRUE(cut_off(sizeof(packet), {bytes.get(), bytes.get()}));
  EXPECT_TRUE(cut_off(sizeof(packet) - 1, {bytes.get()}));
  EXPECT_TRUE(cut_off(sizeof(SocketRequest), {bytes.get()}));
  EXPECT_TRUE(cut_off(sizeof(SocketRequest) - 1, {bytes.get()}));
  packet.offer.run_id_bytes = sizeof(packet.offer.run_id) + 1;
  EXPECT_TRUE(cut_off(sizeof(packet), {bytes.get()}));
  packet.offer = OfferOf(0, {1, 2});
  packet.request.kind = SocketRequestKind::kMapLease;
  EXPECT_TRUE(cut_off(sizeof(packet), {}));
  EXPECT_TRUE(cut_off(sizeof(SocketRequest), {bytes.get()}));
  packet.request.kind = SocketRequestKind::kOfferSlot;
  packet.request.magic = 1;
  EXPECT_TRUE(cut_off(sizeof(packet), {bytes.get()}));
  auto connection = ConnectUnix(host.socket_path(), kSocketTimeout);
  EXPECT_EQ(Call(connection->get(), {.kind = SocketRequestKind::kOfferState}).status().code(),
            StatusCode::kFailedPrecondition);
  EXPECT_EQ(Offer(host, OfferOf(0, {1, 2}, "a run"), bytes).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(host.slots().Stats().refused_offers, 1u);
}

}  // namespace
}  // namespace titan::weightstore
