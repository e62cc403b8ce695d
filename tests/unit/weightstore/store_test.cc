// SPDX-License-Identifier: Apache-2.0
//
// Goal: publisher, subscriber, socket, slot memory and index work together in one process. Method:
// a whole store in a temporary folder; small slots. With other processes: store_process_test.cc.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/support/weightstore_host.h"
#include "weightstore/client/reason.h"
#include "weightstore/client/weights_digest.h"
#include "weightstore/leader.h"

namespace titan::weightstore {
namespace {

using std::chrono::milliseconds;
using testing::Fill;
using testing::Host;
using testing::NumberIn;
using testing::Publish;
using testing::SmallManifest;

// Whether the kernel would let this process write there (a byte is written).
bool IsWritable(std::byte* place) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  EXPECT_EQ(write(ends[1], "x", 1), 1);
  const bool writable = read(ends[0], place, 1) == 1;
  close(ends[0]);
  close(ends[1]);
  return writable;
}

TEST(StoreTest, WhatOneSidePublishesTheOtherMapsWithoutACopy) {
  Host host;
  auto publisher = host.Register(1);
  EXPECT_EQ(publisher->ring_slots(), 4u);
  const Hash128 digest = Publish(*publisher, 0, 77);
  const Subscriber reader = host.Reader();
  auto slot = reader.Acquire("run", 0, false);
  ASSERT_TRUE(slot.ok()) << slot.status();
  EXPECT_EQ(NumberIn(slot->bytes()), 77u);
  EXPECT_EQ(slot->lease().digest, digest);
  EXPECT_EQ(slot->manifest(), SmallManifest());
  EXPECT_EQ(WeightsDigest(slot->manifest(), slot->bytes(), 1), digest);
  EXPECT_TRUE(slot->HeaderUnchanged());
  EXPECT_EQ(host.leader().ListVersions("run")->at(0).holders,
            std::vector<std::string>{"generator-0"});
  auto again = reader.Acquire("run", 0, false);  // a second lease, no second holder
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(host.leader().ListVersions("run")->at(0).holders,
            std::vector<std::string>{"generator-0"});
  ASSERT_TRUE(reader.Release(*std::move(again)).ok());
  ASSERT_TRUE(reader.Release(*std::move(slot)).ok());
  EXPECT_TRUE(host.leader().ListVersions("run")->at(0).holders.empty());
}

TEST(StoreTest, MapsOfReadersAndOfAFinishedWriterCannotBeWritten) {
  Host host;
  auto publisher = host.Register();
  const auto begun = publisher->Begin(0, milliseconds(0));
  ASSERT_TRUE(begun.ok());
  Fill(begun->bytes, 5);
  EXPECT_TRUE(IsWritable(begun->bytes.data()));
  Fill(begun->bytes, 5);
  ASSERT_TRUE(publisher->Finish().ok());
  EXPECT_FALSE(IsWritable(begun->bytes.data()));
  ASSERT_TRUE(publisher->Commit("plan", 0).ok());
  auto slot = host.Reader().Acquire("run", 0, false);
  ASSERT_TRUE(slot.ok());
  auto* data = const_cast<std::byte*>(slot->bytes().data());
  EXPECT_EQ(mprotect(data, slot->bytes().size(), PROT_READ | PROT_WRITE), -1);

  // The descriptor that a reader gets can neither be written nor resized nor mapped for writing,
  // not even when it is opened anew by its /proc name.
  const auto lease = host.leader().AcquireLease("r", "run", 0, false);
  auto connection = ConnectUnix(host.socket_path(), kSocketTimeout);
  ASSERT_TRUE(connection.ok());
  auto answer =
      Call(connection->get(),
           {.kind = SocketRequestKind::kMapLease, .id = lease->lease_id, .grant = lease->grant});
  ASSERT_TRUE(answer.ok()) << answer.status();
  for (const UniqueFd& fd : answer->fds) {
    const std::string path = "/proc/self/fd/" + std::to_string(fd.get());
    UniqueFd again(open(path.c_str(), O_RDWR | O_CLOEXEC));
    for (const int handle : {fd.get(), again.get()}) {
      if (handle < 0) continue;
      EXPECT_EQ(pwrite(handle, "x", 1, 0), -1);
      EXPECT_EQ(ftruncate(handle, 1), -1);
      EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, handle, 0), MAP_FAILED);
    }
  }
  EXPECT_EQ(NumberIn(slot->bytes()), 5u);
}

TEST(StoreTest, TheDaemonNoticesBytesThatAreNotWhatTheWriterHashed) {
  Host host;
  auto publisher = host.Register();
  const auto begun = publisher->Begin(0, milliseconds(0));
  ASSERT_TRUE(begun.ok());
  Fill(begun->bytes, 5);
  // A writer that hashes one thing and leaves another.
  const Hash128 digest = WeightsDigest(SmallManifest(), begun->bytes, 1);
  const auto grant =
      host.leader().BeginVersion("run", publisher->epoch(), 0, milliseconds(0))->grant;
  begun->bytes[100] ^= std::byte{1};
  EXPECT_EQ(host.leader().PutDone("run", publisher->epoch(), 0, grant, digest).code(),
            StatusCode::kDataLoss);
  EXPECT_EQ(host.leader().Stats().verify_failures, 1u);
  EXPECT_EQ(host.leader().ListVersions("run")->at(0).state, VersionState::kAborted);
  Publish(*publisher, 0);
}

TEST(StoreTest, StaleAndForeignRequestsOnTheSocketAreRefused) {
  Host host;
  auto publisher = host.Register();
  Publish(*publisher, 0);
  const auto lease = host.leader().AcquireLease("r", "run", 0, false);
  ASSERT_TRUE(lease.ok());
  const auto ask = [&](SocketRequest request) {
    auto connection = ConnectUnix(host.socket_path(), milliseconds(2000));
    return Call(connection->get(), request).status().code();
  };
  EXPECT_EQ(ask({.id = lease->lease_id, .grant = lease->grant + 1}), StatusCode::kAborted);
  EXPECT_EQ(ask({.id = lease->lease_id + 1000, .grant = lease->grant}), StatusCode::kAborted);
  EXPECT_EQ(ask({.kind = SocketRequestKind::kMapForWriting,
                 .id = publisher->epoch(),
                 .grant = lease->grant}),
            StatusCode::kAborted);  // committed: no longer open
  EXPECT_EQ(ask({.kind = SocketRequestKind::kWriterHasMapped, .id = 1, .grant = lease->grant}),
            StatusCode::kFailedPrecondition);
  EXPECT_EQ(ask({.kind = static_cast<SocketRequestKind>(99)}), StatusCode::kInvalidArgument);
  EXPECT_EQ(ask({.magic = 1}), StatusCode::kUnavailable);  // cut off
  auto connection = ConnectUnix(host.socket_path(), milliseconds(2000));
  ASSERT_TRUE(SendPacket(connection->get(), "short", 5).ok());
  EXPECT_EQ(ReceivePacket(connection->get(), 600).status().code(), StatusCode::kUnavailable);
  // The lease is untouched and can still be mapped, once.
  EXPECT_EQ(ask({.id = lease->lease_id, .grant = lease->grant}), StatusCode::kOk);
}

TEST(StoreTest, AFencedReaderFindsItsHeaderChanged) {
  Host host;
  auto publisher = host.Register();
  Publish(*publisher, 0);
  auto slot = host.Reader().Acquire("run", 0, false);
  ASSERT_TRUE(slot.ok());
  EXPECT_TRUE(slot->HeaderUnchanged());
  ASSERT_TRUE(host.leader().FenceReaders("run", 0).ok());
  EXPECT_FALSE(slot->HeaderUnchanged());
  auto again = host.Reader().Acquire("run", 0, false);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(again->HeaderUnchanged());
  ASSERT_TRUE(host.leader().EndRun("run", 0).ok());
  EXPECT_FALSE(again->HeaderUnchanged());
  EXPECT_EQ(host.leader().Stats().slot_bytes, 0u);
}

TEST(StoreTest, AFullRingWaitsNamesTheHolderAndGoesOnWhenItLetsGo) {
  Host host;
  auto publisher = host.Register();  // 3 slots
  Publish(*publisher, 0);
  auto zero = host.Reader("generator-0").Acquire("run", 0, false);
  Publish(*publisher, 1);
  auto one = host.Reader("generator-1").Acquire("run", 1, false);
  Publish(*publisher, 2);
  ASSERT_TRUE(zero.ok() && one.ok());
  const auto blocked = publisher->Begin(3, milliseconds(30));
  EXPECT_EQ(blocked.status().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(MessageOf(blocked.status()).find("generator-0"), std::string::npos) << blocked.status();
  EXPECT_EQ(host.leader().Stats().begin_blocked, 1u);
  std::thread reader([&] {
    std::this_thread::sleep_for(milliseconds(20));
    zero->Drop();  // the connection's end is the lease's end
  });
  Publish(*publisher, 3);
  reader.join();
  EXPECT_EQ(NumberIn(one->bytes()), 1u);
  EXPECT_TRUE(one->HeaderUnchanged());
}

TEST(StoreTest, MemoryIsCheckedBeforeAnythingIsTaken) {
  Host host(/*memory_limit_bytes=*/SmallManifest().slot_bytes * 5);
  const auto refused = host.leader().RegisterTrainer("a", "big", SmallManifest(), /*max_age=*/2, 1,
                                                     "");  // 5 + 1 slots
  ASSERT_EQ(refused.status().code(), StatusCode::kResourceExhausted);
  for (const uint64_t number :
       {uint64_t{6}, SmallManifest().slot_bytes, SmallManifest().slot_bytes * 5}) {
    EXPECT_NE(MessageOf(refused.status()).find(std::to_string(number)), std::string::npos)
        << refused.status();
  }
  EXPECT_EQ(host.leader().ListVersions("big").status().code(), StatusCode::kNotFound);
  const auto first = host.leader().RegisterTrainer("b", "run", SmallManifest(), 1, 1, "");
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(host.leader().RegisterTrainer("b", "run", SmallManifest(), 1, 1, "")->epoch,
            first->epoch);
  // A new token takes the place of the old one's idle slots.
  EXPECT_EQ(host.leader().RegisterTrainer("c", "run", SmallManifest(), 1, 1, "")->epoch,
            first->epoch + 1);
  const LeaderStats stats = host.leader().Stats();
  EXPECT_EQ(stats.slot_bytes + stats.bytes_being_made, 5 * SmallManifest().slot_bytes);
}

TEST(StoreTest, EvaluationServesACopyWhileTrainingMovesOn) {
  Host host;
  auto publisher = host.Register();
  const Hash128 digest = Publish(*publisher, 0, 42);
  const auto pinned = host.leader().PinForEvaluation("run", 0);
  ASSERT_TRUE(pinned.ok()) << pinned.status();
  EXPECT_EQ(*pinned, digest);
  for (uint64_t v = 1; v < 8; ++v) Publish(*publisher, v);
  auto slot = host.Reader().Acquire("run", 0, /*evaluation=*/true);
  ASSERT_TRUE(slot.ok()) << slot.status();
  EXPECT_EQ(NumberIn(slot->bytes()), 42u);
  ASSERT_TRUE(host.leader().UnpinEvaluation("run", 0).ok());
  EXPECT_EQ(host.leader().PinForEvaluation("run", 7).status().code(),
            StatusCode::kResourceExhausted);
  EXPECT_TRUE(slot->HeaderUnchanged());
  ASSERT_TRUE(host.Reader().Release(*std::move(slot)).ok());
  ASSERT_TRUE(host.leader().PinForEvaluation("run", 7).ok());
}

// Writes the newest version to disk, as the end of its run does.
void Keep(Host& host) {
  const auto newest = host.leader().HoldNewestForDisk("run");
  ASSERT_TRUE(newest.ok() && newest->has_value());
  const Status kept =
      host.library().Keep("run", (*newest)->version, (*newest)->digest, (*newest)->manifest,
                          (*newest)->view, /*in_reserved_room=*/true);
  ASSERT_TRUE(kept.ok()) << kept;
}

TEST(StoreTest, AKeptVersionIsEvaluatedWhenNoMemoryHoldsItAnyMore) {
  Host host(64u << 20, Host::IndexKind::kDisk);
  Hash128 two;
  {
    auto publisher = host.Register();
    for (uint64_t v = 0; v < 3; ++v) two = Publish(*publisher, v, 100 + static_cast<int64_t>(v));
    Keep(host);
    for (uint64_t v = 3; v < 9; ++v) Publish(*publisher, v);
    // FREE, its trainer at work.
    ASSERT_EQ(host.leader().ListVersions("run")->at(2).state, VersionState::kFree);
    auto slot = host.Reader().Acquire("run", 2, /*evaluation=*/true);
    ASSERT_TRUE(slot.ok()) << slot.status();
    EXPECT_EQ(NumberIn(slot->bytes()), 102u);
    EXPECT_EQ(ReasonOf(host.Reader().Acquire("run", 3, true).status()), kVersionNotServed);
    Publish(*publisher, 9);
    EXPECT_TRUE(slot->HeaderUnchanged());
    EXPECT_EQ(WeightsDigest(slot->manifest(), slot->bytes(), 1), two);
  }
  // LOST, and no trainer has come back.
  host.Stop();
  host.Start();
  ASSERT_EQ(host.leader().ListVersions("run")->at(2).state, VersionState::kLost);
  const auto pinned = host.leader().PinForEvaluation("run", 2);
  ASSERT_TRUE(pinned.ok()) << pinned.status();
  EXPECT_EQ(*pinned, two);
  auto slot = host.Reader().Acquire("run", 2, true);
  ASSERT_TRUE(slot.ok()) << slot.status();
  EXPECT_EQ(NumberIn(slot->bytes()), 102u);
  EXPECT_EQ(ReasonOf(host.leader().PinForEvaluation("run", 9).status()), kVersionLost);
  {
    auto publisher = host.Register();
    Publish(*publisher, 9);
    EXPECT_TRUE(slot->HeaderUnchanged());
    ASSERT_TRUE(host.Reader().Release(*std::move(slot)).ok());
    ASSERT_TRUE(host.leader().EndRun("run", 0).ok());
  }
  // The run has ended: a slot is taken for as long as somebody reads.
  EXPECT_EQ(host.leader().Stats().slot_bytes, 0u);
  auto last = host.Reader().Acquire("run", 2, true);
  ASSERT_TRUE(last.ok()) << last.status();
  EXPECT_EQ(NumberIn(last->bytes()), 102u);
  EXPECT_EQ(host.leader().Stats().slot_bytes, SmallManifest().slot_bytes);
  ASSERT_TRUE(host.Reader().Release(*std::move(last)).ok());
  EXPECT_EQ(host.leader().Stats().slot_bytes, 0u);
}

TEST(StoreTest, AVersionOnDiskOfAnotherContractIsRefusedByItsItem) {
  Host host;
  auto publisher = host.Register();
  Publish(*publisher, 0, 7);
  for (const bool forward : {true, false}) {
    auto source = host.leader().HoldForDisk("run", 0);
    ASSERT_TRUE(source.ok()) << source.status();
    Manifest other = *source->manifest;
    (forward ? other.contract_forward : other.contract_training) = "another";
    other.contract_items = {{"rounding", "up"}};
    ASSERT_TRUE(host.library()
                    .Keep("run", 0, source->digest, std::make_shared<const Manifest>(other),
                          source->view, true)
                    .ok());
    source = Cancelled("");
    publisher.reset();
    host.Stop();
    host.Start();
    const Status refused = host.Reader().Acquire("run", 0, true).status();
    EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition) << refused;
    EXPECT_NE(MessageOf(refused).find("another numerics contract"), std::string::npos) << refused;
    ASSERT_TRUE(host.library().RemoveVersion("run", 0).ok());
    publisher = host.Register();
    Publish(*publisher, 0, 7);
  }
}

TEST(StoreTest, WhoeverAsksFirstBringsAVersionInAndTheOthersWait) {
  Host host;
  {
    auto publisher = host.Register();
    Publish(*publisher, 0, 7);
    Keep(host);
    ASSERT_TRUE(host.leader().EndRun("run", 0).ok());
  }
  std::atomic<int> read{0};
  std::vector<std::thread> readers;
  for (int i = 0; i < 6; ++i) {
    readers.emplace_back([&] {
      auto slot = host.Reader().Acquire("run", 0, true);
      EXPECT_TRUE(slot.ok()) << slot.status();
      if (slot.ok() && NumberIn(slot->bytes()) == 7) ++read;
      while (read < 6 && slot.ok()) std::this_thread::yield();
    });
  }
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(read, 6);
}

TEST(StoreTest, ADamagedFileIsNamedAndOtherVersionsAreServed) {
  Host host;
  auto publisher = host.Register();
  Publish(*publisher, 0, 100);
  Keep(host);
  Publish(*publisher, 1, 101);
  Keep(host);
  for (uint64_t v = 2; v < 9; ++v) Publish(*publisher, v);
  const auto kept = host.library().FindVersion("run", 0);
  ASSERT_TRUE(kept.ok());
  const std::string path = host.blobs() + "/" + ToHex(kept->blobs.back());
  const uintmax_t size = std::filesystem::file_size(path);
  const auto flip = [&](uintmax_t at) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(at));
    const int byte = file.get();
    file.seekp(static_cast<std::streamoff>(at));
    file.put(static_cast<char>(byte ^ 1));
  };
  for (const uintmax_t at : {uintmax_t{0}, size / 2, size - 1}) {
    flip(at);
    const Status refused = host.leader().PinForEvaluation("run", 0).status();
    EXPECT_EQ(refused.code(), StatusCode::kDataLoss) << refused;
    EXPECT_NE(MessageOf(refused).find(path), std::string::npos) << refused;
    EXPECT_EQ(ReasonOf(refused), kDigestMismatch);
    EXPECT_FALSE(host.Reader().Acquire("run", 0, true).ok());
    auto newest = host.Reader().Acquire("run", 8, false);
    ASSERT_TRUE(newest.ok()) << newest.status();
    auto other = host.Reader().Acquire("run", 1, true);
    ASSERT_TRUE(other.ok()) << other.status();
    EXPECT_EQ(NumberIn(other->bytes()), 101u);
    ASSERT_TRUE(host.Reader().Release(*std::move(other)).ok());
    flip(at);
  }
  EXPECT_EQ(host.leader().Stats().verify_failures, 6u);
  std::filesystem::resize_file(path, size - 1);
  const Status cut = host.leader().PinForEvaluation("run", 0).status();
  EXPECT_EQ(cut.code(), StatusCode::kDataLoss) << cut;
  EXPECT_NE(MessageOf(cut).find(path), std::string::npos) << cut;
  std::filesystem::remove(path);
  const Status gone = host.leader().PinForEvaluation("run", 0).status();
  EXPECT_EQ(gone.code(), StatusCode::kNotFound) << gone;
  EXPECT_NE(MessageOf(gone).find(ToHex(kept->blobs.back())), std::string::npos) << gone;
  Publish(*publisher, 9);
}

TEST(StoreTest, AnEvaluationSlotThatDoesNotFitIsRefusedWithTheNumbers) {
  const uint64_t bytes = SmallManifest().slot_bytes;
  Host host(4 * bytes);  // a ring of 3 and one slot for evaluation
  {
    auto publisher = host.Register();
    Publish(*publisher, 0, 7);
    Keep(host);
    ASSERT_TRUE(host.leader().EndRun("run", 0).ok());
  }
  ASSERT_TRUE(host.leader().RegisterTrainer("a", "other", SmallManifest(), 0, 1, "").ok());
  const Status refused = host.leader().PinForEvaluation("run", 0).status();
  EXPECT_EQ(ReasonOf(refused), kMemoryLimit) << refused;
  EXPECT_NE(MessageOf(refused).find("needs 1 slots of " + std::to_string(bytes) + " bytes beside " +
                                    std::to_string(4 * bytes)),
            std::string::npos)
      << refused;
  ASSERT_TRUE(host.leader().EndRun("other", 0).ok());
  EXPECT_TRUE(host.leader().PinForEvaluation("run", 0).ok());
}

TEST(StoreTest, ARestartKeepsRecordsAndRemakesLostVersionsWithTheSameDigest) {
  Host host(64u << 20, Host::IndexKind::kDisk);
  std::vector<Hash128> digests;
  {
    auto publisher = host.Register(1);
    for (uint64_t v = 0; v < 5; ++v) digests.push_back(Publish(*publisher, v));
  }
  EXPECT_EQ(*host.leader().AdvanceOrchestratorEpoch("x"), 1u);
  EXPECT_EQ(*host.leader().AdvanceOrchestratorEpoch("x"), 1u);
  auto slot = host.Reader().Acquire("run", 4, false);
  ASSERT_TRUE(slot.ok());
  const Lease old = slot->lease();
  host.Stop();
  EXPECT_EQ(NumberIn(slot->bytes()), 4u);  // the memory lives as long as somebody maps it
  host.Start();
  EXPECT_EQ(*host.leader().AdvanceOrchestratorEpoch("y"), 2u);
  const auto versions = host.leader().ListVersions("run");
  ASSERT_EQ(versions->size(), 5u);
  for (uint64_t v = 0; v < 5; ++v) {
    EXPECT_EQ(versions->at(v).state, VersionState::kLost);
    EXPECT_EQ(versions->at(v).record->digest, digests[v]);
    EXPECT_EQ(versions->at(v).record->train_step, v);
    EXPECT_EQ(versions->at(v).record->plan_digest, "plan");
    EXPECT_EQ(versions->at(v).record->committed_unix_ms, 1234);
  }
  EXPECT_EQ(host.Reader().Acquire("run", 4, false).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(HeldVersion::Map(host.socket_path(), old).status().code(), StatusCode::kAborted);
  auto publisher = host.Register(1);
  EXPECT_EQ(publisher->epoch(), 2u);
  Publish(*publisher, 2);  // from a checkpoint
  const auto begun = publisher->Begin(3, std::chrono::seconds(5));
  ASSERT_TRUE(begun.ok());
  Fill(begun->bytes, 99);
  ASSERT_TRUE(publisher->Finish().ok());
  const auto diverged = publisher->Commit("plan", 3);
  EXPECT_EQ(diverged.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(MessageOf(diverged.status()).find("divergence"), std::string::npos);
  Publish(*publisher, 3);
  Publish(*publisher, 4);
  Publish(*publisher, 5);
  ASSERT_TRUE(host.Reader().Acquire("run", 4, false).ok());
}

TEST(StoreTest, ANewTrainerConfirmsRecordedVersionsWithoutASlot) {
  Host host;
  auto publisher = host.Register();
  Publish(*publisher, 0);
  Publish(*publisher, 1);
  publisher = host.Register();
  const auto begun = publisher->Begin(1, milliseconds(0));
  ASSERT_TRUE(begun.ok()) << begun.status();
  EXPECT_TRUE(begun->recorded);
  EXPECT_TRUE(begun->bytes.empty());
  std::vector<std::byte> weights(SmallManifest().slot_bytes);
  Fill(weights, 1);
  const auto same = publisher->ConfirmRecorded(1, weights);
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_EQ(*same, begun->recorded_digest);
  weights[3] ^= std::byte{4};
  const Status other = publisher->ConfirmRecorded(1, weights).status();
  EXPECT_EQ(other.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(MessageOf(other).find("divergence"), std::string::npos) << other;
  EXPECT_EQ(publisher->Finish().status().code(), StatusCode::kFailedPrecondition);
}

TEST(StoreTest, ShutdownEndsWaits) {
  Host host;
  auto publisher = host.Register();
  std::vector<HeldVersion> held;
  for (uint64_t v = 0; v < 3; ++v) {
    Publish(*publisher, v);
    held.push_back(*host.Reader().Acquire("run", v, false));
  }
  std::thread stopper([&] {
    std::this_thread::sleep_for(milliseconds(20));
    host.Shutdown();
  });
  EXPECT_EQ(publisher->Begin(3, std::chrono::seconds(30)).status().code(),
            StatusCode::kUnavailable);
  stopper.join();
}

TEST(StoreTest, SocketPathsAreChecked) {
  Host host;
  EXPECT_EQ(SocketServer::Start(host.socket_path(), host.slots()).status().code(),
            StatusCode::kFailedPrecondition);
  const std::string long_path = "/tmp/" + std::string(120, 'x');
  const Status refused = SocketServer::Start(long_path, host.slots()).status();
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(MessageOf(refused).find("107"), std::string::npos) << refused;
  struct stat file = {};
  ASSERT_EQ(stat(host.socket_path().c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0600u);
}

}  // namespace
}  // namespace titan::weightstore
