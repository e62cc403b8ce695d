// SPDX-License-Identifier: Apache-2.0
//
// Goal: whoever dies or pauses, and whenever: every acknowledged commit is listed with its digest,
// no reader uses bytes that are not its version's, a writer that was fenced changes nothing and is
// told so, no call takes more than 2 s beyond its stated wait, all others go on, and the daemon
// leaks nothing. Method: titan-weightstore, a writer and two readers that publish and load small
// versions without end, each a process of its own. A seeded driver kills or stops one of them, at a
// named point or at any instant. What the workers saw lies in a file that all of them map, so that
// it outlives them. TITAN_KILL_POINTS and TITAN_KILL_SEED set how many and which.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
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
#include "weightstore/client/reason.h"
#include "weightstore/client/subscriber.h"
#include "weightstore/client/weights_digest.h"

namespace titan::weightstore {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using testing::Fill;
using testing::NumberIn;
using testing::SmallManifest;
using testing::WeightStoreProcess;
using titan::testing::ChildProcess;
using titan::testing::Eventually;

constexpr int64_t kPanels = 8;  // slots of 34 KB
constexpr uint32_t kMaxAge = 1;
constexpr size_t kSlots = kMaxAge + 4;  // with the one for evaluation
constexpr milliseconds kRingWait{30'000};
constexpr milliseconds kBeyondWait{titan::testing::Rounds(2'000, 20'000)};
constexpr milliseconds kPatience{titan::testing::Rounds(30'000, 300'000)};
constexpr size_t kMaxVersions = size_t{1} << 20;
constexpr char kRun[] = "run";

// ------------------------------------------------------------------------ what all processes share

enum Point : uint32_t {
  kAnyInstant,
  kWriting,    // a writer has written half of an open slot
  kFinished,   // PutDone is answered, Commit not yet called
  kCommitted,  // Commit is answered
  kLeased,     // a reader has a lease and no map yet
  kStepping,   // a reader has read the slot and not yet looked at its header again
};

struct WorkerBoard {
  std::atomic<uint32_t> hold;  // the point at which it waits for the driver
  std::atomic<uint32_t> at;    // the point at which it does
  std::atomic<uint32_t> num_pauses;
  std::atomic<bool> fenced;         // another writer has taken over
  std::atomic<uint64_t> turns;      // versions published
  std::atomic<uint64_t> newest;     // of readers: loaded were versions below this
  std::atomic<uint64_t> steps;      // of readers, that counted
  std::atomic<uint64_t> discarded;  // steps whose slot was taken meanwhile
  std::atomic<uint64_t> wrong;    // steps that counted although their bytes were another version's
  std::atomic<uint64_t> late_ms;  // the most that a call took beyond its wait
};

struct Board {
  std::atomic<bool> stop;
  std::atomic<uint64_t> daemon_paused_ms;
  std::atomic<uint64_t> newest;  // versions that were acknowledged: all below this
  std::array<WorkerBoard, 4> workers;
  std::array<std::atomic<bool>, kMaxVersions> acknowledged;
};

Board* MapBoard(const std::string& folder) {
  const int file = open((folder + "/board").c_str(), O_RDWR | O_CREAT, 0600);
  if (file < 0 || ftruncate(file, sizeof(Board)) != 0) return nullptr;
  void* map = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  return map == MAP_FAILED ? nullptr : static_cast<Board*>(map);
}

Hash128 DigestOf(uint64_t version) {
  static const Manifest manifest = SmallManifest(kPanels);
  static std::vector<std::byte> bytes(manifest.slot_bytes);
  Fill(bytes, version);
  return WeightsDigest(manifest, bytes, 1);
}

// ------------------------------------------------------------------------------------- the workers

enum WorkerExit { kStopped = 0, kFencedAndRefused = 3, kFencedAndObeyed = 4 };

class Worker {
 public:
  Worker(Board& board, size_t index, std::string folder)
      : board_(board),
        me_(board.workers[index]),
        name_("worker-" + std::to_string(index)),
        data_folder_(std::move(folder) + "/data") {}

  int Write() {
    while (!board_.stop) {
      if (Connect() && !me_.fenced) WriteAsLongAsPossible();
      if (me_.fenced) return obeyed_ ? kFencedAndObeyed : kFencedAndRefused;
      std::this_thread::sleep_for(milliseconds(2));
    }
    return kStopped;
  }

  int Read() {
    while (!board_.stop) {
      if (!leader_ && !Connect()) continue;
      const uint64_t newest = board_.newest;
      const Status read = newest == 0 ? Unavailable("nothing yet") : Load(newest - 1);
      if (read.ok()) continue;
      if (read.code() == StatusCode::kUnavailable) leader_.reset();  // perhaps it has moved
      std::this_thread::sleep_for(milliseconds(2));
    }
    return kStopped;
  }

 private:
  std::string socket_path() const { return data_folder_ + "/ws.sock"; }

  bool Connect() {
    leader_.reset();
    const auto endpoint = runtime::ReadEndpoint(data_folder_, "weightstore");
    auto leader = endpoint.ok() ? StandaloneLeader::Create(endpoint->address)
                                : StatusOr<std::unique_ptr<StandaloneLeader>>(endpoint.status());
    if (leader.ok()) leader_ = *std::move(leader);
    if (!leader_) std::this_thread::sleep_for(milliseconds(2));
    return leader_ != nullptr;
  }

  // The result of a call, whose time is taken unless this process stood still meanwhile. The time
  // for which the daemon stood still is its own.
  template <typename Call>
  auto Timed(milliseconds wait, const Call& call) {
    const uint32_t pauses = me_.num_pauses;
    const uint64_t paused_ms = board_.daemon_paused_ms;
    const bool fenced = me_.fenced;
    const auto start = steady_clock::now();
    auto result = call();
    if (fenced && result.ok()) obeyed_ = true;
    const auto took = std::chrono::duration_cast<milliseconds>(steady_clock::now() - start);
    const auto allowed =
        wait + milliseconds(static_cast<int64_t>(board_.daemon_paused_ms - paused_ms));
    if (me_.num_pauses == pauses && took > allowed) {
      const auto late = static_cast<uint64_t>((took - allowed).count());
      if (late > me_.late_ms) me_.late_ms = late;
    }
    return result;
  }

  void Reach(Point point) {
    if (me_.hold != point) return;
    me_.at = point;
    while (me_.hold == point && !board_.stop) std::this_thread::sleep_for(milliseconds(1));
    me_.at = kAnyInstant;
  }

  void WriteAsLongAsPossible() {
    auto registered = Timed(milliseconds(0), [&] {
      return Publisher::Register(leader_->port(),
                                 {.socket_path = socket_path(),
                                  .run_id = kRun,
                                  .request_id = name_ + "/" + std::to_string(getpid()) + "/" +
                                                std::to_string(++num_registrations_),
                                  .manifest = SmallManifest(kPanels),
                                  .max_age = kMaxAge});
    });
    if (!registered.ok()) return;
    Publisher& publisher = **registered;
    const uint64_t newest = board_.newest;
    // Those that the last writer published may be lost, and readers want them.
    for (uint64_t version = newest < 2 ? 0 : newest - 2; !board_.stop; ++version) {
      if (version >= kMaxVersions) std::abort();
      if (!PublishOne(publisher, version)) return;
      ++me_.turns;
      std::this_thread::sleep_for(milliseconds(8));
    }
  }

  bool PublishOne(Publisher& publisher, uint64_t version) {
    const auto begun = Timed(kRingWait, [&] { return publisher.Begin(version, kRingWait); });
    if (!begun.ok()) return false;
    if (begun->recorded) {
      std::vector<std::byte> weights(publisher.manifest().slot_bytes);
      Fill(weights, version);
      const auto confirmed =
          Timed(milliseconds(0), [&] { return publisher.ConfirmRecorded(version, weights); });
      if (!confirmed.ok()) return false;
    } else {
      Fill(begun->bytes.first(begun->bytes.size() / 2), version);
      Reach(kWriting);
      Fill(begun->bytes, version);
      // Who was fenced writes all it can.
      for (uint64_t i = 0; me_.fenced && i < 100; ++i) Fill(begun->bytes, ~i);
      const auto finished = Timed(milliseconds(0), [&] { return publisher.Finish(); });
      if (!finished.ok()) return false;
      Reach(kFinished);
      const auto committed = Timed(milliseconds(0), [&] { return publisher.Commit("", version); });
      if (!committed.ok()) return false;
    }
    board_.acknowledged[version] = true;
    uint64_t newest = board_.newest;
    while (newest <= version && !board_.newest.compare_exchange_weak(newest, version + 1)) {
    }
    Reach(kCommitted);
    return true;
  }

  Status Load(uint64_t version) {
    if (me_.hold == kLeased) {
      const auto lease = Timed(milliseconds(0), [&] {
        return leader_->port().AcquireLease(name_, kRun, version, false);
      });
      if (!lease.ok()) return lease.status();
      Reach(kLeased);
      return leader_->port().ReleaseLease(lease->lease_id);
    }
    const Subscriber subscriber(leader_->port(), socket_path(), name_);
    auto slot = Timed(milliseconds(0), [&] { return subscriber.Acquire(kRun, version, false); });
    if (!slot.ok()) {
      if (slot.status().code() == StatusCode::kDataLoss) ++me_.wrong;
      return slot.status();
    }
    const Hash128 digest = WeightsDigest(slot->manifest(), slot->bytes(), 1);
    if (slot->HeaderUnchanged() && (digest != DigestOf(version) || digest != slot->lease().digest))
      ++me_.wrong;
    for (int step = 0; step < 5; ++step) {
      const uint64_t before = NumberIn(slot->bytes());
      Reach(kStepping);
      const uint64_t after = NumberIn(slot->bytes());
      if (!slot->HeaderUnchanged()) {
        ++me_.discarded;
        return Aborted("the slot was taken");
      }
      ++me_.steps;
      if (before != version || after != version) ++me_.wrong;
    }
    me_.newest = version + 1;
    return subscriber.Release(*std::move(slot));
  }

  Board& board_;
  WorkerBoard& me_;
  const std::string name_;
  const std::string data_folder_;
  int num_registrations_ = 0;
  bool obeyed_ = false;  // a call that began after the fence was answered with OK
  std::unique_ptr<StandaloneLeader> leader_;
};

// -------------------------------------------------------------------------------------- the driver

enum class Victim { kWriter, kReader, kDaemon };

struct Event {
  Victim victim;
  int signal;
  Point point;
};

// Each line of the matrix that has processes, and others.
constexpr Event kEvents[] = {
    {Victim::kWriter, SIGKILL, kWriting},    {Victim::kDaemon, SIGKILL, kFinished},
    {Victim::kReader, SIGKILL, kLeased},     {Victim::kWriter, SIGSTOP, kWriting},
    {Victim::kWriter, SIGKILL, kFinished},   {Victim::kReader, SIGSTOP, kStepping},
    {Victim::kDaemon, SIGKILL, kStepping},   {Victim::kWriter, SIGSTOP, kFinished},
    {Victim::kWriter, SIGKILL, kCommitted},  {Victim::kReader, SIGKILL, kStepping},
    {Victim::kDaemon, SIGSTOP, kAnyInstant}, {Victim::kDaemon, SIGKILL, kAnyInstant},
    {Victim::kWriter, SIGKILL, kAnyInstant}, {Victim::kWriter, SIGSTOP, kAnyInstant},
    {Victim::kReader, SIGKILL, kAnyInstant}, {Victim::kReader, SIGSTOP, kAnyInstant},
};

std::string NameOf(const Event& event) {
  const char* victims[] = {"writer", "reader", "daemon"};
  const char* points[] = {"any instant", "writing", "finished", "committed", "leased", "stepping"};
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

class RecoveryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    board_ = MapBoard(store_.folder());
    ASSERT_NE(board_, nullptr);
    store_.more_config = ", \"lease_ttl_ms\": 500";
    ASSERT_TRUE(store_.Start()) << store_.log();
  }
  void TearDown() override {
    if (board_ != nullptr) munmap(board_, sizeof(Board));
  }

  void StartWorker(size_t index) {
    WorkerBoard& worker = board_->workers[index];
    worker.hold = worker.at = kAnyInstant;
    worker.fenced = false;
    const std::string self = fs::read_symlink("/proc/self/exe").string();
    workers_[index].emplace(
        std::vector<std::string>{self, "--worker", index < kReaders ? "writer" : "reader",
                                 std::to_string(index), store_.folder()},
        store_.folder() + "/log.worker-" + std::to_string(index));
  }
  WorkerBoard& writer() { return board_->workers[writer_]; }

  // Everybody has got on since, readers with versions that are new.
  void ExpectAllGoOn() {
    const uint64_t newest = board_->newest + 2;
    EXPECT_TRUE(Eventually([&] { return board_->newest >= newest; }, kPatience))
        << "the writer does not go on";
    for (size_t i = kReaders; i < kReaders + kNumReaders; ++i) {
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
    auto stub = v1::WeightStoreService::NewStub(*rpc::MakeChannel(store_.address()));
    grpc::ClientContext context;
    v1::ListVersionsRequest request;
    request.set_run_id(kRun);
    v1::ListVersionsResponse response;
    const grpc::Status status = stub->ListVersions(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    std::map<uint64_t, v1::VersionInfo> versions;
    for (const v1::VersionInfo& info : response.versions()) versions[info.version()] = info;
    return versions;
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
      if (event.victim != Victim::kDaemon) return;
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
  void HitDaemon(const Event& event, std::mt19937_64& random) {
    if (event.signal == SIGKILL) {
      EXPECT_EQ(store_.End(SIGKILL), -SIGKILL);
      ASSERT_TRUE(store_.Start()) << store_.log();
      return;
    }
    const auto start = steady_clock::now();
    store_.process().Stop();
    std::this_thread::sleep_for(milliseconds(50 + random() % 1'000));
    board_->daemon_paused_ms += static_cast<uint64_t>(
        std::chrono::duration_cast<milliseconds>(steady_clock::now() - start).count() + 1);
    store_.process().Continue();
  }

  static constexpr size_t kReaders = 2;  // workers 0 and 1 write, in turns
  static constexpr size_t kNumReaders = 2;
  WeightStoreProcess store_;
  Board* board_ = nullptr;
  size_t writer_ = 0;
  std::array<std::optional<ChildProcess>, kReaders + kNumReaders> workers_;
};

TEST_F(RecoveryTest, NoKillPointLosesOrMixesAVersion) {
  const uint64_t rounds =
      FromEnvironment("TITAN_KILL_POINTS", titan::testing::Rounds<uint64_t>(12, 4));
  const uint64_t seed = FromEnvironment("TITAN_KILL_SEED", 1);
  std::cout << "kill points: " << rounds << ", TITAN_KILL_SEED=" << seed << std::endl;
  std::mt19937_64 random(seed);
  StartWorker(0);
  for (size_t i = kReaders; i < kReaders + kNumReaders; ++i) StartWorker(i);
  ExpectAllGoOn();
  uint64_t long_pauses = rounds / 50;  // each takes the time that a map has, 15 s
  for (uint64_t round = 0; round < rounds && !HasFailure(); ++round) {
    const Event& event =
        kEvents[round < std::size(kEvents) ? round : random() % std::size(kEvents)];
    SCOPED_TRACE("round " + std::to_string(round) + ": " + NameOf(event));
    const size_t reader = kReaders + random() % kNumReaders;
    const bool writer_comes = event.point <= kCommitted;
    WaitFor(writer_comes ? writer_ : reader, event, random);
    if (HasFatalFailure()) break;
    switch (event.victim) {
      case Victim::kWriter:
        HitWriter(event);
        break;
      case Victim::kReader: {
        const bool long_pause =
            event.signal == SIGSTOP && event.point == kStepping && long_pauses > 0;
        long_pauses -= long_pause;
        HitReader(event, reader, long_pause, random);
        break;
      }
      case Victim::kDaemon:
        HitDaemon(event, random);
        break;
    }
    ExpectAllGoOn();
    ExpectNothingWrong();
    if (round % 10 == 9) ExpectAllAcknowledgedAreListed();
  }
  ExpectAllAcknowledgedAreListed();
  board_->stop = true;
  EXPECT_EQ(workers_[writer_]->Wait(), kStopped);
  for (size_t i = kReaders; i < kReaders + kNumReaders; ++i) {
    EXPECT_EQ(workers_[i]->Wait(), kStopped);
    EXPECT_GT(board_->workers[i].steps, 0u);
  }
  for (size_t i = 0; i < workers_.size(); ++i) EXPECT_FALSE(Holds(i));

  // Of the daemon that lived through it, and of a new one.
  Open open[2];
  for (Open& seen : open) {
    auto leader = StandaloneLeader::Create(store_.address());
    ASSERT_TRUE(leader.ok()) << leader.status();
    auto publisher = Publisher::Register((*leader)->port(), {.socket_path = store_.socket_path(),
                                                             .run_id = kRun,
                                                             .request_id = "last",
                                                             .manifest = SmallManifest(kPanels),
                                                             .max_age = kMaxAge});
    ASSERT_TRUE(publisher.ok()) << publisher.status();
    // As many as take the slots of the writers before away.
    const uint64_t first = List().size();
    for (uint64_t version = first; version < first + kSlots; ++version) {
      const auto begun = (*publisher)->Begin(version, kRingWait);
      ASSERT_TRUE(begun.ok()) << begun.status();
      Fill(begun->bytes, version);
      ASSERT_TRUE((*publisher)->Finish().ok());
      ASSERT_TRUE((*publisher)->Commit("", version).ok());
    }
    EXPECT_TRUE(Eventually([&] {
      seen = OpenOf(store_.process().pid());
      return seen.memory_files == 2 * kSlots && (&seen == open || seen == open[0]);
    })) << seen
        << "; of the first " << open[0];
    std::this_thread::sleep_for(milliseconds(300));  // connections that are being closed
    seen = OpenOf(store_.process().pid());
    publisher->reset();
    leader->reset();
    EXPECT_EQ(store_.End(SIGTERM), 0);
    ASSERT_TRUE(store_.Start()) << store_.log();
  }
  EXPECT_EQ(open[0], open[1]);
}

TEST_F(RecoveryTest, VersionsAndLivesOfAWriterLeaveNothingInTheDaemon) {
  const uint64_t versions = std::getenv("TITAN_KILL_POINTS") != nullptr
                                ? 1'100
                                : titan::testing::Rounds<uint64_t>(300, 120);
  constexpr uint64_t kVersionsOfALife = 20;
  auto leader = StandaloneLeader::Create(store_.address());
  ASSERT_TRUE(leader.ok()) << leader.status();
  const Subscriber subscriber((*leader)->port(), store_.socket_path(), "reader");
  const pid_t daemon = store_.process().pid();
  std::unique_ptr<Publisher> publisher;
  Open open;
  uint64_t resident_bytes = 0;
  for (uint64_t v = 0; v < versions; ++v) {
    if (v % kVersionsOfALife == 0) {
      publisher.reset();
      auto registered = Publisher::Register((*leader)->port(), {.socket_path = store_.socket_path(),
                                                                .run_id = kRun,
                                                                .request_id = std::to_string(v),
                                                                .manifest = SmallManifest(kPanels),
                                                                .max_age = kMaxAge});
      ASSERT_TRUE(registered.ok()) << registered.status();
      publisher = *std::move(registered);
    }
    const auto begun = publisher->Begin(v, kRingWait);
    ASSERT_TRUE(begun.ok()) << begun.status();
    Fill(begun->bytes, v);
    ASSERT_TRUE(publisher->Finish().ok());
    ASSERT_TRUE(publisher->Commit("", v).ok());
    auto slot = subscriber.Acquire(kRun, v, false);
    ASSERT_TRUE(slot.ok()) << slot.status();
    ASSERT_EQ(NumberIn(slot->bytes()), v);
    ASSERT_TRUE(subscriber.Release(*std::move(slot)).ok());
    const bool first = v == 99;
    if (!first && v + 1 != versions) continue;
    // A slot of the writer before is dropped when the last version in it is retired.
    EXPECT_TRUE(Eventually([&] {
      return OpenOf(daemon).memory_files == 2 * kSlots && (first || OpenOf(daemon) == open);
    })) << OpenOf(daemon)
        << "; after the first 100 " << open;
    if (first) {
      open = OpenOf(daemon);
      resident_bytes = ResidentBytes(daemon);
    } else {
      // Records and the memory table of the index; a slot a version would be 34 KB each.
      EXPECT_LT(ResidentBytes(daemon), resident_bytes + (4u << 20) + (versions - 100) * 4096);
    }
  }
}

}  // namespace

int RunWorker(const std::string& role, size_t index, const std::string& folder) {
  Board* board = MapBoard(folder);
  if (board == nullptr || index >= board->workers.size()) return 5;
  Worker worker(*board, index, folder);
  return role == "writer" ? worker.Write() : worker.Read();
}

}  // namespace titan::weightstore

int main(int argc, char** argv) {
  if (argc == 5 && std::string(argv[1]) == "--worker") {
    return titan::weightstore::RunWorker(argv[2], std::strtoull(argv[3], nullptr, 10), argv[4]);
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
