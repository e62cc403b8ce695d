// SPDX-License-Identifier: Apache-2.0
//
// Goal: leader and host daemons as processes of their own lose nothing that was acknowledged,
// whoever of them dies or stops, and no call hangs. Method: titan-weightstore in each role, killed
// with SIGKILL or stopped; publishers and subscribers of this process.
#include "tests/support/weightstore_hosts.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <map>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>

#include "tests/support/sanitized.h"
#include "weightstore/client/reason.h"
#include "weightstore/client/subscriber.h"
#include "weightstore/client/weights_digest.h"

namespace titan::weightstore {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using testing::Fill;
using testing::HostsTest;
using testing::kLongestCall;
using testing::kPatience;
using testing::MemoryFiles;
using testing::NumberIn;
using testing::WeightStoreProcess;
using titan::testing::Eventually;

TEST_F(HostsTest, TheHostHasTheBytesAndTheLeaderTheRecords) {
  auto publisher = Register(host_);
  ASSERT_NE(publisher, nullptr);
  const Hash128 digest = Publish(*publisher, 0);
  auto slot = Reader(host_).Acquire("run", 0, false);
  ASSERT_TRUE(slot.ok()) << slot.status();
  EXPECT_EQ(NumberIn(slot->bytes()), 0u);
  EXPECT_EQ(slot->lease().digest, digest);
  EXPECT_EQ(Versions()[0].holders_size(), 1);
  EXPECT_TRUE(MemoryFiles(leader_.process().pid()).empty());
  EXPECT_FALSE(MemoryFiles(host_.process().pid()).empty());

  grpc::ClientContext pin_context, end_context;
  v1::PinForEvaluationRequest pin;
  pin.set_run_id("run");
  v1::PinForEvaluationResponse pinned;
  const grpc::Status copied = stub_->PinForEvaluation(&pin_context, pin, &pinned);
  ASSERT_TRUE(copied.ok()) << copied.error_message();
  EXPECT_EQ(pinned.weights_digest(), ToHex(digest));
  auto evaluation = Reader(host_).Acquire("run", 0, true);
  ASSERT_TRUE(evaluation.ok()) << evaluation.status();
  EXPECT_EQ(NumberIn(evaluation->bytes()), 0u);
  EXPECT_TRUE(slot->HeaderUnchanged());

  // The newest version is read from the host and kept on the leader's disk.
  const Hash128 newest = Publish(*publisher, 1);
  v1::EndRunRequest end;
  end.set_run_id("run");
  v1::EndRunResponse ended;
  ASSERT_TRUE(stub_->EndRun(&end_context, end, &ended).ok());
  EXPECT_GT(Versions()[1].kept_bytes(), 0u);
  EXPECT_EQ(port_->FindVersion("run", 1)->weights_digest, newest);
  EXPECT_TRUE(Eventually([&] { return !slot->HeaderUnchanged(); }));
  EXPECT_TRUE(Eventually([&] { return MemoryFiles(host_.process().pid()).empty(); }));

  // What is kept there comes back into a slot of the host.
  grpc::ClientContext again_context, unpin_context;
  pin.set_version(1);
  const grpc::Status filled = stub_->PinForEvaluation(&again_context, pin, &pinned);
  ASSERT_TRUE(filled.ok()) << filled.error_message();
  EXPECT_EQ(pinned.weights_digest(), ToHex(newest));
  auto kept = Reader(host_).Acquire("run", 1, true);
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_EQ(NumberIn(kept->bytes()), 1u);
  kept->Drop();
  v1::UnpinEvaluationRequest unpin;
  unpin.set_run_id("run");
  unpin.set_version(1);
  v1::UnpinEvaluationResponse unpinned;
  ASSERT_TRUE(stub_->UnpinEvaluation(&unpin_context, unpin, &unpinned).ok());
  EXPECT_TRUE(Eventually([&] { return MemoryFiles(host_.process().pid()).empty(); }));
  EXPECT_EQ(host_.End(SIGTERM), 0);
  EXPECT_EQ(leader_.End(SIGTERM), 0);
}

TEST_F(HostsTest, AKilledLeaderFindsEverythingAgainAndReadersNeverNotice) {
  auto publisher = Register(host_);
  ASSERT_NE(publisher, nullptr);
  Publish(*publisher, 0);
  Publish(*publisher, 1);
  auto slot = Reader(host_).Acquire("run", 0, false);
  ASSERT_TRUE(slot.ok()) << slot.status();
  const auto lease = port_->AcquireLease("generator-1", "run", 1, false);
  ASSERT_TRUE(lease.ok()) << lease.status();
  const Hash128 digest = Write(*publisher, 2);  // not committed

  EXPECT_EQ(leader_.End(SIGKILL), -SIGKILL);
  // The host answers by what it was told.
  auto mapped = HeldVersion::Map(host_.socket_path(), *lease);
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  EXPECT_EQ(NumberIn(mapped->bytes()), 1u);
  EXPECT_EQ(publisher->Commit("plan", 2).status().code(), StatusCode::kUnavailable);
  StartLeader();
  ASSERT_TRUE(Becomes(1, v1::VERSION_STATE_COMMITTED));
  const auto versions = Versions();
  EXPECT_EQ(versions.at(0).state(), v1::VERSION_STATE_COMMITTED);
  ASSERT_EQ(versions.at(0).holders_size(), 1);
  EXPECT_EQ(versions.at(0).holders(0), "generator-0");
  ASSERT_EQ(versions.at(1).holders_size(), 1);
  EXPECT_EQ(versions.at(1).holders(0), "generator-1");
  EXPECT_EQ(versions.at(2).state(), v1::VERSION_STATE_SEALED);  // verified, without a record
  EXPECT_TRUE(slot->HeaderUnchanged());
  EXPECT_TRUE(mapped->HeaderUnchanged());
  EXPECT_EQ(NumberIn(slot->bytes()), 0u);

  // Whoever watches hears of them again.
  grpc::ClientContext watch_context;
  v1::WatchVersionsRequest watch;
  watch.set_run_id("run");
  auto stream = stub_->WatchVersions(&watch_context, watch);
  std::map<uint64_t, v1::VersionState> told;
  v1::WatchVersionsResponse news;
  while (told.size() < 2 && stream->Read(&news)) {
    for (const auto& info : news.versions()) told[info.version()] = info.state();
  }
  EXPECT_EQ(told[0], v1::VERSION_STATE_COMMITTED);
  EXPECT_EQ(told[1], v1::VERSION_STATE_COMMITTED);
  watch_context.TryCancel();

  // The trainer goes on where it was, with the epoch that it has; its port is the new leader's.
  const auto committed =
      port_->CommitVersion("run", publisher->epoch(), 2, digest, "plan", /*train_step=*/2);
  ASSERT_TRUE(committed.ok()) << committed.status();
  auto newest = Reader(host_).Acquire("run", 2, false);
  ASSERT_TRUE(newest.ok()) << newest.status();
  EXPECT_EQ(NumberIn(newest->bytes()), 2u);
  const auto begun = port_->BeginVersion("run", publisher->epoch(), 3, milliseconds(5000));
  ASSERT_TRUE(begun.ok()) << begun.status();
  // A reader that goes away is known to the new leader.
  slot->Drop();
  EXPECT_TRUE(Eventually([&] { return Versions()[0].holders_size() == 0; }));
}

TEST_F(HostsTest, ALeaderThatIsEndedKeepsTheNewestVersionThatAHostHas) {
  auto publisher = Register(host_);
  ASSERT_NE(publisher, nullptr);
  Publish(*publisher, 0);
  const Hash128 digest = Publish(*publisher, 1);
  EXPECT_EQ(leader_.End(SIGTERM), 0);
  EXPECT_EQ(host_.End(SIGKILL), -SIGKILL);
  StartLeader();
  const auto kept = port_->FindVersion("run", 1);
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_EQ(kept->weights_digest, digest);
  EXPECT_EQ(Versions()[0].kept_bytes(), 0u);
}

TEST_F(HostsTest, WhatWasAcknowledgedIsThereAfterTheLeaderDiedAtAnyInstant) {
  auto publisher = Register(host_);
  ASSERT_NE(publisher, nullptr);
  std::map<uint64_t, Hash128> acknowledged;
  uint64_t next = 0;
  constexpr int kKills = titan::testing::Rounds(6, 2);
  for (int kill = 0; kill < kKills; ++kill) {
    std::atomic<bool> dead{false};
    std::atomic<size_t> count{0};
    std::thread writer([&] {
      while (!dead) {
        const auto begun = publisher->Begin(next, milliseconds(5000));
        if (!begun.ok()) break;
        if (begun->recorded) {
          ++next;
          continue;
        }
        Fill(begun->bytes, next);
        const auto digest = publisher->Finish();
        if (!digest.ok() || !publisher->Commit("plan", next).ok()) break;
        acknowledged[next++] = *digest;
        ++count;
      }
    });
    EXPECT_TRUE(Eventually([&] { return count > 0; }, kPatience));
    std::this_thread::sleep_for(milliseconds(11 * kill));
    leader_.End(SIGKILL);
    dead = true;
    writer.join();
    StartLeader();
    publisher = Register(host_);  // of the new leader's port
    ASSERT_NE(publisher, nullptr);
    const auto versions = Versions();
    for (const auto& [version, digest] : acknowledged) {
      ASSERT_TRUE(versions.contains(version));
      EXPECT_EQ(versions.at(version).weights_digest(), ToHex(digest));
    }
    if (next > 0) {
      auto slot = Reader(host_).Acquire("run", next - 1, false);
      ASSERT_TRUE(slot.ok()) << slot.status();
      EXPECT_EQ(NumberIn(slot->bytes()), next - 1);
    }
  }
  EXPECT_GE(acknowledged.size(), static_cast<size_t>(kKills));
}

TEST_F(HostsTest, AKilledHostIsLostAndItsSuccessorServesWhatIsMadeAgain) {
  auto publisher = Register(host_);
  ASSERT_NE(publisher, nullptr);
  const Hash128 digest = Publish(*publisher, 0);
  Publish(*publisher, 1);
  EXPECT_EQ(host_.End(SIGKILL), -SIGKILL);
  // Nobody waits long for it.
  auto start = steady_clock::now();
  EXPECT_EQ(port_->AcquireLease("g", "run", 0, false).status().code(), StatusCode::kUnavailable);
  EXPECT_LT(steady_clock::now() - start, kLongestCall);
  start = steady_clock::now();
  EXPECT_EQ(publisher->Begin(2, milliseconds(100)).status().code(), StatusCode::kUnavailable);
  EXPECT_LT(steady_clock::now() - start, kLongestCall);
  StartHost(host_, "h1");
  ASSERT_TRUE(Becomes(0, v1::VERSION_STATE_LOST));
  EXPECT_EQ(ReasonOf(port_->AcquireLease("g", "run", 1, false).status()), kVersionLost);
  EXPECT_EQ(publisher->Begin(2, milliseconds(100)).status().code(), StatusCode::kAborted);
  publisher = Register(host_);
  ASSERT_NE(publisher, nullptr);
  EXPECT_EQ(Publish(*publisher, 0), digest);
  auto slot = Reader(host_).Acquire("run", 0, false);
  ASSERT_TRUE(slot.ok()) << slot.status();
  EXPECT_EQ(NumberIn(slot->bytes()), 0u);
}

TEST_F(HostsTest, AKilledHostsVersionsAreAdoptedFromTheirReaders) {
  auto publisher = Register(host_);
  ASSERT_NE(publisher, nullptr);
  const Hash128 digest = Publish(*publisher, 0);
  const Hash128 newest = Publish(*publisher, 1);
  const Subscriber reader = Reader(host_), other = Reader(host_, "generator-1");
  auto old_slot = reader.Acquire("run", 0, false);
  auto slot = reader.Acquire("run", 1, false);
  auto same = other.Acquire("run", 1, false);
  ASSERT_TRUE(old_slot.ok() && slot.ok() && same.ok());
  EXPECT_FALSE(slot->orphaned());
  const Lease before = slot->lease();
  const std::byte* const place = slot->bytes().data();

  EXPECT_EQ(host_.End(SIGKILL), -SIGKILL);
  EXPECT_TRUE(Eventually([&] { return slot->orphaned() && same->orphaned(); }));
  const Status down = reader.Renew(*slot);
  EXPECT_TRUE(Subscriber::MayRenewLater(down)) << down;
  EXPECT_TRUE(slot->HeaderUnchanged());
  EXPECT_EQ(NumberIn(slot->bytes()), 1u);
  StartHost(host_, "h1");
  ASSERT_TRUE(Renewed(reader, *old_slot));
  ASSERT_TRUE(Renewed(reader, *slot));
  ASSERT_TRUE(Renewed(other, *same));
  EXPECT_FALSE(slot->orphaned());
  auto versions = Versions();
  EXPECT_EQ(versions.at(0).state(), v1::VERSION_STATE_COMMITTED);
  EXPECT_EQ(versions.at(1).state(), v1::VERSION_STATE_COMMITTED);
  EXPECT_EQ(versions.at(1).holders_size(), 2);
  // The same memory, under a new lease and header page; each version is there once.
  EXPECT_EQ(slot->bytes().data(), place);
  EXPECT_NE(slot->lease().lease_id, before.lease_id);
  EXPECT_NE(slot->lease().grant, before.grant);
  EXPECT_EQ(slot->lease().digest, newest);
  EXPECT_TRUE(slot->HeaderUnchanged());
  EXPECT_EQ(MemoryFiles(host_.process().pid()).size(), 4u);  // two slots and their headers
  // Who never saw the dead host reads it, too.
  auto fresh = Reader(host_, "generator-2").Acquire("run", 1, false);
  ASSERT_TRUE(fresh.ok()) << fresh.status();
  EXPECT_EQ(NumberIn(fresh->bytes()), 1u);
  EXPECT_EQ(WeightsDigest(fresh->manifest(), fresh->bytes(), 1), newest);

  // The trainer confirms what is there and goes on.
  EXPECT_EQ(publisher->Begin(0, milliseconds(100)).status().code(), StatusCode::kAborted);
  publisher = Register(host_);
  ASSERT_NE(publisher, nullptr);
  for (const auto& [version, recorded] : {std::pair{0, digest}, std::pair{1, newest}}) {
    const auto begun = publisher->Begin(static_cast<uint64_t>(version), milliseconds(5000));
    ASSERT_TRUE(begun.ok()) << begun.status();
    EXPECT_TRUE(begun->recorded);
    EXPECT_EQ(begun->recorded_digest, recorded);
  }
  Publish(*publisher, 2);
  // A lease of the successor ends as any other does.
  fresh->Drop();
  same->Drop();
  EXPECT_TRUE(Eventually([&] { return Versions()[1].holders_size() == 1; }));
  grpc::ClientContext end_context;
  v1::EndRunRequest end;
  end.set_run_id("run");
  v1::EndRunResponse ended;
  ASSERT_TRUE(stub_->EndRun(&end_context, end, &ended).ok());
  EXPECT_TRUE(Eventually([&] { return !slot->HeaderUnchanged() && !old_slot->HeaderUnchanged(); }));
  EXPECT_EQ(reader.Renew(*slot).code(), StatusCode::kAborted);  // it was taken from its readers
  slot->Drop();
  old_slot->Drop();
  EXPECT_TRUE(Eventually([&] { return MemoryFiles(host_.process().pid()).empty(); }));
}

TEST_F(HostsTest, WhoComesTooLateWithAVersionIsToldWhy) {
  auto publisher = Register(host_);
  ASSERT_NE(publisher, nullptr);
  for (uint64_t version = 0; version < 4; ++version) Publish(*publisher, version);
  const Subscriber reader = Reader(host_);
  auto unneeded = reader.Acquire("run", 1, false);
  auto remade = reader.Acquire("run", 2, false);
  ASSERT_TRUE(unneeded.ok() && remade.ok());
  EXPECT_EQ(host_.End(SIGKILL), -SIGKILL);
  StartHost(host_, "h1");
  Status last;
  EXPECT_TRUE(Eventually(
      [&] {
        last = reader.Renew(*unneeded);
        return !last.ok() && !Subscriber::MayRenewLater(last);
      },
      kPatience))
      << last;
  EXPECT_EQ(last.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(MessageOf(last).find("not needed any more"), std::string::npos) << last;
  EXPECT_TRUE(unneeded->HeaderUnchanged());  // its samples may end
  unneeded->Drop();

  // A trainer that has begun the version is not disturbed; then its slot is the one that counts.
  publisher = Register(host_);
  ASSERT_NE(publisher, nullptr);
  const Hash128 digest = Write(*publisher, 2);
  last = reader.Renew(*remade);
  EXPECT_TRUE(Subscriber::MayRenewLater(last)) << last;
  EXPECT_NE(MessageOf(last).find("is being made again"), std::string::npos) << last;
  ASSERT_TRUE(publisher->Commit("plan", 2).ok());
  ASSERT_TRUE(Renewed(reader, *remade));
  EXPECT_EQ(remade->lease().digest, digest);
  EXPECT_EQ(NumberIn(remade->bytes()), 2u);
  // Four slots of the ring and one for evaluation, each with its header: nothing was adopted.
  EXPECT_TRUE(Eventually([&] { return MemoryFiles(host_.process().pid()).size() == 10; }));
}

TEST_F(HostsTest, AnOfferWaitsForTheNextLeader) {
  auto publisher = Register(host_);
  ASSERT_NE(publisher, nullptr);
  const Hash128 digest = Publish(*publisher, 0);
  auto slot = Reader(host_).Acquire("run", 0, false);
  ASSERT_TRUE(slot.ok()) << slot.status();
  EXPECT_EQ(host_.End(SIGKILL), -SIGKILL);
  EXPECT_EQ(leader_.End(SIGKILL), -SIGKILL);
  StartHost(host_, "h1");  // nobody decides anything yet
  {                        // a reader that shuts down does not wait for it
    std::stop_source stop;
    auto cancelled = std::async(std::launch::async,
                                [&] { return slot->Offer(host_.socket_path(), stop.get_token()); });
    EXPECT_EQ(cancelled.wait_for(milliseconds(100)), std::future_status::timeout);
    host_.process().Stop();  // not even for an answer
    EXPECT_EQ(cancelled.wait_for(milliseconds(100)), std::future_status::timeout);
    const auto start = steady_clock::now();
    stop.request_stop();
    EXPECT_EQ(cancelled.get().code(), StatusCode::kCancelled);
    EXPECT_LT(steady_clock::now() - start, milliseconds(titan::testing::Rounds(1'000, 10'000)));
    host_.process().Continue();
  }
  Status offered;
  std::atomic<bool> told{false};
  std::thread reader([&] {
    offered = slot->Offer(host_.socket_path());
    told = true;
  });
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_FALSE(told);
  StartLeader();
  reader.join();
  EXPECT_TRUE(offered.ok()) << offered;
  EXPECT_EQ(Versions()[0].state(), v1::VERSION_STATE_COMMITTED);
  ASSERT_TRUE(Renewed(Reader(host_), *slot));
  EXPECT_EQ(slot->lease().digest, digest);

  // The next leader finds it there as any other version.
  EXPECT_EQ(leader_.End(SIGKILL), -SIGKILL);
  StartLeader();
  ASSERT_TRUE(Becomes(0, v1::VERSION_STATE_COMMITTED));
  EXPECT_EQ(Versions()[0].holders_size(), 1);
  EXPECT_TRUE(slot->HeaderUnchanged());
  EXPECT_FALSE(slot->orphaned());
}

TEST_F(HostsTest, ReadersKeepTheirVersionsOverKillsOfTheHostAtAnyInstant) {
  auto publisher = Register(host_);
  ASSERT_NE(publisher, nullptr);
  uint64_t next = 0, renewals = 0;
  std::map<uint64_t, Hash128> acknowledged;
  const Subscriber reader = Reader(host_);
  constexpr int kKills = titan::testing::Rounds(5, 2);
  for (int kill = 0; kill < kKills; ++kill) {
    std::atomic<bool> dead{false};
    std::atomic<uint64_t> committed{0};
    std::thread writer([&] {
      while (!dead) {
        const auto begun = publisher->Begin(next, milliseconds(500));
        if (!begun.ok()) break;
        if (!begun->recorded) {
          Fill(begun->bytes, next);
          const auto digest = publisher->Finish();
          if (!digest.ok() || !publisher->Commit("plan", next).ok()) break;
          acknowledged[next] = *digest;
        }
        committed = ++next;
      }
    });
    EXPECT_TRUE(Eventually([&] { return committed > 0; }, kPatience));
    // It takes versions and gives them back while the host dies.
    HeldVersion held;
    std::thread holder([&] {
      while (!dead) {
        auto acquired = reader.Acquire("run", committed - 1, false);
        if (acquired.ok()) held = *std::move(acquired);
      }
    });
    std::this_thread::sleep_for(milliseconds(30 + 13 * kill));
    host_.End(SIGKILL);
    dead = true;
    writer.join();
    holder.join();
    StartHost(host_, "h1");
    ASSERT_TRUE(held.held());
    const uint64_t version = held.version();
    EXPECT_EQ(NumberIn(held.bytes()), version);
    Status last;
    EXPECT_TRUE(Eventually(
        [&] {
          last = reader.Renew(held);
          return last.ok() || !Subscriber::MayRenewLater(last);
        },
        kPatience))
        << last;
    const auto versions = Versions();
    if (last.ok()) {
      ++renewals;
      EXPECT_TRUE(held.HeaderUnchanged());
      EXPECT_EQ(versions.at(version).state(), v1::VERSION_STATE_COMMITTED);
      EXPECT_EQ(versions.at(version).weights_digest(), ToHex(held.lease().digest));
      auto fresh = Reader(host_, "generator-1").Acquire("run", version, false);
      ASSERT_TRUE(fresh.ok()) << fresh.status();
      EXPECT_EQ(NumberIn(fresh->bytes()), version);
    } else {
      // The ring took it back before the kill, or it has moved on from it.
      EXPECT_TRUE(!held.HeaderUnchanged() || version + 2 < versions.size()) << last;
    }
    for (const auto& [number, digest] : acknowledged) {
      ASSERT_TRUE(versions.contains(number));
      EXPECT_EQ(versions.at(number).weights_digest(), ToHex(digest));
    }
    publisher = Register(host_);
    ASSERT_NE(publisher, nullptr);
    if (last.ok()) {
      const auto begun = publisher->Begin(version, milliseconds(5000));
      ASSERT_TRUE(begun.ok()) << begun.status();
      EXPECT_TRUE(begun->recorded);
      EXPECT_EQ(begun->recorded_digest, held.lease().digest);
    }
  }
  EXPECT_GT(renewals, 0u);
  EXPECT_EQ(host_.End(SIGTERM), 0);
}

TEST_F(HostsTest, AHostThatStandsStillIsMissedAndComesBackWithWhatItHas) {
  auto publisher = Register(host_);
  ASSERT_NE(publisher, nullptr);
  Publish(*publisher, 0);
  auto slot = Reader(host_).Acquire("run", 0, false);
  ASSERT_TRUE(slot.ok()) << slot.status();
  host_.process().Stop();
  const auto start = steady_clock::now();
  EXPECT_EQ(port_->AcquireLease("g", "run", 0, false).status().code(), StatusCode::kUnavailable);
  EXPECT_LT(steady_clock::now() - start, kLongestCall);
  EXPECT_TRUE(Eventually([&] { return leader_.log().find("host_detached") != std::string::npos; },
                         kPatience));
  EXPECT_EQ(Versions()[0].state(), v1::VERSION_STATE_COMMITTED);  // until its grace is over
  host_.process().Continue();
  EXPECT_TRUE(
      Eventually([&] { return port_->AcquireLease("g", "run", 0, false).ok(); }, kPatience));
  EXPECT_EQ(Versions()[0].holders_size(), 2);
  EXPECT_TRUE(slot->HeaderUnchanged());
  Publish(*publisher, 1);
}

TEST_F(HostsTest, RunsOfTwoHostsAreApartAndANameIsOneHosts) {
  WeightStoreProcess second;
  StartHost(second, "h2");
  auto here = Register(host_, "here");
  auto there = Register(second, "there");
  ASSERT_TRUE(here != nullptr && there != nullptr);
  Publish(*here, 0);
  Publish(*there, 0);
  ASSERT_TRUE(Reader(host_).Acquire("here", 0, false).ok());
  ASSERT_TRUE(Reader(second).Acquire("there", 0, false).ok());
  // Who maps at another host than the version's is refused, not served something else.
  EXPECT_EQ(Reader(second).Acquire("here", 0, false).status().code(), StatusCode::kAborted);
  EXPECT_EQ(second.End(SIGKILL), -SIGKILL);
  ASSERT_TRUE(Eventually([&] { return Versions("there")[0].state() == v1::VERSION_STATE_LOST; },
                         kPatience));
  EXPECT_EQ(Versions("here")[0].state(), v1::VERSION_STATE_COMMITTED);
  Publish(*here, 1);

  WeightStoreProcess impostor;
  StartHost(impostor, "h1");
  EXPECT_TRUE(Eventually(
      [&] { return impostor.log().find("another daemon is attached as h1") != std::string::npos; },
      kPatience))
      << impostor.log();
  EXPECT_EQ(Versions("here")[0].state(), v1::VERSION_STATE_COMMITTED);
  Publish(*here, 2);
}

TEST_F(HostsTest, AWrongCombinationIsRefusedWithTheField) {
  WeightStoreProcess wrong;
  wrong.role = "host";
  EXPECT_FALSE(wrong.Start());
  EXPECT_EQ(wrong.exit_code(), 2);
  EXPECT_NE(wrong.log().find("leader_address"), std::string::npos) << wrong.log();
  EXPECT_NE(wrong.log().find("host: is required"), std::string::npos) << wrong.log();
  wrong.role = "leader";
  wrong.more_config = R"(, "memory_limit_bytes": 67108864)";
  EXPECT_FALSE(wrong.Start());
  EXPECT_EQ(wrong.exit_code(), 2);
  EXPECT_NE(wrong.log().find("a leader has no slots"), std::string::npos) << wrong.log();
  // The flag counts as the field does.
  wrong.role = "host";
  wrong.more_config = R"(, "leader_address": "127.0.0.1:1", "host": "h1")";
  wrong.more_arguments = {"--role", "both"};
  EXPECT_FALSE(wrong.Start());
  EXPECT_NE(wrong.log().find("this process is the leader"), std::string::npos) << wrong.log();
}

}  // namespace
}  // namespace titan::weightstore
