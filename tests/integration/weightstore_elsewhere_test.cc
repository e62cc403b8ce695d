// SPDX-License-Identifier: Apache-2.0
//
// Goal: a reader gets every version that some host has: it maps what its own host has and pulls the
// rest; who dies or stops meanwhile costs it a pull, in time, and never the version that it holds.
// Method: a leader and two host daemons as processes, killed and stopped; the client library in
// this process; one-sided reads on the lane shm-test.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/weightstore_hosts.h"
#include "weightstore/client/reason.h"
#include "weightstore/client/subscriber.h"
#include "weightstore/client/unix_socket.h"
#include "weightstore/transport/puller.h"
#include "weightstore/transport/rma_lane.h"

namespace titan::weightstore {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using testing::kLongestCall;
using testing::kPatience;
using testing::NumberIn;
using testing::SmallManifest;
using testing::WeightStoreProcess;
using titan::testing::Eventually;

// Until a pull from a source that is gone has failed.
constexpr milliseconds kSoon{titan::testing::Rounds(2'000, 20'000)};

// Host "h1" serves its versions over TCP, host "h2" has none to give to others.
class ElsewhereTest : public testing::HostsTest {
 protected:
  ElsewhereTest() : HostsTest(/*serves_tcp=*/true) {
    StartHost(second_, "h2");
    lanes::PullerOptions options;
    options.tcp.piece_bytes = 64 << 10;  // many of them, so that a kill falls between two
    options.report = [this](const lanes::PullReport& report) { reports_.push_back(report); };
    puller_ = *lanes::Puller::Create(options);
  }
  Subscriber ReaderAt(WeightStoreProcess& host) { return ReaderAt(host, *puller_); }
  Subscriber ReaderAt(WeightStoreProcess& host, lanes::Puller& puller) {
    return Subscriber(*port_, host.socket_path(), puller, "generator-7");
  }
  v1::PinForEvaluationResponse Pin(const std::string& run, uint64_t version) {
    grpc::ClientContext context;
    v1::PinForEvaluationRequest pin;
    pin.set_run_id(run);
    pin.set_version(version);
    v1::PinForEvaluationResponse pinned;
    const grpc::Status status = stub_->PinForEvaluation(&context, pin, &pinned);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return pinned;
  }

  WeightStoreProcess second_;
  std::vector<lanes::PullReport> reports_;
  std::unique_ptr<lanes::Puller> puller_;
};

TEST_F(ElsewhereTest, AReaderMapsWhatItsHostHasAndPullsTheRest) {
  auto here = Register(second_, "here");
  auto there = Register(host_, "there");
  ASSERT_TRUE(here != nullptr && there != nullptr);
  Publish(*here, 0);
  const Hash128 digest = Publish(*there, 0);
  const Subscriber reader = ReaderAt(second_);
  auto mapped = reader.Acquire("here", 0, false);
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  EXPECT_TRUE(mapped->mapped());
  EXPECT_TRUE(reports_.empty());
  EXPECT_EQ(Versions("here")[0].holders_size(), 1);
  auto pulled = reader.Acquire("there", 0, false);
  ASSERT_TRUE(pulled.ok()) << pulled.status();
  EXPECT_FALSE(pulled->mapped());
  EXPECT_EQ(NumberIn(pulled->bytes()), 0u);
  EXPECT_EQ(pulled->lease().digest, digest);
  ASSERT_EQ(reports_.size(), 1u);
  EXPECT_EQ(reports_[0].num_bytes, SmallManifest().slot_bytes);
  EXPECT_TRUE(Versions("there")[0].holders().empty());
  // The evaluation copy is where the version is.
  EXPECT_EQ(Pin("there", 0).weights_digest(), ToHex(digest));
  const auto evaluation = reader.Acquire("there", 0, true);
  ASSERT_TRUE(evaluation.ok()) << evaluation.status();
  EXPECT_FALSE(evaluation->mapped());
  EXPECT_EQ(NumberIn(evaluation->bytes()), 0u);

  // A host without a data plane serves its own readers alone, and says what to set.
  const Status none = ReaderAt(host_).Acquire("here", 0, false).status();
  EXPECT_EQ(ReasonOf(none), kNoRemoteLane) << none;
  EXPECT_NE(MessageOf(none).find("host h2 serves none of the lanes"), std::string::npos) << none;
  EXPECT_EQ(Versions("here")[0].holders_size(), 1);

  // Who has not heard from its own daemon yet is not told that the store is wrongly configured.
  const Status unheard =
      Subscriber(*port_, "nobody.sock", *puller_, "generator-8").Acquire("here", 0, false).status();
  EXPECT_EQ(unheard.code(), StatusCode::kUnavailable) << unheard;
  EXPECT_NE(MessageOf(unheard).find("weightstore_socket"), std::string::npos) << unheard;
  // Who has waits for it where it stands still for a moment.
  second_.process().Stop();
  std::jthread waker([&] {
    std::this_thread::sleep_for(milliseconds(700));
    second_.process().Continue();
  });
  const auto late = reader.Acquire("here", 0, false);
  waker.join();
  ASSERT_TRUE(late.ok()) << late.status();
  EXPECT_TRUE(late->mapped());

  // What other hosts have is had without the daemon of this one, too.
  second_.process().Stop();
  auto start = steady_clock::now();
  auto stopped = reader.Acquire("there", 0, false);
  EXPECT_LT(steady_clock::now() - start, kSoon);
  ASSERT_TRUE(stopped.ok()) << stopped.status();
  EXPECT_EQ(second_.End(SIGKILL), -SIGKILL);
  EXPECT_TRUE(reader.Acquire("there", 0, false).ok());
  EXPECT_EQ(NumberIn(mapped->bytes()), 0u);
  start = steady_clock::now();
  const Status lost = reader.Acquire("here", 0, false).status();
  EXPECT_LT(steady_clock::now() - start, kLongestCall);
  EXPECT_EQ(lost.code(), StatusCode::kUnavailable) << lost;
  EXPECT_NE(MessageOf(lost).find("weightstore_socket"), std::string::npos) << lost;
}

TEST_F(ElsewhereTest, AHostThatStandsStillHoldsUpNoMap) {
  auto publisher = Register(host_);
  ASSERT_NE(publisher, nullptr);
  Publish(*publisher, 0);
  // It stops between the lease, which it allows, and the map.
  auto lease = port_->AcquireLease("generator-0", "run", 0, false);
  ASSERT_TRUE(lease.ok()) << lease.status();
  host_.process().Stop();
  const auto start = steady_clock::now();
  const Status refused = HeldVersion::Map(host_.socket_path(), *lease).status();
  EXPECT_LT(steady_clock::now() - start, kLongestCall);
  EXPECT_EQ(refused.code(), StatusCode::kUnavailable) << refused;
  EXPECT_NE(MessageOf(refused).find("has not answered for 1500 ms"), std::string::npos) << refused;
  host_.process().Continue();
  EXPECT_TRUE(Eventually([&] { return Reader(host_).Acquire("run", 0, false).ok(); }, kPatience));
}

TEST_F(ElsewhereTest, AStrangerAtTheSocketDoesNotCostTheMap) {
  auto publisher = Register(host_);
  ASSERT_NE(publisher, nullptr);
  Publish(*publisher, 0);
  const Subscriber reader = ReaderAt(host_);
  auto mapped = reader.Acquire("run", 0, false);
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  EXPECT_EQ(host_.End(SIGKILL), -SIGKILL);
  // Who answers there instead does not speak the protocol.
  const std::string path = host_.socket_path();
  std::filesystem::remove(path);
  const UniqueFd listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  ASSERT_EQ(bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(listener.get(), 4), 0);
  std::jthread stranger([&] {
    const UniqueFd peer(accept(listener.get(), nullptr, nullptr));
    char request[256];
    EXPECT_GT(recv(peer.get(), request, sizeof(request), 0), 0);
    EXPECT_EQ(send(peer.get(), "hello", 5, MSG_NOSIGNAL), 5);
  });
  const Status renewed = reader.Renew(*mapped);
  EXPECT_EQ(renewed.code(), StatusCode::kUnavailable) << renewed;
  EXPECT_TRUE(Subscriber::MayRenewLater(renewed));
  EXPECT_NE(MessageOf(renewed).find("is it a weight store?"), std::string::npos) << renewed;
}

TEST_F(ElsewhereTest, WhatIsPulledBesideMapsComesByOneSidedReadsWhereBothHaveThem) {
  auto here = Register(second_, "here");
  auto there = Register(host_, "there");
  ASSERT_TRUE(here != nullptr && there != nullptr);
  Publish(*here, 0);
  Publish(*there, 0);
  const auto lane =
      lanes::OpenRmaLane({.required = true, .shm_test = true, .device = "", .registered = {}});
  ASSERT_TRUE(lane.ok()) << lane.status();
  lanes::PullerOptions options;
  options.rma = lane->domain;
  options.report = [this](const lanes::PullReport& report) { reports_.push_back(report); };
  const auto any = *lanes::Puller::Create(options);
  options.require_rdma = true;
  const auto strict = *lanes::Puller::Create(options);
  // A source that has only TCP.
  EXPECT_TRUE(ReaderAt(second_, *any).Acquire("there", 0, false).ok());
  ASSERT_EQ(reports_.size(), 1u);
  EXPECT_EQ(reports_[0].lane, Lane::kTcp);
  const Status refused = ReaderAt(second_, *strict).Acquire("there", 0, false).status();
  EXPECT_EQ(ReasonOf(refused), kNoRemoteLane) << refused;
  EXPECT_NE(MessageOf(refused).find("generator-7 has require_rdma"), std::string::npos) << refused;
  EXPECT_EQ(reports_.size(), 1u);

  EXPECT_EQ(host_.End(SIGTERM), 0);
  host_.more_daemon_config = R"(, "debug": {"shm_test_lane": true})";
  StartHost(host_, "h1", /*serves_tcp=*/true);
  there = Register(host_, "there");
  ASSERT_NE(there, nullptr);
  Publish(*there, 0);
  for (lanes::Puller* puller : {any.get(), strict.get()}) {
    const Subscriber reader = ReaderAt(second_, *puller);
    const auto pulled = reader.Acquire("there", 0, false);
    ASSERT_TRUE(pulled.ok()) << pulled.status();
    EXPECT_FALSE(pulled->mapped());
    EXPECT_EQ(NumberIn(pulled->bytes()), 0u);
    EXPECT_EQ(reports_.back().lane, Lane::kShmTest);
    const auto mapped = reader.Acquire("here", 0, false);
    ASSERT_TRUE(mapped.ok()) << mapped.status();
    EXPECT_TRUE(mapped->mapped());
  }
  EXPECT_EQ(reports_.size(), 3u);
}

TEST_F(ElsewhereTest, AHostThatIsKilledDuringAPullCostsThePullAndNothingElse) {
  const Manifest manifest = SmallManifest(2'500);  // 10 MiB
  auto publisher = Register(host_, "run", manifest);
  ASSERT_NE(publisher, nullptr);
  Publish(*publisher, 0);
  const Hash128 digest = Publish(*publisher, 1);
  const Subscriber reader = ReaderAt(second_);
  auto held = reader.Acquire("run", 0, false);
  ASSERT_TRUE(held.ok()) << held.status();
  steady_clock::time_point killed;
  std::jthread killer([&] {
    std::this_thread::sleep_for(milliseconds(20));
    killed = steady_clock::now();
    host_.End(SIGKILL);
  });
  Status status;
  while (status.ok()) status = reader.Acquire("run", 1, false).status();
  const auto ended = steady_clock::now();
  killer.join();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status;
  EXPECT_LT(ended - killed, kSoon);
  EXPECT_TRUE(held->HeaderUnchanged());
  EXPECT_EQ(NumberIn(held->bytes()), 0u);
  const auto start = steady_clock::now();
  EXPECT_EQ(reader.Acquire("run", 1, false).status().code(), StatusCode::kUnavailable);
  EXPECT_LT(steady_clock::now() - start, kLongestCall);

  // The trainer comes back, on the reader's host: the version is made again there and mapped.
  StartHost(host_, "h1", /*serves_tcp=*/true);
  ASSERT_TRUE(Becomes(0, v1::VERSION_STATE_LOST));
  publisher = Register(second_, "run", manifest);
  ASSERT_NE(publisher, nullptr);
  Publish(*publisher, 0);
  EXPECT_EQ(Publish(*publisher, 1), digest);
  auto again = reader.Acquire("run", 1, false);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(again->mapped());
  EXPECT_EQ(NumberIn(again->bytes()), 1u);
  again->Drop();
  // And on the one that was killed: pulled again.
  publisher = Register(host_, "run", manifest);
  ASSERT_NE(publisher, nullptr);
  const Hash128 newest = Publish(*publisher, 2);
  again = reader.Acquire("run", 2, false);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_FALSE(again->mapped());
  EXPECT_EQ(again->lease().digest, newest);
  EXPECT_EQ(NumberIn(held->bytes()), 0u);
}

TEST_F(ElsewhereTest, AHostThatStandsStillDuringAPullIsGivenUpInTime) {
  auto publisher = Register(host_, "run", SmallManifest(2'500));
  ASSERT_NE(publisher, nullptr);
  Publish(*publisher, 0);
  Publish(*publisher, 1);
  const Subscriber reader = ReaderAt(second_);
  auto held = reader.Acquire("run", 0, false);
  ASSERT_TRUE(held.ok()) << held.status();
  steady_clock::time_point stopped;
  std::jthread stopper([&] {
    std::this_thread::sleep_for(milliseconds(20));
    host_.process().Stop();
    stopped = steady_clock::now();
  });
  Status status;
  while (status.ok()) status = reader.Acquire("run", 1, false).status();
  const auto ended = steady_clock::now();
  stopper.join();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status;
  EXPECT_LT(ended - stopped, kLongestCall);  // of the leader's call, if it stood still in that
  EXPECT_EQ(NumberIn(held->bytes()), 0u);
  host_.process().Continue();
  EXPECT_TRUE(Eventually([&] { return reader.Acquire("run", 1, false).ok(); }, kPatience));
}

TEST_F(ElsewhereTest, APullEndsWellThoughTheLeaderDiesMeanwhile) {
  auto publisher = Register(host_, "run", SmallManifest(2'500));
  ASSERT_NE(publisher, nullptr);
  const Hash128 digest = Publish(*publisher, 0);
  const auto lease = port_->AcquireRemoteLease("generator-7", "run", 0, false, {{Lane::kTcp}, ""});
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_EQ(leader_.End(SIGKILL), -SIGKILL);
  const auto pulled = puller_->Pull(*lease, steady_clock::now() + lease->ttl);
  ASSERT_TRUE(pulled.ok()) << pulled.status();
  EXPECT_EQ(NumberIn({(*pulled)->data(), (*pulled)->size()}), 0u);
  StartLeader();
  EXPECT_TRUE(Becomes(0, v1::VERSION_STATE_COMMITTED));
  EXPECT_EQ(Versions()[0].weights_digest(), ToHex(digest));
  EXPECT_TRUE(
      Eventually([&] { return ReaderAt(second_).Acquire("run", 0, false).ok(); }, kPatience));
}

}  // namespace
}  // namespace titan::weightstore
