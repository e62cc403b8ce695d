// SPDX-License-Identifier: Apache-2.0
//
// Goal: titan-weightstore as a process serves versions to readers that do not share its host: to
// who has a lease's token and to nobody else, and its end is noticed in time. Method: the real
// program; the client library in this process, over loopback.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/weightstore_daemon.h"
#include "weightstore/client/reason.h"
#include "weightstore/client/subscriber.h"
#include "weightstore/transport/puller.h"

namespace titan::weightstore {
namespace {

using std::chrono::milliseconds;
using testing::NumberIn;
using testing::SmallManifest;

using DataPlaneTest = testing::WeightStoreDaemonTest;

TEST_F(DataPlaneTest, ReadersElsewherePullOverTcpAndOthersAreTurnedAway) {
  std::vector<lanes::PullReport> reports;
  lanes::PullerOptions options;
  options.report = [&](const lanes::PullReport& report) { reports.push_back(report); };
  const auto puller = *lanes::Puller::Create(options);
  const Subscriber remote(*leader_, "", *puller, "generator-7");
  // Without a data plane: said with what to set.
  {
    auto publisher = Register(1, SmallManifest(1'000));
    ASSERT_TRUE(publisher.ok()) << publisher.status();
    Publish(**publisher, 0);
    const Status none = remote.Acquire("run", 0, false).status();
    EXPECT_EQ(ReasonOf(none), kNoRemoteLane) << none;
    EXPECT_NE(MessageOf(none).find("data_plane_address"), std::string::npos) << none;
  }
  EXPECT_EQ(End(SIGTERM), 0);
  store_.more_config = R"(, "data_plane_address": "127.0.0.1:0")";
  Start();
  const Subscriber elsewhere(*leader_, "", *puller, "generator-7");
  auto publisher = Register(1, SmallManifest(1'000));
  ASSERT_TRUE(publisher.ok()) << publisher.status();
  Publish(**publisher, 0);
  const Hash128 digest = Publish(**publisher, 1);
  auto held = elsewhere.Acquire("run", 1, false);
  ASSERT_TRUE(held.ok()) << held.status();
  EXPECT_FALSE(held->mapped());
  EXPECT_EQ(NumberIn(held->bytes()), 1u);
  EXPECT_EQ(held->lease().digest, digest);
  EXPECT_EQ(reports.back().num_bytes, SmallManifest(1'000).slot_bytes);

  // Its lease has ended; a lease of the same version has another token.
  const auto first =
      leader_->AcquireRemoteLease("g", "run", 1, false, {{Lane::kRdma, Lane::kTcp}, ""});
  const auto second = leader_->AcquireRemoteLease("g", "run", 1, false, {{Lane::kTcp}, ""});
  ASSERT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
  EXPECT_EQ(first->lane, Lane::kTcp);
  EXPECT_NE(first->token, second->token);
  EXPECT_NE(first->token, Hash128{});
  EXPECT_GE(first->ttl, milliseconds(10'000));
  const auto expires = std::chrono::steady_clock::now() + first->ttl;
  EXPECT_EQ(
      ReasonOf(leader_->AcquireRemoteLease("g", "run", 1, false, {{Lane::kRdma}, ""}).status()),
      kNoRemoteLane);
  RemoteLease forged = *first;
  forged.token = second->token;
  EXPECT_EQ(puller->Pull(forged, expires).status().code(), StatusCode::kFailedPrecondition);
  forged = *first;
  ++forged.epoch;
  EXPECT_EQ(ReasonOf(puller->Pull(forged, expires).status()), kEpochSuperseded);
  EXPECT_TRUE(puller->Pull(*first, expires).ok());
  EXPECT_TRUE(leader_->ReleaseLease(first->lease.lease_id).ok());
  EXPECT_EQ(ReasonOf(puller->Pull(*first, expires).status()), lanes::kLeaseExpired);
  EXPECT_TRUE(puller->Pull(*second, expires).ok());

  // The evaluation copy is pulled, too.
  grpc::ClientContext pin_context;
  v1::PinForEvaluationRequest pin;
  pin.set_run_id("run");
  pin.set_version(1);
  v1::PinForEvaluationResponse pinned;
  ASSERT_TRUE(stub_->PinForEvaluation(&pin_context, pin, &pinned).ok());
  const auto evaluation = elsewhere.Acquire("run", 1, true);
  ASSERT_TRUE(evaluation.ok()) << evaluation.status();
  EXPECT_EQ(NumberIn(evaluation->bytes()), 1u);

  // A lease keeps its version, though nobody needs it; afterwards its slot is another one's, and
  // what was pulled stays as it was.
  for (uint64_t v = 2; v < 5; ++v) Publish(**publisher, v);
  EXPECT_TRUE(puller->Pull(*second, expires).ok());
  EXPECT_TRUE(leader_->ReleaseLease(second->lease.lease_id).ok());
  for (uint64_t v = 5; v < 9; ++v) Publish(**publisher, v);
  EXPECT_EQ(ReasonOf(puller->Pull(*second, expires).status()), lanes::kLeaseExpired);
  EXPECT_TRUE(held->HeaderUnchanged());
  EXPECT_EQ(NumberIn(held->bytes()), 1u);
  EXPECT_TRUE(elsewhere.Release(*std::move(held)).ok());
  EXPECT_EQ(End(SIGTERM), 0);
  const std::string log = store_.log();
  EXPECT_NE(log.find("\"lanes\":\"map tcp\""), std::string::npos);
  for (const auto& lease : {*first, *second}) {
    EXPECT_EQ(log.find(ToHex(lease.token)), std::string::npos);
  }
}

TEST_F(DataPlaneTest, AStoreThatIsKilledDuringAPullFailsItInTimeAndTheOldVersionServes) {
  EXPECT_EQ(End(SIGTERM), 0);
  store_.more_config = R"(, "data_plane_address": "127.0.0.1:0")";
  Start();
  const Manifest manifest = SmallManifest(2'500);  // 10 MiB
  lanes::PullerOptions options;
  options.tcp.piece_bytes = 64 << 10;
  const auto puller = *lanes::Puller::Create(options);
  const Subscriber subscriber(*leader_, "", *puller, "generator-7");
  auto publisher = Register(1, manifest);
  ASSERT_TRUE(publisher.ok()) << publisher.status();
  Publish(**publisher, 0);
  Publish(**publisher, 1);
  auto held = subscriber.Acquire("run", 0, false);
  ASSERT_TRUE(held.ok()) << held.status();
  std::chrono::steady_clock::time_point killed;
  std::jthread killer([&] {
    std::this_thread::sleep_for(milliseconds(20));
    killed = std::chrono::steady_clock::now();
    End(SIGKILL);
  });
  Status status;
  while (status.ok()) status = subscriber.Acquire("run", 1, false).status();
  const auto ended = std::chrono::steady_clock::now();
  killer.join();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status;
  EXPECT_LT(ended - killed, std::chrono::seconds(2));
  EXPECT_TRUE(held->HeaderUnchanged());
  EXPECT_EQ(NumberIn(held->bytes()), 0u);
}

}  // namespace
}  // namespace titan::weightstore
