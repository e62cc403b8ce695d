// SPDX-License-Identifier: Apache-2.0
//
// Goal: what happens to the records of titan-weightstore is said clearly and takes no version from
// its readers: a full disk, one that refuses writes, a folder that cannot be written, damaged
// files, two daemons on one folder, clients of another protocol. A bit that turns in a slot, a blob
// or the index raises its alarm. Method: the real program; a
// small file system of its own, limits and privileges that its process begins with, and bits turned
// by hand.
#include <fcntl.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <string>
#include <vector>

#include "core/base/exit_codes.h"
#include "tests/support/metric.h"
#include "tests/support/stored_models.h"
#include "tests/support/test_files.h"
#include "tests/support/weightstore_daemon.h"
#include "weightstore/client/reason.h"
#include "weightstore/client/subscriber.h"
#include "weightstore/client/unix_socket.h"

namespace titan::weightstore {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using testing::Fill;
using testing::NumberIn;
using testing::SmallImport;
using titan::testing::ChildProcess;
using titan::testing::Eventually;

constexpr size_t kSlotsOfRun = 5;  // S + 3 with S = 1, and one for evaluation

class DamageTest : public testing::WeightStoreDaemonTest {
 protected:
  std::string index() const { return data_folder() + "/index"; }

  // Begins the daemon anew, in an empty folder, with this done first in its process.
  void StartAnew(std::function<void()> before_exec) {
    End(SIGKILL);
    fs::remove_all(data_folder());
    fs::create_directory(data_folder());
    store_.before_exec = std::move(before_exec);
    Start();
  }
  bool AllSlotsAreThere() {
    return Eventually(
        [&] { return testing::MemoryFiles(store_.process().pid()).size() == 2 * kSlotsOfRun; });
  }
  // Opens and finishes a version.
  void Finish(Publisher& publisher, uint64_t version) {
    const auto begun = publisher.Begin(version, milliseconds(2000));
    ASSERT_TRUE(begun.ok()) << begun.status();
    Fill(begun->bytes, version);
    const auto digest = publisher.Finish();
    ASSERT_TRUE(digest.ok()) << digest.status();
  }
  void ExpectServed(uint64_t version) {
    const Subscriber subscriber(*leader_, socket_path(), "generator-0");
    auto slot = subscriber.Acquire("run", version, false);
    ASSERT_TRUE(slot.ok()) << slot.status();
    EXPECT_EQ(NumberIn(slot->bytes()), version);
    EXPECT_TRUE(slot->HeaderUnchanged());
  }
  double Metric(const std::string& series) {
    return titan::testing::MetricOf(data_folder(), "weightstore", series);
  }
  grpc::Status Pin(uint64_t version) {
    grpc::ClientContext context;
    v1::PinForEvaluationRequest request;
    request.set_request_id("pin");
    request.set_run_id("run");
    request.set_version(version);
    v1::PinForEvaluationResponse response;
    return stub_->PinForEvaluation(&context, request, &response);
  }
  v1::ListVersionsResponse List() {
    grpc::ClientContext context;
    v1::ListVersionsRequest request;
    request.set_run_id("run");
    v1::ListVersionsResponse versions;
    EXPECT_TRUE(stub_->ListVersions(&context, request, &versions).ok());
    return versions;
  }
  // However often the records are read again.
  void ExpectToldOnce(const std::string& alarm) {
    const char rounds[] = "titan_weightstore_index_checks_total";
    const double now = Metric(rounds);
    EXPECT_TRUE(Eventually([&] { return Metric(rounds) >= now + 3; }));
    EXPECT_EQ(Metric(alarm), 1);
  }
  // The daemon does not start on this folder and says why.
  void ExpectRefused(const std::vector<std::string>& said, int exit_code = kExitFailed) {
    const size_t before = store_.log().size();
    EXPECT_FALSE(store_.Start());
    EXPECT_EQ(store_.exit_code(), exit_code);
    const std::string log = store_.log().substr(before);
    for (const std::string& text : said) EXPECT_NE(log.find(text), std::string::npos) << log;
  }
};

TEST_F(DamageTest, AFullDiskRefusesTheCommitAndServesOn) {
  // A file system of 20 MiB for the records, which its process alone sees; so full that the log
  // gets no room ahead of need.
  const auto small_disk = [folder = index()] {
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, "") != 0 ||
        mkdir(folder.c_str(), 0700) != 0 ||
        mount("small", folder.c_str(), "tmpfs", 0, "size=20m") != 0) {
      _exit(99);
    }
    const int file = open((folder + "/filler").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (posix_fallocate(file, 0, 14 << 20) != 0) _exit(99);
  };
  ChildProcess probe({"/bin/true"}, store_.log_path(), [&] {
    if (unshare(CLONE_NEWNS) != 0) _exit(99);
  });
  if (probe.Wait() != 0) GTEST_SKIP() << "a mount namespace needs a privilege that is not there";
  StartAnew(small_disk);
  const std::string disk = "/proc/" + std::to_string(store_.process().pid()) + "/root" + index();
  auto publisher = Register();
  ASSERT_TRUE(publisher.ok()) << publisher.status();
  Publish(**publisher, 0);
  {
    std::ofstream filler(disk + "/filler", std::ios::binary | std::ios::app);
    const std::string block(4096, 'x');
    while (filler.write(block.data(), 4096).flush()) {
    }
  }
  // What a page of the log still takes may pass.
  uint64_t version = 1;
  Status refused = OkStatus();
  for (; version < 400; ++version) {
    Finish(**publisher, version);
    refused = (*publisher)->Commit("plan", version).status();
    if (!refused.ok()) break;
  }
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted) << refused;
  EXPECT_NE(MessageOf(refused).find("No space left on device"), std::string::npos) << refused;
  EXPECT_NE(MessageOf(refused).find(index()), std::string::npos) << refused;
  ExpectServed(version - 1);
  EXPECT_EQ(List().versions(static_cast<int>(version)).state(), v1::VERSION_STATE_SEALED);

  // With room again the same commit is made.
  fs::remove(disk + "/filler");
  const Status committed = (*publisher)->Commit("plan", version).status();
  EXPECT_TRUE(committed.ok()) << committed;
  ExpectServed(version);
}

TEST_F(DamageTest, ADiskThatRefusesWritesLosesNothingThatWasAcknowledged) {
  StartAnew([] { signal(SIGXFSZ, SIG_IGN); });
  auto publisher = Register();
  ASSERT_TRUE(publisher.ok()) << publisher.status();
  const Hash128 digest = Publish(**publisher, 0);
  ASSERT_TRUE(AllSlotsAreThere());
  Finish(**publisher, 1);
  const rlimit none = {1, 1};  // no file may grow past its first byte
  ASSERT_EQ(prlimit(store_.process().pid(), RLIMIT_FSIZE, &none, nullptr), 0);
  const Status refused = (*publisher)->Commit("plan", 1).status();
  EXPECT_EQ(refused.code(), StatusCode::kUnavailable) << refused;
  EXPECT_NE(MessageOf(refused).find("File too large"), std::string::npos) << refused;
  EXPECT_NE(MessageOf(refused).find(index()), std::string::npos) << refused;
  ExpectServed(0);
  // A run that ends although its last version cannot be kept says so.
  grpc::ClientContext context;
  v1::EndRunRequest end;
  end.set_run_id("run");
  v1::EndRunResponse ended;
  EXPECT_FALSE(stub_->EndRun(&context, end, &ended).ok());
  EXPECT_NE(List().versions(0).not_kept_reason(), "");
  publisher->reset();
  EXPECT_EQ(End(SIGTERM), 0);

  store_.before_exec = nullptr;
  Start();
  ASSERT_EQ(List().versions_size(), 1);
  EXPECT_EQ(List().versions(0).weights_digest(), ToHex(digest));
  auto next = Register();
  ASSERT_TRUE(next.ok()) << next.status();
  Publish(**next, 0);
  Publish(**next, 1);
  ExpectServed(1);
}

TEST_F(DamageTest, AFolderThatCannotBeWrittenIsRefusedAndKeepsItsRecords) {
  auto publisher = Register();
  ASSERT_TRUE(publisher.ok()) << publisher.status();
  const Hash128 digest = Publish(**publisher, 0);
  publisher->reset();
  EXPECT_EQ(End(SIGTERM), 0);
  // Root passes over permissions unless it gives that up.
  store_.before_exec = [] {
    prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE);
    prctl(PR_CAPBSET_DROP, CAP_DAC_READ_SEARCH);
  };
  chmod(index().c_str(), 0500);
  ExpectRefused({index(), "Permission denied"});
  chmod(index().c_str(), 0700);
  chmod(data_folder().c_str(), 0500);
  ExpectRefused({data_folder(), "Permission denied"});
  chmod(data_folder().c_str(), 0700);
  Start();
  ASSERT_EQ(List().versions_size(), 1);
  EXPECT_EQ(List().versions(0).weights_digest(), ToHex(digest));
}

TEST_F(DamageTest, DamagedFilesOfTheIndexAreRefusedWithTheirFolder) {
  auto publisher = Register();
  ASSERT_TRUE(publisher.ok()) << publisher.status();
  std::vector<Hash128> digests;
  for (uint64_t v = 0; v < 3; ++v) digests.push_back(Publish(**publisher, v));
  publisher->reset();
  EXPECT_EQ(End(SIGKILL), -SIGKILL);

  // The log, in its first half: records that were synced follow. The file that names the others,
  // and those others.
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(index())) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".log") || name == "CURRENT" || name.starts_with("MANIFEST-")) {
      files.push_back(entry.path().string());
    }
  }
  ASSERT_GE(files.size(), 3u);
  const std::string kept = store_.folder() + "/kept";
  for (const std::string& file : files) {
    SCOPED_TRACE(file);
    fs::remove_all(kept);
    fs::copy(index(), kept, fs::copy_options::recursive);
    std::string bytes = ReadBytes(file);
    bytes[bytes.size() / 4] ^= 0x20;
    WriteBytes(file, bytes);
    ExpectRefused({"opening store " + index()}, kExitDamaged);
    fs::remove_all(index());
    fs::copy(kept, index(), fs::copy_options::recursive);
  }
  Start();
  ASSERT_EQ(List().versions_size(), 3);
  for (int v = 0; v < 3; ++v) {
    EXPECT_EQ(List().versions(v).weights_digest(), ToHex(digests[static_cast<size_t>(v)]));
  }
}

TEST_F(DamageTest, ABitThatTurnsInASlotRaisesTheAlarmAndTheVersionIsNotCopied) {
  auto publisher = Register();
  ASSERT_TRUE(publisher.ok()) << publisher.status();
  const auto begun = (*publisher)->Begin(0, milliseconds(2000));
  ASSERT_TRUE(begun.ok()) << begun.status();
  // A second map of the slot's pages, from before the slot was sealed: what a fault of the memory
  // does, too.
  auto* pages =
      static_cast<std::byte*>(mremap(begun->bytes.data(), 0, begun->bytes.size(), MREMAP_MAYMOVE));
  ASSERT_NE(pages, MAP_FAILED);
  Fill(begun->bytes, 0);
  ASSERT_TRUE((*publisher)->Finish().ok());
  ASSERT_TRUE((*publisher)->Commit("plan", 0).ok());
  Publish(**publisher, 1);
  EXPECT_EQ(Metric("titan_weightstore_verify_failures"), 0);
  pages[77] ^= std::byte{4};
  const grpc::Status refused = Pin(0);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::DATA_LOSS) << refused.error_message();
  EXPECT_NE(refused.error_message().find("version 0 of run run"), std::string::npos)
      << refused.error_message();
  EXPECT_TRUE(Eventually([&] { return Metric("titan_weightstore_verify_failures") == 1; }));
  ExpectServed(1);
  EXPECT_TRUE(Pin(1).ok());
  munmap(pages, begun->bytes.size());
}

TEST_F(DamageTest, ABitThatTurnsInABlobRaisesTheAlarmAndImportingAgainHealsIt) {
  const std::string alarm = R"(titan_weightstore_damage_total{place="blob"})";
  SmallImport model(8);
  const auto imported = leader_->Import(model.header, [&] { return model.Next(); });
  ASSERT_TRUE(imported.ok()) << imported.status();
  const auto found = leader_->FindModel(imported->model().id());
  ASSERT_TRUE(found.ok()) << found.status();
  const uint64_t num_bytes = found->manifest->tensors[0].num_bytes;
  ASSERT_TRUE(leader_->ReadBlob(found->blobs[0], num_bytes).ok());
  EXPECT_EQ(Metric(alarm), 0);

  const std::string file = data_folder() + "/blobs/" + ToHex(found->blobs[0]);
  std::string bytes = ReadBytes(file);
  bytes[bytes.size() - 5] ^= 0x20;
  WriteBytes(file, bytes);
  const Status damaged = leader_->ReadBlob(found->blobs[0], num_bytes).status();
  EXPECT_EQ(damaged.code(), StatusCode::kDataLoss) << damaged;
  EXPECT_NE(MessageOf(damaged).find(file), std::string::npos) << damaged;
  EXPECT_EQ(Metric(alarm), 1);
  EXPECT_NE(store_.log().find("blob_damaged"), std::string::npos);
  EXPECT_TRUE(leader_->ReadBlob(found->blobs[1], found->manifest->tensors[1].num_bytes).ok());

  model.at = 0;
  ASSERT_TRUE(leader_->Import(model.header, [&] { return model.Next(); }).ok());
  EXPECT_TRUE(leader_->ReadBlob(found->blobs[0], num_bytes).ok());
  EXPECT_EQ(Metric(alarm), 1);
}

TEST_F(DamageTest, ABitThatTurnsInTheIndexRaisesTheAlarmBeforeTheNextStart) {
  const std::string alarm = R"(titan_weightstore_damage_total{place="index"})";
  EXPECT_EQ(End(SIGTERM), 0);
  store_.more_config = R"(, "check_index_ms": 100)";
  for (const char* damaged : {".log", "MANIFEST-", "CURRENT"}) {
    SCOPED_TRACE(damaged);
    StartAnew({});
    auto publisher = Register();
    ASSERT_TRUE(publisher.ok()) << publisher.status();
    for (uint64_t v = 0; v < 3; ++v) Publish(**publisher, v);
    EXPECT_EQ(Metric(alarm), 0);
    std::string file;
    for (const auto& entry : fs::directory_iterator(index())) {
      const std::string name = entry.path().filename().string();
      if (name.ends_with(damaged) || name.starts_with(damaged)) file = entry.path().string();
    }
    const std::string whole = ReadBytes(file);
    {
      std::fstream bits(file, std::ios::in | std::ios::out | std::ios::binary);
      bits.seekp(static_cast<std::streamoff>(whole.size() / 4));
      bits.put(static_cast<char>(whole[whole.size() / 4] ^ 0x20));
    }
    EXPECT_TRUE(Eventually([&] { return Metric(alarm) > 0; })) << store_.log();
    ExpectToldOnce(alarm);
    // Versions are served on; nothing is acknowledged that the next start could not read.
    for (uint64_t v = 0; v < 3; ++v) ExpectServed(v);
    Finish(**publisher, 3);
    const Status refused = (*publisher)->Commit("plan", 3).status();
    EXPECT_EQ(refused.code(), StatusCode::kDataLoss) << refused;
    EXPECT_NE(MessageOf(refused).find(index()), std::string::npos) << refused;
    ExpectServed(2);
    publisher->reset();
    End(SIGTERM);
    ExpectRefused({"opening store " + index()}, kExitDamaged);
    std::fstream bits(file, std::ios::in | std::ios::out | std::ios::binary);
    bits.write(whole.data(), static_cast<std::streamsize>(whole.size()));
    bits.close();
    Start();
    EXPECT_EQ(List().versions_size(), 3);
  }
}

// Tables are what most records of an index lie in, and what a start need not read to its end.
TEST_F(DamageTest, ABitThatTurnsInATableOfTheIndexRaisesTheAlarmAndTheNextStartRefuses) {
  const std::string alarm = R"(titan_weightstore_damage_total{place="index"})";
  {
    auto publisher = Register();
    ASSERT_TRUE(publisher.ok()) << publisher.status();
    for (uint64_t v = 0; v < 3; ++v) Publish(**publisher, v);
  }
  EXPECT_EQ(End(SIGTERM), 0);
  store_.more_config = R"(, "check_index_ms": 100)";
  Start();  // which makes a table of what the log has
  EXPECT_EQ(End(SIGTERM), 0);
  const std::string kept = store_.folder() + "/kept";
  fs::copy(index(), kept, fs::copy_options::recursive);
  std::vector<std::string> tables;
  for (const auto& entry : fs::directory_iterator(index())) {
    if (entry.path().extension() == ".sst") tables.push_back(entry.path().string());
  }
  ASSERT_FALSE(tables.empty());
  for (const std::string& table : tables) {
    const std::string whole = ReadBytes(table);
    // Records, what says where they are, and the end.
    for (const size_t place : {size_t{1}, whole.size() / 4, whole.size() / 2, whole.size() * 3 / 4,
                               whole.size() - 60, whole.size() - 10}) {
      SCOPED_TRACE(table + " at " + std::to_string(place) + " of " + std::to_string(whole.size()));
      Start();
      EXPECT_EQ(Metric(alarm), 0);
      const auto turn = [&] {
        std::fstream bits(table, std::ios::in | std::ios::out | std::ios::binary);
        bits.seekp(static_cast<std::streamoff>(place));
        bits.put(static_cast<char>(whole[place] ^ 0x20));
      };
      turn();
      EXPECT_TRUE(Eventually([&] { return Metric(alarm) > 0; })) << store_.log();
      ExpectToldOnce(alarm);
      const Status refused = Register().status();
      EXPECT_EQ(refused.code(), StatusCode::kDataLoss) << refused;
      EXPECT_NE(MessageOf(refused).find(index()), std::string::npos) << refused;
      End(SIGTERM);
      ExpectRefused({"store " + index()}, kExitDamaged);
      fs::remove_all(index());
      fs::copy(kept, index(), fs::copy_options::recursive);
    }
  }
  Start();
  EXPECT_EQ(List().versions_size(), 3);
}

TEST_F(DamageTest, ASecondDaemonOnTheFolderEndsAndTheFirstServesOn) {
  auto publisher = Register();
  ASSERT_TRUE(publisher.ok()) << publisher.status();
  Publish(**publisher, 0);
  const std::string log = store_.folder() + "/log.second";
  ChildProcess second({std::string(TITAN_BINARY_DIR) + "/bin/titan-weightstore", "--config",
                       store_.folder() + "/config.json"},
                      log);
  EXPECT_EQ(second.Wait(), 1);
  EXPECT_NE(ReadBytes(log).find(index() + " is held by another process; end it or choose another"),
            std::string::npos)
      << ReadBytes(log);
  EXPECT_TRUE(runtime::ReadEndpoint(data_folder(), "weightstore").ok());
  ExpectServed(0);
  Publish(**publisher, 1);
  ExpectServed(1);
}

TEST_F(DamageTest, ClientsOfAnotherProtocolAreToldAndOthersGoOn) {
  auto publisher = Register();
  ASSERT_TRUE(publisher.ok()) << publisher.status();
  Publish(**publisher, 0);
  auto connection = ConnectUnix(socket_path(), milliseconds(2000));
  ASSERT_TRUE(connection.ok()) << connection.status();
  // Protocol 2 may well have larger requests.
  std::string request(100, '\0');
  request.replace(0, 4, "TWS2");
  ASSERT_TRUE(SendPacket(connection->get(), request.data(), request.size()).ok());
  const auto packet = ReceivePacket(connection->get(), sizeof(SocketReply));
  ASSERT_TRUE(packet.ok()) << packet.status();
  SocketReply reply;
  ASSERT_EQ(packet->bytes.size(), sizeof(reply));
  std::memcpy(&reply, packet->bytes.data(), sizeof(reply));
  EXPECT_EQ(reply.code, static_cast<int32_t>(StatusCode::kFailedPrecondition));
  const std::string said(reply.message, reply.message_bytes);
  EXPECT_NE(said.find("protocol 2, this daemon speaks 1"), std::string::npos) << said;

  // gRPC itself refuses what the service does not have.
  grpc::GenericStub generic(*rpc::MakeChannel(store_.address()));
  for (const std::string method : {"/titan.weightstore.v2.WeightStoreService/RegisterTrainer",
                                   "/titan.weightstore.v1.WeightStoreService/RegisterTrainer2"}) {
    grpc::ClientContext context;
    const grpc::Slice nothing("");
    const grpc::ByteBuffer message(&nothing, 1);
    grpc::ByteBuffer answer;
    std::promise<grpc::Status> done;
    generic.UnaryCall(&context, method, grpc::StubOptions(), &message, &answer,
                      [&](grpc::Status status) { done.set_value(std::move(status)); });
    EXPECT_EQ(done.get_future().get().error_code(), grpc::StatusCode::UNIMPLEMENTED) << method;
  }
  Publish(**publisher, 1);
  ExpectServed(0);
  ExpectServed(1);
}

}  // namespace
}  // namespace titan::weightstore
