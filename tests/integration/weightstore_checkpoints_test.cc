// SPDX-License-Identifier: Apache-2.0
//
// Goal: checkpoints as titan-weightstore keeps them are those of a run that goes on, by its
// trainer: none stays of a run that ended or of a trainer that was replaced while one was sent, nor
// of a store that is killed meanwhile; what was durable stays, and the version of a checkpoint can
// be loaded and not be deleted. A store that is ended leaves the newest version of every run, and
// one that lost its index leaves every file. Lists are told whole, however long. Method: the real
// program; what happens meanwhile happens when the store asks for the next part; long lists are
// written into its records.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <set>

#include "core/storage/rocksdb_store.h"
#include "services/weightstore_client/convert.h"
#include "tests/support/metric.h"
#include "tests/support/stored_models.h"
#include "tests/support/weightstore_daemon.h"
#include "titan/storage/v1/storage.pb.h"
#include "weightstore/client/reason.h"
#include "weightstore/client/subscriber.h"
#include "weightstore/client/weights_digest.h"
#include "weightstore/index.h"
#include "weightstore/library.h"
#include "weightstore/library_index.h"

namespace titan::weightstore {
namespace {

using testing::kFacts;
using testing::SmallManifest;

class CheckpointsTest : public testing::WeightStoreDaemonTest {
 protected:
  Status Put(uint64_t epoch, uint64_t version, const std::function<void(int part)>& meanwhile = {},
             uint64_t needed = 0, int64_t number = -1) {
    return testing::PutSmallCheckpoint(*leader_, epoch, version, meanwhile, needed, number);
  }
  void Replace() {
    grpc::ClientContext context;
    v1::RegisterTrainerRequest request;
    request.set_request_id("another");
    request.set_run_id("run");
    request.set_max_age(1);
    request.set_evaluation_slots(1);
    *request.mutable_manifest() = ToProto(SmallManifest());
    v1::RegisterTrainerResponse response;
    EXPECT_TRUE(stub_->RegisterTrainer(&context, request, &response).ok());
  }
  void EndRun() {
    grpc::ClientContext context;
    v1::EndRunRequest request;
    request.set_request_id("end");
    request.set_run_id("run");
    v1::EndRunResponse response;
    const grpc::Status ended = stub_->EndRun(&context, request, &response);
    EXPECT_TRUE(ended.ok()) << ended.error_message();
  }
  v1::ListStoredModelsResponse Stored() {
    grpc::ClientContext context;
    v1::ListStoredModelsResponse response;
    EXPECT_TRUE(stub_->ListStoredModels(&context, {}, &response).ok());
    return response;
  }
  std::vector<uint64_t> Versions() {
    std::vector<uint64_t> versions;
    const auto stored = Stored();
    for (const auto& checkpoint : stored.checkpoints()) versions.push_back(checkpoint.version());
    return versions;
  }
  // Of the run, those on disk.
  std::vector<uint64_t> Kept() {
    std::vector<uint64_t> kept;
    for (const auto& [number, info] : testing::VersionsOf(*stub_, "run")) {
      if (info.kept_bytes() > 0) kept.push_back(number);
    }
    return kept;
  }
  v1::CollectGarbageResponse CollectGarbage(uint32_t keep_runs) {
    grpc::ClientContext context;
    v1::CollectGarbageRequest request;
    request.set_request_id("gc");
    request.set_keep_runs(keep_runs);
    v1::CollectGarbageResponse response;
    EXPECT_TRUE(stub_->CollectGarbage(&context, request, &response).ok());
    return response;
  }
  // The store's count of versions that should be on disk and are not.
  double NumNotKept() {
    return titan::testing::MetricOf(data_folder(), "weightstore",
                                    "titan_weightstore_not_kept_total");
  }
  // Deletes a version of the run.
  grpc::Status Delete(uint64_t version) {
    grpc::ClientContext context;
    v1::DeleteStoredModelRequest request;
    request.set_request_id("rm");
    request.set_run_id("run");
    request.set_version(version);
    v1::DeleteStoredModelResponse response;
    return stub_->DeleteStoredModel(&context, request, &response);
  }
  // What is on disk of a version of the run is this number.
  void ExpectOnDisk(uint64_t version, uint64_t number) {
    const auto kept = leader_->FindVersion("run", version);
    ASSERT_TRUE(kept.ok()) << kept.status();
    for (size_t i = 0; i < kept->blobs.size(); ++i) {
      const auto bytes = leader_->ReadBlob(kept->blobs[i], kept->manifest->tensors[i].num_bytes);
      ASSERT_TRUE(bytes.ok()) << bytes.status();
      EXPECT_EQ(testing::NumberIn(std::as_bytes(std::span(*bytes))), number);
    }
  }
  std::string index() const { return data_folder() + "/index"; }
  std::string blobs() const { return data_folder() + "/blobs"; }
  size_t NumFiles() const {
    size_t files = 0;
    for (const auto& file : std::filesystem::directory_iterator(blobs())) {
      files += file.is_regular_file();
    }
    return files;
  }
};

TEST_F(CheckpointsTest, NothingStaysOfARunThatEndsWhileOneIsSent) {
  const auto publisher = Register();
  ASSERT_TRUE(publisher.ok()) << publisher.status();
  ASSERT_TRUE(Put((*publisher)->epoch(), 0).ok());
  EXPECT_EQ(Versions(), std::vector<uint64_t>{0});
  // It has no version, which is said.
  EXPECT_EQ(NumNotKept(), 1);
  EXPECT_NE(store_.log().find("version_not_kept"), std::string::npos);
  const Status refused = Put((*publisher)->epoch(), 2, [this](int part) {
    if (part == 1) EndRun();
  });
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition) << refused;
  EXPECT_NE(MessageOf(refused).find("run run has ended"), std::string::npos) << refused;
  EXPECT_TRUE(Versions().empty());
  EXPECT_EQ(NumFiles(), 0u);
  EXPECT_EQ(Put((*publisher)->epoch(), 4).code(), StatusCode::kFailedPrecondition);
}

TEST_F(CheckpointsTest, ATrainerThatIsReplacedNeitherAddsNorReleases) {
  const auto publisher = Register();
  ASSERT_TRUE(publisher.ok()) << publisher.status();
  ASSERT_TRUE(Put((*publisher)->epoch(), 0).ok());
  ASSERT_TRUE(Put((*publisher)->epoch(), 2).ok());
  const auto replace = [this](int part) {
    if (part == 1) Replace();
  };
  const Status refused = Put((*publisher)->epoch(), 4, replace, /*needed=*/3);
  EXPECT_EQ(refused.code(), StatusCode::kAborted) << refused;
  EXPECT_EQ(Versions(), (std::vector<uint64_t>{0, 2}));
}

TEST_F(CheckpointsTest, AReplacedTrainerThatStandsStillHoldsNoSlot) {
  const auto publisher = Register();
  ASSERT_TRUE(publisher.ok()) << publisher.status();
  Publish(**publisher, 0);
  const auto num_holders = [this] { return testing::VersionsOf(*stub_, "run")[0].holders_size(); };
  const Status refused = Put((*publisher)->epoch(), 0, [&](int part) {
    if (part != 1) return;
    EXPECT_TRUE(titan::testing::Eventually([&] { return num_holders() == 1; }));
    Replace();
    // It sends nothing more until its slot is given back.
    EXPECT_TRUE(titan::testing::Eventually([&] { return num_holders() == 0; }));
  });
  EXPECT_EQ(refused.code(), StatusCode::kAborted) << refused;
  EXPECT_TRUE(Versions().empty());
  EXPECT_EQ(NumFiles(), 0u);
}

TEST_F(CheckpointsTest, AStoreThatIsKilledKeepsWhatWasDurableAndNothingElse) {
  const auto publisher = Register();
  ASSERT_TRUE(publisher.ok()) << publisher.status();
  ASSERT_TRUE(Put((*publisher)->epoch(), 2).ok());
  const size_t files = NumFiles();
  const auto start = std::chrono::steady_clock::now();
  const Status broken = Put((*publisher)->epoch(), 4, [this](int part) {
    if (part == 1) End(SIGKILL);
  });
  EXPECT_EQ(broken.code(), StatusCode::kUnavailable) << broken;
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
  Start();
  EXPECT_EQ(Versions(), std::vector<uint64_t>{2});
  EXPECT_EQ(NumFiles(), files);
  const auto again = Register();
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(Put((*again)->epoch(), 4).ok());
  EXPECT_EQ(Versions(), (std::vector<uint64_t>{2, 4}));
}

TEST_F(CheckpointsTest, AStoreThatDiedWhileItEndedARunDropsTheRest) {
  const auto publisher = Register();
  ASSERT_TRUE(publisher.ok()) << publisher.status();
  EndRun();
  EXPECT_EQ(End(SIGKILL), -SIGKILL);
  {  // as it was between the record of the end and the one without checkpoints
    auto records = storage::OpenRocksDbStore(data_folder() + "/index");
    ASSERT_TRUE(records.ok()) << records.status();
    LibraryOptions options;
    options.folder = data_folder() + "/blobs";
    options.unix_ms = [] { return 1; };
    auto library = Library::Open(**records, std::move(options));
    ASSERT_TRUE(library.ok()) << library.status();
    std::vector<std::byte> slot(SmallManifest().slot_bytes);
    auto import = (*library)->BeginCheckpoint("run", 2, SmallManifest(), sizeof(kFacts) - 1,
                                              WeightsDigest(SmallManifest(), slot, 1));
    ASSERT_TRUE(import.ok()) << import.status();
    ASSERT_TRUE((*import)->Append(kFacts).ok());
    for (const TensorEntry& tensor : SmallManifest().tensors) {
      ASSERT_TRUE((*import)->Append(std::string(tensor.num_bytes, '\0')).ok());
    }
    bool existed = false;
    ASSERT_TRUE((*import)->Finish(&existed).ok());
  }
  EXPECT_GT(NumFiles(), 0u);
  Start();
  EXPECT_TRUE(Versions().empty());
  EXPECT_EQ(NumFiles(), 0u);
}

TEST_F(CheckpointsTest, AfterPowerLossTheNewestDurableVersionLoads) {
  auto publisher = Register();
  ASSERT_TRUE(publisher.ok()) << publisher.status();
  std::vector<Hash128> digests;
  for (uint64_t v = 0; v < 4; ++v) {
    digests.push_back(Publish(**publisher, v));
    if (v == 0) {
      ASSERT_TRUE(Put((*publisher)->epoch(), 0).ok());
    }
    if (v == 2) {
      ASSERT_TRUE(Put((*publisher)->epoch(), 2).ok());
    }
  }
  EXPECT_EQ(Kept(), (std::vector<uint64_t>{0, 2}));
  EXPECT_EQ(testing::VersionsOf(*stub_, "run")[2].state(), v1::VERSION_STATE_COMMITTED);
  EXPECT_EQ(NumFiles(), 5u);  // the facts, and two tensors of each, which both records name
  EXPECT_EQ(CollectGarbage(0).versions_size(), 0);
  EXPECT_EQ(Kept(), (std::vector<uint64_t>{0, 2}));

  EXPECT_EQ(End(SIGKILL), -SIGKILL);
  publisher->reset();
  Start();
  const Subscriber reader(*leader_, socket_path(), "generator-0");
  EXPECT_EQ(ReasonOf(reader.Acquire("run", 3, false).status()), kVersionLost);
  {
    auto slot = reader.Acquire("run", 2, true);
    ASSERT_TRUE(slot.ok()) << slot.status();
    EXPECT_EQ(slot->lease().digest, digests[2]);
    EXPECT_EQ(testing::NumberIn(slot->bytes()), 2u);
  }
  // A trainer goes on; what recovery does not need any more goes, with its version.
  publisher = Register();
  ASSERT_TRUE(publisher.ok()) << publisher.status();
  for (uint64_t v = 2; v < 7; ++v) {
    Publish(**publisher, v);
    if (v % 2 != 0) continue;
    ASSERT_TRUE(Put((*publisher)->epoch(), v, {}, /*needed=*/v - 1).ok());
  }
  EXPECT_EQ(Versions(), (std::vector<uint64_t>{4, 6}));
  EXPECT_EQ(Kept(), (std::vector<uint64_t>{4, 6}));
  // A run that ends without its trainer and its memory leaves the newest one.
  EXPECT_EQ(End(SIGKILL), -SIGKILL);
  publisher->reset();
  Start();
  EndRun();
  EXPECT_TRUE(Versions().empty());
  EXPECT_EQ(Kept(), (std::vector<uint64_t>{6}));
  EXPECT_EQ(CollectGarbage(0).versions_size(), 1);
  EXPECT_EQ(NumFiles(), 0u);
}

TEST_F(CheckpointsTest, AVersionThatDoesNotFitOnDiskIsSaidAndCommitsGoOn) {
  const uint64_t bytes = SmallManifest().slot_bytes;
  EXPECT_EQ(End(SIGTERM), 0);
  // For the last version, which is reserved, and for the checkpoint.
  store_.more_config = R"(, "disk_limit_bytes": )" + std::to_string(2 * bytes + 1000);
  Start();
  const auto publisher = Register();
  ASSERT_TRUE(publisher.ok()) << publisher.status();
  Publish(**publisher, 0);
  ASSERT_TRUE(Put((*publisher)->epoch(), 0, {}, 0, /*number=*/100).ok());
  EXPECT_EQ(Versions(), std::vector<uint64_t>{0});
  EXPECT_TRUE(Kept().empty());
  const std::string reason = testing::VersionsOf(*stub_, "run")[0].not_kept_reason();
  EXPECT_NE(reason.find("version 0 of run run needs"), std::string::npos) << reason;
  EXPECT_NE(reason.find("disk_limit_bytes is " + std::to_string(2 * bytes + 1000)),
            std::string::npos)
      << reason;
  EXPECT_NE(store_.log().find("version_not_kept"), std::string::npos);
  // Nor does the next checkpoint; versions are committed all the same, and the last one is kept.
  Publish(**publisher, 1);
  EXPECT_EQ(Put((*publisher)->epoch(), 1, {}, 0, 101).code(), StatusCode::kResourceExhausted);
  for (uint64_t v = 2; v < 9; ++v) Publish(**publisher, v);
  EndRun();
  EXPECT_EQ(Kept(), std::vector<uint64_t>{8});
  EXPECT_EQ(testing::VersionsOf(*stub_, "run")[0].not_kept_reason(), "");
}

TEST_F(CheckpointsTest, AVersionThatIsWrittenToDiskKeepsItsSlotAndTheRingMovesOn) {
  // Its calls are completed by another thread than that of the checkpoint.
  auto another = StandaloneLeader::Create(store_.address());
  ASSERT_TRUE(another.ok()) << another.status();
  const auto publisher = Publisher::Register((*another)->port(), {.socket_path = socket_path(),
                                                                  .run_id = "run",
                                                                  .request_id = "r",
                                                                  .manifest = SmallManifest(),
                                                                  .max_age = 1});
  ASSERT_TRUE(publisher.ok()) << publisher.status();
  Publish(**publisher, 0);
  uint64_t next = 1;
  // While the checkpoint is sent, more versions are made than the ring has slots.
  ASSERT_TRUE(Put((*publisher)->epoch(), 0, [&](int) {
                for (int i = 0; i < 5; ++i) Publish(**publisher, next++);
              }).ok());
  EXPECT_EQ(Kept(), std::vector<uint64_t>{0});
  EXPECT_EQ(testing::VersionsOf(*stub_, "run")[0].state(), v1::VERSION_STATE_FREE);
  // Once it is on disk, a checkpoint that comes again needs no slot.
  ASSERT_TRUE(Put((*publisher)->epoch(), 0).ok());
  EXPECT_EQ(NumNotKept(), 0);
  EXPECT_EQ(testing::VersionsOf(*stub_, "run")[0].not_kept_reason(), "");
}

TEST_F(CheckpointsTest, LongListsAreToldWholePageByPage) {
  constexpr uint64_t kVersions = 40'000, kRuns = 12'000;
  EXPECT_EQ(End(SIGTERM), 0);
  {
    auto records = storage::OpenRocksDbStore(data_folder() + "/index");
    ASSERT_TRUE(records.ok()) << records.status();
    RunRecord run;
    run.manifest = std::make_shared<const Manifest>(SmallManifest());
    ASSERT_TRUE(Index(**records).PutRun("run", run).ok());
    storage::WriteBatch batch;
    for (uint64_t v = 0; v < kVersions; ++v) {
      titan::storage::v1::VersionRecord record;
      record.set_version(v);
      record.set_weights_digest(ToHex(Hash128{v, 1}));
      record.set_plan_digest(std::string(32, 'p'));
      record.set_train_step(v);
      record.set_committed_unix_ms(1'700'000'000'000);
      batch.Put("version/run/" + storage::BigEndianKey(v), record.SerializeAsString());
    }
    for (uint64_t i = 0; i < kRuns; ++i) {
      StoredModel kept;
      kept.run_id = "ended-" + std::to_string(i);
      kept.version = i;
      kept.id = ToHex(Hash128{i, 3});
      kept.manifest = run.manifest;
      kept.blobs.resize(run.manifest->tensors.size());
      kept.stored_unix_ms = static_cast<int64_t>(i);
      batch.Put(StoredVersionKey(kept.run_id, i), EncodeStoredModel(kept));
    }
    ASSERT_TRUE((*records)->Write(batch, storage::Durability::kSynced).ok());
  }
  Start();
  const auto versions = testing::VersionsOf(*stub_, "run");
  ASSERT_EQ(versions.size(), kVersions);
  for (const auto& [number, info] : versions) {
    ASSERT_EQ(info.weights_digest(), ToHex(Hash128{number, 1}));
  }
  std::set<std::string> runs;
  v1::ListStoredModelsRequest request;
  int pages = 0;
  do {
    grpc::ClientContext context;
    v1::ListStoredModelsResponse page;
    const grpc::Status status = stub_->ListStoredModels(&context, request, &page);
    ASSERT_TRUE(status.ok()) << status.error_message();
    for (const auto& model : page.models()) EXPECT_TRUE(runs.insert(model.run_id()).second);
    request.set_page_token(page.next_page_token());
    ++pages;
  } while (!request.page_token().empty());
  EXPECT_EQ(runs.size(), kRuns);
  EXPECT_GT(pages, 1);
  for (const char* token : {"x", "0/0/0", "1/0/x/run", "99999999999999999999/0/0/run"}) {
    grpc::ClientContext context;
    v1::ListStoredModelsResponse page;
    request.set_page_token(token);
    EXPECT_EQ(stub_->ListStoredModels(&context, request, &page).error_code(),
              grpc::StatusCode::INVALID_ARGUMENT)
        << token;
  }
  const auto collected = CollectGarbage(1);
  EXPECT_GT(collected.versions_not_listed(), 0u);
  EXPECT_EQ(static_cast<uint64_t>(collected.versions_size()) + collected.versions_not_listed(),
            kRuns - 1);
  EXPECT_EQ(collected.versions_left(), 1u);
}

TEST_F(CheckpointsTest, ARefusedRegistrationLeavesTheRoomOfTheRunThatHasIt) {
  const auto publisher = Register();
  ASSERT_TRUE(publisher.ok()) << publisher.status();
  const uint64_t reserved = Stored().disk_reserved_bytes();
  EXPECT_GT(reserved, 0u);
  Manifest other = SmallManifest();
  other.contract_training = "another";
  EXPECT_EQ(Register(1, other).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Stored().disk_reserved_bytes(), reserved);
}

TEST_F(CheckpointsTest, TheVersionOfACheckpointIsNotDeletedWhileItsRunGoesOn) {
  const auto publisher = Register();
  ASSERT_TRUE(publisher.ok()) << publisher.status();
  Publish(**publisher, 0);
  ASSERT_TRUE(Put((*publisher)->epoch(), 0).ok());
  const grpc::Status refused = Delete(0);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_NE(refused.error_message().find("version 0 of run run stays while the run goes on"),
            std::string::npos)
      << refused.error_message();
  EXPECT_EQ(Delete(1).error_code(), grpc::StatusCode::NOT_FOUND);
  ExpectOnDisk(0, 0);
  EndRun();
  EXPECT_TRUE(Delete(0).ok());
  EXPECT_EQ(NumFiles(), 0u);
}

TEST_F(CheckpointsTest, AStoreThatIsEndedKeepsTheNewestVersionOfARunThatGoesOn) {
  const auto publisher = Register();
  ASSERT_TRUE(publisher.ok()) << publisher.status();
  for (uint64_t v = 0; v < 3; ++v) {
    Publish(**publisher, v);
    if (v == 1) {
      ASSERT_TRUE(Put((*publisher)->epoch(), v).ok());
    }
  }
  EXPECT_EQ(End(SIGTERM), 0);
  Start();
  EXPECT_EQ(Kept(), (std::vector<uint64_t>{1, 2}));
  EXPECT_EQ(Versions(), std::vector<uint64_t>{1});  // a trainer may go on
  ExpectOnDisk(2, 2);
  // A kill leaves what the disk has. Whoever ends the run then, its newest version stays.
  EXPECT_EQ(End(SIGKILL), -SIGKILL);
  Start();
  EndRun();
  EXPECT_EQ(Kept(), std::vector<uint64_t>{2});
  ExpectOnDisk(2, 2);
}

TEST_F(CheckpointsTest, AStoreWithoutItsIndexRefusesToStartAndDeletesNothing) {
  const auto publisher = Register();
  ASSERT_TRUE(publisher.ok()) << publisher.status();
  Publish(**publisher, 0);
  EndRun();
  EXPECT_EQ(End(SIGTERM), 0);
  const std::string aside = store_.folder() + "/aside";
  std::filesystem::rename(index(), aside);
  const auto expect_refused = [this] {
    const size_t before = store_.log().size();
    EXPECT_FALSE(store_.Start());
    EXPECT_EQ(store_.exit_code(), 1);
    const std::string said = store_.log().substr(before);
    const std::string files = "2 files with " + std::to_string(SmallManifest().slot_bytes);
    for (const std::string& text : {index(), blobs(), files}) {
      EXPECT_NE(said.find(text), std::string::npos) << said;
    }
    EXPECT_EQ(NumFiles(), 2u);
  };
  expect_refused();
  expect_refused();  // beside the index that the first one made
  std::filesystem::remove_all(index());
  std::filesystem::create_directory(index());
  expect_refused();
  // Either remedy that it names.
  std::filesystem::remove_all(index());
  std::filesystem::rename(aside, index());
  Start();
  ExpectOnDisk(0, 0);
  EXPECT_EQ(End(SIGTERM), 0);
  std::filesystem::remove_all(index());
  std::filesystem::rename(blobs(), aside);
  Start();
  EXPECT_TRUE(Stored().models().empty());
}

TEST_F(CheckpointsTest, WhatANewStoreHadHalfWrittenIsItsOwnToDelete) {
  ASSERT_TRUE(leader_->PutBundle("a bundle that no record names").ok());
  EXPECT_EQ(NumFiles(), 1u);
  EXPECT_EQ(End(SIGKILL), -SIGKILL);
  Start();
  EXPECT_EQ(NumFiles(), 0u);
}

}  // namespace
}  // namespace titan::weightstore
