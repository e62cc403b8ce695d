// SPDX-License-Identifier: Apache-2.0
//
// Goal: titan-weightstore as a process serves publishers and subscribers over gRPC and its unix
// socket, refuses what it must with a reason, ends gracefully on SIGTERM and keeps its records over
// SIGKILL. Method: the real program in a temporary folder; the client library and the gRPC leader
// in this process.
#include "tests/support/weightstore_daemon.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <thread>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

#include "services/rpc/rpc_client.h"
#include "services/weightstore_client/convert.h"
#include "services/weightstore_client/version_watch.h"
#include "tests/support/stored_models.h"
#include "weightstore/client/reason.h"
#include "weightstore/client/subscriber.h"
#include "weightstore/client/weights_digest.h"

namespace titan::weightstore {
namespace {

using std::chrono::milliseconds;
using testing::Fill;
using testing::NumberIn;
using testing::SmallImport;
using testing::SmallManifest;

using DaemonTest = testing::WeightStoreDaemonTest;

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
  EXPECT_EQ(
      ReasonOf(leader_->RegisterTrainer("x", "big", SmallManifest(20'000), 1, 1, "").status()),
      kMemoryLimit);
  Manifest broken = SmallManifest();
  broken.tensors[1].offset = 0;
  EXPECT_EQ(leader_->RegisterTrainer("x", "broken", broken, 1, 1, "").status().code(),
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
  EXPECT_EQ(versions.versions(0).holders_size(), 1);  // with two leases
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
  std::vector<HeldVersion> held;
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

// A control strand with the client of a daemon on it.
struct Strand {
  boost::asio::io_context io{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work =
      boost::asio::make_work_guard(io);
  std::jthread thread{[this] { io.run(); }};
  rpc::RpcClient client{io.get_executor()};

  ~Strand() {
    client.CancelAll();
    client.WaitIdle(std::chrono::seconds(10));
    work.reset();
    io.stop();
  }
  void Run(std::function<void()> f) {
    std::promise<void> done;
    boost::asio::post(io, [&] {
      f();
      done.set_value();
    });
    done.get_future().wait();
  }
};

TEST_F(DaemonTest, AHolderHearsThatAVersionIsWantedBackAndReleasesIt) {
  auto publisher = Register(0);  // a ring of three
  ASSERT_TRUE(publisher.ok()) << publisher.status();
  const Subscriber subscriber(*leader_, socket_path(), "generator-3");
  std::map<uint64_t, HeldVersion> held;
  for (uint64_t v = 0; v < 3; ++v) {
    Publish(**publisher, v);
    auto slot = subscriber.Acquire("run", v, false);
    ASSERT_TRUE(slot.ok()) << slot.status();
    held[v] = *std::move(slot);
  }
  Strand strand;
  std::vector<uint64_t> wanted;
  auto watch = VersionWatch::Create(
      strand.client, store_.address(),
      [&](const std::string& run_id, std::optional<uint64_t> version, VersionWatch::Change change) {
        EXPECT_EQ(run_id, "run");
        if (change != VersionWatch::Change::kRetired) return;
        wanted.push_back(*version);
        held.erase(*version);  // the daemon sees the connection's end
      });
  ASSERT_TRUE(watch.ok()) << watch.status();
  strand.Run([&] { (*watch)->Follow({"run"}); });
  // Long before the deadline for maps.
  const auto begun = (*publisher)->Begin(3, milliseconds(10'000));
  ASSERT_TRUE(begun.ok()) << begun.status();
  strand.Run([&] {
    EXPECT_EQ(wanted, (std::vector<uint64_t>{0, 1}));
    EXPECT_EQ(held.size(), 1u);
    watch->reset();
  });
  EXPECT_TRUE(held.at(2).HeaderUnchanged());
}

TEST(VersionWatchTest, AStreamThatBreaksIsOpenedAgainWhileItsRunIsFollowed) {
  struct Breaking : v1::WeightStoreService::Service {
    grpc::Status WatchVersions(grpc::ServerContext*, const v1::WatchVersionsRequest* request,
                               grpc::ServerWriter<v1::WatchVersionsResponse>* writer) override {
      const int call = ++calls;
      v1::WatchVersionsResponse response;
      uint64_t number = static_cast<uint64_t>(call) * 4;
      for (const auto state : {v1::VERSION_STATE_COMMITTED, v1::VERSION_STATE_RETIRED,
                               v1::VERSION_STATE_FREE, v1::VERSION_STATE_LOST}) {
        auto* version = response.add_versions();
        version->set_version(number++);
        version->set_state(state);
      }
      writer->Write(response);
      return {grpc::StatusCode::UNAVAILABLE, "broken"};
    }
    std::atomic<int> calls{0};
  } service;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const auto server = builder.BuildAndStart();
  Strand strand;
  using Change = VersionWatch::Change;
  std::vector<std::pair<std::optional<uint64_t>, Change>> heard;
  auto watch = VersionWatch::Create(
      strand.client, "127.0.0.1:" + std::to_string(port),
      [&](const std::string&, std::optional<uint64_t> version, Change change) {
        heard.emplace_back(version, change);
      },
      milliseconds(5));
  ASSERT_TRUE(watch.ok()) << watch.status();
  strand.Run([&] { (*watch)->Follow({"run"}); });
  EXPECT_TRUE(titan::testing::Eventually([&] { return service.calls > 3; }));
  strand.Run([&] {
    ASSERT_GE(heard.size(), 8u);  // of each stream what holders are to know
    for (size_t i = 0; i < 8; ++i) {
      EXPECT_EQ(heard[i].first, 4 + i);
      EXPECT_EQ(heard[i].second, i % 4 == 1 ? Change::kRetired : Change::kMoved) << i;
    }
    (*watch)->Follow({});
    heard.clear();
  });
  std::this_thread::sleep_for(milliseconds(50));
  const int calls = service.calls;
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_EQ(service.calls, calls);
  strand.Run([&] {
    EXPECT_TRUE(heard.empty());
    watch->reset();
  });
  server->Shutdown();
}

TEST_F(DaemonTest, AKeptVersionIsEvaluatedAfterARestartAndADamagedOneIsNot) {
  Hash128 digest;
  {
    auto publisher = Register();
    ASSERT_TRUE(publisher.ok()) << publisher.status();
    digest = Publish(**publisher, 0);
    grpc::ClientContext context;
    v1::EndRunRequest end;
    end.set_run_id("run");
    v1::EndRunResponse ended;
    ASSERT_TRUE(stub_->EndRun(&context, end, &ended).ok());
  }
  EXPECT_EQ(End(SIGTERM), 0);
  Start();
  const Subscriber subscriber(*leader_, socket_path(), "generator-0");
  {
    auto slot = subscriber.Acquire("run", 0, /*evaluation=*/true);
    ASSERT_TRUE(slot.ok()) << slot.status();
    EXPECT_EQ(slot->lease().digest, digest);
    EXPECT_EQ(WeightsDigest(slot->manifest(), slot->bytes(), 1), digest);
    EXPECT_EQ(ReasonOf(subscriber.Acquire("run", 0, false).status()), kVersionLost);
    ASSERT_TRUE(subscriber.Release(*std::move(slot)).ok());
  }
  std::string path;
  for (const auto& entry : std::filesystem::directory_iterator(data_folder() + "/blobs")) {
    path = entry.path().string();
  }
  std::fstream(path, std::ios::in | std::ios::out | std::ios::binary).put('\x5a');
  grpc::ClientContext context;
  v1::PinForEvaluationRequest pin;
  pin.set_run_id("run");
  v1::PinForEvaluationResponse pinned;
  const grpc::Status refused = stub_->PinForEvaluation(&context, pin, &pinned);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_NE(refused.error_message().find(path), std::string::npos) << refused.error_message();
  // Others are served, two at a time when the trainer asks for that.
  const auto registered = leader_->RegisterTrainer("y", "next", SmallManifest(), 0, 2, "");
  ASSERT_TRUE(registered.ok()) << registered.status();
  for (const uint32_t slots : {0u, 9u}) {
    const Status wrong =
        leader_->RegisterTrainer("z", "wrong", SmallManifest(), 0, slots, "").status();
    EXPECT_EQ(wrong.code(), StatusCode::kInvalidArgument) << wrong;
  }
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

TEST_F(DaemonTest, AVersionThatAReaderMapsComesBackAfterSigkill) {
  auto publisher = Register();
  ASSERT_TRUE(publisher.ok()) << publisher.status();
  const Hash128 digest = Publish(**publisher, 0);
  Publish(**publisher, 1);
  auto slot = Subscriber(*leader_, socket_path(), "generator-0").Acquire("run", 0, false);
  ASSERT_TRUE(slot.ok()) << slot.status();
  EXPECT_EQ(End(SIGKILL), -SIGKILL);
  Start();
  EXPECT_EQ(ReasonOf(leader_->AcquireLease("g", "run", 0, false).status()), kVersionLost);
  const Subscriber subscriber(*leader_, socket_path(), "generator-0");
  EXPECT_TRUE(slot->orphaned());
  const Status renewed = subscriber.Renew(*slot);
  ASSERT_TRUE(renewed.ok()) << renewed << "\n" << store_.log();
  EXPECT_FALSE(slot->orphaned());
  EXPECT_TRUE(slot->HeaderUnchanged());
  auto other = subscriber.Acquire("run", 0, false);
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(NumberIn(other->bytes()), 0u);
  // Nobody mapped the other one.
  EXPECT_EQ(ReasonOf(leader_->AcquireLease("g", "run", 1, false).status()), kVersionLost);
  publisher = Register();
  ASSERT_TRUE(publisher.ok()) << publisher.status();
  const auto begun = (*publisher)->Begin(0, milliseconds(2000));
  ASSERT_TRUE(begun.ok()) << begun.status();
  EXPECT_TRUE(begun->recorded);
  EXPECT_EQ(begun->recorded_digest, digest);
  Publish(**publisher, 1);
}

// A watcher of a run, on a thread of its own.
class Watch {
 public:
  Watch(v1::WeightStoreService::Stub& stub, uint64_t from_version) {
    v1::WatchVersionsRequest request;
    request.set_run_id("run");
    request.set_from_version(from_version);
    reader_ = stub.WatchVersions(&context_, request);
    thread_ = std::thread([this] {
      v1::WatchVersionsResponse news;
      while (reader_->Read(&news)) {
        std::lock_guard lock(mutex_);
        for (const v1::VersionInfo& info : news.versions()) {
          told_ += std::to_string(info.version()) + ":" +
                   v1::VersionState_Name(info.state()).substr(14) + " ";
          digests_[info.version()] = info.weights_digest();
        }
        ended_ |= news.run_ended();
      }
      const grpc::Status status = reader_->Finish();
      std::lock_guard lock(mutex_);
      code_ = status.error_code();
    });
  }
  ~Watch() {
    context_.TryCancel();
    thread_.join();
  }
  // What was told, once it is `expected` or after 5 s.
  std::string Told(const std::string& expected) {
    Until([&] { return told_ == expected; });
    std::lock_guard lock(mutex_);
    return told_;
  }
  // The code that the stream ended with; -1: it did not.
  int Code() {
    Until([&] { return code_ >= 0; });
    std::lock_guard lock(mutex_);
    return code_;
  }
  bool ended() {
    std::lock_guard lock(mutex_);
    return ended_;
  }
  std::string DigestOf(uint64_t version) {
    std::lock_guard lock(mutex_);
    return digests_[version];
  }

 private:
  void Until(const std::function<bool()>& condition) {
    for (int i = 0; i < 5000; ++i) {
      {
        std::lock_guard lock(mutex_);
        if (condition()) return;
      }
      std::this_thread::sleep_for(milliseconds(1));
    }
  }
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::WatchVersionsResponse>> reader_;
  std::mutex mutex_;
  std::string told_;
  std::map<uint64_t, std::string> digests_;
  bool ended_ = false;
  int code_ = -1;
  std::thread thread_;
};

TEST_F(DaemonTest, WatchersAreToldOfEachCommitAndOfTheEnd) {
  EXPECT_EQ(Watch(*stub_, 0).Code(), grpc::StatusCode::NOT_FOUND);
  auto publisher = Register(0);  // 3 slots
  ASSERT_TRUE(publisher.ok()) << publisher.status();
  const Hash128 first = Publish(**publisher, 0);
  Watch all(*stub_, 0), later(*stub_, 2), gone(*stub_, 0);
  EXPECT_EQ(all.Told("0:COMMITTED "), "0:COMMITTED ");
  EXPECT_EQ(all.DigestOf(0), ToHex(first));
  Publish(**publisher, 1);
  EXPECT_EQ(all.Told("0:COMMITTED 1:COMMITTED "), "0:COMMITTED 1:COMMITTED ");
  Publish(**publisher, 2);
  EXPECT_EQ(later.Told("2:COMMITTED "), "2:COMMITTED ");
  const std::string three = "0:COMMITTED 1:COMMITTED 2:COMMITTED ";
  EXPECT_EQ(all.Told(three), three);
  Publish(**publisher, 3);  // takes the slot of version 0
  EXPECT_EQ(all.Told(three + "0:FREE 3:COMMITTED "), three + "0:FREE 3:COMMITTED ");
  // Who comes late is told how things are, not how they came to be.
  Watch late(*stub_, 0);
  const std::string now = "1:COMMITTED 2:COMMITTED 0:FREE 3:COMMITTED ";
  EXPECT_EQ(late.Told(now), now);

  grpc::ClientContext context;
  v1::EndRunRequest end;
  end.set_run_id("run");
  v1::EndRunResponse ended;
  ASSERT_TRUE(stub_->EndRun(&context, end, &ended).ok());
  EXPECT_EQ(all.Code(), grpc::StatusCode::OK);
  EXPECT_TRUE(all.ended());
  EXPECT_EQ(later.Code(), grpc::StatusCode::OK);
  Watch after(*stub_, 9);
  EXPECT_EQ(after.Code(), grpc::StatusCode::OK);
  EXPECT_TRUE(after.ended());
  EXPECT_EQ(after.Told(""), "");
}

TEST_F(DaemonTest, WatchersLearnOfADeadStoreAndOfWhatCameBack) {
  {
    auto publisher = Register(1);
    ASSERT_TRUE(publisher.ok()) << publisher.status();
    Publish(**publisher, 0);
    Publish(**publisher, 1);
    Watch watch(*stub_, 0);
    EXPECT_EQ(watch.Told("0:COMMITTED 1:COMMITTED "), "0:COMMITTED 1:COMMITTED ");
    EXPECT_EQ(End(SIGKILL), -SIGKILL);
    EXPECT_EQ(watch.Code(), grpc::StatusCode::UNAVAILABLE);
    EXPECT_FALSE(watch.ended());
  }
  Start();
  Watch watch(*stub_, 0);
  EXPECT_EQ(watch.Told("0:LOST 1:LOST "), "0:LOST 1:LOST ");
  auto publisher = Register(1);
  ASSERT_TRUE(publisher.ok()) << publisher.status();
  Publish(**publisher, 1);
  EXPECT_EQ(watch.Told("0:LOST 1:LOST 1:COMMITTED "), "0:LOST 1:LOST 1:COMMITTED ");
  // A store that is stopped ends its streams, and is not held up by them.
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(End(SIGTERM), 0);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  EXPECT_EQ(watch.Code(), grpc::StatusCode::UNAVAILABLE);
}

size_t NumBlobs(const std::string& folder) {
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder + "/blobs")) {
    files += entry.is_regular_file();
  }
  return files;
}

TEST_F(DaemonTest, ImportedModelsSurviveSigkillAndDamageIsNamed) {
  SmallImport model(8, 100);
  model.header.set_name("base");
  const auto imported = leader_->Import(model.header, [&] { return model.Next(); });
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_FALSE(imported->existed());
  EXPECT_EQ(End(SIGKILL), -SIGKILL);
  Start();
  const auto found = leader_->FindModel("base");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->id, imported->model().id());
  std::string bytes;
  Hash128 bundle;
  ASSERT_TRUE(FromHex(found->bundle, &bundle));
  bytes += *leader_->ReadBlob(bundle, found->bundle_bytes);
  EXPECT_EQ(*leader_->ReadBlob(bundle, std::nullopt), model.bundle);
  for (size_t i = 0; i < found->blobs.size(); ++i) {
    const auto blob = leader_->ReadBlob(found->blobs[i], found->manifest->tensors[i].num_bytes);
    ASSERT_TRUE(blob.ok()) << blob.status();
    bytes += *blob;
  }
  EXPECT_EQ(bytes, model.bytes);
  // The same content again, without a name.
  model.at = 0;
  model.header.clear_name();
  const auto again = leader_->Import(model.header, [&] { return model.Next(); });
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(again->existed());
  EXPECT_EQ(again->model().id(), found->id);
  EXPECT_EQ(NumBlobs(data_folder()), 3u);

  const std::string hex = ToHex(found->blobs[0]);
  std::fstream file(data_folder() + "/blobs/" + hex,
                    std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(77);
  file.put('!');
  file.close();
  const Status damaged =
      leader_->ReadBlob(found->blobs[0], found->manifest->tensors[0].num_bytes).status();
  EXPECT_EQ(damaged.code(), StatusCode::kDataLoss) << damaged;
  EXPECT_NE(MessageOf(damaged).find("blob " + hex), std::string::npos) << damaged;
}

TEST_F(DaemonTest, AnImportThatBreaksOffLeavesNothing) {
  // The sender fails, sends too little or too much, or lies about the weights.
  SmallImport failing(1, 200);
  const auto broken = leader_->Import(failing.header, [&]() -> StatusOr<std::string> {
    if (failing.at > 300'000) return Cancelled("interrupted");
    return failing.Next();
  });
  EXPECT_EQ(MessageOf(broken.status()), "interrupted");
  SmallImport part(1);
  part.bytes.pop_back();
  const Status missing = leader_->Import(part.header, [&] { return part.Next(); }).status();
  EXPECT_EQ(missing.code(), StatusCode::kInvalidArgument) << missing;
  EXPECT_NE(MessageOf(missing).find("tensor vector"), std::string::npos) << missing;
  SmallImport more(1);
  more.bytes += "x";
  EXPECT_EQ(leader_->Import(more.header, [&] { return more.Next(); }).status().code(),
            StatusCode::kInvalidArgument);
  SmallImport other(1);
  other.header.set_weights_digest(ToHex(Hash128{1, 2}));
  EXPECT_EQ(leader_->Import(other.header, [&] { return other.Next(); }).status().code(),
            StatusCode::kDataLoss);
  for (int i = 0; i < 500 && NumBlobs(data_folder()) != 0; ++i) {
    std::this_thread::sleep_for(milliseconds(10));
  }
  EXPECT_EQ(NumBlobs(data_folder()), 0u);
  grpc::ClientContext context;
  v1::ListStoredModelsResponse listed;
  ASSERT_TRUE(stub_->ListStoredModels(&context, {}, &listed).ok());
  EXPECT_EQ(listed.models_size(), 0);
  EXPECT_EQ(listed.disk_reserved_bytes(), 0u);
}

TEST_F(DaemonTest, TheLastVersionOfARunIsKeptAndReadByTheNextProcess) {
  const auto bundle = leader_->PutBundle("config and tokenizer");
  ASSERT_TRUE(bundle.ok()) << bundle.status();
  Manifest manifest = SmallManifest();
  manifest.bundle = ToHex(*bundle);
  auto publisher = Register(1, manifest);
  ASSERT_TRUE(publisher.ok()) << publisher.status();
  Publish(**publisher, 0);
  const Hash128 last = Publish(**publisher, 1);
  v1::EndRunRequest end;
  end.set_run_id("run");
  for (int i = 0; i < 2; ++i) {  // the second changes nothing
    grpc::ClientContext context;
    v1::EndRunResponse ended;
    ASSERT_TRUE(stub_->EndRun(&context, end, &ended).ok());
  }
  EXPECT_EQ(End(SIGKILL), -SIGKILL);
  Start();
  grpc::ClientContext context;
  v1::ListVersionsRequest list;
  list.set_run_id("run");
  v1::ListVersionsResponse versions;
  ASSERT_TRUE(stub_->ListVersions(&context, list, &versions).ok());
  ASSERT_EQ(versions.versions_size(), 2);
  EXPECT_EQ(versions.versions(0).kept_bytes(), 0u);
  EXPECT_EQ(versions.versions(1).kept_bytes(), SmallManifest().slot_bytes + 20);
  const auto kept = leader_->FindVersion("run", 1);
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_EQ(kept->weights_digest, last);
  EXPECT_EQ(*leader_->ReadBlob(*bundle, kept->bundle_bytes), "config and tokenizer");
  Hash128 sum;
  for (size_t i = 0; i < kept->blobs.size(); ++i) {
    const TensorEntry& tensor = kept->manifest->tensors[i];
    const auto bytes = leader_->ReadBlob(kept->blobs[i], tensor.num_bytes);
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    sum += TensorDigest(tensor, reinterpret_cast<const std::byte*>(bytes->data()));
  }
  EXPECT_EQ(sum, last);
  EXPECT_EQ(leader_->FindVersion("run", 0).status().code(), StatusCode::kNotFound);
}

TEST_F(DaemonTest, GarbageIsCollectedWhenAskedFor) {
  auto publisher = Register(1);
  ASSERT_TRUE(publisher.ok()) << publisher.status();
  Publish(**publisher, 0);
  grpc::ClientContext end_context;
  v1::EndRunRequest end;
  end.set_run_id("run");
  v1::EndRunResponse ended;
  ASSERT_TRUE(stub_->EndRun(&end_context, end, &ended).ok());
  const size_t files = NumBlobs(data_folder());
  EXPECT_GT(files, 0u);
  const auto collect = [&](uint32_t keep_runs, bool dry_run) {
    grpc::ClientContext context;
    v1::CollectGarbageRequest request;
    request.set_request_id("gc");
    request.set_keep_runs(keep_runs);
    request.set_dry_run(dry_run);
    v1::CollectGarbageResponse response;
    EXPECT_TRUE(stub_->CollectGarbage(&context, request, &response).ok());
    return response;
  };
  EXPECT_EQ(collect(1, false).versions_size(), 0);
  const v1::CollectGarbageResponse would = collect(0, true);
  ASSERT_EQ(would.versions_size(), 1);
  EXPECT_EQ(would.versions(0).run_id(), "run");
  EXPECT_EQ(would.freed_bytes(), SmallManifest().slot_bytes);
  EXPECT_EQ(NumBlobs(data_folder()), files);
  EXPECT_EQ(collect(0, false).freed_bytes(), would.freed_bytes());
  EXPECT_EQ(NumBlobs(data_folder()), 0u);
  EXPECT_EQ(leader_->FindVersion("run", 0).status().code(), StatusCode::kNotFound);
}

TEST_F(DaemonTest, ARunWhoseLastVersionDoesNotFitOnDiskIsRefusedWithTheNumbers) {
  EXPECT_EQ(End(SIGTERM), 0);
  store_.more_config = ", \"disk_limit_bytes\": 10000";
  Start();
  const Status refused = Register(1, SmallManifest(3)).status();
  EXPECT_EQ(ReasonOf(refused), kDiskLimit) << refused;
  EXPECT_NE(MessageOf(refused).find("disk_limit_bytes is 10000"), std::string::npos) << refused;
  ASSERT_TRUE(Register(1, SmallManifest(2)).ok());
}

}  // namespace
}  // namespace titan::weightstore
