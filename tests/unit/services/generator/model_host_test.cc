// SPDX-License-Identifier: Apache-2.0
// Goal: what happens to a generator's model host while a version loads: Release, GetStatus's view,
// a second load of the same and of another version, Stop, a load that fails; and that afterwards
// nothing is held, leased or counted that should not be. Method: a real weight store in this
// process, whose leader can be held at a gate; the control strand is this thread.
#include "services/generator/model_host.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>

#include "core/runtime/files.h"
#include "core/runtime/machine.h"
#include "services/contract/contract.h"
#include "services/generator/pull_lane.h"
#include "tests/support/child_process.h"
#include "tests/support/small_run.h"
#include "tests/support/weightstore_host.h"

namespace titan::services {
namespace {

namespace asio = boost::asio;
using generator::VersionKey;
using test::SmallRun;
using weightstore::Manifest;

// Lets those who want a lease wait at a gate, or fail; everything else goes through.
class GatedLeader final : public weightstore::LeaderPort {
 public:
  explicit GatedLeader(weightstore::LeaderPort& leader) : leader_(&leader) {}

  StatusOr<weightstore::Registration> RegisterTrainer(const std::string& request_id,
                                                      const std::string& run_id,
                                                      const Manifest& manifest, uint32_t max_age,
                                                      uint32_t evaluation_slots,
                                                      const std::string& host) override {
    return leader_->RegisterTrainer(request_id, run_id, manifest, max_age, evaluation_slots, host);
  }
  StatusOr<weightstore::BeginResult> BeginVersion(const std::string& run_id, uint64_t epoch,
                                                  uint64_t version,
                                                  std::chrono::milliseconds wait) override {
    return leader_->BeginVersion(run_id, epoch, version, wait);
  }
  Status PutDone(const std::string& run_id, uint64_t epoch, uint64_t version, uint64_t grant,
                 const Hash128& digest) override {
    return leader_->PutDone(run_id, epoch, version, grant, digest);
  }
  StatusOr<int64_t> CommitVersion(const std::string& run_id, uint64_t epoch, uint64_t version,
                                  const Hash128& digest, const std::string& plan_digest,
                                  uint64_t train_step) override {
    return leader_->CommitVersion(run_id, epoch, version, digest, plan_digest, train_step);
  }
  StatusOr<weightstore::Lease> AcquireLease(const std::string& holder, const std::string& run_id,
                                            uint64_t version, bool evaluation) override {
    TITAN_RETURN_IF_ERROR(Pass());
    return leader_->AcquireLease(holder, run_id, version, evaluation);
  }
  StatusOr<weightstore::RemoteLease> AcquireRemoteLease(const std::string& holder,
                                                        const std::string& run_id, uint64_t version,
                                                        bool evaluation,
                                                        const weightstore::Reach& reach) override {
    TITAN_RETURN_IF_ERROR(Pass());
    return leader_->AcquireRemoteLease(holder, run_id, version, evaluation, reach);
  }
  Status ReleaseLease(uint64_t lease_id) override { return leader_->ReleaseLease(lease_id); }

  // The store was started again. REQUIRES: no call is under way.
  void Use(weightstore::LeaderPort& leader) { leader_ = &leader; }

  void Close() { Set(false, 0); }
  void Open() { Set(true, 0); }
  // The next calls fail.
  void Fail(int num) { Set(open_, num); }
  int waiting() {
    std::lock_guard lock(mutex_);
    return waiting_;
  }

 private:
  Status Pass() {
    std::unique_lock lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return open_ || failures_ > 0; });
    --waiting_;
    if (failures_ == 0) return OkStatus();
    --failures_;
    return Unavailable("the leader is down");
  }
  void Set(bool open, int failures) {
    std::lock_guard lock(mutex_);
    open_ = open;
    failures_ = failures;
    changed_.notify_all();
  }

  weightstore::LeaderPort* leader_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = true;
  int failures_ = 0;
  int waiting_ = 0;
};

class ModelHostTest : public ::testing::Test {
 protected:
  explicit ModelHostTest(bool remote = false)
      : store_(64u << 20, weightstore::testing::Host::IndexKind::kMemory, remote) {
    if (!remote) config_.set_weightstore_socket(store_.socket_path());
    config_.mutable_daemon()->set_worker_id("generator-0");
    config_.mutable_kernels()->set_threads(1);
    config_.set_max_versions(2);
    config_.set_max_running_sequences(4);
    config_.set_max_batch_tokens(16);
    config_.set_max_queued_groups(4);
    config_.set_kv_cache_bytes(1 << 20);
    host_ = std::make_unique<ModelHost>(config_, leader_, context_);
  }
  ~ModelHostTest() override {
    leader_.Open();
    host_->Stop();
    client_.CancelAll();
    blocking_.Stop();
    for (int i = 0; i < 100; ++i) io_.poll();
    host_.reset();
  }

  template <typename T>
  std::shared_ptr<std::optional<T>> Begin(asio::awaitable<T> work) {
    auto result = std::make_shared<std::optional<T>>();
    asio::co_spawn(io_, std::move(work), [result](std::exception_ptr failure, T value) {
      if (failure) std::rethrow_exception(failure);
      *result = std::move(value);
    });
    io_.poll();
    return result;
  }
  template <typename T>
  T End(const std::shared_ptr<std::optional<T>>& result) {
    for (int i = 0; i < 20'000 && !result->has_value(); ++i) {
      io_.run_one_for(std::chrono::milliseconds(1));
    }
    EXPECT_TRUE(result->has_value()) << "it does not end";
    return result->value_or(T(Internal("it does not end")));
  }
  StatusOr<std::string> Load(const VersionKey& key) { return End(Begin(host_->Load(key))); }
  Status Release(const VersionKey& key) { return End(Begin(host_->Release(key))); }
  // Those that nobody needs.
  std::vector<VersionKey> Renew() {
    std::optional<std::vector<VersionKey>> unwanted;
    asio::co_spawn(io_, host_->RenewOrphans(),
                   [&](std::exception_ptr, std::vector<VersionKey> keys) { unwanted = keys; });
    for (int i = 0; i < 20'000 && !unwanted.has_value(); ++i) {
      io_.run_one_for(std::chrono::milliseconds(1));
    }
    EXPECT_TRUE(unwanted.has_value()) << "it does not end";
    return unwanted.value_or(std::vector<VersionKey>());
  }
  asio::awaitable<Status> RenewedOrphans() {
    const auto unwanted = co_await host_->RenewOrphans();
    co_return unwanted.empty() ? OkStatus() : Internal("a version is not wanted");
  }
  // Runs the strand until `num` loads stand at the gate.
  void AwaitAtGate(int num) {
    for (int i = 0; i < 20'000 && leader_.waiting() < num; ++i) {
      io_.run_one_for(std::chrono::milliseconds(1));
    }
    ASSERT_EQ(leader_.waiting(), num);
  }
  // Leases end when the daemon sees the connection close.
  void ExpectNoLease() {
    for (int i = 0; i < 5000 && store_.leader().Stats().num_leases > 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_EQ(store_.leader().Stats().num_leases, 0u);
  }

  kernels::Pool pool_{1};
  weightstore::testing::Host store_;
  GatedLeader leader_{store_.leader()};
  asio::io_context io_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_ = asio::make_work_guard(io_);
  runtime::Metrics metrics_;
  SystemClock clock_;
  rpc::RpcServer server_{io_.get_executor()};
  rpc::RpcClient client_{io_.get_executor()};
  runtime::BlockingPool blocking_;
  config::v1::GeneratorConfig config_;
  rpc::DaemonContext context_{io_.get_executor(),
                              server_,
                              client_,
                              blocking_,
                              metrics_,
                              clock_,
                              *config_.mutable_daemon(),
                              "test",
                              type::v1::WORKER_ROLE_GENERATOR,
                              [] { return std::string("127.0.0.1:1"); },
                              [](bool, const std::string&) {},
                              [](const Status&) {}};
  std::unique_ptr<ModelHost> host_;
};

TEST_F(ModelHostTest, LoadsServesAndGivesBack) {
  SmallRun run(store_.leader(), store_.socket_path(), pool_, "run", 1, 2);
  EXPECT_EQ(host_->engine().status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(*Load({"run", 0}), run.digests[0]);
  EXPECT_EQ(*Load({"run", 0}), run.digests[0]);  // idempotent
  EXPECT_TRUE(host_->engine().ok());
  EXPECT_EQ(*Load({"run", 1}), run.digests[1]);
  EXPECT_EQ(host_->held().size(), 2u);
  EXPECT_TRUE(Release({"run", 0}).ok());
  EXPECT_TRUE(Release({"run", 0}).ok());
  EXPECT_TRUE(Release({"run", 1}).ok());
  EXPECT_TRUE(host_->held().empty());
  ExpectNoLease();
}

TEST_F(ModelHostTest, MappedVersionsOutliveTheStoresDaemon) {
  SmallRun run(store_.leader(), store_.socket_path(), pool_, "run", 1, 2);
  ASSERT_EQ(*Load({"run", 0}), run.digests[0]);
  ASSERT_EQ(*Load({"run", 1}), run.digests[1]);
  EXPECT_TRUE(Renew().empty());  // nothing to do
  generator::EngineThread* const engine = *host_->engine();
  const std::byte* const place = host_->held().at({"run", 1}).slot->bytes().data();
  store_.Stop();
  EXPECT_TRUE(Renew().empty());  // nobody is there yet
  EXPECT_TRUE(host_->held().at({"run", 1}).slot->orphaned());
  EXPECT_EQ(*Load({"run", 1}), run.digests[1]);  // it serves on
  store_.Start();
  leader_.Use(store_.leader());
  EXPECT_TRUE(Renew().empty());
  EXPECT_EQ(store_.slots().Stats().adopted_slots, 2u);
  const auto versions = store_.leader().ListVersions("run");
  for (const auto& info : *versions) {
    EXPECT_EQ(info.state, weightstore::VersionState::kCommitted);
    EXPECT_EQ(info.holders, std::vector<std::string>{"generator-0"});
  }
  // No reload: the engine and the memory that it reads are the same.
  EXPECT_EQ(*host_->engine(), engine);
  EXPECT_EQ(host_->held().at({"run", 1}).slot->bytes().data(), place);
  EXPECT_EQ(*Load({"run", 1}), run.digests[1]);
  EXPECT_FALSE(host_->held().at({"run", 1}).slot->orphaned());
  // The successor's header page is what the engine reads.
  EXPECT_TRUE(host_->held().at({"run", 1}).slot->HeaderUnchanged());
  ASSERT_TRUE(store_.leader().FenceReaders("run", 1).ok());
  EXPECT_FALSE(host_->held().at({"run", 1}).slot->HeaderUnchanged());
  EXPECT_TRUE(Release({"run", 0}).ok());
  EXPECT_TRUE(Release({"run", 1}).ok());
  ExpectNoLease();
}

TEST_F(ModelHostTest, AVersionOfADeadDaemonThatNobodyNeedsIsNamed) {
  SmallRun run(store_.leader(), store_.socket_path(), pool_, "run", 1, 1);
  ASSERT_EQ(*Load({"run", 0}), run.digests[0]);
  store_.Stop();
  store_.Start();
  leader_.Use(store_.leader());
  ASSERT_TRUE(store_.leader().EndRun("run", 0).ok());
  EXPECT_EQ(Renew(), (std::vector<VersionKey>{{"run", 0}}));
  EXPECT_EQ(store_.slots().Stats().adopted_slots, 0u);
  EXPECT_TRUE(Release({"run", 0}).ok());
  EXPECT_TRUE(host_->held().empty());
}

TEST_F(ModelHostTest, TheEndOfTheProcessDoesNotWaitForAnOffer) {
  SmallRun run(store_.leader(), store_.socket_path(), pool_, "run", 1, 1);
  ASSERT_EQ(*Load({"run", 0}), run.digests[0]);
  store_.Stop();
  // The next daemon is busy with another slot, and would look at the offered bytes after it.
  std::promise<void> ready;
  const std::shared_future<void> busy(ready.get_future());
  store_.make_slot = [busy](const weightstore::SlotRequest&, const auto&) {
    busy.wait();
    return weightstore::SlotMaker::Made(Unavailable("no slot"));
  };
  store_.Start();
  leader_.Use(store_.leader());
  auto trainer = std::async(std::launch::async, [&] {
    return store_.leader().RegisterTrainer("t", "other", weightstore::testing::SmallManifest(), 0,
                                           1, "");
  });
  // Whatever fails below, the daemon goes on before the future is waited for.
  struct Open {
    ~Open() { gate.set_value(); }
    std::promise<void>& gate;
  };
  const auto open = std::make_unique<const Open>(ready);
  ASSERT_TRUE(
      titan::testing::Eventually([&] { return store_.leader().Stats().bytes_being_made > 0; }));
  const auto renewal = Begin(RenewedOrphans());
  for (int i = 0; i < 20'000 && store_.slots().Report().offers.empty(); ++i) {
    io_.run_one_for(std::chrono::milliseconds(1));
  }
  ASSERT_FALSE(store_.slots().Report().offers.empty());
  const auto start = std::chrono::steady_clock::now();
  host_->Stop();
  EXPECT_TRUE(End(renewal).ok());
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
}

// Anonymous memory of this process that is resident.
uint64_t OwnBytes() {
  const std::string status = *runtime::ReadFile("/proc/self/status");
  return std::stoull(status.substr(status.find("RssAnon:") + 8)) << 10;
}

// A generator of its own beside that of the fixture.
struct Another {
  Another(const std::string& worker_id, const config::v1::GeneratorConfig& like,
          rpc::DaemonContext& beside, weightstore::LeaderPort& leader,
          ModelHost::FreeMemory free_memory)
      : config(like), context{beside.control,  beside.server,    beside.client,
                              beside.blocking, metrics,          beside.clock,
                              config.daemon(), "test",           beside.role,
                              beside.address,  beside.set_ready, beside.request_shutdown} {
    config.mutable_daemon()->set_worker_id(worker_id);
    host = std::make_unique<ModelHost>(config, leader, context, nullptr, std::move(free_memory));
  }
  config::v1::GeneratorConfig config;
  runtime::Metrics metrics;
  rpc::DaemonContext context;
  std::unique_ptr<ModelHost> host;
};

// Two generators, a machine that has room for the cache of one.
TEST_F(ModelHostTest, OfTwoThatLoadAtOnceOneSeesWhatTheOtherHasTaken) {
  constexpr uint64_t kCache = 64u << 20;
  SmallRun run(store_.leader(), store_.socket_path(), pool_, "run", 1, 1);
  config_.set_kv_cache_bytes(kCache);
  const uint64_t room = OwnBytes() + kCache * 3 / 2;
  std::atomic<int> looks{0};
  const auto free_memory = [&]() -> StatusOr<uint64_t> {
    ++looks;
    EXPECT_FALSE(runtime::MemoryTurn::Try().has_value()) << "it looks out of its turn";
    return room - std::min(room, OwnBytes());
  };
  Another first("generator-1", config_, context_, leader_, free_memory);
  Another second("generator-2", config_, context_, leader_, free_memory);
  {
    std::optional<runtime::MemoryTurn> turn;  // which other programs may have for a while
    while (!turn.has_value()) turn = runtime::MemoryTurn::Try();
    // One that ends does not wait for its turn.
    Another third("generator-3", config_, context_, leader_, free_memory);
    const auto waiting = Begin(third.host->Load({"run", 0}));
    for (int i = 0; i < 50; ++i) io_.run_one_for(std::chrono::milliseconds(1));
    EXPECT_FALSE(waiting->has_value());
    third.host->Stop();
    EXPECT_EQ(End(waiting).status().code(), StatusCode::kCancelled);
    EXPECT_EQ(looks, 0);
  }
  const auto loads = {Begin(first.host->Load({"run", 0})), Begin(second.host->Load({"run", 0}))};
  std::vector<Status> ends;
  for (const auto& load : loads) ends.push_back(End(load).status());
  EXPECT_EQ(looks, 2);
  EXPECT_NE(ends[0].ok(), ends[1].ok()) << ends[0] << " and " << ends[1];
  const Status& refused = ends[0].ok() ? ends[1] : ends[0];
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted) << refused;
  EXPECT_NE(MessageOf(refused).find("lower kv_cache_bytes"), std::string::npos) << refused;
}

TEST_F(ModelHostTest, WhileAVersionLoads) {
  SmallRun run(store_.leader(), store_.socket_path(), pool_, "run", 1, 2);
  leader_.Close();
  const auto load = Begin(host_->Load({"run", 0}));
  AwaitAtGate(1);
  // What GetStatus shows: it loads, nothing is held, nothing runs.
  EXPECT_TRUE(host_->held().empty());
  EXPECT_EQ(host_->loading(), (std::set<VersionKey>{{"run", 0}}));
  EXPECT_EQ(host_->stats().running, 0);
  EXPECT_FALSE(host_->engine().ok());
  // The same load and a release are answered at once, and change nothing.
  const Status again = Load({"run", 0}).status();
  EXPECT_EQ(again.code(), StatusCode::kUnavailable);
  EXPECT_NE(MessageOf(again).find("is being loaded"), std::string::npos) << again;
  EXPECT_EQ(Release({"run", 0}).code(), StatusCode::kUnavailable);
  EXPECT_TRUE(Release({"run", 1}).ok());  // is not held
  EXPECT_FALSE(load->has_value());
  leader_.Open();
  EXPECT_EQ(*End(load), run.digests[0]);
  EXPECT_TRUE(host_->loading().empty());
  EXPECT_TRUE(Release({"run", 0}).ok());
  ExpectNoLease();
}

TEST_F(ModelHostTest, TwoVersionsLoadAtOnceAndAThirdHasNoPlace) {
  SmallRun run(store_.leader(), store_.socket_path(), pool_, "run", 1, 3);
  leader_.Close();
  const auto first = Begin(host_->Load({"run", 1}));
  const auto second = Begin(host_->Load({"run", 2}));
  AwaitAtGate(2);
  EXPECT_EQ(host_->loading().size(), 2u);
  const Status third = Load({"run", 0}).status();
  EXPECT_EQ(third.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(MessageOf(third).find("max_versions (2)"), std::string::npos) << third;
  leader_.Open();
  EXPECT_EQ(*End(first), run.digests[1]);
  EXPECT_EQ(*End(second), run.digests[2]);
  EXPECT_EQ(host_->held().size(), 2u);
}

TEST_F(ModelHostTest, AFailedLoadLeavesItsPlace) {
  SmallRun run(store_.leader(), store_.socket_path(), pool_, "run", 1, 1);
  leader_.Fail(1);
  const Status failed = Load({"run", 0}).status();
  EXPECT_EQ(failed.code(), StatusCode::kUnavailable);
  EXPECT_NE(MessageOf(failed).find("the leader is down"), std::string::npos) << failed;
  EXPECT_TRUE(host_->loading().empty() && host_->held().empty());
  EXPECT_EQ(Load({"run", 9}).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(Load({"other", 0}).status().code(), StatusCode::kNotFound);
  EXPECT_TRUE(host_->loading().empty() && host_->held().empty());
  ExpectNoLease();
  EXPECT_EQ(*Load({"run", 0}), run.digests[0]);
}

TEST_F(ModelHostTest, StopEndsALoadThatWaits) {
  SmallRun run(store_.leader(), store_.socket_path(), pool_, "run", 1, 1);
  leader_.Close();
  const auto load = Begin(host_->Load({"run", 0}));
  AwaitAtGate(1);
  host_->Stop();
  leader_.Open();
  EXPECT_EQ(End(load).status().code(), StatusCode::kCancelled);
  EXPECT_TRUE(host_->held().empty() && host_->loading().empty());
  EXPECT_EQ(Load({"run", 0}).status().code(), StatusCode::kCancelled);
  EXPECT_TRUE(Release({"run", 0}).ok());
  EXPECT_FALSE(host_->engine().ok());
  ExpectNoLease();
}

TEST_F(ModelHostTest, StopWithHeldVersionsGivesThemBack) {
  SmallRun run(store_.leader(), store_.socket_path(), pool_, "run", 1, 2);
  EXPECT_TRUE(Load({"run", 0}).ok());
  leader_.Close();
  const auto load = Begin(host_->Load({"run", 1}));
  AwaitAtGate(1);
  host_->Stop();
  EXPECT_TRUE(host_->held().empty());
  leader_.Open();
  EXPECT_EQ(End(load).status().code(), StatusCode::kCancelled);
  ExpectNoLease();
}

TEST_F(ModelHostTest, AnotherModelComesOnceNothingIsHeld) {
  SmallRun one(store_.leader(), store_.socket_path(), pool_, "one", 1, 1);
  SmallRun two(store_.leader(), store_.socket_path(), pool_, "two", 2, 1);
  EXPECT_EQ(*Load({"one", 0}), one.digests[0]);
  const Status refused = Load({"two", 0}).status();
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(MessageOf(refused).find("another model or mode"), std::string::npos) << refused;
  EXPECT_EQ(host_->held().size(), 1u);
  EXPECT_TRUE(Release({"one", 0}).ok());
  EXPECT_EQ(*Load({"two", 0}), two.digests[0]);
  EXPECT_TRUE(Release({"two", 0}).ok());
  ExpectNoLease();
}

TEST_F(ModelHostTest, TwoModelsAtOnceAreNotMixed) {
  SmallRun one(store_.leader(), store_.socket_path(), pool_, "one", 1, 1);
  SmallRun two(store_.leader(), store_.socket_path(), pool_, "two", 2, 1);
  leader_.Close();
  const auto first = Begin(host_->Load({"one", 0}));
  const auto second = Begin(host_->Load({"two", 0}));
  AwaitAtGate(2);
  leader_.Open();
  const StatusOr<std::string> results[] = {End(first), End(second)};
  // One of them is served; the other is refused, or replaced its model before it was held.
  EXPECT_EQ(results[0].ok() + results[1].ok(), 1)
      << results[0].status() << " " << results[1].status();
  EXPECT_EQ(host_->held().size(), 1u);
  const VersionKey held = host_->held().begin()->first;
  EXPECT_EQ(held.run_id, results[0].ok() ? "one" : "two");
  EXPECT_TRUE(Release(held).ok());
  ExpectNoLease();
}

TEST_F(ModelHostTest, AnotherContractIsRefusedAndTheNextRunServed) {
  SmallRun foreign(store_.leader(), store_.socket_path(), pool_, "foreign", 1, 1,
                   "0123456789abcdef");
  SmallRun run(store_.leader(), store_.socket_path(), pool_, "run", 1, 1);
  const Status refused = Load({"foreign", 0}).status();
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(MessageOf(refused).find("0123456789abcdef"), std::string::npos) << refused;
  EXPECT_TRUE(host_->held().empty() && host_->loading().empty());
  ExpectNoLease();
  EXPECT_EQ(*Load({"run", 0}), run.digests[0]);
}

TEST_F(ModelHostTest, AModelThatDoesNotFitIsRefusedWithTheNumbers) {
  SmallRun run(store_.leader(), store_.socket_path(), pool_, "run", 1, 1);
  const auto refusal = [&](auto change) {
    config::v1::GeneratorConfig config = config_;
    change(config);
    ModelHost host(config, leader_, context_);
    const Status refused = End(Begin(host.Load({"run", 0}))).status();
    EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted) << refused;
    EXPECT_TRUE(host.held().empty() && host.loading().empty());
    EXPECT_EQ(host.engine_bytes(), 0u);
    host.Stop();
    ExpectNoLease();
    return MessageOf(refused);
  };
  const std::string cache = refusal([](auto& config) { config.set_kv_cache_bytes(1ull << 44); });
  EXPECT_NE(cache.find("serving this model needs 16777216 MiB (cache 16777216), "),
            std::string::npos)
      << cache;
  EXPECT_NE(cache.find(" MiB are free; lower kv_cache_bytes in the generator's config"),
            std::string::npos)
      << cache;
  // 2^30 rows; then as many of 96 logits.
  const std::string rows = refusal([](auto& config) { config.set_max_batch_tokens(1 << 30); });
  EXPECT_NE(rows.find("lower max_batch_tokens"), std::string::npos) << rows;
  const std::string logits = refusal([](auto& config) {
    config.set_max_batch_tokens(1 << 30);
    config.set_max_running_sequences(1 << 30);
  });
  EXPECT_NE(logits.find("logits 393216)"), std::string::npos) << logits;
  // What fits is served, and says what it took.
  EXPECT_EQ(host_->engine_bytes(), 0u);
  EXPECT_EQ(*Load({"run", 0}), run.digests[0]);
  EXPECT_GT(host_->engine_bytes(), 1u << 20);  // the cache
  EXPECT_LT(host_->engine_bytes(), 2u << 20);
}

// The orchestrator does not ask again after this code.
TEST_F(ModelHostTest, ACacheWithoutAPageIsRefusedWithTheLeastValue) {
  SmallRun run(store_.leader(), store_.socket_path(), pool_, "run", 1, 1);
  config_.set_kv_cache_bytes(1000);
  ModelHost host(config_, leader_, context_);
  const Status refused = End(Begin(host.Load({"run", 0}))).status();
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument) << refused;
  const std::string said = MessageOf(refused);
  EXPECT_NE(said.find("kv_cache_bytes of the generator's config is 1000, and a cache page"),
            std::string::npos)
      << said;
  const size_t least = said.find("; set it to at least ");
  ASSERT_NE(least, std::string::npos) << said;
  config_.set_kv_cache_bytes(std::stoull(said.substr(least + 21)));
  host.Stop();
  ModelHost enough(config_, leader_, context_);
  EXPECT_TRUE(End(Begin(enough.Load({"run", 0}))).ok());
  EXPECT_TRUE(End(Begin(enough.Release({"run", 0}))).ok());
  enough.Stop();
  ExpectNoLease();
}

// A generator that is not on the store's host.
class PullingModelHostTest : public ModelHostTest {
 protected:
  PullingModelHostTest() : ModelHostTest(/*remote=*/true) {}

  // What a host generates under a version, in the order of the samples.
  static std::vector<generator::SampleResult> Generate(ModelHost& host, const VersionKey& version) {
    generator::GroupRequest request;
    request.version = version;
    request.group = {7};
    request.seed = 3;
    request.prompt = {1, 2, 3, 4, 5};
    for (uint32_t i = 0; i < 4; ++i) request.samples.push_back({i, SampleId{100 + i}});
    request.max_new_tokens = 12;
    std::promise<Status> ended;
    std::map<uint32_t, generator::SampleResult> by_index;  // filled by the engine's thread
    generator::EngineThread::Listener listener;
    listener.on_sample = [&](generator::SampleResult result) {
      by_index[result.sample_index] = std::move(result);
    };
    listener.on_end = [&](Status status) { ended.set_value(status); };
    const auto engine = host.engine();
    EXPECT_TRUE(engine.ok()) << engine.status();
    if (!engine.ok()) return {};
    (*engine)->Submit(std::move(request), std::move(listener));
    const Status status = ended.get_future().get();
    EXPECT_TRUE(status.ok()) << status;
    std::vector<generator::SampleResult> results;
    for (auto& [index, result] : by_index) results.push_back(std::move(result));
    return results;
  }
  // Of the gauge that is 1; all that are, if there are more.
  std::string LaneNow() {
    const std::string name = "titan_generator_lane{lane=\"";
    std::string lanes;
    std::istringstream lines(metrics_.Text());
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with(name) || !line.ends_with(" 1")) continue;
      lanes += line.substr(name.size(), line.find('"', name.size()) - name.size());
    }
    return lanes;
  }
  // All series of a metric together.
  double Metric(const std::string& name) {
    double sum = 0;
    std::istringstream lines(metrics_.Text());
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with(name + " ") && !line.starts_with(name + "{")) continue;
      sum += std::stod(line.substr(line.rfind(' ') + 1));
    }
    return sum;
  }
};

TEST_F(PullingModelHostTest, GeneratesWhatOneThatMapsDoes) {
  SmallRun run(store_.leader(), store_.socket_path(), pool_, "run", 1, 2);
  config::v1::GeneratorConfig mapping = config_;
  mapping.set_weightstore_socket(store_.socket_path());
  ModelHost other(mapping, leader_, context_);
  const double slot_bytes = static_cast<double>(run.publisher->manifest().slot_bytes);
  for (uint64_t version = 0; version < 2; ++version) {
    const VersionKey key = {"run", version};
    EXPECT_EQ(*Load(key), run.digests[version]);
    ExpectNoLease();  // what is pulled needs none
    EXPECT_EQ(*End(Begin(other.Load(key))), run.digests[version]);
    const auto pulled = Generate(*host_, key), mapped = Generate(other, key);
    ASSERT_EQ(pulled.size(), 4u);
    ASSERT_EQ(mapped.size(), 4u);
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(pulled[i].tokens, mapped[i].tokens);
      EXPECT_EQ(std::memcmp(pulled[i].log_probs.data(), mapped[i].log_probs.data(),
                            4 * pulled[i].log_probs.size()),
                0);
    }
    EXPECT_TRUE(End(Begin(other.Release(key))).ok());
  }
  EXPECT_EQ(Metric("titan_generator_pulled_bytes_total"), 2 * slot_bytes);
  EXPECT_EQ(Metric("titan_generator_pull_seconds_count"), 2 * 3);
  EXPECT_EQ(Metric("titan_generator_pull_memory_bytes"), 2 * slot_bytes);
  EXPECT_EQ(Metric("titan_generator_pull_corrupt_total"), 0);
  EXPECT_EQ(LaneNow(), "map");  // `other` was the last one, in the same registry
  EXPECT_TRUE(Release({"run", 0}).ok());
  EXPECT_TRUE(Release({"run", 1}).ok());
  EXPECT_EQ(Metric("titan_generator_pull_memory_bytes"), slot_bytes);  // for the next one
  other.Stop();
}

TEST_F(PullingModelHostTest, VersionsToComeCountWhereTheyArePulled) {
  SmallRun run(store_.leader(), store_.socket_path(), pool_, "run", 1, 1);
  config_.set_max_versions(1 << 30);
  ModelHost host(config_, leader_, context_);
  const Status refused = End(Begin(host.Load({"run", 0}))).status();
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted) << refused;
  EXPECT_NE(MessageOf(refused).find("further pulled versions "), std::string::npos) << refused;
  EXPECT_NE(MessageOf(refused).find("lower max_versions in the generator's config"),
            std::string::npos)
      << refused;
  host.Stop();
  EXPECT_EQ(*Load({"run", 0}), run.digests[0]);
}

TEST_F(PullingModelHostTest, AVersionThatTheStoreTakesBackServesOn) {
  SmallRun run(store_.leader(), store_.socket_path(), pool_, "run", 1, 2);
  EXPECT_EQ(*Load({"run", 0}), run.digests[0]);
  const auto before = Generate(*host_, {"run", 0});
  EXPECT_TRUE(store_.leader().FenceReaders("run", 0).ok());
  EXPECT_TRUE(store_.leader().EndRun("run", 0).ok());
  const auto after = Generate(*host_, {"run", 0});
  ASSERT_EQ(after.size(), before.size());
  for (size_t i = 0; i < before.size(); ++i) EXPECT_EQ(after[i].tokens, before[i].tokens);
}

TEST_F(PullingModelHostTest, ALostSourceLeavesTheOldVersionServing) {
  SmallRun run(store_.leader(), store_.socket_path(), pool_, "run", 1, 2);
  EXPECT_EQ(*Load({"run", 0}), run.digests[0]);
  store_.StopDataPlane();
  const auto start = std::chrono::steady_clock::now();
  const Status lost = Load({"run", 1}).status();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
  EXPECT_EQ(lost.code(), StatusCode::kUnavailable) << lost;
  EXPECT_NE(MessageOf(lost).find("data_plane_address"), std::string::npos) << lost;
  EXPECT_EQ(Generate(*host_, {"run", 0}).size(), 4u);
  EXPECT_EQ(host_->held().size(), 1u);
  EXPECT_TRUE(host_->loading().empty());
  ExpectNoLease();
}

TEST(PullLaneTest, WhatIsRequiredIsThereOrThereIsNoGenerator) {
  runtime::Metrics metrics;
  config::v1::GeneratorConfig config;
  for (const char* socket : {"", "s"}) {
    config.Clear();
    config.set_weightstore_socket(socket);
    config.mutable_daemon()->mutable_debug()->set_shm_test_lane(true);
    const auto test_lane = OpenPullLane(config, metrics);
    ASSERT_TRUE(test_lane.ok()) << test_lane.status();
    ASSERT_NE(*test_lane, nullptr);
    EXPECT_EQ((*test_lane)->lane(), transport::RmaLane::kShmTest);
    config.clear_daemon();
    config.set_require_rdma(true);
    config.set_rdma_device("no_such_device:1");
    const Status refused = OpenPullLane(config, metrics).status();
    EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
    EXPECT_NE(MessageOf(refused).find("require_rdma is set, but this machine has no RDMA device"),
              std::string::npos)
        << refused;
  }
}

TEST_F(PullingModelHostTest, StopEndsAPullThatWaits) {
  SmallRun run(store_.leader(), store_.socket_path(), pool_, "run", 1, 1);
  leader_.Close();
  const auto load = Begin(host_->Load({"run", 0}));
  AwaitAtGate(1);
  host_->Stop();
  leader_.Open();
  EXPECT_EQ(End(load).status().code(), StatusCode::kCancelled);
  EXPECT_TRUE(host_->held().empty() && host_->loading().empty());
  ExpectNoLease();
}

}  // namespace
}  // namespace titan::services
