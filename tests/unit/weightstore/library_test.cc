// SPDX-License-Identifier: Apache-2.0
//
// Goal: what the store keeps on disk is whole, kept once, found again by another process, refused
// when its bytes changed, and gone without a trace when an import breaks off or it is deleted.
// Method: a library over a folder and an index in memory; the fault is made in the files.
#include "weightstore/library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/storage/memory_store.h"
#include "tests/support/test_files.h"
#include "tests/support/weightstore.h"
#include "weightstore/client/weights_digest.h"

namespace titan::weightstore {
namespace {

namespace fs = std::filesystem;
using testing::Fill;
using ::testing::HasSubstr;
using testing::SmallManifest;

const char kBundle[] = "{\"format\":1}";

class LibraryTest : public ::testing::Test {
 protected:
  LibraryTest() { Open(); }

  void Open(std::optional<uint64_t> limit = std::nullopt, uint64_t keep_free = 0) {
    library_.reset();
    LibraryOptions options;
    options.folder = folder_.path("blobs");
    options.disk_limit_bytes = limit;
    options.keep_free_bytes = keep_free;
    options.unix_ms = [this] { return ++now_; };
    auto library = Library::Open(index_, std::move(options));
    ASSERT_TRUE(library.ok()) << library.status();
    library_ = *std::move(library);
  }

  // The slot of SmallManifest filled with a number.
  static std::vector<std::byte> Slot(uint64_t number) {
    std::vector<std::byte> slot(SmallManifest().slot_bytes);
    Fill(slot, number);
    return slot;
  }
  static Hash128 DigestOf(const std::vector<std::byte>& slot) {
    return WeightsDigest(SmallManifest(), slot, 1);
  }
  // The stream of an import: bundle and tensors.
  static std::string Stream(const std::vector<std::byte>& slot) {
    std::string bytes = kBundle;
    for (const TensorEntry& tensor : SmallManifest().tensors) {
      bytes.append(reinterpret_cast<const char*>(slot.data()) + tensor.offset, tensor.num_bytes);
    }
    return bytes;
  }
  StatusOr<StoredModel> Import(uint64_t number, const std::string& name = "", size_t part = 1000,
                               bool* existed = nullptr) {
    const auto slot = Slot(number);
    auto import = library_->BeginImport(name, SmallManifest(), sizeof(kBundle) - 1, DigestOf(slot));
    if (!import.ok()) return import.status();
    const std::string bytes = Stream(slot);
    for (size_t at = 0; at < bytes.size(); at += part) {
      TITAN_RETURN_IF_ERROR((*import)->Append(std::string_view(bytes).substr(at, part)));
    }
    bool ignored = false;
    return (*import)->Finish(existed == nullptr ? &ignored : existed);
  }
  StatusOr<StoredModel> Save(const std::string& run, uint64_t version, uint64_t number,
                             bool* existed = nullptr) {
    const auto slot = Slot(number);
    TITAN_ASSIGN_OR_RETURN(const auto import,
                           library_->BeginCheckpoint(run, version, SmallManifest(),
                                                     sizeof(kBundle) - 1, DigestOf(slot)));
    TITAN_RETURN_IF_ERROR(import->Append(Stream(slot)));
    bool ignored = false;
    return import->Finish(existed == nullptr ? &ignored : existed);
  }
  Status Keep(const std::string& run, uint64_t version, uint64_t number,
              bool in_reserved_room = true) {
    const auto slot = Slot(number);
    return library_->Keep(run, version, DigestOf(slot),
                          std::make_shared<const Manifest>(SmallManifest()), ViewOf(slot),
                          in_reserved_room);
  }
  static ViewPart ViewOf(std::span<const std::byte> slot) {
    return [slot](uint64_t offset, uint64_t num_bytes) -> StatusOr<SlotView> {
      return SlotView{slot.subspan(offset, num_bytes), nullptr};
    };
  }

  // What ModelPort::ReadBlob does.
  StatusOr<std::string> Read(const Hash128& digest, uint64_t num_bytes) const {
    TITAN_ASSIGN_OR_RETURN(std::string bytes, library_->ReadBlob(digest, 0, 1 << 20));
    TITAN_RETURN_IF_ERROR(CheckBlob(digest, num_bytes, bytes));
    return bytes;
  }
  size_t NumFiles() const {
    size_t files = 0;
    for (const auto& entry : fs::directory_iterator(folder_.path("blobs"))) {
      files += entry.is_regular_file();
    }
    return files;
  }
  std::string PathOf(const Hash128& blob) const { return folder_.path("blobs/" + ToHex(blob)); }

  TempFolder folder_;
  storage::MemoryStore index_;
  std::unique_ptr<Library> library_;
  int64_t now_ = 0;
};

TEST_F(LibraryTest, AModelIsFoundByIdAndNameAlsoByTheNextProcess) {
  const auto model = Import(1, "base");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->weights_digest, DigestOf(Slot(1)));
  EXPECT_EQ(model->id, StoredModelId(DigestOf(Slot(1)), model->bundle));
  // What a process that is killed now leaves: files and the synced index.
  auto power_loss = index_.AfterPowerLoss();
  for (int life = 0; life < 2; ++life) {
    for (const std::string& name : {model->id, std::string("base")}) {
      const auto found = library_->FindModel(name);
      ASSERT_TRUE(found.ok()) << found.status();
      EXPECT_EQ(found->id, model->id);
      EXPECT_EQ(found->names, std::vector<std::string>{"base"});
      EXPECT_EQ(*found->manifest, SmallManifest());
      EXPECT_EQ(found->num_bytes(), SmallManifest().slot_bytes + sizeof(kBundle) - 1);
      Hash128 bundle;
      ASSERT_TRUE(FromHex(found->bundle, &bundle));
      EXPECT_EQ(*Read(bundle, found->bundle_bytes), kBundle);
      std::string all = kBundle;
      for (size_t i = 0; i < found->blobs.size(); ++i) {
        const auto bytes = Read(found->blobs[i], found->manifest->tensors[i].num_bytes);
        ASSERT_TRUE(bytes.ok()) << bytes.status();
        all += *bytes;
      }
      EXPECT_EQ(all, Stream(Slot(1)));
    }
    LibraryOptions options;
    options.folder = folder_.path("blobs");
    options.unix_ms = [] { return int64_t{9}; };
    auto next = Library::Open(*power_loss, std::move(options));
    ASSERT_TRUE(next.ok()) << next.status();
    library_ = *std::move(next);
  }
  EXPECT_EQ(library_->FindModel("other").status().code(), StatusCode::kNotFound);
}

TEST_F(LibraryTest, EqualContentIsStoredOnceHoweverItIsCut) {
  bool existed = true;
  const auto first = Import(1, "", 1, &existed);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_FALSE(existed);
  const size_t files = NumFiles();
  EXPECT_EQ(files, 3u);
  const uint64_t used = library_->Disk()->used_bytes;
  const auto again = Import(1, "second", 1 << 20, &existed);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(existed);
  EXPECT_EQ(again->id, first->id);
  EXPECT_EQ(again->stored_unix_ms, first->stored_unix_ms);
  // A version of a run with the same weights and another one: only the latter takes room.
  ASSERT_TRUE(Keep("run", 0, 1).ok());
  EXPECT_EQ(NumFiles(), files);
  EXPECT_EQ(library_->Disk()->used_bytes, used);
  EXPECT_EQ(library_->List().size(), 2u);
  ASSERT_TRUE(Import(2).ok());
  EXPECT_EQ(NumFiles(), files + 2);  // the bundle is the same
  // A name is of one model.
  const Status taken = Import(2, "second").status();
  EXPECT_EQ(taken.code(), StatusCode::kAlreadyExists);
  EXPECT_THAT(MessageOf(taken), HasSubstr("'second' belongs to model " + first->id));
  EXPECT_EQ(NumFiles(), files + 2);
}

TEST_F(LibraryTest, WhatBreaksOffLeavesNothing) {
  const auto slot = Slot(3);
  const std::string bytes = Stream(slot);
  const auto begin = [&](const Hash128& digest) {
    auto import = library_->BeginImport("", SmallManifest(), sizeof(kBundle) - 1, digest);
    EXPECT_TRUE(import.ok()) << import.status();
    return *std::move(import);
  };
  bool existed = false;
  for (const size_t length :
       {size_t{0}, size_t{5}, sizeof(kBundle) - 1, size_t{4000}, bytes.size() - 1}) {
    SCOPED_TRACE(length);
    {
      const auto import = begin(DigestOf(slot));
      ASSERT_TRUE(import->Append(std::string_view(bytes).substr(0, length)).ok());
      EXPECT_GT(library_->Disk()->reserved_bytes, 0u);
    }  // the caller has gone
    EXPECT_EQ(NumFiles(), 0u);
    {
      const auto import = begin(DigestOf(slot));
      ASSERT_TRUE(import->Append(std::string_view(bytes).substr(0, length)).ok());
      const Status missing = import->Finish(&existed).status();
      EXPECT_EQ(missing.code(), StatusCode::kInvalidArgument) << missing;
      EXPECT_THAT(MessageOf(missing),
                  HasSubstr(length < sizeof(kBundle) - 1 ? "bundle" : "tensor"));
    }
  }
  {
    const auto import = begin(DigestOf(slot));
    EXPECT_EQ(import->Append(bytes + "x").code(), StatusCode::kInvalidArgument);
  }
  {
    const auto import = begin(DigestOf(Slot(4)));  // of other weights
    ASSERT_TRUE(import->Append(bytes).ok());
    EXPECT_EQ(import->Finish(&existed).status().code(), StatusCode::kDataLoss);
  }
  EXPECT_EQ(NumFiles(), 0u);
  {  // the index cannot be written
    index_.FailWritesWith(ResourceExhausted("disk full"));
    EXPECT_EQ(Import(3).status().code(), StatusCode::kResourceExhausted);
    EXPECT_EQ(Keep("run", 0, 3).code(), StatusCode::kResourceExhausted);
    index_.FailWritesWith(OkStatus());
  }
  // The next start may find a record of theirs: their files stay until then.
  EXPECT_EQ(NumFiles(), 3u);
  EXPECT_TRUE(library_->List().empty());
  EXPECT_EQ(library_->Disk()->reserved_bytes, 0u);
  // What a killed process leaves is removed at the next start.
  WriteBytes(folder_.path("blobs/7.partial"), "half");
  WriteBytes(PathOf({1, 2}), "whole, but no record names it");
  Open();
  EXPECT_EQ(NumFiles(), 0u);
}

TEST_F(LibraryTest, ADamagedBlobIsNamedAndRepairedByImportingAgain) {
  const auto model = Import(5, "base");
  ASSERT_TRUE(model.ok());
  const Hash128 blob = model->blobs[0];
  const uint64_t size = model->manifest->tensors[0].num_bytes;
  const std::string good = ReadBytes(PathOf(blob));
  std::string flipped = good;
  flipped[1234] = static_cast<char>(flipped[1234] ^ 1);
  for (const std::string& bad : {flipped, good.substr(1), good + "x", std::string()}) {
    WriteBytes(PathOf(blob), bad);
    const Status read = Read(blob, size).status();
    EXPECT_EQ(read.code(), StatusCode::kDataLoss);
    EXPECT_THAT(MessageOf(read), HasSubstr("blob " + ToHex(blob)));
    ASSERT_TRUE(Import(5).ok());
    EXPECT_EQ(*Read(blob, size), good);
  }
  fs::remove(PathOf(blob));
  EXPECT_EQ(Read(blob, size).status().code(), StatusCode::kNotFound);
}

TEST_F(LibraryTest, DeletingFreesWhatNothingElseNames) {
  ASSERT_TRUE(Import(1, "base").ok());
  ASSERT_TRUE(Keep("run", 7, 1).ok());
  const auto kept = library_->FindVersion("run", 7);
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_EQ(kept->weights_digest, DigestOf(Slot(1)));
  const auto freed = library_->RemoveModel("base");
  ASSERT_TRUE(freed.ok()) << freed.status();
  EXPECT_EQ(*freed, sizeof(kBundle) - 1);  // the kept version has no bundle, its tensors are shared
  EXPECT_EQ(library_->FindModel("base").status().code(), StatusCode::kNotFound);
  ASSERT_TRUE(Read(kept->blobs[0], kept->manifest->tensors[0].num_bytes).ok());
  EXPECT_EQ(library_->RemoveModel(kept->id).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(*library_->RemoveVersion("run", 7), SmallManifest().slot_bytes);
  EXPECT_EQ(library_->RemoveVersion("run", 7).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(NumFiles(), 0u);
  Open();
  EXPECT_TRUE(library_->List().empty());
}

TEST_F(LibraryTest, GarbageIsTheVersionsOfRunsButTheNewest) {
  ASSERT_TRUE(Keep("old", 3, 1).ok());
  ASSERT_TRUE(Keep("same", 4, 1).ok());  // the same weights, so the same blobs
  ASSERT_TRUE(Keep("middle", 5, 2).ok());
  ASSERT_TRUE(Keep("new", 6, 3).ok());
  const size_t files = NumFiles();
  const auto would = library_->CollectVersions(2, /*dry_run=*/true);
  ASSERT_TRUE(would.ok()) << would.status();
  EXPECT_EQ(would->versions.size(), 2u);
  EXPECT_EQ(would->versions_left, 2u);
  EXPECT_EQ(NumFiles(), files);
  EXPECT_EQ(library_->List().size(), 4u);
  // What another version still names is not counted as free.
  EXPECT_EQ(library_->CollectVersions(3, true)->freed_bytes, 0u);
  EXPECT_EQ(would->freed_bytes, SmallManifest().slot_bytes);

  const auto collected = library_->CollectVersions(2, false);
  ASSERT_TRUE(collected.ok()) << collected.status();
  EXPECT_EQ(collected->freed_bytes, would->freed_bytes);
  EXPECT_EQ(NumFiles(), files - SmallManifest().tensors.size());
  EXPECT_EQ(library_->FindVersion("old", 3).status().code(), StatusCode::kNotFound);
  EXPECT_TRUE(library_->FindVersion("middle", 5).ok());
  Open();  // the next process agrees
  EXPECT_EQ(library_->List().size(), 2u);
  EXPECT_EQ(library_->CollectVersions(9, false)->versions.size(), 0u);
  EXPECT_EQ(library_->CollectVersions(0, false)->versions.size(), 2u);
  EXPECT_EQ(NumFiles(), 0u);
}

TEST_F(LibraryTest, AKeptVersionNamesTheBundleOfItsRun) {
  const auto bundle = library_->PutBundle(kBundle);
  ASSERT_TRUE(bundle.ok());
  auto manifest = std::make_shared<Manifest>(SmallManifest());
  manifest->bundle = ToHex(*bundle);
  const auto slot = Slot(6);
  ASSERT_TRUE(library_->Keep("run", 3, DigestOf(slot), manifest, ViewOf(slot), true).ok());
  Open();  // a bundle that no record names would go now
  const auto kept = library_->FindVersion("run", 3);
  ASSERT_TRUE(kept.ok());
  EXPECT_EQ(*Read(*bundle, kept->bundle_bytes), kBundle);
  // It can be a job's model, by its id.
  EXPECT_EQ(library_->FindModel(kept->id)->run_id, "run");
  // Bytes that are not those of the record are not kept.
  const auto other = Slot(7);
  EXPECT_EQ(library_->Keep("run", 4, DigestOf(slot), manifest, ViewOf(other), true).code(),
            StatusCode::kAborted);
  EXPECT_EQ(NumFiles(), 3u);
}

TEST_F(LibraryTest, TooLittleDiskIsRefusedWithTheNumbers) {
  const uint64_t bytes = SmallManifest().slot_bytes;
  Open(/*limit=*/2 * bytes + 100);
  ASSERT_TRUE(Import(1).ok());
  ASSERT_TRUE(library_->Reserve("run", SmallManifest()).ok());
  ASSERT_TRUE(library_->Reserve("run", SmallManifest()).ok());  // again: once
  const Status refused = library_->Reserve("other", SmallManifest());
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(MessageOf(refused), HasSubstr("needs " + std::to_string(bytes) + " bytes"));
  EXPECT_THAT(MessageOf(refused),
              HasSubstr("disk_limit_bytes is " + std::to_string(2 * bytes + 100)));
  EXPECT_EQ(Import(2).status().code(), StatusCode::kResourceExhausted);
  library_->Unreserve("run");
  EXPECT_TRUE(Import(2).ok());
  Open(std::nullopt, /*keep_free=*/uint64_t{1} << 62);
  EXPECT_EQ(Import(3).status().code(), StatusCode::kResourceExhausted);
  // 0: nothing is kept, and nothing is refused for it.
  EXPECT_FALSE(library_->Disk()->keeps_nothing);
  Open(/*limit=*/0);
  EXPECT_TRUE(library_->Disk()->keeps_nothing);
  EXPECT_TRUE(library_->Reserve("run", SmallManifest()).ok());
  EXPECT_TRUE(Keep("run", 0, 8).ok());
  EXPECT_EQ(library_->FindVersion("run", 0).status().code(), StatusCode::kNotFound);
}

TEST_F(LibraryTest, NamesThatCouldBeMistakenAreRefused) {
  for (const char* name : {"job-1", "a b", "-x", ".x", "a/b", "0123456789abcdef0123456789abcdef"}) {
    EXPECT_EQ(Import(1, name).status().code(), StatusCode::kInvalidArgument) << name;
  }
  for (const char* name : {"smollm2-135m_Q4.1", "7", "jobs"}) {
    EXPECT_TRUE(CheckModelName(name).ok()) << name;
  }
}

// ------------------------------------------------------------------------------------ checkpoints

TEST_F(LibraryTest, CheckpointsAreFoundByRunAlsoByTheNextProcessAndReleasedInOrder) {
  for (const uint64_t version : {2, 4, 6}) ASSERT_TRUE(Save("run", version, version).ok());
  ASSERT_TRUE(Save("run-2", 3, 9).ok());
  for (int life = 0; life < 2; ++life) {
    EXPECT_EQ(library_->FindCheckpoint("run")->version, 6u);
    EXPECT_EQ(library_->FindCheckpoint("run", 5)->version, 4u);
    EXPECT_EQ(library_->FindCheckpoint("run", 1).status().code(), StatusCode::kNotFound);
    EXPECT_EQ(library_->FindCheckpoint("run-2")->version, 3u);
    EXPECT_EQ(library_->FindCheckpoint("ru").status().code(), StatusCode::kNotFound);
    EXPECT_EQ(library_->ListCheckpoints().size(), 4u);
    Open();
  }
  const auto found = library_->FindCheckpoint("run");
  std::string all = kBundle;
  for (size_t i = 0; i < found->blobs.size(); ++i) {
    all += *Read(found->blobs[i], found->manifest->tensors[i].num_bytes);
  }
  EXPECT_EQ(all, Stream(Slot(6)));
  EXPECT_TRUE(library_->List().empty()) << "a checkpoint is no model";
  EXPECT_EQ(library_->FindModel(found->id).status().code(), StatusCode::kNotFound);

  const size_t before = NumFiles();
  EXPECT_EQ(*library_->ReleaseCheckpoints("run", 1), 0u) << "all are newer";
  EXPECT_EQ(*library_->ReleaseCheckpoints("run", 5), SmallManifest().slot_bytes);  // version 2
  EXPECT_EQ(NumFiles(), before - SmallManifest().tensors.size());
  EXPECT_EQ(library_->FindCheckpoint("run", 3).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(library_->FindCheckpoint("run", 4)->version, 4u);
  EXPECT_TRUE(library_->DropCheckpoints("run").ok());
  Open();
  EXPECT_EQ(library_->ListCheckpoints().size(), 1u);
  EXPECT_TRUE(library_->DropCheckpoints("run-2").ok());
  EXPECT_EQ(NumFiles(), 0u);
}

TEST_F(LibraryTest, ACheckpointSharesItsBlobsWithAKeptVersion) {
  ASSERT_TRUE(Keep("run", 4, 7).ok());
  const size_t files = NumFiles();
  ASSERT_TRUE(Save("run", 4, 7).ok());
  EXPECT_EQ(NumFiles(), files + 1) << "the facts alone are new";
  EXPECT_TRUE(library_->DropCheckpoints("run").ok());
  EXPECT_EQ(NumFiles(), files);
  const auto kept = library_->FindVersion("run", 4);
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_TRUE(Read(kept->blobs[0], kept->manifest->tensors[0].num_bytes).ok());
}

TEST_F(LibraryTest, ARepeatedCheckpointIsTheSameOrRefused) {
  ASSERT_TRUE(Save("run", 4, 7).ok());
  bool existed = false;
  ASSERT_TRUE(Save("run", 4, 7, &existed).ok());
  EXPECT_TRUE(existed);
  const Status other = Save("run", 4, 8).status();
  EXPECT_EQ(other.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(MessageOf(other), HasSubstr(ToHex(DigestOf(Slot(7)))));
  EXPECT_EQ(library_->FindCheckpoint("run")->weights_digest, DigestOf(Slot(7)));
  EXPECT_EQ(Save("no/run", 1, 1).status().code(), StatusCode::kInvalidArgument);
  Open(0);
  EXPECT_EQ(Save("run", 5, 8).status().code(), StatusCode::kFailedPrecondition);
  Open(SmallManifest().slot_bytes);
  const Status full = Save("run", 5, 8).status();
  EXPECT_EQ(full.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(MessageOf(full), HasSubstr("the checkpoint of run run at version 5 needs "));
  EXPECT_EQ(library_->FindCheckpoint("run")->version, 4u) << "the one before stays";
}

TEST_F(LibraryTest, WhatHasArrivedOfACheckpointIsNotCountedTwice) {
  const uint64_t bytes = SmallManifest().slot_bytes, facts = sizeof(kBundle) - 1;
  Open(2 * bytes + facts);
  ASSERT_TRUE(library_->Reserve("run", SmallManifest()).ok());
  const auto slot = Slot(1);
  const std::string stream = Stream(slot);
  auto import = library_->BeginCheckpoint("run", 1, SmallManifest(), facts, DigestOf(slot));
  ASSERT_TRUE(import.ok()) << import.status();
  uint64_t at = 0;
  for (const uint64_t part : {facts, SmallManifest().tensors[0].num_bytes}) {
    ASSERT_TRUE((*import)->Append(std::string_view(stream).substr(at, part)).ok());
    at += part;
    const auto disk = library_->Disk();
    ASSERT_TRUE(disk.ok()) << disk.status();
    EXPECT_EQ(disk->used_bytes, at);
    EXPECT_EQ(disk->reserved_bytes, 2 * bytes + facts - at);
  }
  // The room of a run that has it is not asked for again, whatever is on its way.
  EXPECT_TRUE(library_->Reserve("run", SmallManifest()).ok());
  EXPECT_EQ(library_->Reserve("other", SmallManifest()).code(), StatusCode::kResourceExhausted);
}

TEST_F(LibraryTest, GarbageCollectionLeavesCheckpointsAlone) {
  ASSERT_TRUE(Save("run", 4, 7).ok());
  ASSERT_TRUE(Keep("old", 1, 7).ok());
  EXPECT_EQ(library_->CollectVersions(0, /*dry_run=*/true)->freed_bytes, 0u) << "they share blobs";
  EXPECT_EQ(library_->CollectVersions(0, /*dry_run=*/false)->freed_bytes, 0u);
  const auto found = library_->FindCheckpoint("run");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_TRUE(Read(found->blobs[0], found->manifest->tensors[0].num_bytes).ok());
}

TEST_F(LibraryTest, AnUnfinishedCheckpointLeavesNothing) {
  const auto slot = Slot(1);
  const std::string bytes = Stream(slot);
  {
    auto import =
        library_->BeginCheckpoint("run", 1, SmallManifest(), sizeof(kBundle) - 1, DigestOf(slot));
    ASSERT_TRUE(import.ok()) << import.status();
    ASSERT_TRUE((*import)->Append(std::string_view(bytes).substr(0, bytes.size() - 1)).ok());
    bool existed = false;
    EXPECT_EQ((*import)->Finish(&existed).status().code(), StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(NumFiles(), 0u);
  EXPECT_EQ(library_->FindCheckpoint("run").status().code(), StatusCode::kNotFound);
}

TEST_F(LibraryTest, VersionsOfARunThatGoesOnFollowItsCheckpoints) {
  const auto kept = [this] {
    std::string list;
    for (const StoredModel& model : library_->List()) list += std::to_string(model.version) + " ";
    return list;
  };
  ASSERT_TRUE(Save("run", 2, 2).ok());
  ASSERT_TRUE(Keep("run", 2, 2).ok());
  ASSERT_TRUE(Save("run", 4, 4).ok());
  ASSERT_TRUE(library_->ReleaseCheckpoints("run", 4).ok());
  EXPECT_EQ(kept(), "2 ");  // that of 4 is not on disk, and one stays
  ASSERT_TRUE(Keep("run", 4, 4).ok());
  ASSERT_TRUE(Save("run", 6, 6).ok());
  ASSERT_TRUE(Keep("run", 6, 6).ok());
  ASSERT_TRUE(library_->ReleaseCheckpoints("run", 5).ok());
  EXPECT_EQ(kept(), "4 6 ");
  EXPECT_TRUE(library_->CollectVersions(0, /*dry_run=*/false)->versions.empty());
  Open();
  EXPECT_EQ(kept(), "4 6 ");
  ASSERT_TRUE(library_->DropCheckpoints("run").ok());
  EXPECT_EQ(kept(), "6 ");
  EXPECT_EQ(library_->CollectVersions(0, /*dry_run=*/false)->versions.size(), 1u);
  EXPECT_EQ(NumFiles(), 0u);
}

TEST_F(LibraryTest, AVersionThatIsReadStaysUntilItsReaderIsDone) {
  ASSERT_TRUE(Save("run", 2, 2).ok());
  ASSERT_TRUE(Keep("run", 2, 2).ok());
  ASSERT_TRUE(Save("run", 4, 4).ok());
  ASSERT_TRUE(Keep("run", 4, 4).ok());
  const size_t files = NumFiles();
  const auto version = library_->FindVersion("run", 2);
  auto held = library_->HoldVersion("run", 2);
  ASSERT_TRUE(held.ok()) << held.status();
  ASSERT_TRUE(library_->ReleaseCheckpoints("run", 4).ok());
  EXPECT_EQ(library_->HoldVersion("run", 2).status().code(), StatusCode::kNotFound);
  std::vector<std::byte> tensor(SmallManifest().tensors[0].num_bytes);
  EXPECT_TRUE(library_->ReadTensor(*version, 0, tensor).ok());
  EXPECT_EQ(NumFiles(), files);
  held->reset();
  EXPECT_EQ(NumFiles(), files - SmallManifest().tensors.size());
  EXPECT_EQ(library_->ReadTensor(*version, 0, tensor).code(), StatusCode::kNotFound);
}

TEST_F(LibraryTest, WhatIsOnDiskIsNotWrittenAgainUnlessItIsDamaged) {
  const auto model = Import(6);
  ASSERT_TRUE(model.ok()) << model.status();
  const std::string path = PathOf(model->blobs[0]);
  const auto file = [&] {
    struct stat status = {};
    EXPECT_EQ(stat(path.c_str(), &status), 0);
    return status.st_ino;
  };
  const auto first = file();
  ASSERT_TRUE(Keep("run", 0, 6).ok());
  EXPECT_EQ(file(), first);
  std::fstream(path, std::ios::in | std::ios::out | std::ios::binary).put('\x5a');
  ASSERT_TRUE(Keep("run", 1, 6).ok());
  EXPECT_NE(file(), first);
  for (size_t i = 0; i < model->blobs.size(); ++i) {
    EXPECT_TRUE(Read(model->blobs[i], model->manifest->tensors[i].num_bytes).ok());
  }
}

TEST_F(LibraryTest, AVersionOfARunThatGoesOnTakesNoRoomThatIsReserved) {
  const uint64_t bytes = SmallManifest().slot_bytes;
  Open(/*limit=*/2 * bytes - 1);
  ASSERT_TRUE(library_->Reserve("run", SmallManifest()).ok());
  const Status refused = Keep("run", 2, 2, /*in_reserved_room=*/false);
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted) << refused;
  EXPECT_THAT(MessageOf(refused), HasSubstr("version 2 of run run needs"));
  EXPECT_EQ(library_->NotKeptReason("run", 2), MessageOf(refused));
  EXPECT_EQ(library_->NotKeptReason("run", 1), "");
  EXPECT_EQ(NumFiles(), 0u);
  ASSERT_TRUE(Keep("run", 3, 3).ok());
  EXPECT_EQ(library_->NotKeptReason("run", 2), "");
}

// Bytes that this thread has read from files.
uint64_t BytesRead() {
  const std::string counts = ReadBytes("/proc/thread-self/io");
  return std::stoull(counts.substr(counts.find("rchar:") + 6));
}

// A call has a deadline, and a blob any size.
TEST(BlobFilesTest, AReadTakesWhatItAnswersAndTheLastOneKnowsWhetherAllWasWhole) {
  constexpr size_t kPiece = 1 << 20, kPieces = 40;
  TempFolder folder;
  std::vector<std::string> told;
  const auto files = BlobFiles::Open(
      folder.path("blobs"), [&](const Status& damage) { told.push_back(MessageOf(damage)); });
  ASSERT_TRUE(files.ok()) << files.status();
  std::string content(kPieces * kPiece, '\0');
  for (size_t i = 0; i < content.size(); i += 8) std::memcpy(&content[i], &i, 8);
  auto writer = (*files)->Create();
  ASSERT_TRUE(writer->Append(std::as_bytes(std::span(content))).ok());
  const auto digest = writer->Seal();
  ASSERT_TRUE(digest.ok() && writer->Publish().ok());
  const std::string path = folder.path("blobs/" + ToHex(*digest));

  // The answers to two readers, one some pieces behind the other, until one is an error.
  const auto read = [&](size_t behind) {
    Status ends[2];
    std::string got[2];
    for (size_t i = 0; i < kPieces + behind; ++i) {
      for (const size_t reader : {0, 1}) {
        const size_t piece = i - reader * behind;
        if (piece >= kPieces) continue;  // not yet, or no more
        const uint64_t before = BytesRead();
        const auto bytes = (*files)->Read(*digest, piece * kPiece, kPiece);
        EXPECT_LT(BytesRead() - before, kPiece * 3 / 2);
        EXPECT_TRUE(ends[reader].ok()) << "read on after an error";
        ends[reader] = bytes.status();
        EXPECT_TRUE(bytes.ok() || piece + 1 == kPieces) << bytes.status();
        if (bytes.ok()) got[reader] += *bytes;
      }
    }
    EXPECT_EQ(ends[0].ok() && ends[1].ok(), got[0] == content && got[1] == content);
    return std::pair(ends[0], ends[1]);
  };
  for (const size_t behind : {0, 1, 7}) {
    const auto [first, second] = read(behind);
    EXPECT_TRUE(first.ok() && second.ok()) << first << second;
  }
  EXPECT_TRUE(told.empty());
  EXPECT_EQ(*(*files)->Read(*digest, kPieces * kPiece, kPiece), "");

  std::string damaged = content;
  damaged[kPieces * kPiece / 3] ^= 4;
  WriteBytes(path, damaged);
  for (const size_t behind : {0, 1, 7}) {
    told.clear();
    const auto [first, second] = read(behind);
    EXPECT_EQ(first.code(), StatusCode::kDataLoss) << first;
    EXPECT_EQ(second.code(), StatusCode::kDataLoss) << second;
    EXPECT_THAT(MessageOf(first), HasSubstr(path));
    EXPECT_EQ(told.size(), 2u);
  }
  // One that ends early, also at the end of a piece.
  for (const size_t size : {size_t{0}, kPiece, kPiece + 1}) {
    fs::resize_file(path, size);
    Status end;
    for (size_t at = 0; end.ok() && at <= size; at += kPiece) {
      end = (*files)->Read(*digest, at, kPiece).status();
    }
    EXPECT_EQ(end.code(), StatusCode::kDataLoss) << size << ": " << end;
  }
}

}  // namespace
}  // namespace titan::weightstore
