// SPDX-License-Identifier: Apache-2.0
//
// Goal: whoever dies or pauses, and whenever: every acknowledged commit is listed with its digest,
// no reader uses bytes that are not its version's, a writer that was fenced changes nothing and is
// told so, no call takes more than 2 s beyond its stated wait, all others go on, and the daemon
// leaks nothing. Method: titan-weightstore, as one process and as leader and host apart; a writer,
// two readers that map and one that pulls over TCP, each a process of its own
// (tests/support/weightstore_workers.h). A seeded driver kills or stops one of them, at a named
// point or at any instant. TITAN_KILL_POINTS and TITAN_KILL_SEED set how many and which.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "services/weightstore_client/standalone_leader.h"
#include "tests/support/sanitized.h"
#include "tests/support/weightstore_daemon.h"
#include "tests/support/weightstore_workers.h"
#include "weightstore/client/subscriber.h"
#include "weightstore/transport/puller.h"

namespace titan::weightstore {
namespace {

namespace fs = std::filesystem;
using namespace testing;  // NOLINT: workers and daemons
using titan::testing::ChildProcess;
using titan::testing::Eventually;

constexpr size_t kSlots = kMaxAge + 4;  // with the one for evaluation
constexpr milliseconds kBeyondWait{titan::testing::Rounds(2'000, 20'000)};
constexpr milliseconds kPatience{titan::testing::Rounds(30'000, 300'000)};

// -------------------------------------------------------------------------------------- the driver

// Leader and host are one process unless they are apart.
enum class Victim { kWriter, kReader, kPuller, kLeader, kHost };

struct Event {
  Victim victim;
  int signal;
  Point point;
};

// Each line of the matrix that has processes, and others.
constexpr Event kEvents[] = {
    {Victim::kWriter, SIGKILL, kWriting},
    {Victim::kHost, SIGKILL, kFinished},
    {Victim::kReader, SIGKILL, kLeased},
    {Victim::kHost, SIGKILL, kPulling},
    {Victim::kWriter, SIGSTOP, kWriting},
    {Victim::kPuller, SIGSTOP, kPulling},
    {Victim::kWriter, SIGKILL, kFinished},
    {Victim::kReader, SIGSTOP, kStepping},
    {Victim::kHost, SIGKILL, kStepping},
    {Victim::kPuller, SIGKILL, kPulling},
    {Victim::kWriter, SIGSTOP, kFinished},
    {Victim::kHost, SIGSTOP, kPulling},
    // With leader and host apart this is the first one.
    {Victim::kLeader, SIGKILL, kPulling},
    {Victim::kHost, SIGKILL, kPulling},
    {Victim::kLeader, SIGKILL, kFinished},
    {Victim::kWriter, SIGKILL, kCommitted},
    {Victim::kReader, SIGKILL, kStepping},
    {Victim::kHost, SIGSTOP, kAnyInstant},
    {Victim::kHost, SIGKILL, kAnyInstant},
    {Victim::kLeader, SIGSTOP, kAnyInstant},
    {Victim::kLeader, SIGKILL, kAnyInstant},
    {Victim::kWriter, SIGKILL, kAnyInstant},
    {Victim::kPuller, SIGKILL, kAnyInstant},
    {Victim::kWriter, SIGSTOP, kAnyInstant},
    {Victim::kReader, SIGKILL, kAnyInstant},
    {Victim::kReader, SIGSTOP, kAnyInstant},
    {Victim::kPuller, SIGSTOP, kAnyInstant},
};
constexpr size_t kFirstOfApart = 12;

std::string NameOf(const Event& event) {
  const char* victims[] = {"writer", "reader", "puller", "leader", "host"};
  const char* points[] = {"any instant", "writing",  "finished", "committed",
                          "leased",      "stepping", "pulling"};
  return std::string(victims[static_cast<int>(event.victim)]) +
         (event.signal == SIGKILL ? " killed: " : " stopped: ") + points[event.point];
}

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

// What a process has open: memory files, and sockets.
struct Open {
  size_t memory_files = 0, sockets = 0;
  uint64_t memory_file_bytes = 0;
  friend bool operator==(const Open&, const Open&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Open& open) {
    return out << open.memory_files << " memory files of " << open.memory_file_bytes
               << " bytes and " << open.sockets << " sockets";
  }
};
Open OpenOf(pid_t pid) {
  Open open;
  for (const auto& [name, bytes] : testing::MemoryFiles(pid)) {
    ++open.memory_files;
    open.memory_file_bytes += bytes;
  }
  for (const auto& entry : fs::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
    std::error_code ignored;
    open.sockets += fs::read_symlink(entry, ignored).string().starts_with("socket:");
  }
  return open;
}
uint64_t ResidentBytes(pid_t pid) {
  uint64_t size = 0, resident = 0;
  std::ifstream("/proc/" + std::to_string(pid) + "/statm") >> size >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

enum class Topology { kOneProcess, kApart };

class RecoveryTest : public ::testing::TestWithParam<Topology> {
 protected:
  void SetUp() override {
    board_ = MapBoard(leader_.folder());
    ASSERT_NE(board_, nullptr);
    leader_.more_config = ", \"lease_ttl_ms\": 500";
    constexpr char kDataPlane[] = ", \"data_plane_address\": \"127.0.0.1:0\"";
    if (apart()) {
      leader_.role = "leader";
      separate_host_.role = "host";
      separate_host_.more_config = kDataPlane;
    } else {
      leader_.more_config += kDataPlane;
    }
    ASSERT_TRUE(leader_.Start()) << leader_.log();
    if (!apart()) return;
    leader_.more_arguments = {"--listen", leader_.address()};  // the next time, too
    separate_host_.more_config +=
        R"(, "leader_address": ")" + leader_.address() + R"(", "host": "h1")";
    ASSERT_TRUE(separate_host_.Start()) << separate_host_.log();
  }
  void TearDown() override {
    if (board_ != nullptr) munmap(board_, sizeof(Board));
  }

  bool apart() const { return GetParam() == Topology::kApart; }
  WeightStoreProcess& host() { return apart() ? separate_host_ : leader_; }
  // A publisher of this process, once the host is there.
  std::unique_ptr<Publisher> Register(LeaderPort& leader, const std::string& request_id) {
    std::unique_ptr<Publisher> publisher;
    Status last;
    EXPECT_TRUE(Eventually(
        [&] {
          auto registered = Publisher::Register(leader, {.socket_path = host().socket_path(),
                                                         .run_id = kRun,
                                                         .request_id = request_id,
                                                         .manifest = SmallManifest(kPanels),
                                                         .max_age = kMaxAge});
          last = registered.status();
          if (registered.ok()) publisher = *std::move(registered);
          return publisher != nullptr;
        },
        kPatience))
        << last;
    return publisher;
  }

  void StartWorker(size_t index) {
    WorkerBoard& worker = board_->workers[index];
    worker.hold = worker.at = kAnyInstant;
    worker.fenced = false;
    const std::string self = fs::read_symlink("/proc/self/exe").string();
    workers_[index].emplace(std::vector<std::string>{self, "--worker",
                                                     index < kReaders  ? "writer"
                                                     : index < kPuller ? "reader"
                                                                       : "puller",
                                                     std::to_string(index), leader_.folder(),
                                                     leader_.data_folder(), host().socket_path()},
                            leader_.folder() + "/log.worker-" + std::to_string(index));
  }
  WorkerBoard& writer() { return board_->workers[writer_]; }

  // Everybody has got on since, readers with versions that are new.
  void ExpectAllGoOn() {
    const uint64_t newest = board_->newest + 2;
    EXPECT_TRUE(Eventually([&] { return board_->newest >= newest; }, kPatience))
        << "the writer does not go on";
    for (size_t i = kReaders; i < kNumWorkers; ++i) {
      EXPECT_TRUE(Eventually([&] { return board_->workers[i].newest >= newest; }, kPatience))
          << "reader " << i << " does not go on";
    }
  }
  void ExpectNothingWrong() {
    for (const WorkerBoard& worker : board_->workers) {
      EXPECT_EQ(worker.wrong, 0u);
      EXPECT_LE(worker.late_ms, static_cast<uint64_t>(kBeyondWait.count()));
    }
  }
  std::map<uint64_t, v1::VersionInfo> List() {
    auto stub = v1::WeightStoreService::NewStub(*rpc::MakeChannel(leader_.address()));
    return testing::VersionsOf(*stub, kRun);
  }
  void ExpectAllAcknowledgedAreListed() {
    const uint64_t newest = board_->newest;
    const auto versions = List();
    for (uint64_t v = 0; v < newest; ++v) {
      ASSERT_TRUE(board_->acknowledged[v]) << v;
      const auto found = versions.find(v);
      ASSERT_NE(found, versions.end()) << "version " << v << " was acknowledged and is not listed";
      ASSERT_EQ(found->second.weights_digest(), ToHex(DigestOf(v))) << v;
    }
  }
  bool Holds(size_t index) {
    for (const auto& [version, info] : List()) {
      for (const std::string& holder : info.holders()) {
        if (holder == "worker-" + std::to_string(index)) return true;
      }
    }
    return false;
  }

  void WaitFor(size_t worker, const Event& event, std::mt19937_64& random) {
    if (event.point != kAnyInstant) {
      WorkerBoard& board = board_->workers[worker];
      board.hold = event.point;
      ASSERT_TRUE(Eventually([&] { return board.at == event.point; }, kPatience))
          << "never came to the point";
      if (event.victim != Victim::kLeader && event.victim != Victim::kHost) return;
      board.hold = kAnyInstant;  // the daemon's time is in the call that follows
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 6'000));
  }

  void HitWriter(const Event& event) {
    const size_t old = writer_;
    if (event.signal == SIGKILL) {
      workers_[old]->Kill();
    } else {
      ++board_->workers[old].num_pauses;
      workers_[old]->Stop();
    }
    writer_ = 1 - old;
    StartWorker(writer_);
    if (event.signal == SIGKILL) return;
    const uint64_t newest = board_->newest + 2;
    EXPECT_TRUE(Eventually([&] { return board_->newest >= newest; }, kPatience));
    board_->workers[old].fenced = true;
    board_->workers[old].hold = kAnyInstant;
    workers_[old]->Continue();
    EXPECT_EQ(workers_[old]->Wait(), kFencedAndRefused);
  }
  void HitReader(const Event& event, size_t index, bool long_pause, std::mt19937_64& random) {
    WorkerBoard& reader = board_->workers[index];
    if (event.signal == SIGKILL) {
      workers_[index]->Kill();
      EXPECT_TRUE(Eventually([&] { return !Holds(index); }, kPatience)) << "its lease stays";
      StartWorker(index);
      return;
    }
    ++reader.num_pauses;
    workers_[index]->Stop();
    if (long_pause) {
      ExpectTakenAfterTheDeadline(index);
      return;
    }
    std::this_thread::sleep_for(milliseconds(random() % 200));
    reader.hold = kAnyInstant;
    workers_[index]->Continue();
  }
  // The reader stands in a step. With another one that stands on a later version the ring runs
  // full, and is taken from the first when its time is over.
  void ExpectTakenAfterTheDeadline(size_t index) {
    const size_t later = kReaders + (index - kReaders + 1) % kNumReaders;
    const uint64_t discarded = board_->workers[index].discarded;
    uint64_t before = writer().turns;
    EXPECT_TRUE(Eventually([&] { return writer().turns >= before + 2; }, kPatience));
    board_->workers[later].hold = kStepping;
    EXPECT_TRUE(Eventually([&] { return board_->workers[later].at == kStepping; }, kPatience));
    ++board_->workers[later].num_pauses;
    workers_[later]->Stop();
    before = writer().turns;
    EXPECT_TRUE(Eventually([&] { return writer().turns >= before + 2 * kSlots; }, kPatience));
    for (const size_t reader : {index, later}) {
      board_->workers[reader].hold = kAnyInstant;
      workers_[reader]->Continue();
    }
    EXPECT_TRUE(
        Eventually([&] { return board_->workers[index].discarded > discarded; }, kPatience));
  }
  void HitDaemon(const Event& event, WeightStoreProcess& daemon, std::mt19937_64& random) {
    if (event.signal == SIGKILL) {
      EXPECT_EQ(daemon.End(SIGKILL), -SIGKILL);
      ASSERT_TRUE(daemon.Start()) << daemon.log();
      return;
    }
    const auto start = steady_clock::now();
    daemon.process().Stop();
    std::this_thread::sleep_for(milliseconds(50 + random() % 1'000));
    board_->daemon_paused_ms += static_cast<uint64_t>(
        std::chrono::duration_cast<milliseconds>(steady_clock::now() - start).count() + 1);
    daemon.process().Continue();
  }

  static constexpr size_t kReaders = 2;  // workers 0 and 1 write, in turns
  static constexpr size_t kNumReaders = 2;
  static constexpr size_t kPuller = kReaders + kNumReaders;
  static constexpr size_t kNumWorkers = kPuller + 1;
  WeightStoreProcess leader_, separate_host_;
  Board* board_ = nullptr;
  size_t writer_ = 0;
  std::array<std::optional<ChildProcess>, kNumWorkers> workers_;
};

TEST_P(RecoveryTest, NoKillPointLosesOrMixesAVersion) {
  const uint64_t rounds =
      FromEnvironment("TITAN_KILL_POINTS", titan::testing::Rounds<uint64_t>(12, 4));
  const uint64_t seed = FromEnvironment("TITAN_KILL_SEED", 1);
  std::cout << "kill points: " << rounds << ", TITAN_KILL_SEED=" << seed << std::endl;
  std::mt19937_64 random(seed);
  StartWorker(0);
  for (size_t i = kReaders; i < kNumWorkers; ++i) StartWorker(i);
  ExpectAllGoOn();
  uint64_t long_pauses = rounds / 50;  // each takes the time that a map has, 15 s
  for (uint64_t round = 0; round < rounds && !HasFailure(); ++round) {
    const uint64_t in_turn = round + (apart() ? kFirstOfApart : 0);
    const Event& event =
        kEvents[(round < std::size(kEvents) ? in_turn : random()) % std::size(kEvents)];
    SCOPED_TRACE("round " + std::to_string(round) + ": " + NameOf(event));
    const size_t reader = event.victim == Victim::kPuller || event.point == kPulling
                              ? kPuller
                              : kReaders + random() % kNumReaders;
    const bool writer_comes = event.point <= kCommitted;
    WaitFor(writer_comes ? writer_ : reader, event, random);
    if (HasFatalFailure()) break;
    switch (event.victim) {
      case Victim::kWriter:
        HitWriter(event);
        break;
      case Victim::kReader:
      case Victim::kPuller: {
        const bool long_pause =
            event.signal == SIGSTOP && event.point == kStepping && long_pauses > 0;
        long_pauses -= long_pause;
        HitReader(event, reader, long_pause, random);
        break;
      }
      case Victim::kLeader:
        HitDaemon(event, leader_, random);
        break;
      case Victim::kHost:
        HitDaemon(event, host(), random);
        break;
    }
    ExpectAllGoOn();
    ExpectNothingWrong();
    if (round % 10 == 9) ExpectAllAcknowledgedAreListed();
  }
  ExpectAllAcknowledgedAreListed();
  board_->stop = true;
  EXPECT_EQ(workers_[writer_]->Wait(), kStopped);
  for (size_t i = kReaders; i < kNumWorkers; ++i) {
    EXPECT_EQ(workers_[i]->Wait(), kStopped);
    EXPECT_GT(board_->workers[i].steps, 0u);
  }
  for (size_t i = 0; i < workers_.size(); ++i) {
    EXPECT_TRUE(Eventually([&] { return !Holds(i); }, kPatience)) << "worker " << i;
  }

  // Of the daemon that lived through it, and of a new one.
  Open open[2];
  for (Open& seen : open) {
    auto leader = StandaloneLeader::Create(leader_.address());
    ASSERT_TRUE(leader.ok()) << leader.status();
    auto publisher = Register((*leader)->port(), "last");
    ASSERT_NE(publisher, nullptr);
    // As many as take the slots of the writers before away.
    const uint64_t first = List().size();
    for (uint64_t version = first; version < first + kSlots; ++version) {
      const auto begun = publisher->Begin(version, kRingWait);
      ASSERT_TRUE(begun.ok()) << begun.status();
      Fill(begun->bytes, version);
      ASSERT_TRUE(publisher->Finish().ok());
      ASSERT_TRUE(publisher->Commit("", version).ok());
    }
    EXPECT_TRUE(Eventually([&] {
      seen = OpenOf(host().process().pid());
      return seen.memory_files == 2 * kSlots && (&seen == open || seen == open[0]);
    })) << seen
        << "; of the first " << open[0];
    std::this_thread::sleep_for(milliseconds(300));  // connections that are being closed
    seen = OpenOf(host().process().pid());
    publisher.reset();
    leader->reset();
    EXPECT_EQ(host().End(SIGTERM), 0);
    ASSERT_TRUE(host().Start()) << host().log();
  }
  EXPECT_EQ(open[0], open[1]);
}

// One reader maps, one pulls; both are of this process.
TEST_P(RecoveryTest, VersionsAndLivesOfAWriterLeaveNothingAnywhere) {
  const uint64_t versions = std::getenv("TITAN_KILL_POINTS") != nullptr
                                ? 1'100
                                : titan::testing::Rounds<uint64_t>(200, 120);
  constexpr uint64_t kVersionsOfALife = 20;
  auto leader = StandaloneLeader::Create(leader_.address());
  ASSERT_TRUE(leader.ok()) << leader.status();
  std::atomic<int64_t> pulled_bytes{0};
  lanes::PullerOptions options;
  options.memory = [&](double bytes) { pulled_bytes += static_cast<int64_t>(bytes); };
  const auto puller = *lanes::Puller::Create(options);
  const Subscriber mapping((*leader)->port(), host().socket_path(), "mapping");
  const Subscriber pulling((*leader)->port(), "", *puller, "pulling");
  const pid_t daemon = host().process().pid();
  std::unique_ptr<Publisher> publisher;
  Open open, own;
  uint64_t resident_bytes = 0, own_bytes = 0;
  for (uint64_t v = 0; v < versions; ++v) {
    if (v % kVersionsOfALife == 0) {
      publisher.reset();
      publisher = Register((*leader)->port(), std::to_string(v));
      ASSERT_NE(publisher, nullptr);
    }
    const auto begun = publisher->Begin(v, kRingWait);
    ASSERT_TRUE(begun.ok()) << begun.status();
    Fill(begun->bytes, v);
    ASSERT_TRUE(publisher->Finish().ok());
    ASSERT_TRUE(publisher->Commit("", v).ok());
    for (const Subscriber* subscriber : {&mapping, &pulling}) {
      auto slot = subscriber->Acquire(kRun, v, false);
      ASSERT_TRUE(slot.ok()) << slot.status();
      ASSERT_EQ(NumberIn(slot->bytes()), v);
      ASSERT_EQ(slot->mapped(), subscriber == &mapping);
      ASSERT_TRUE(subscriber->Release(*std::move(slot)).ok());
    }
    const bool first = v == 99;
    if (!first && v + 1 != versions) continue;
    // A slot of the writer before is dropped when the last version in it is retired.
    EXPECT_TRUE(Eventually([&] {
      return OpenOf(daemon).memory_files == 2 * kSlots &&
             (first || (OpenOf(daemon) == open && OpenOf(getpid()) == own));
    })) << OpenOf(daemon)
        << "; after the first 100 " << open << "; here " << OpenOf(getpid()) << ", was " << own;
    EXPECT_LE(pulled_bytes, static_cast<int64_t>(2 * SmallManifest(kPanels).slot_bytes));
    if (first) {
      std::this_thread::sleep_for(milliseconds(300));  // connections that are being closed
      open = OpenOf(daemon);
      own = OpenOf(getpid());
      resident_bytes = ResidentBytes(daemon);
      own_bytes = ResidentBytes(getpid());
    } else {
      // Records and the memory table of the index; a slot a version would be 34 KB each.
      const uint64_t more = (4u << 20) + (versions - 100) * 4096;
      EXPECT_LT(ResidentBytes(daemon), resident_bytes + more);
      EXPECT_LT(ResidentBytes(getpid()), own_bytes + more);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Processes, RecoveryTest,
                         ::testing::Values(Topology::kOneProcess, Topology::kApart),
                         [](const auto& info) {
                           return info.param == Topology::kApart ? "Apart" : "One";
                         });

}  // namespace

int RunWorker(const std::string& role, size_t index, char** folders) {
  Board* board = MapBoard(folders[0]);
  if (board == nullptr || index >= board->workers.size()) return 5;
  Worker worker(*board, index, folders[1], folders[2]);
  return role == "writer" ? worker.Write() : role == "reader" ? worker.Read() : worker.Pull();
}

}  // namespace titan::weightstore

int main(int argc, char** argv) {
  if (argc == 7 && std::string(argv[1]) == "--worker") {
    return titan::weightstore::RunWorker(argv[2], std::strtoull(argv[3], nullptr, 10), argv + 4);
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
