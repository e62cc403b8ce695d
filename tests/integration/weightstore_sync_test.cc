// SPDX-License-Identifier: Apache-2.0
//
// Goal: when the disk under titan-weightstore fails a sync, at whatever file or folder, what was to
// become durable is refused with the file's name and the system's reason; versions are served on; a
// caller that tries again is not told yes for bytes that are lost; and after power loss what was
// acknowledged is there, whole, and nothing else is claimed. Method: the real program, whose syncs
// fail one after the other (tests/support/sync_faults.h), with EIO and with ENOSPC.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/stored_models.h"
#include "tests/support/sync_faults.h"
#include "tests/support/weightstore_daemon.h"
#include "weightstore/client/subscriber.h"

namespace titan::weightstore {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using testing::Fill;
using testing::SmallImport;
using testing::SmallManifest;
using titan::testing::SyncFaults;

class SyncTest : public testing::WeightStoreDaemonTest {
 protected:
  enum class Loss { kOfPower, kOfTheProcess };
  // What a client was told.
  struct Told {
    std::map<std::string, bool> done;                              // by what was asked for
    std::map<std::pair<std::string, uint64_t>, Hash128> recorded;  // commits that were acknowledged
    std::string refusals;
  };

  // An empty folder, without a daemon.
  void Clear() {
    End(SIGKILL);
    faults_.reset();
    fs::remove_all(data_folder());
    fs::create_directory(data_folder());
    faults_.emplace(data_folder());
    store_.before_exec = faults_->before_exec();
  }

  // Asks twice where the first answer is no.
  bool Ask(const std::string& what, Told* told, const std::function<Status()>& ask) {
    for (int i = 0; i < 2 && !told->done[what]; ++i) {
      const Status answer = ask();
      told->done[what] = answer.ok();
      if (!answer.ok()) told->refusals += what + ": " + answer.ToString() + "\n";
    }
    return told->done[what];
  }
  std::unique_ptr<Publisher> RegisterRun(const std::string& run, Told* told) {
    std::unique_ptr<Publisher> publisher;
    Ask("register " + run, told, [&]() -> Status {
      TITAN_ASSIGN_OR_RETURN(
          publisher, Publisher::Register(*leader_, {.socket_path = socket_path(),
                                                    .run_id = run,
                                                    .request_id = run + std::to_string(++requests_),
                                                    .manifest = SmallManifest(),
                                                    .max_age = 1}));
      return OkStatus();
    });
    return publisher;
  }
  bool PublishTo(Publisher* publisher, const std::string& run, uint64_t version, Told* told) {
    if (publisher == nullptr) return false;
    Hash128 digest;
    bool written = false;
    const bool committed =
        Ask("commit " + run + " " + std::to_string(version), told, [&]() -> Status {
          if (!written) {
            TITAN_ASSIGN_OR_RETURN(const auto begun, publisher->Begin(version, milliseconds(2000)));
            Fill(begun.bytes, version);
            TITAN_ASSIGN_OR_RETURN(digest, publisher->Finish());
            written = true;
          }
          return publisher->Commit("plan", version).status();
        });
    if (committed) told->recorded[{run, version}] = digest;
    return committed;
  }
  Status EndRun(const std::string& run) {
    grpc::ClientContext context;
    v1::EndRunRequest request;
    request.set_request_id("end");
    request.set_run_id(run);
    v1::EndRunResponse response;
    return rpc::FromGrpc(stub_->EndRun(&context, request, &response));
  }
  Status Import(uint64_t number) {
    SmallImport model(number);
    model.header.set_name("model-" + std::to_string(number));
    return leader_->Import(model.header, [&] { return model.Next(); }).status();
  }
  void ExpectServed(uint64_t version) {
    const Subscriber subscriber(*leader_, socket_path(), "generator-0");
    auto slot = subscriber.Acquire("run", version, false);
    ASSERT_TRUE(slot.ok()) << slot.status();
    EXPECT_EQ(testing::NumberIn(slot->bytes()), version);
    EXPECT_TRUE(slot->HeaderUnchanged());
  }

  // All that is kept on disk: versions, a checkpoint with its version, a model, the last version of
  // a run that ends.
  void UseStore(Told* told) {
    const auto publisher = RegisterRun("run", told);
    const bool served = PublishTo(publisher.get(), "run", 0, told);
    if (publisher != nullptr) {
      Ask("checkpoint", told,
          [&] { return testing::PutSmallCheckpoint(*leader_, publisher->epoch(), 0); });
      for (const auto& [number, info] : testing::VersionsOf(*stub_, "run")) {
        if (number == 0) told->done["keep run 0"] = info.kept_bytes() > 0;
        told->refusals += info.not_kept_reason() + "\n";
      }
    }
    Ask("model", told, [&] { return Import(7); });
    PublishTo(publisher.get(), "run", 1, told);
    const auto short_run = RegisterRun("short", told);
    if (PublishTo(short_run.get(), "short", 0, told)) {
      Ask("end short", told, [&] { return EndRun("short"); });
      const v1::VersionInfo kept = testing::VersionsOf(*stub_, "short")[0];
      told->done["keep short 0"] = kept.kept_bytes() > 0;
      told->refusals += kept.not_kept_reason() + "\n";
    }
    if (served) ExpectServed(0);
  }

  // After the start that follows. What was not acknowledged can be there when only the process has
  // died, as the disk's cache has it: then it is whole, and durable from the start on.
  void ExpectWhatWasTold(const Told& told, Loss loss) {
    const auto done = [&](const std::string& what) {
      const auto found = told.done.find(what);
      return found != told.done.end() && found->second;
    };
    for (const std::string run : {"run", "short"}) {
      if (!done("register " + run)) continue;
      std::map<std::pair<std::string, uint64_t>, Hash128> recorded;
      for (const auto& [number, info] : testing::VersionsOf(*stub_, run)) {
        Hash128& digest = recorded[{run, number}];
        EXPECT_TRUE(FromHex(info.weights_digest(), &digest)) << run << " " << number;
      }
      for (const auto& [version, digest] : told.recorded) {
        if (version.first == run) {
          EXPECT_EQ(recorded[version], digest) << version.second;
        }
      }
      for (const auto& [version, digest] : recorded) {
        EXPECT_TRUE(loss == Loss::kOfTheProcess || told.recorded.contains(version))
            << run << " " << version.second;
        std::vector<std::byte> slot(SmallManifest().slot_bytes);
        Fill(slot, version.second);
        EXPECT_EQ(digest, WeightsDigest(SmallManifest(), slot, 1)) << run << " " << version.second;
      }
    }
    grpc::ClientContext context;
    v1::ListStoredModelsResponse stored;
    ASSERT_TRUE(stub_->ListStoredModels(&context, {}, &stored).ok());
    const bool whole_alone = loss == Loss::kOfTheProcess;
    if (done("checkpoint") || !whole_alone) {
      EXPECT_EQ(stored.checkpoints_size(), done("checkpoint") ? 1 : 0);
    }
    std::map<std::string, StoredModel> found;
    if (const auto checkpoint = leader_->FindCheckpoint("run"); checkpoint.ok()) {
      found["checkpoint"] = *checkpoint;
    }
    for (const v1::StoredModel& model : stored.models()) {
      const bool imported = model.run_id().empty();
      const auto whole = imported ? leader_->FindModel(model.id())
                                  : leader_->FindVersion(model.run_id(), model.version());
      ASSERT_TRUE(whole.ok()) << whole.status();
      found[imported ? "model" : "keep " + model.run_id() + " " + std::to_string(model.version())] =
          *whole;
    }
    if (done("model") || !whole_alone) {
      EXPECT_EQ(found.contains("model"), done("model"));
    }
    for (const auto& [what, was_done] : told.done) {
      if (what.starts_with("keep") && was_done) {
        EXPECT_TRUE(found.contains(what)) << what;
      }
    }
    for (const auto& [what, model] : found) {
      for (size_t i = 0; i < model.blobs.size(); ++i) {
        const Status read =
            leader_->ReadBlob(model.blobs[i], model.manifest->tensors[i].num_bytes).status();
        EXPECT_TRUE(read.ok()) << what << ": " << read;
      }
    }
  }

  // The store is used, killed and started again, with one sync that fails on the way; then the
  // power goes, or only the process. False: there were not so many syncs.
  bool FailOne(int number, int error, Loss loss) {
    SCOPED_TRACE("sync " + std::to_string(number) + ": " + std::strerror(error));
    Clear();
    const size_t log_begin = store_.log().size();
    faults_->Fail(number, error);
    Told told;
    bool starts = store_.Start();
    if (starts) {
      Connect();
      UseStore(&told);
      End(SIGKILL);
      if (loss == Loss::kOfPower) faults_->LosePower();
      // Its endpoint's file is there before that is synced.
      starts = store_.Start() && store_.GetsReady();
      if (starts) End(SIGKILL);
    }
    if (!starts) {
      EXPECT_EQ(store_.exit_code(), 1);
    }
    const std::optional<std::string> failed = faults_->failed();
    if (failed.has_value()) {
      SCOPED_TRACE(*failed);
      const std::string said = told.refusals + store_.log().substr(log_begin);
      EXPECT_NE(said.find(*failed), std::string::npos) << said;
      EXPECT_NE(said.find(std::strerror(error)), std::string::npos) << said;
    } else {
      EXPECT_TRUE(starts);
      for (const auto& [what, done] : told.done) EXPECT_TRUE(done) << what << told.refusals;
    }
    if (loss == Loss::kOfPower) faults_->LosePower();
    faults_->Fail(-1, 0);
    Start();
    if (HasFatalFailure()) return false;
    SCOPED_TRACE(failed.value_or("nothing failed"));
    ExpectWhatWasTold(told, loss);
    Told next;
    const auto publisher = RegisterRun("run", &next);
    for (uint64_t version = 0; version < 2; ++version) {
      EXPECT_TRUE(PublishTo(publisher.get(), "run", version, &next)) << next.refusals;
    }
    ExpectServed(1);
    return failed.has_value() && !HasFatalFailure();
  }
  void FailEach(int error, Loss loss) {
    int number = 0;
    while (FailOne(number, error, loss)) ++number;
    std::printf("%d syncs of", number);
    for (const std::string& name : faults_->seen()) std::printf(" data%s", name.c_str());
    std::printf("\n");
    EXPECT_GT(number, 20);
    for (const char* name : {"/index/.log", "/index/MANIFEST-", "/index", "/blobs/.partial",
                             "/blobs", "/index/.sst", ""}) {
      EXPECT_TRUE(faults_->seen().contains(name)) << name;
    }
  }

  std::optional<SyncFaults> faults_;
};

TEST_F(SyncTest, AfterAnInputOutputErrorAnywherePowerLossTakesNothingThatWasAcknowledged) {
  FailEach(EIO, Loss::kOfPower);
}

TEST_F(SyncTest, AfterNoSpaceAnywherePowerLossTakesNothingThatWasAcknowledged) {
  FailEach(ENOSPC, Loss::kOfPower);
}

TEST_F(SyncTest, AfterNoSpaceAnywhereSigkillTakesNothingThatWasAcknowledged) {
  FailEach(ENOSPC, Loss::kOfTheProcess);
}

// Two imports of equal content: the second one's folder cannot be synced, which takes the names of
// the first one's files along. Nobody is told yes after that.
TEST_F(SyncTest, NamesThatAFailedSyncTookAlongAreNotBelieved) {
  Clear();
  Start();
  auto another = StandaloneLeader::Create(store_.address());
  ASSERT_TRUE(another.ok()) << another.status();
  SmallImport first(7), second(7);
  Status refused;
  const Status first_answer =
      leader_
          ->Import(first.header,
                   [&] {
                     auto part = first.Next();
                     if (part->empty()) {
                       faults_->Fail(0, EIO, "/blobs");
                       refused = (*another)
                                     ->port()
                                     .Import(second.header, [&] { return second.Next(); })
                                     .status();
                     }
                     return part;
                   })
          .status();
  const std::string folder = fs::canonical(data_folder()).string() + "/blobs";
  for (const Status& answer : {refused, first_answer, Import(9)}) {
    EXPECT_EQ(answer.code(), StatusCode::kUnavailable) << answer;
    EXPECT_NE(MessageOf(answer).find("'" + folder + "': Input/output error"), std::string::npos)
        << answer;
  }
  End(SIGKILL);
  faults_->LosePower();
  Start();
  ExpectWhatWasTold({}, Loss::kOfPower);
  EXPECT_TRUE(Import(7).ok());
}

}  // namespace
}  // namespace titan::weightstore
