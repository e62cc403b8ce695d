// SPDX-License-Identifier: Apache-2.0
//
// Goal: nothing is answered before the host that it depends on has carried it out. Method: a host
// whose commands a test holds back. A whole store: store_test.cc.
#include "weightstore/leader.h"

#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "core/storage/memory_store.h"
#include "tests/support/weightstore.h"
#include "weightstore/client/reason.h"
#include "weightstore/client/weights_digest.h"

namespace titan::weightstore {
namespace {

using std::chrono::milliseconds;
using testing::Fill;
using testing::SmallManifest;

// Between a leader and a host; held back, commands wait until Release.
class LateHost final : public HostPort {
 public:
  LateHost(Host& host, HostEvents& events) : host_(host), events_(events) {}

  void HoldBack() {
    std::lock_guard lock(mutex_);
    held_back_ = true;
  }
  void Release() {
    {
      std::lock_guard lock(mutex_);
      held_back_ = false;
      host_.Send(std::exchange(waiting_, {}));
    }
    events_.CommandsDone();
  }
  size_t num_waiting() {
    std::lock_guard lock(mutex_);
    return waiting_.size();
  }

  void Send(std::vector<HostCommand> commands) override {
    std::lock_guard lock(mutex_);
    if (held_back_) {
      for (HostCommand& command : commands) waiting_.push_back(std::move(command));
    } else {
      host_.Send(std::move(commands));
    }
  }
  uint64_t num_done() const override { return host_.num_done(); }
  StatusOr<Hash128> HashWritten(uint64_t slot_id, uint64_t grant,
                                std::shared_ptr<const Manifest> manifest) override {
    return host_.HashWritten(slot_id, grant, std::move(manifest));
  }
  StatusOr<Hash128> CopySlot(uint64_t from_slot, uint64_t to_slot, uint64_t to_grant,
                             std::shared_ptr<const Manifest> manifest) override {
    return host_.CopySlot(from_slot, to_slot, to_grant, std::move(manifest));
  }
  StatusOr<Hash128> FillSlot(uint64_t to_slot, uint64_t to_grant,
                             std::shared_ptr<const Manifest> manifest,
                             const ReadTensor& read) override {
    return host_.FillSlot(to_slot, to_grant, std::move(manifest), read);
  }
  StatusOr<SlotView> ViewSlot(uint64_t slot_id, uint64_t offset, uint64_t num_bytes) override {
    return host_.ViewSlot(slot_id, offset, num_bytes);
  }

 private:
  Host& host_;
  HostEvents& events_;
  std::mutex mutex_;
  bool held_back_ = false;
  std::vector<HostCommand> waiting_;
};

class LeaderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    LeaderOptions options;
    options.unix_ms = [] { return int64_t{1234}; };
    options.monotonic_ms = [] { return int64_t{0}; };
    options.make_token = [] { return Hash128{5, 6}; };
    leader_ = *Leader::Open(index_, std::move(options));
    host_ = std::make_unique<Host>(HostOptions{}, *leader_);
    port_ = std::make_unique<LateHost>(*host_, *leader_);
  }
  void AddHost() { leader_->AttachHost("h1", Unowned(*port_), 64u << 20, {}, host_->Report()); }
  void Publish(uint64_t epoch, uint64_t version) {
    const auto begun = leader_->BeginVersion("run", epoch, version, milliseconds(1000));
    ASSERT_TRUE(begun.ok()) << begun.status();
    auto slot = host_->MapForWriting(1, epoch, begun->grant);
    ASSERT_TRUE(slot.ok()) << slot.status();
    if (!slot->fds.empty()) {
      map_ = *MappedMemory::Map(slot->fds[0].get(), slot->slot_bytes, true);
      ASSERT_TRUE(host_->WriterHasMapped(1, slot->slot_id, begun->grant).ok());
    }
    Fill({map_.data(), map_.size()}, version);
    const Hash128 digest = WeightsDigest(SmallManifest(), {map_.data(), map_.size()}, 1);
    ASSERT_TRUE(leader_->PutDone("run", epoch, version, begun->grant, digest).ok());
    ASSERT_TRUE(leader_->CommitVersion("run", epoch, version, digest, "plan", version).ok());
  }

  storage::MemoryStore index_;
  std::unique_ptr<Leader> leader_;
  std::unique_ptr<LateHost> port_;
  std::unique_ptr<Host> host_;  // its threads end first
  MappedMemory map_;
};

TEST_F(LeaderTest, AReaderElsewhereIsToldOfTheFirstLaneThatTheHostServes) {
  leader_->AttachHost("h1", Unowned(*port_), 64u << 20,
                      {{Lane::kTcp, Lane::kRdma}, "10.0.0.7:7301"}, host_->Report());
  const auto registration = leader_->RegisterTrainer("a", "run", SmallManifest(), 0, 1, "");
  ASSERT_TRUE(registration.ok()) << registration.status();
  Publish(registration->epoch, 0);
  const auto lease = leader_->AcquireRemoteLease("g", "run", 0, false,
                                                 {{Lane::kShmTest, Lane::kRdma, Lane::kTcp}, "h2"});
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_EQ(lease->lane, Lane::kRdma);
  EXPECT_EQ(lease->address, "10.0.0.7:7301");
  EXPECT_EQ(lease->token, (Hash128{5, 6}));
  EXPECT_EQ(lease->ttl, milliseconds(11'000));
  EXPECT_TRUE(
      host_->OpenForRead({lease->lease.lease_id, lease->epoch, lease->lease.grant, lease->token})
          .ok());
  const Status none =
      leader_->AcquireRemoteLease("g", "run", 0, false, {{Lane::kShmTest}, ""}).status();
  EXPECT_EQ(ReasonOf(none), kNoRemoteLane) << none;
  EXPECT_EQ(leader_->Stats().num_leases, 1u);
  // Who pulls by no lane costs the host, which may stand still, no lease.
  port_->HoldBack();
  const Status elsewhere = leader_->AcquireRemoteLease("g", "run", 0, false, {{}, "h2"}).status();
  EXPECT_EQ(ReasonOf(elsewhere), kNoRemoteLane) << elsewhere;
  EXPECT_EQ(port_->num_waiting(), 0u);
  port_->Release();
  // On its own host it maps.
  const auto here = leader_->AcquireRemoteLease("g", "run", 0, false, {{Lane::kRdma}, "h1"});
  ASSERT_TRUE(here.ok()) << here.status();
  EXPECT_EQ(here->lane, Lane::kMap);
  EXPECT_EQ(here->ttl, milliseconds(10'000));
  EXPECT_TRUE(host_->MapLease(2, here->lease.lease_id, here->lease.grant).ok());
}

TEST_F(LeaderTest, WithoutAHostNoTrainerRegisters) {
  const Status refused = leader_->RegisterTrainer("a", "run", SmallManifest(), 0, 1, "").status();
  EXPECT_EQ(refused.code(), StatusCode::kUnavailable);
  EXPECT_NE(MessageOf(refused).find("no host"), std::string::npos) << refused;
  EXPECT_EQ(leader_->ListVersions("run").status().code(), StatusCode::kNotFound);
  AddHost();
  EXPECT_TRUE(leader_->RegisterTrainer("a", "run", SmallManifest(), 0, 1, "").ok());
}

TEST_F(LeaderTest, AGrantIsAnsweredOnceTheHostHasOpenedTheSlot) {
  AddHost();
  const auto registration = leader_->RegisterTrainer("a", "run", SmallManifest(), 0, 1, "");
  ASSERT_TRUE(registration.ok()) << registration.status();
  port_->HoldBack();
  const auto early = leader_->TryBeginVersion("run", registration->epoch, 0);
  ASSERT_TRUE(early.ok()) << early.status();
  EXPECT_FALSE(early->result.has_value());
  EXPECT_FALSE(early->ring_full);
  EXPECT_NE(early->blockers.find("host h1"), std::string::npos) << early->blockers;
  EXPECT_EQ(leader_->BeginVersion("run", registration->epoch, 0, milliseconds(20)).status().code(),
            StatusCode::kUnavailable);
  auto begun = std::async(std::launch::async, [&] {
    return leader_->BeginVersion("run", registration->epoch, 0, milliseconds(10'000));
  });
  EXPECT_EQ(begun.wait_for(milliseconds(30)), std::future_status::timeout);
  port_->Release();
  const auto result = begun.get();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(host_->MapForWriting(1, registration->epoch, result->grant).ok());
}

TEST_F(LeaderTest, ALeaseIsAnsweredOnceTheHostAllowsItAndEndsIfItDoesNot) {
  AddHost();
  const auto registration = leader_->RegisterTrainer("a", "run", SmallManifest(), 0, 1, "");
  ASSERT_TRUE(registration.ok()) << registration.status();
  Publish(registration->epoch, 0);
  port_->HoldBack();
  auto asked =
      std::async(std::launch::async, [&] { return leader_->AcquireLease("g", "run", 0, false); });
  EXPECT_EQ(asked.wait_for(milliseconds(30)), std::future_status::timeout);
  port_->Release();
  const auto lease = asked.get();
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_TRUE(host_->MapLease(2, lease->lease_id, lease->grant).ok());
  host_->ConnectionClosed(2);
  EXPECT_EQ(leader_->Stats().num_leases, 0u);

  port_->HoldBack();
  const Status late = leader_->AcquireLease("g", "run", 0, false).status();
  EXPECT_EQ(late.code(), StatusCode::kUnavailable);
  EXPECT_NE(MessageOf(late).find("host h1"), std::string::npos) << late;
  EXPECT_EQ(leader_->Stats().num_leases, 0u);
  auto fenced = std::async(std::launch::async, [&] { return leader_->FenceReaders("run", 0); });
  EXPECT_EQ(fenced.wait_for(milliseconds(30)), std::future_status::timeout);
  port_->Release();
  EXPECT_TRUE(fenced.get().ok());
}

TEST_F(LeaderTest, ShutdownEndsTheWaitForAHost) {
  AddHost();
  const auto registration = leader_->RegisterTrainer("a", "run", SmallManifest(), 0, 1, "");
  ASSERT_TRUE(registration.ok()) << registration.status();
  Publish(registration->epoch, 0);
  port_->HoldBack();
  auto asked =
      std::async(std::launch::async, [&] { return leader_->AcquireLease("g", "run", 0, false); });
  while (port_->num_waiting() == 0) std::this_thread::sleep_for(milliseconds(1));
  leader_->Shutdown();
  EXPECT_EQ(MessageOf(asked.get().status()), "the weight store is shutting down");
}

}  // namespace
}  // namespace titan::weightstore
