// SPDX-License-Identifier: Apache-2.0
//
// Goal: checkpoints as titan-weightstore keeps them are those of a run that goes on, by its
// trainer: none stays of a run that ended or of a trainer that was replaced while one was sent, nor
// of a store that is killed meanwhile; what was durable stays. Method: the real program; what
// happens meanwhile happens when the store asks for the next part.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <functional>

#include "core/storage/rocksdb_store.h"
#include "services/weightstore_client/convert.h"
#include "tests/support/weightstore_daemon.h"
#include "weightstore/client/reason.h"
#include "weightstore/client/weights_digest.h"
#include "weightstore/library.h"

namespace titan::weightstore {
namespace {

using testing::Fill;
using testing::SmallManifest;

constexpr char kFacts[] = "the facts";

class CheckpointsTest : public testing::WeightStoreDaemonTest {
 protected:
  // A checkpoint of the run at a version; `meanwhile` runs before each part is given.
  Status Put(uint64_t epoch, uint64_t version, const std::function<void(int part)>& meanwhile = {},
             uint64_t needed = 0) {
    Checkpoint checkpoint;
    checkpoint.request_id = "c";
    checkpoint.run_id = "run";
    checkpoint.epoch = epoch;
    checkpoint.version = version;
    checkpoint.manifest = SmallManifest();
    checkpoint.facts = kFacts;
    checkpoint.needed_version = needed;
    std::vector<std::byte> slot(checkpoint.manifest.slot_bytes);
    Fill(slot, version);
    checkpoint.digest = WeightsDigest(checkpoint.manifest, slot, 1);
    size_t next = 0;
    return leader_->PutCheckpoint(
        checkpoint,
        [&]() -> StatusOr<std::string> {
          if (meanwhile) meanwhile(static_cast<int>(next));
          if (next == checkpoint.manifest.tensors.size()) return std::string();
          const TensorEntry& tensor = checkpoint.manifest.tensors[next++];
          return std::string(reinterpret_cast<const char*>(slot.data()) + tensor.offset,
                             tensor.num_bytes);
        },
        [] { return false; });
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
  size_t NumFiles() const {
    size_t files = 0;
    for (const auto& file : std::filesystem::directory_iterator(data_folder() + "/blobs")) {
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
    if (part != 1) return;
    grpc::ClientContext context;
    v1::RegisterTrainerRequest request;
    request.set_request_id("another");
    request.set_run_id("run");
    request.set_max_age(1);
    request.set_evaluation_slots(1);
    *request.mutable_manifest() = ToProto(SmallManifest());
    v1::RegisterTrainerResponse response;
    EXPECT_TRUE(stub_->RegisterTrainer(&context, request, &response).ok());
  };
  const Status refused = Put((*publisher)->epoch(), 4, replace, /*needed=*/3);
  EXPECT_EQ(refused.code(), StatusCode::kAborted) << refused;
  EXPECT_EQ(Versions(), (std::vector<uint64_t>{0, 2}));
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

}  // namespace
}  // namespace titan::weightstore
