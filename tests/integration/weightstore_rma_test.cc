// SPDX-License-Identifier: Apache-2.0
//
// Goal: titan-weightstore offers its slots to one-sided reads, to who has a lease; the bits are
// those of a map; what is taken back, killed or stopped is an error in time; nothing is left
// behind; and it is never another lane than was asked for. Method: the real program on the lane
// shm-test; readers in this process.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/runtime/endpoint.h"
#include "core/transport/rma_probe.h"
#include "tests/support/metric.h"
#include "tests/support/sanitized.h"
#include "tests/support/weightstore_daemon.h"
#include "weightstore/client/reason.h"
#include "weightstore/client/slot_header.h"
#include "weightstore/client/subscriber.h"
#include "weightstore/transport/puller.h"
#include "weightstore/transport/rma_lane.h"
#include "weightstore/transport/rma_transport.h"

namespace titan::weightstore {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using testing::NumberIn;
using testing::SmallManifest;

const char kDataPlane[] = R"(, "data_plane_address": "127.0.0.1:0")";
const char kTestLane[] = R"(, "debug": {"shm_test_lane": true})";

int NumDescriptors(const std::string& pid) {
  const std::filesystem::directory_iterator all("/proc/" + pid + "/fd");
  return static_cast<int>(std::distance(begin(all), end(all)));
}
int NumMaps(const std::string& pid) {
  std::ifstream maps("/proc/" + pid + "/maps");
  return static_cast<int>(std::count(std::istreambuf_iterator<char>(maps), {}, '\n'));
}
uint64_t ResidentPages(const std::string& pid) {
  uint64_t size = 0, resident = 0;
  std::ifstream("/proc/" + pid + "/statm") >> size >> resident;
  return resident;
}

using lanes::PullGrant;

class RmaLaneTest : public testing::WeightStoreDaemonTest {
 protected:
  // A store with the test lane, and a reader that has nothing else.
  void StartWithLane(const std::string& more = "") {
    EXPECT_EQ(End(SIGTERM), 0);
    store_.more_daemon_config = kTestLane;
    store_.more_config = kDataPlane + more;
    Start();
    auto lane =
        lanes::OpenRmaLane({.required = true, .shm_test = true, .device = "", .registered = {}});
    ASSERT_TRUE(lane.ok()) << lane.status();
    domain_ = lane->domain;
    puller_ = MakePuller(domain_, true);
  }
  std::unique_ptr<lanes::Puller> MakePuller(std::shared_ptr<transport::RmaDomain> domain,
                                            bool require_rdma) {
    lanes::PullerOptions options;
    options.rma = std::move(domain);
    options.require_rdma = require_rdma;
    options.report = [this](const lanes::PullReport& report) { last_lane_ = report.lane; };
    auto puller = lanes::Puller::Create(options);
    EXPECT_TRUE(puller.ok()) << puller.status();
    return *std::move(puller);
  }
  Subscriber Reader(lanes::Puller& puller) {
    return Subscriber(*leader_, "", puller, "generator-7");
  }
  StatusOr<RemoteLease> Lease(uint64_t version) {
    return leader_->AcquireRemoteLease("generator-7", "run", version, false,
                                       {{Lane::kShmTest}, ""});
  }
  static PullGrant GrantOf(const RemoteLease& lease) {
    return {lease.lease, lease.epoch, lease.token, steady_clock::now() + lease.ttl};
  }
  // Of the daemon; -1: it has none of that name.
  double Metric(const std::string& name) {
    return titan::testing::MetricOf(data_folder(), "weightstore", name);
  }
  std::string Pid() { return std::to_string(store_.process().pid()); }

  std::shared_ptr<transport::RmaDomain> domain_;
  std::unique_ptr<lanes::Puller> puller_;
  Lane last_lane_ = Lane::kMap;
};

TEST_F(RmaLaneTest, TheBitsAreThoseOfAMapAndTheLaneIsSaid) {
  StartWithLane();
  auto publisher = Register(1, SmallManifest(1'000));
  ASSERT_TRUE(publisher.ok()) << publisher.status();
  Publish(**publisher, 0);
  const Hash128 digest = Publish(**publisher, 1);
  const auto held = Reader(*puller_).Acquire("run", 1, false);
  ASSERT_TRUE(held.ok()) << held.status();
  EXPECT_EQ(last_lane_, Lane::kShmTest);
  EXPECT_EQ(held->lease().digest, digest);
  const auto mapped = Subscriber(*leader_, socket_path(), "generator-8").Acquire("run", 1, false);
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  ASSERT_EQ(held->bytes().size(), mapped->bytes().size());
  EXPECT_EQ(std::memcmp(held->bytes().data(), mapped->bytes().data(), held->bytes().size()), 0);
  // Evaluation slots have windows, too.
  grpc::ClientContext context;
  v1::PinForEvaluationRequest pin;
  pin.set_run_id("run");
  pin.set_version(1);
  v1::PinForEvaluationResponse pinned;
  ASSERT_TRUE(stub_->PinForEvaluation(&context, pin, &pinned).ok());
  const auto evaluation = Reader(*puller_).Acquire("run", 1, true);
  ASSERT_TRUE(evaluation.ok()) << evaluation.status();
  EXPECT_EQ(NumberIn(evaluation->bytes()), 1u);
  // A reader without it gets the other lane; one that has both this one.
  const auto tcp = MakePuller(nullptr, false);
  ASSERT_TRUE(Reader(*tcp).Acquire("run", 1, false).ok());
  EXPECT_EQ(last_lane_, Lane::kTcp);
  const auto both = MakePuller(domain_, false);
  ASSERT_TRUE(Reader(*both).Acquire("run", 1, false).ok());
  EXPECT_EQ(last_lane_, Lane::kShmTest);

  for (const char* lane : {"map", "tcp", "shm-test"}) {
    EXPECT_EQ(Metric("titan_weightstore_lane{lane=\"" + std::string(lane) + "\"}"), 1) << lane;
  }
  EXPECT_EQ(Metric("titan_weightstore_lane{lane=\"rdma\"}"), 0);
  // A ring of 4 and one for evaluation, with their header pages.
  EXPECT_EQ(Metric("titan_weightstore_registered_bytes"),
            5.0 * static_cast<double>(SmallManifest(1'000).slot_bytes + kSlotHeaderBytes));
  EXPECT_NE(store_.log().find("daemon.debug.shm_test_lane"), std::string::npos);
  EXPECT_NE(store_.log().find("map shm-test tcp"), std::string::npos);
}

TEST_F(RmaLaneTest, WhatWasTakenBackIsNeverUsed) {
  StartWithLane();
  auto publisher = Register(0, SmallManifest(500));
  ASSERT_TRUE(publisher.ok()) << publisher.status();
  Publish(**publisher, 0);
  // A reader that keeps windows, whatever the store says of its lease.
  const auto lease = Lease(0);
  ASSERT_TRUE(lease.ok()) << lease.status();
  const PullGrant grant = GrantOf(*lease);
  const auto deadline = steady_clock::now() + seconds(60);
  const auto source =
      (*lanes::TcpTransport::Create(lease->address, {}))->FindWindows(grant, deadline);
  ASSERT_TRUE(source.ok()) << source.status();
  auto transport = *lanes::RmaTransport::Create(*domain_, *source, transport::RmaWindow());
  auto slot = transport->Open(grant, deadline);
  ASSERT_TRUE(slot.ok()) << slot.status();
  std::vector<std::byte> bytes(SmallManifest(500).slot_bytes);
  const lanes::Piece all = {.source_offset = 0, .destination = bytes, .loops = {}};
  ASSERT_TRUE((*slot)->Read(std::span(&all, 1), deadline).ok());
  EXPECT_EQ(NumberIn(bytes), 0u);

  // The lease is given back and the ring goes through its slot while the reader reads on.
  EXPECT_TRUE(leader_->ReleaseLease(lease->lease.lease_id).ok());
  std::atomic<bool> published{false};
  int good = 0, refused = 0;
  std::jthread writer([&] {
    for (uint64_t version = 1; version < 12; ++version) Publish(**publisher, version);
    published = true;
  });
  while (!published || refused == 0) {
    const Status read = (*slot)->Read(std::span(&all, 1), deadline);
    if (read.ok()) {
      ++good;
      ASSERT_EQ(NumberIn(bytes), 0u);
    } else {
      ++refused;
      ASSERT_EQ(ReasonOf(read), lanes::kStaleHandle) << read;
    }
  }
  writer.join();
  EXPECT_GT(good, 0);
  EXPECT_GT(refused, 0);
  EXPECT_EQ(ReasonOf(puller_->Pull(*lease, grant.expires).status()), lanes::kLeaseExpired);

  // Slots of a writer that was fenced, or whose run ended, are dropped: their windows are closed.
  const auto last = Lease(11);
  ASSERT_TRUE(last.ok()) << last.status();
  const PullGrant last_grant = GrantOf(*last);
  const auto windows =
      (*lanes::TcpTransport::Create(last->address, {}))->FindWindows(last_grant, deadline);
  ASSERT_TRUE(windows.ok()) << windows.status();
  auto of_last = *lanes::RmaTransport::Create(*domain_, *windows, transport::RmaWindow());
  auto open = of_last->Open(last_grant, deadline);
  ASSERT_TRUE(open.ok()) << open.status();
  EXPECT_GT(Metric("titan_weightstore_registered_bytes"), 0);
  grpc::ClientContext context;
  v1::EndRunRequest end;
  end.set_request_id("end");
  end.set_run_id("run");
  v1::EndRunResponse ended;
  ASSERT_TRUE(stub_->EndRun(&context, end, &ended).ok());
  EXPECT_FALSE((*open)->Read(std::span(&all, 1), deadline).ok());
  EXPECT_FALSE(of_last->Open(last_grant, deadline).ok());
  EXPECT_TRUE(titan::testing::Eventually(
      [&] { return Metric("titan_weightstore_registered_bytes") == 0; }, milliseconds(10'000)));
}

TEST_F(RmaLaneTest, AStoreThatIsKilledOrStoppedFailsThePullInTimeAndTheOldVersionServes) {
  StartWithLane();
  std::mt19937_64 random(5);
  for (const int signal : {SIGKILL, SIGSTOP, SIGKILL}) {
    auto publisher = Register(1, SmallManifest(2'000));  // 8 MiB
    ASSERT_TRUE(publisher.ok()) << publisher.status();
    const uint64_t old_version = 0;
    Publish(**publisher, old_version);
    const auto held = Reader(*puller_).Acquire("run", old_version, false);
    ASSERT_TRUE(held.ok()) << held.status();
    const auto lease = Lease(old_version);
    ASSERT_TRUE(lease.ok()) << lease.status();
    const auto expires = steady_clock::now() + lease->ttl;
    steady_clock::time_point hit;
    std::jthread killer([&, delay = milliseconds(5 + random() % 30)] {
      std::this_thread::sleep_for(delay);
      hit = steady_clock::now();
      store_.process().Signal(signal);
    });
    Status status = OkStatus();
    while (status.ok()) {
      const auto again = puller_->Pull(*lease, expires);
      status = again.status();
      if (!again.ok()) break;
      EXPECT_EQ(NumberIn({(*again)->data(), (*again)->size()}), old_version);
    }
    const auto over = steady_clock::now();
    killer.join();
    EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status;
    EXPECT_LT(over - hit, milliseconds(titan::testing::Rounds(2'000, 20'000)));
    EXPECT_EQ(NumberIn(held->bytes()), old_version);
    End(SIGKILL);
    std::filesystem::remove_all(data_folder() + "/index");  // the run begins anew
    Start();
  }
}

TEST_F(RmaLaneTest, AThousandVersionsLeaveNothing) {
  StartWithLane();
  const Manifest manifest = SmallManifest(8);
  auto publisher = Register(1, manifest);
  ASSERT_TRUE(publisher.ok()) << publisher.status();
  const Subscriber reader = Reader(*puller_);
  const std::string self = "self";
  const int rounds = titan::testing::Rounds(1'000, 100);
  int store_files = 0, own_files = 0, store_maps = 0, own_maps = 0;
  uint64_t store_pages = 0, own_pages = 0;
  for (int i = 0; i < rounds; ++i) {
    Publish(**publisher, static_cast<uint64_t>(i));
    const auto held = reader.Acquire("run", static_cast<uint64_t>(i), false);
    ASSERT_TRUE(held.ok()) << i << ": " << held.status();
    ASSERT_EQ(NumberIn(held->bytes()), static_cast<uint64_t>(i));
    if (i != rounds / 5) continue;
    store_files = NumDescriptors(Pid());
    own_files = NumDescriptors(self);
    store_maps = NumMaps(Pid());
    own_maps = NumMaps(self);
    store_pages = ResidentPages(Pid());
    own_pages = ResidentPages(self);
  }
  EXPECT_EQ(Metric("titan_weightstore_registered_bytes"),
            5.0 * static_cast<double>(manifest.slot_bytes + kSlotHeaderBytes));
  EXPECT_TRUE(titan::testing::Eventually(
      [&] { return domain_->registered_bytes() == manifest.slot_bytes; }, milliseconds(10'000)));
  // Connections that are being closed come and go; a leak would be hundreds.
  EXPECT_LT(NumDescriptors(Pid()), store_files + 20);
  EXPECT_LT(NumDescriptors(self), own_files + 20);
  EXPECT_LT(NumMaps(Pid()), store_maps + 40);
  EXPECT_LT(NumMaps(self), own_maps + 40);
  // 4 KiB each: 16 MiB is what RocksDB's tables and gRPC's arenas may still grow by; a version that
  // stays takes 9 pages a time.
  EXPECT_LT(ResidentPages(Pid()), store_pages + 4096);
  EXPECT_LT(ResidentPages(self), own_pages + 4096);
}

// The lane shm-test with a limit in the place of what a device may lock: the store's start is that
// with a device.
TEST_F(RmaLaneTest, AStoreWhoseMemoryMayNotBeLockedDoesNotStart) {
  EXPECT_EQ(End(SIGTERM), 0);
  store_.more_config = kDataPlane;
  const auto with_limit = [&](uint64_t lock_bytes) {
    store_.more_daemon_config = R"(, "debug": {"shm_test_lane": true, "shm_test_lock_bytes": )" +
                                std::to_string(lock_bytes) + "}";
  };
  // Of the test's configuration, and a header page for each of 256 slots.
  constexpr uint64_t kNeeded = 67'108'864 + 256 * kSlotHeaderBytes;
  with_limit(kNeeded - 1);
  EXPECT_FALSE(store_.Start());
  EXPECT_NE(store_.exit_code(), 0);
  for (const std::string& part :
       {"take " + std::to_string(kNeeded) + " bytes", "may lock " + std::to_string(kNeeded - 1),
        std::string("`ulimit -l`"), std::string("set rdma_device to none")}) {
    EXPECT_NE(store_.log().find(part), std::string::npos) << part << " not in " << store_.log();
  }
  with_limit(kNeeded);
  Start();
  EXPECT_EQ(Metric("titan_weightstore_lane{lane=\"shm-test\"}"), 1);
}

// Without lanes of one-sided reads unless they are asked for, by name.
TEST_F(RmaLaneTest, ALaneThatIsNotThereIsRefusedAndTheTestLaneIsNeverTakenByAccident) {
  EXPECT_EQ(End(SIGTERM), 0);
  const auto refused = [&](const std::string& daemon, const std::string& more,
                           std::initializer_list<const char*> parts) {
    std::filesystem::remove(store_.log_path());
    store_.more_daemon_config = daemon;
    store_.more_config = more;
    EXPECT_FALSE(store_.Start()) << more;
    for (const char* part : parts) {
      EXPECT_NE(store_.log().find(part), std::string::npos) << part << " not in " << store_.log();
    }
  };
  refused(kTestLane, "", {"daemon.debug.shm_test_lane", "set data_plane_address"});
  refused(kTestLane, R"(, "data_plane_address": "10.0.0.7:0")",
          {"daemon.debug.shm_test_lane", "refused when data_plane_address is not on loopback"});
  refused("", R"(, "require_rdma": true)", {"require_rdma", "set data_plane_address"});
  const auto found = transport::FindTransports();
  ASSERT_TRUE(found.ok()) << found.status();
  if (!found->rdma.empty()) GTEST_SKIP() << "this machine has an RDMA device";
  refused("", std::string(kDataPlane) + R"(, "require_rdma": true)",
          {"require_rdma is set, but this machine has no RDMA device, UCX finds", "tcp/"});
  // Not required: TCP, and it says why.
  store_.more_config = kDataPlane;
  Start();
  auto publisher = Register();
  ASSERT_TRUE(publisher.ok()) << publisher.status();
  Publish(**publisher, 0);
  EXPECT_EQ(ReasonOf(Lease(0).status()), kNoRemoteLane);
  EXPECT_EQ(Metric("titan_weightstore_lane{lane=\"tcp\"}"), 1);
  EXPECT_EQ(Metric("titan_weightstore_lane{lane=\"shm-test\"}"), 0);
  EXPECT_EQ(Metric("titan_weightstore_registered_bytes"), 0);
  EXPECT_NE(store_.log().find("no RDMA device"), std::string::npos);
}

TEST_F(RmaLaneTest, WhatRequiresRdmaSendsNothingByTcp) {
  StartWithLane(R"(, "require_rdma": true)");
  auto publisher = Register();
  ASSERT_TRUE(publisher.ok()) << publisher.status();
  Publish(**publisher, 0);
  EXPECT_TRUE(Reader(*puller_).Acquire("run", 0, false).ok());
  const auto tcp = MakePuller(nullptr, false);
  const Status refused = Reader(*tcp).Acquire("run", 0, false).status();
  EXPECT_EQ(ReasonOf(refused), kNoRemoteLane);
  EXPECT_NE(MessageOf(refused).find("it has require_rdma, and generator-7 no RDMA device"),
            std::string::npos)
      << refused;
  EXPECT_EQ(Metric("titan_weightstore_lane{lane=\"tcp\"}"), 0);
  EXPECT_EQ(Metric("titan_weightstore_lane{lane=\"shm-test\"}"), 1);
}

// An adopted slot has no windows, and other machines would read it by nothing else.
TEST_F(RmaLaneTest, AStoreThatRequiresRdmaAdoptsNothingAndItsTrainerMakesTheVersionAgain) {
  // A life without the lane, whose slots are sealed as those for a device are.
  auto publisher = Register();
  ASSERT_TRUE(publisher.ok()) << publisher.status();
  const Hash128 digest = Publish(**publisher, 0);
  auto mapped = Subscriber(*leader_, socket_path(), "generator-0").Acquire("run", 0, false);
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  EXPECT_EQ(End(SIGKILL), -SIGKILL);
  store_.more_daemon_config = kTestLane;
  store_.more_config = std::string(kDataPlane) + R"(, "require_rdma": true)";
  Start();
  const Subscriber reader(*leader_, socket_path(), "generator-0");
  const Status refused = reader.Renew(*mapped);
  EXPECT_TRUE(Subscriber::MayRenewLater(refused)) << refused;
  EXPECT_NE(MessageOf(refused).find("this store, with require_rdma"), std::string::npos) << refused;
  EXPECT_EQ(Metric("titan_weightstore_adopted_slots"), 0);
  EXPECT_EQ(NumberIn(mapped->bytes()), 0u);  // it serves on
  publisher = Register();
  ASSERT_TRUE(publisher.ok()) << publisher.status();
  EXPECT_EQ(Publish(**publisher, 0), digest);
  EXPECT_TRUE(reader.Renew(*mapped).ok());
  const auto lane =
      lanes::OpenRmaLane({.required = true, .shm_test = true, .device = "", .registered = {}});
  ASSERT_TRUE(lane.ok()) << lane.status();
  const auto strict = MakePuller(lane->domain, true);
  ASSERT_TRUE(Reader(*strict).Acquire("run", 0, false).ok());
  EXPECT_EQ(last_lane_, Lane::kShmTest);
}

}  // namespace
}  // namespace titan::weightstore
