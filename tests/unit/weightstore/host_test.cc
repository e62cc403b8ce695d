// SPDX-License-Identifier: Apache-2.0
//
// Goal: a host answers its clients by what its leader told it, and by nothing else. Method:
// commands and requests by direct calls, without a leader; events are written down.
#include "weightstore/host.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/child_process.h"
#include "tests/support/weightstore.h"
#include "weightstore/client/reason.h"
#include "weightstore/client/weights_digest.h"
#include "weightstore/transport/wire.h"

namespace titan::weightstore {
namespace {

using testing::Fill;
using testing::NumberIn;
using testing::SmallManifest;

class Recorder final : public HostEvents {
 public:
  void SlotMade(uint64_t slot_id) override { Add("made " + std::to_string(slot_id)); }
  void SlotNotMade(uint64_t slot_id, const Status& why) override {
    Add("not made " + std::to_string(slot_id) + " " + MessageOf(why));
  }
  void LeaseMapped(uint64_t lease_id) override { Add("mapped " + std::to_string(lease_id)); }
  void LeaseEnded(uint64_t lease_id) override { Add("ended " + std::to_string(lease_id)); }
  void WriterGone(const std::string& run_id, uint64_t epoch) override {
    Add("gone " + run_id + " " + std::to_string(epoch));
  }
  void SlotOffered(const std::string& host, const SlotOffer& offer) override {
    Add("offered " + host + " " + std::to_string(offer.offer_id) + " " + offer.run_id + " " +
        std::to_string(offer.version));
  }
  void CommandsDone() override { Add("done"); }

  bool WaitFor(const std::string& event) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(10), [&] {
      for (const std::string& one : events_) {
        if (one == event) return true;
      }
      return false;
    });
  }
  std::vector<std::string> Take() {
    std::lock_guard lock(mutex_);
    return std::exchange(events_, {});
  }

 private:
  void Add(std::string event) {
    std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> events_;
};

class HostTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kSlot = 7, kEpoch = 3, kGrant = 100, kLease = 50;

  void Make(uint64_t slot = kSlot, uint64_t epoch = kEpoch) {
    host_.Send({MakeSlot{slot, manifest_->slot_bytes, "run", epoch, 0}});
    ASSERT_TRUE(events_.WaitFor("made " + std::to_string(slot)));
  }
  void Open(uint64_t grant = kGrant) {
    host_.Send({WriteHeader{{kSlot, 0, grant, {}}, /*open_for_writing=*/true}});
  }
  // As a writer does, on connection 1. It keeps the map.
  Hash128 Write(uint64_t number) {
    auto slot = host_.MapForWriting(1, kEpoch, kGrant);
    EXPECT_TRUE(slot.ok()) << slot.status();
    if (!slot.ok()) return {};
    if (!slot->fds.empty()) {
      map_ = *MappedMemory::Map(slot->fds[0].get(), slot->slot_bytes, true);
      EXPECT_TRUE(host_.WriterHasMapped(1, slot->slot_id, kGrant).ok());
    }
    Fill({map_.data(), map_.size()}, number);
    return WeightsDigest(*manifest_, {map_.data(), map_.size()}, 1);
  }

  const std::shared_ptr<const Manifest> manifest_ =
      std::make_shared<const Manifest>(SmallManifest());
  Recorder events_;
  Host host_{{.threads = 1, .hash_tiles = true}, events_};
  MappedMemory map_;
};

TEST_F(HostTest, AWriterMapsWhatWasOpenedForItUntilItIsClosed) {
  Make();
  EXPECT_EQ(host_.MapForWriting(1, kEpoch, 0).status().code(), StatusCode::kAborted);
  Open();
  EXPECT_EQ(host_.num_done(), 2u);
  EXPECT_EQ(host_.MapForWriting(1, kEpoch + 1, kGrant).status().code(), StatusCode::kAborted);
  EXPECT_EQ(host_.MapForWriting(1, kEpoch, kGrant + 1).status().code(), StatusCode::kAborted);
  EXPECT_EQ(host_.HashWritten(kSlot, kGrant, manifest_).status().code(),
            StatusCode::kFailedPrecondition);
  const Hash128 digest = Write(9);
  const auto read = host_.HashWritten(kSlot, kGrant, manifest_);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, digest);
  EXPECT_EQ(host_.HashWritten(kSlot, kGrant + 1, manifest_).status().code(), StatusCode::kAborted);
  // The same connection has it already; another one may not write for the same epoch.
  EXPECT_TRUE(host_.MapForWriting(1, kEpoch, kGrant)->fds.empty());
  EXPECT_EQ(host_.MapForWriting(2, kEpoch, kGrant).status().code(),
            StatusCode::kFailedPrecondition);
  host_.Send({WriteHeader{{kSlot, 0, kGrant, digest}}});  // sealed
  EXPECT_EQ(host_.MapForWriting(1, kEpoch, kGrant).status().code(), StatusCode::kAborted);
  host_.ConnectionClosed(1);
  EXPECT_EQ(events_.Take(), (std::vector<std::string>{"made 7", "gone run 3"}));
}

TEST_F(HostTest, ARemoteReaderNeedsEveryNumberOfItsLease) {
  Make();
  Open();
  const Hash128 digest = Write(9);
  ASSERT_TRUE(host_.HashWritten(kSlot, kGrant, manifest_).ok());
  const lanes::ReadHandle handle = {kLease, kEpoch, kGrant, {11, 12}};
  const auto refused = [&](const lanes::ReadHandle& wrong) {
    const Status open = host_.OpenForRead(wrong).status();
    EXPECT_EQ(host_.CheckReadable(wrong), open);
    return ReasonOf(open);
  };
  EXPECT_EQ(refused(handle), lanes::kLeaseExpired);  // not allowed yet
  host_.Send({WriteHeader{{kSlot, 4, kGrant, digest}},
              AllowLease{kLease, kSlot, kGrant, kEpoch, handle.token}});
  const auto slot = host_.OpenForRead(handle);
  ASSERT_TRUE(slot.ok()) << slot.status();
  EXPECT_EQ(NumberIn(slot->bytes), 9u);
  EXPECT_EQ(slot->facts, (lanes::SlotFacts{manifest_->slot_bytes, 4, digest}));
  EXPECT_EQ(std::vector<uint64_t>(slot->tile_hashes.begin(), slot->tile_hashes.end()),
            lanes::TileHashes(slot->bytes, 1));
  EXPECT_TRUE(host_.CheckReadable(handle).ok());
  for (const Hash128 token : {Hash128{11, 13}, Hash128{10, 12}, Hash128{}}) {
    lanes::ReadHandle wrong = handle;
    wrong.token = token;
    EXPECT_EQ(host_.OpenForRead(wrong).status().code(), StatusCode::kFailedPrecondition);
    EXPECT_EQ(host_.CheckReadable(wrong).code(), StatusCode::kFailedPrecondition);
  }
  lanes::ReadHandle wrong = handle;
  ++wrong.epoch;
  EXPECT_EQ(refused(wrong), kEpochSuperseded);
  wrong = handle;
  ++wrong.grant;
  EXPECT_EQ(refused(wrong), lanes::kStaleHandle);
  wrong = handle;
  ++wrong.lease_id;
  EXPECT_EQ(refused(wrong), lanes::kLeaseExpired);
  // Another version: the old grant number is stale, and so are the hashes.
  host_.Send({WriteHeader{{kSlot, 5, kGrant + 1, {}}, /*open_for_writing=*/true}});
  EXPECT_EQ(refused(handle), lanes::kStaleHandle);
  const lanes::ReadHandle next = {kLease + 1, kEpoch, kGrant + 1, {1, 2}};
  host_.Send({AllowLease{kLease + 1, kSlot, kGrant + 1, kEpoch, next.token}});
  EXPECT_TRUE(host_.OpenForRead(next)->tile_hashes.empty());
  host_.Send({EndLease{kLease + 1}});
  EXPECT_EQ(refused(next), lanes::kLeaseExpired);
  // What was opened stays readable memory, whatever becomes of the slot.
  host_.Send({DropSlot{kSlot}});
  EXPECT_EQ(NumberIn(slot->bytes), 9u);
}

TEST_F(HostTest, AConnectionSealsOnlySlotsOfItsWriter) {
  Make();
  Make(8, kEpoch + 1);
  Open();
  host_.Send({WriteHeader{{8, 0, 200, {}}, /*open_for_writing=*/true}});
  Write(1);
  EXPECT_EQ(host_.WriterHasMapped(1, 8, 200).code(), StatusCode::kAborted);
  EXPECT_EQ(host_.WriterHasMapped(1, kSlot, kGrant + 1).code(), StatusCode::kAborted);
  EXPECT_EQ(host_.WriterHasMapped(2, kSlot, kGrant).code(), StatusCode::kFailedPrecondition);
}

TEST_F(HostTest, AReaderMapsWhatItsLeaseAllowsOnce) {
  Make();
  Open();
  const Hash128 digest = Write(5);
  host_.Send({WriteHeader{{kSlot, 0, kGrant, digest}}, AllowLease{kLease, kSlot, kGrant, kEpoch}});
  events_.Take();
  EXPECT_EQ(host_.MapLease(4, kLease, kGrant + 1).status().code(), StatusCode::kAborted);
  EXPECT_EQ(host_.MapLease(4, kLease + 1, kGrant).status().code(), StatusCode::kAborted);
  auto slot = host_.MapLease(4, kLease, kGrant);
  ASSERT_TRUE(slot.ok()) << slot.status();
  EXPECT_EQ(host_.MapLease(5, kLease, kGrant).status().code(), StatusCode::kFailedPrecondition);
  auto bytes = MappedMemory::Map(slot->fds[0].get(), slot->slot_bytes, false);
  auto page = MappedMemory::Map(slot->fds[1].get(), kSlotHeaderBytes, false);
  ASSERT_TRUE(bytes.ok() && page.ok());
  EXPECT_EQ(NumberIn({bytes->data(), bytes->size()}), 5u);
  SlotHeaderFields header;
  ASSERT_TRUE(SlotHeaderPage(page->data()).Read(&header));
  EXPECT_EQ(header.grant, kGrant);
  EXPECT_EQ(header.digest, digest);
  host_.ConnectionClosed(4);
  EXPECT_EQ(host_.MapLease(4, kLease, kGrant).status().code(), StatusCode::kAborted);
  EXPECT_EQ(events_.Take(), (std::vector<std::string>{"mapped 50", "ended 50"}));
}

TEST_F(HostTest, ALeaseEndsWithTheLeadersWordAndWithTheGrantNumber) {
  Make();
  Open();
  const Hash128 digest = Write(5);
  host_.Send({WriteHeader{{kSlot, 0, kGrant, digest}}, AllowLease{50, kSlot, kGrant, kEpoch},
              AllowLease{51, kSlot, kGrant, kEpoch}, EndLease{50}});
  EXPECT_EQ(host_.MapLease(4, 50, kGrant).status().code(), StatusCode::kAborted);
  auto slot = host_.MapLease(4, 51, kGrant);
  ASSERT_TRUE(slot.ok());
  auto page = MappedMemory::Map(slot->fds[1].get(), kSlotHeaderBytes, false);
  host_.Send({AllowLease{52, kSlot, kGrant, kEpoch}, WriteHeader{{kSlot, 0, kGrant + 1, digest}}});
  EXPECT_EQ(SlotHeaderPage(page->data()).GrantAfterReads(), kGrant + 1);  // when Send returns
  EXPECT_EQ(host_.MapLease(5, 52, kGrant).status().code(), StatusCode::kAborted);
}

TEST_F(HostTest, AnEvaluationSlotIsFilledByTheHostAlone) {
  Make();
  Make(8, /*epoch=*/0);
  Open();
  const Hash128 digest = Write(5);
  host_.Send({WriteHeader{{8, 0, 200, {}}}});
  EXPECT_EQ(host_.MapForWriting(1, 0, 200).status().code(), StatusCode::kAborted);
  EXPECT_EQ(host_.CopySlot(kSlot, 8, 201, manifest_).status().code(), StatusCode::kAborted);
  EXPECT_EQ(host_.CopySlot(9, 8, 200, manifest_).status().code(), StatusCode::kAborted);
  const auto copied = host_.CopySlot(kSlot, 8, 200, manifest_);
  ASSERT_TRUE(copied.ok()) << copied.status();
  EXPECT_EQ(*copied, digest);
  EXPECT_EQ(NumberIn(host_.ViewSlot(8, 0, manifest_->slot_bytes)->bytes), 5u);
  for (const auto& [offset, length] : {std::pair<uint64_t, uint64_t>{manifest_->slot_bytes, 1},
                                       {0, manifest_->slot_bytes + 1},
                                       {~uint64_t{0}, 8},
                                       {8, ~uint64_t{0}}}) {
    EXPECT_EQ(host_.ViewSlot(8, offset, length).status().code(), StatusCode::kInvalidArgument);
  }
  EXPECT_GT(host_.Stats().make_slot_seconds, 0.0);
}

TEST_F(HostTest, ADroppedSlotIsGoneWhateverItsReadersDo) {
  Make();
  Open();
  const Hash128 digest = Write(5);
  host_.Send({WriteHeader{{kSlot, 0, kGrant, digest}}, AllowLease{kLease, kSlot, kGrant, kEpoch}});
  const auto view = host_.ViewSlot(kSlot, 0, manifest_->slot_bytes);
  ASSERT_TRUE(view.ok());
  host_.Send({DropSlot{kSlot}, DropSlot{kSlot}, WriteHeader{{kSlot, 0, 1, {}}}});
  EXPECT_EQ(host_.MapLease(4, kLease, kGrant).status().code(), StatusCode::kAborted);
  EXPECT_EQ(host_.ViewSlot(kSlot, 0, 8).status().code(), StatusCode::kAborted);
  EXPECT_EQ(host_.HashWritten(kSlot, kGrant, manifest_).status().code(), StatusCode::kAborted);
  EXPECT_EQ(NumberIn(view->bytes), 5u);  // who looked at it before keeps its memory
}

// ----------------------------------------------------------------------------------------- offers

constexpr int kAllSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;

// A memory file as a reader may hold it, every 8 bytes of which hold the number.
UniqueFd MemoryFile(size_t num_bytes, uint64_t number, int seals = kAllSeals) {
  UniqueFd file(memfd_create("offered", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  std::vector<std::byte> bytes(num_bytes);
  Fill(bytes, number);
  EXPECT_EQ(write(file.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  EXPECT_EQ(fcntl(file.get(), F_ADD_SEALS, seals), 0);
  return file;
}

class HostOfferTest : public HostTest {
 protected:
  static constexpr uint64_t kReader = 9, kAdopted = 20;

  SlotOffer Offer(const Hash128& digest, uint64_t connection = kReader) const {
    return {connection, "run", 4, manifest_->slot_bytes, digest, ManifestId(*manifest_)};
  }
  AdoptSlot Command(const Hash128& digest, uint64_t offer_id = kReader) const {
    return {offer_id, kAdopted, "run", digest, manifest_};
  }
  Hash128 DigestOf(uint64_t number) const {
    std::vector<std::byte> bytes(manifest_->slot_bytes);
    Fill(bytes, number);
    return WeightsDigest(*manifest_, bytes, 1);
  }
  StatusCode State(uint64_t connection = kReader) {
    return next_.OfferState(connection).status().code();
  }

  Recorder told_;
  Host next_{{.name = "h1", .threads = 1, .hash_tiles = true}, told_};  // the successor
};

TEST_F(HostOfferTest, AReadersSlotIsVerifiedAndServedByTheSuccessor) {
  Make();
  Open();
  const Hash128 digest = Write(9);
  host_.Send({WriteHeader{{kSlot, 4, kGrant, digest}}, AllowLease{kLease, kSlot, kGrant, kEpoch}});
  auto held = host_.MapLease(4, kLease, kGrant);
  ASSERT_TRUE(held.ok()) << held.status();
  auto state = next_.OfferSlot(kReader, Offer(digest), std::move(held->fds[0]));
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(state->slot_id, 0u);
  EXPECT_EQ(told_.Take(), std::vector<std::string>{"offered h1 9 run 4"});
  EXPECT_EQ(next_.OfferSlot(kReader, Offer(digest), MemoryFile(64, 1)).status().code(),
            StatusCode::kFailedPrecondition);  // one for each connection
  EXPECT_EQ(State(kReader + 1), StatusCode::kFailedPrecondition);
  ASSERT_EQ(next_.Report().offers.size(), 1u);
  EXPECT_EQ(next_.Report().offers[0].offer_id, kReader);

  next_.Send({Command(digest)});
  ASSERT_TRUE(told_.WaitFor("made 20"));
  EXPECT_EQ(next_.OfferState(kReader)->slot_id, 0u);  // the leader decides
  const lanes::ReadHandle handle = {60, kNoTrainer, 300, {11, 12}};
  next_.Send({WriteHeader{{kAdopted, 4, 300, digest}},
              AllowLease{60, kAdopted, 300, kNoTrainer, handle.token},
              AllowLease{61, kAdopted, 300, kNoTrainer}});
  EXPECT_EQ(next_.OfferState(kReader)->slot_id, kAdopted);
  next_.Send({RefuseOffer{kReader, NotFound("late")}});
  EXPECT_EQ(next_.OfferState(kReader)->slot_id, kAdopted);
  EXPECT_TRUE(next_.Report().offers.empty());
  EXPECT_EQ(next_.Stats().adopted_slots, 1u);
  EXPECT_EQ(next_.Stats().slot_bytes, manifest_->slot_bytes);
  next_.ConnectionClosed(kReader);

  // Others map it, with a header page of the successor, and pull it.
  auto slot = next_.MapLease(30, 61, 300);
  ASSERT_TRUE(slot.ok()) << slot.status();
  EXPECT_EQ(ftruncate(slot->fds[0].get(), 1), -1);
  EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, slot->fds[0].get(), 0),
            MAP_FAILED);
  auto bytes = MappedMemory::Map(slot->fds[0].get(), slot->slot_bytes, false);
  auto page = MappedMemory::Map(slot->fds[1].get(), kSlotHeaderBytes, false);
  ASSERT_TRUE(bytes.ok() && page.ok());
  EXPECT_EQ(NumberIn({bytes->data(), bytes->size()}), 9u);
  EXPECT_EQ(SlotHeaderPage(page->data()).GrantAfterReads(), 300u);
  const auto read = next_.OpenForRead(handle);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(std::vector<uint64_t>(read->tile_hashes.begin(), read->tile_hashes.end()),
            lanes::TileHashes(read->bytes, 1));
  // Nobody may write to it.
  EXPECT_EQ(next_.MapForWriting(1, kNoTrainer, 300).status().code(), StatusCode::kAborted);
  EXPECT_EQ(next_.WriteSlot(kAdopted, 300, 0, {}).code(), StatusCode::kFailedPrecondition);
  // Its old header page is nobody's.
  SlotHeaderFields old;
  auto old_page = MappedMemory::Map(held->fds[1].get(), kSlotHeaderBytes, false);
  ASSERT_TRUE(SlotHeaderPage(old_page->data()).Read(&old));
  EXPECT_EQ(old.grant, kGrant);
}

TEST_F(HostOfferTest, WhatIsNoSealedSlotOfItsSizeIsRefusedBeforeAnybodyIsAsked) {
  const size_t size = manifest_->slot_bytes;
  const auto refused = [&](UniqueFd fd, const std::string& why, const std::string& run = "run") {
    static uint64_t connection = 100;
    SlotOffer offer = Offer(DigestOf(1), ++connection);
    offer.run_id = run;
    const Status status = next_.OfferSlot(connection, offer, std::move(fd)).status();
    EXPECT_NE(MessageOf(status).find(why), std::string::npos) << status;
    EXPECT_EQ(next_.OfferState(connection).status(), status);
    // Nor is it adopted because a leader says so.
    next_.Send({Command(DigestOf(1), connection)});
    EXPECT_TRUE(told_.WaitFor("not made 20 the reader that offered the slot has gone"));
    told_.Take();
    return status.code();
  };
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  EXPECT_EQ(refused(UniqueFd(ends[0]), "no memory file"), StatusCode::kFailedPrecondition);
  EXPECT_EQ(refused(UniqueFd(ends[1]), "no memory file"), StatusCode::kFailedPrecondition);
  EXPECT_EQ(refused(MemoryFile(size, 1, F_SEAL_WRITE | F_SEAL_GROW), "against resizing"),
            StatusCode::kFailedPrecondition);
  EXPECT_EQ(refused(MemoryFile(size, 1, F_SEAL_WRITE | F_SEAL_SHRINK), "against resizing"),
            StatusCode::kFailedPrecondition);
  EXPECT_EQ(refused(MemoryFile(size, 1, F_SEAL_GROW | F_SEAL_SHRINK), "against writing"),
            StatusCode::kFailedPrecondition);
  EXPECT_EQ(refused(MemoryFile(size - 8, 1), "bytes, not"), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused(MemoryFile(size + 8, 1), "bytes, not"), StatusCode::kInvalidArgument);
  UniqueFd holes(memfd_create("holes", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(holes.get(), static_cast<off_t>(size)), 0);
  ASSERT_EQ(fcntl(holes.get(), F_ADD_SEALS, kAllSeals), 0);
  EXPECT_EQ(refused(std::move(holes), "never taken"), StatusCode::kFailedPrecondition);
  EXPECT_EQ(refused(MemoryFile(size, 1), "run_id", "\xff"), StatusCode::kInvalidArgument);
  EXPECT_EQ(next_.Stats().slot_bytes, 0u);
  EXPECT_EQ(next_.Stats().adopted_slots, 0u);
  EXPECT_EQ(next_.Report().offers.size(), 0u);
}

TEST_F(HostOfferTest, OtherBytesAreFoundAndTheHostServesOn) {
  UniqueFd fd = MemoryFile(manifest_->slot_bytes, 1);
  ASSERT_TRUE(next_.OfferSlot(kReader, Offer(DigestOf(2)), std::move(fd)).ok());
  next_.Send({Command(DigestOf(2))});
  ASSERT_TRUE(told_.WaitFor("not made 20 the offered slot holds " + ToHex(DigestOf(1)) +
                            ", the version is recorded with digest " + ToHex(DigestOf(2))));
  EXPECT_EQ(State(), StatusCode::kDataLoss);
  EXPECT_EQ(next_.Stats().slot_bytes, 0u);
  EXPECT_EQ(next_.Stats().refused_offers, 1u);
  // The right ones, on another connection.
  fd = MemoryFile(manifest_->slot_bytes, 2);
  ASSERT_TRUE(next_.OfferSlot(kReader + 1, Offer(DigestOf(2), kReader + 1), std::move(fd)).ok());
  next_.Send({Command(DigestOf(2), kReader + 1)});
  EXPECT_TRUE(told_.WaitFor("made 20"));
}

TEST_F(HostOfferTest, TheLeadersRefusalAndTheEndOfEitherSideAreTold) {
  const auto offer = [&](uint64_t connection) {
    EXPECT_TRUE(next_
                    .OfferSlot(connection, Offer(DigestOf(1), connection),
                               MemoryFile(manifest_->slot_bytes, 1))
                    .ok());
  };
  offer(1);
  next_.Send({RefuseOffer{1, FailedPrecondition("nobody needs it")}, RefuseOffer{77, Aborted("")}});
  EXPECT_EQ(State(1), StatusCode::kFailedPrecondition);
  EXPECT_EQ(next_.Stats().refused_offers, 1u);
  offer(2);
  next_.Send({RefuseOffer{2, Unavailable("ask again")}});
  EXPECT_EQ(State(2), StatusCode::kUnavailable);
  EXPECT_EQ(next_.Stats().refused_offers, 1u);
  // The leader changes its mind.
  offer(3);
  next_.Send({Command(DigestOf(1), 3), DropSlot{kAdopted}});
  EXPECT_EQ(State(3), StatusCode::kUnavailable);
  // The reader dies: what it offered is adopted all the same, or, before that, is gone.
  offer(4);
  next_.Send({Command(DigestOf(1), 4)});
  next_.ConnectionClosed(4);
  EXPECT_TRUE(told_.WaitFor("made 20"));
  next_.Send({DropSlot{kAdopted}});
  offer(5);
  next_.ConnectionClosed(5);
  next_.Send({Command(DigestOf(1), 5)});
  EXPECT_TRUE(told_.WaitFor("not made 20 the reader that offered the slot has gone"));
}

TEST_F(HostOfferTest, WhereWindowsAloneAreReadNothingIsAdoptedAndTheReaderWaits) {
  Host host({.name = "h1", .threads = 1, .windows_alone = true}, told_);
  UniqueFd fd = MemoryFile(manifest_->slot_bytes, 1);
  ASSERT_TRUE(host.OfferSlot(kReader, Offer(DigestOf(1)), std::move(fd)).ok());
  host.Send({Command(DigestOf(1))});
  EXPECT_TRUE(titan::testing::Eventually([&] { return !host.OfferState(kReader).ok(); }));
  const Status refused = host.OfferState(kReader).status();
  EXPECT_EQ(refused.code(), StatusCode::kUnavailable) << refused;
  EXPECT_NE(MessageOf(refused).find("require_rdma"), std::string::npos) << refused;
  EXPECT_TRUE(told_.WaitFor("not made 20 " + MessageOf(refused)));
  EXPECT_EQ(host.Stats().slot_bytes, 0u);
  EXPECT_EQ(host.Stats().refused_offers, 0u);
  EXPECT_TRUE(host.Report().slots.empty());
}

TEST_F(HostOfferTest, ASlotThatIsThereIsNotAdoptedASecondTime) {
  next_.Send({MakeSlot{kAdopted, manifest_->slot_bytes, "run", kEpoch, 0}});
  ASSERT_TRUE(told_.WaitFor("made 20"));
  UniqueFd fd = MemoryFile(manifest_->slot_bytes, 1);
  ASSERT_TRUE(next_.OfferSlot(kReader, Offer(DigestOf(1)), std::move(fd)).ok());
  next_.Send({Command(DigestOf(1))});
  ASSERT_EQ(next_.Report().slots.size(), 1u);
  EXPECT_EQ(next_.Report().slots[0].epoch, kEpoch);
  EXPECT_TRUE(next_.Report().slots[0].made);
  EXPECT_EQ(next_.Report().offers.size(), 1u);  // nor is it decided
  EXPECT_EQ(next_.Stats().adopted_slots, 0u);
}

TEST(HostMakingTest, ASlotThatCannotBeHadIsTold) {
  Recorder events;
  Host host({.threads = 1,
             .make_slot = [](const SlotRequest&, const SlotMemory::Wanted&) -> SlotMaker::Made {
               return ResourceExhausted("no page is left");
             }},
            events);
  host.Send({MakeSlot{1, 4096, "run", 1, 0}});
  EXPECT_TRUE(events.WaitFor("not made 1 no page is left"));
}

}  // namespace
}  // namespace titan::weightstore
