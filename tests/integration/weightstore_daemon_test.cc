// SPDX-License-Identifier: Apache-2.0
//
// Goal: titan-weightstore as a process serves publishers and subscribers over gRPC and its unix
// socket, refuses what it must with a reason, ends gracefully on SIGTERM and keeps its records over
// SIGKILL. Method: the real program in a temporary folder; the client library and the gRPC leader
// in this process.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>

#include "core/runtime/endpoint.h"
#include "services/rpc/channel.h"
#include "services/weightstore_client/convert.h"
#include "services/weightstore_client/grpc_leader.h"
#include "tests/support/weightstore.h"
#include "weightstore/client/publisher.h"
#include "weightstore/client/reason.h"
#include "weightstore/client/subscriber.h"

namespace titan::weightstore {
namespace {

using std::chrono::milliseconds;
using testing::Fill;
using testing::NumberIn;
using testing::SmallManifest;

class DaemonTest : public ::testing::Test {
 protected:
  DaemonTest() : work_(boost::asio::make_work_guard(io_)), client_(io_.get_executor()) {
    thread_ = std::thread([this] { io_.run(); });
    std::string pattern = (std::filesystem::temp_directory_path() / "titan_wsd_XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    Start();
  }
  ~DaemonTest() override {
    if (pid_ > 0) End(SIGKILL);
    client_.CancelAll();
    client_.WaitIdle(milliseconds(5000));
    work_.reset();
    thread_.join();
    std::filesystem::remove_all(folder_);
  }

  void Start() {
    std::ofstream(folder_ + "/config.json")
        << R"({"daemon": {"data_folder": ")" << folder_ << R"("}, "memory_limit_bytes": 67108864})";
    std::filesystem::remove(runtime::EndpointPath(folder_, "weightstore"));
    pid_ = fork();
    if (pid_ == 0) {
      const std::string program = std::string(TITAN_BINARY_DIR) + "/bin/titan-weightstore";
      const std::string config = folder_ + "/config.json";
      const std::string log = folder_ + "/log";
      (void)!freopen(log.c_str(), "a", stderr);
      execl(program.c_str(), program.c_str(), "--config", config.c_str(), nullptr);
      _exit(127);
    }
    StatusOr<runtime::Endpoint> endpoint = NotFound("");
    for (int i = 0; i < 20'000 && !endpoint.ok(); ++i) {
      std::this_thread::sleep_for(milliseconds(1));
      endpoint = runtime::ReadEndpoint(folder_, "weightstore");
    }
    ASSERT_TRUE(endpoint.ok()) << endpoint.status();
    auto leader = GrpcLeader::Create(client_, endpoint->address);
    ASSERT_TRUE(leader.ok()) << leader.status();
    leader_ = *std::move(leader);
    stub_ = v1::WeightStoreService::NewStub(*rpc::MakeChannel(endpoint->address));
  }
  // Exit code, or the signal negated.
  int End(int signal) {
    kill(pid_, signal);
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

  std::string socket_path() const { return folder_ + "/ws.sock"; }

  StatusOr<std::unique_ptr<Publisher>> Register(uint32_t max_age = 1,
                                                Manifest manifest = SmallManifest()) {
    return Publisher::Register(*leader_, {.socket_path = socket_path(),
                                          .run_id = "run",
                                          .request_id = "r" + std::to_string(++requests_),
                                          .manifest = std::move(manifest),
                                          .max_age = max_age});
  }
  Hash128 Publish(Publisher& publisher, uint64_t version) {
    const auto begun = publisher.Begin(version, milliseconds(2000));
    EXPECT_TRUE(begun.ok()) << begun.status();
    Fill(begun->bytes, version);
    const auto digest = publisher.Finish();
    EXPECT_TRUE(digest.ok()) << digest.status();
    const auto committed = publisher.Commit("plan", version);
    EXPECT_TRUE(committed.ok()) << committed.status();
    return *digest;
  }

  boost::asio::io_context io_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  rpc::RpcClient client_;
  std::thread thread_;
  std::string folder_;
  pid_t pid_ = 0;
  int requests_ = 0;
  std::unique_ptr<GrpcLeader> leader_;
  std::unique_ptr<v1::WeightStoreService::Stub> stub_;
};

TEST_F(DaemonTest, PublishesServesEvaluatesAndEnds) {
  auto publisher = Register();
  ASSERT_TRUE(publisher.ok()) << publisher.status();
  EXPECT_EQ((*publisher)->ring_slots(), 4u);
  const Hash128 digest = Publish(**publisher, 0);
  const Subscriber subscriber(*leader_, socket_path(), "generator-0");
  auto slot = subscriber.Acquire("run", 0, false);
  ASSERT_TRUE(slot.ok()) << slot.status();
  EXPECT_EQ(NumberIn(slot->bytes()), 0u);
  EXPECT_EQ(slot->lease().digest, digest);
  EXPECT_EQ(slot->manifest(), SmallManifest());
  EXPECT_TRUE(slot->HeaderUnchanged());

  // Failures carry their reason over the wire.
  EXPECT_EQ(ReasonOf(leader_->AcquireLease("g", "run", 1, false).status()), "");
  EXPECT_EQ(leader_->AcquireLease("g", "run", 1, false).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(ReasonOf(leader_->AcquireLease("g", "run", 0, true).status()), kVersionNotServed);
  const Status other =
      leader_->CommitVersion("run", (*publisher)->epoch(), 0, {1, 2}, "", 0).status();
  EXPECT_EQ(ReasonOf(other), kDivergence) << other;
  EXPECT_EQ(ReasonOf(leader_->RegisterTrainer("x", "big", SmallManifest(20'000), 1).status()),
            kMemoryLimit);
  Manifest broken = SmallManifest();
  broken.tensors[1].offset = 0;
  EXPECT_EQ(leader_->RegisterTrainer("x", "broken", broken, 1).status().code(),
            StatusCode::kInvalidArgument);

  grpc::ClientContext pin_context, unpin_context, list_context, end_context;
  v1::PinForEvaluationRequest pin;
  pin.set_run_id("run");
  v1::PinForEvaluationResponse pinned;
  ASSERT_TRUE(stub_->PinForEvaluation(&pin_context, pin, &pinned).ok());
  EXPECT_EQ(pinned.weights_digest(), ToHex(digest));
  auto evaluation = subscriber.Acquire("run", 0, true);
  ASSERT_TRUE(evaluation.ok()) << evaluation.status();
  EXPECT_EQ(NumberIn(evaluation->bytes()), 0u);

  auto next = Register();
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(ReasonOf((*publisher)->Begin(1, milliseconds(0)).status()), kEpochSuperseded);
  EXPECT_TRUE((*next)->Begin(0, milliseconds(0))->recorded);
  Publish(**next, 1);

  v1::ListVersionsRequest list;
  list.set_run_id("run");
  v1::ListVersionsResponse versions;
  ASSERT_TRUE(stub_->ListVersions(&list_context, list, &versions).ok());
  ASSERT_EQ(versions.versions_size(), 2);
  EXPECT_EQ(versions.versions(0).state(), v1::VERSION_STATE_COMMITTED);
  EXPECT_EQ(versions.versions(0).holders_size(), 2);
  EXPECT_EQ(versions.versions(1).plan_digest(), "plan");

  v1::EndRunRequest end;
  end.set_run_id("run");
  v1::EndRunResponse ended;
  ASSERT_TRUE(stub_->EndRun(&end_context, end, &ended).ok());
  EXPECT_FALSE(slot->HeaderUnchanged());
  EXPECT_FALSE(evaluation->HeaderUnchanged());
  EXPECT_EQ(End(SIGTERM), 0);
  EXPECT_FALSE(std::filesystem::exists(socket_path()));
}

TEST_F(DaemonTest, AFullRingIsNamedOverTheWireAndWaitsEndWithTheProcess) {
  auto publisher = Register(0);
  ASSERT_TRUE(publisher.ok()) << publisher.status();
  const Subscriber subscriber(*leader_, socket_path(), "generator-3");
  std::vector<MappedSlot> held;
  for (uint64_t v = 0; v < 3; ++v) {
    Publish(**publisher, v);
    auto slot = subscriber.Acquire("run", v, false);
    ASSERT_TRUE(slot.ok()) << slot.status();
    held.push_back(*std::move(slot));
  }
  const Status full = (*publisher)->Begin(3, milliseconds(50)).status();
  EXPECT_EQ(ReasonOf(full), kRingFull);
  EXPECT_NE(MessageOf(full).find("generator-3"), std::string::npos) << full;
  std::thread waiter([&] { EXPECT_FALSE((*publisher)->Begin(3, milliseconds(60'000)).ok()); });
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_EQ(End(SIGTERM), 0);
  waiter.join();
}

TEST_F(DaemonTest, RecordsSurviveSigkillAndLostVersionsAreRemade) {
  Hash128 digest;
  {
    auto publisher = Register();
    ASSERT_TRUE(publisher.ok()) << publisher.status();
    digest = Publish(**publisher, 0);
    Publish(**publisher, 1);
  }
  EXPECT_EQ(End(SIGKILL), -SIGKILL);
  Start();  // the socket file that the killed process left is replaced
  const Subscriber subscriber(*leader_, socket_path(), "generator-0");
  EXPECT_EQ(ReasonOf(leader_->AcquireLease("g", "run", 1, false).status()), kVersionLost);
  auto publisher = Register();
  ASSERT_TRUE(publisher.ok()) << publisher.status();
  EXPECT_EQ((*publisher)->epoch(), 2u);
  EXPECT_EQ(Publish(**publisher, 0), digest);
  auto slot = subscriber.Acquire("run", 0, false);
  ASSERT_TRUE(slot.ok()) << slot.status();
  EXPECT_EQ(NumberIn(slot->bytes()), 0u);
}

}  // namespace
}  // namespace titan::weightstore
