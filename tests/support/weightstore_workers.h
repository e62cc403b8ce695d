// SPDX-License-Identifier: Apache-2.0
//
// Writers and readers of a weight store that publish and load small versions without end, each a
// process of its own, and the board on which they say what they saw: a file that all of them map,
// so that it outlives them. A driver has them wait at named points. Test code.
#ifndef TITAN_TESTS_SUPPORT_WEIGHTSTORE_WORKERS_H_
#define TITAN_TESTS_SUPPORT_WEIGHTSTORE_WORKERS_H_

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/runtime/endpoint.h"
#include "services/weightstore_client/standalone_leader.h"
#include "tests/support/weightstore.h"
#include "weightstore/client/publisher.h"
#include "weightstore/client/subscriber.h"
#include "weightstore/client/weights_digest.h"
#include "weightstore/transport/puller.h"
#include "weightstore/transport/tcp_transport.h"

namespace titan::weightstore::testing {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

inline constexpr int64_t kPanels = 8;  // slots of 34 KB
inline constexpr uint32_t kMaxAge = 1;
inline constexpr milliseconds kRingWait{30'000};
inline constexpr size_t kMaxVersions = size_t{1} << 20;
inline constexpr char kRun[] = "run";

enum Point : uint32_t {
  kAnyInstant,
  kWriting,    // a writer has written half of an open slot
  kFinished,   // PutDone is answered, Commit not yet called
  kCommitted,  // Commit is answered
  kLeased,     // a reader has a lease and no map yet
  kStepping,   // a reader has read the slot and not yet looked at its header again
  kPulling,    // a reader elsewhere has half of the slot's bytes
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
  std::array<WorkerBoard, 5> workers;
  std::array<std::atomic<bool>, kMaxVersions> acknowledged;
};

inline Board* MapBoard(const std::string& folder) {
  const int file = open((folder + "/board").c_str(), O_RDWR | O_CREAT, 0600);
  if (file < 0 || ftruncate(file, sizeof(Board)) != 0) return nullptr;
  void* map = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  return map == MAP_FAILED ? nullptr : static_cast<Board*>(map);
}

inline Hash128 DigestOf(uint64_t version) {
  static const Manifest manifest = SmallManifest(kPanels);
  static std::vector<std::byte> bytes(manifest.slot_bytes);
  Fill(bytes, version);
  return WeightsDigest(manifest, bytes, 1);
}

enum WorkerExit { kStopped = 0, kFencedAndRefused = 3, kFencedAndObeyed = 4 };

class Worker {
 public:
  // leader_folder: the data folder of the process with the leader; socket_path: of its own host.
  Worker(Board& board, size_t index, std::string leader_folder, std::string socket_path)
      : board_(board),
        me_(board.workers[index]),
        name_("worker-" + std::to_string(index)),
        leader_folder_(std::move(leader_folder)),
        socket_path_(std::move(socket_path)) {}

  int Write() {
    while (!board_.stop) {
      if (Connect() && !me_.fenced) WriteAsLongAsPossible();
      if (me_.fenced) return obeyed_ ? kFencedAndObeyed : kFencedAndRefused;
      std::this_thread::sleep_for(milliseconds(2));
    }
    return kStopped;
  }

  // Maps.
  int Read() {
    return ReadWith([this](uint64_t version) { return Load(version); });
  }
  // As on another machine.
  int Pull() {
    const auto puller = *lanes::Puller::Create({});
    return ReadWith([&](uint64_t version) {
      const Status loaded =
          me_.hold == kPulling ? PullByHalves(version) : PullWhole(version, *puller);
      if (pulled_.held() &&
          (!pulled_.HeaderUnchanged() || NumberIn(pulled_.bytes()) != pulled_.version())) {
        ++me_.wrong;  // what was loaded last serves on, whatever became of the next one
      }
      return loaded;
    });
  }

 private:
  template <typename LoadVersion>
  int ReadWith(const LoadVersion& load) {
    while (!board_.stop) {
      if (!leader_ && !Connect()) continue;
      const uint64_t newest = board_.newest;
      const Status read = newest == 0 ? Unavailable("nothing yet") : load(newest - 1);
      if (read.ok()) continue;
      if (read.code() == StatusCode::kDataLoss) ++me_.wrong;
      if (read.code() == StatusCode::kUnavailable) leader_.reset();  // perhaps it has moved
      std::this_thread::sleep_for(milliseconds(2));
    }
    return kStopped;
  }

  bool Connect() {
    leader_.reset();
    const auto endpoint = runtime::ReadEndpoint(leader_folder_, "weightstore");
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
                                 {.socket_path = socket_path_,
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
    const Subscriber subscriber(leader_->port(), socket_path_, name_);
    auto slot = Timed(milliseconds(0), [&] { return subscriber.Acquire(kRun, version, false); });
    if (!slot.ok()) return slot.status();
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

  Status PullWhole(uint64_t version, lanes::Puller& puller) {
    const Subscriber subscriber(leader_->port(), "", puller, name_);
    auto held = Timed(milliseconds(0), [&] { return subscriber.Acquire(kRun, version, false); });
    if (!held.ok()) return held.status();
    pulled_ = *std::move(held);
    Count(version, pulled_.lease().digest, pulled_.bytes());
    return OkStatus();
  }
  // With a stop between, at which the driver may do something to this process or to the source.
  Status PullByHalves(uint64_t version) {
    const auto asked = steady_clock::now();
    auto lease = Timed(milliseconds(0), [&] {
      return leader_->port().AcquireRemoteLease(name_, kRun, version, false, {{Lane::kTcp}, ""});
    });
    if (!lease.ok()) return lease.status();
    const Status read = ReadByHalves(*lease, asked + lease->ttl);
    (void)leader_->port().ReleaseLease(lease->lease.lease_id);
    return read;
  }
  Status ReadByHalves(const RemoteLease& lease, SteadyTime expires) {
    TITAN_ASSIGN_OR_RETURN(const auto transport, lanes::TcpTransport::Create(lease.address, {}));
    const lanes::PullGrant grant = {lease.lease, lease.epoch, lease.token, expires};
    auto slot = Timed(milliseconds(0), [&] { return transport->Open(grant, expires); });
    if (!slot.ok()) return slot.status();
    std::vector<std::byte> bytes(lease.lease.manifest->slot_bytes);
    const size_t half = bytes.size() / 2;
    for (const size_t from : {size_t{0}, half}) {
      const lanes::Piece piece = {
          .source_offset = from,
          .destination = std::span(bytes).subspan(from, from == 0 ? half : bytes.size() - half)};
      const Status read =
          Timed(milliseconds(0), [&] { return (*slot)->Read(std::span(&piece, 1), expires); });
      if (!read.ok()) return read;
      if (from == 0) Reach(kPulling);
    }
    Count(lease.lease.version, lease.lease.digest, bytes);
    return OkStatus();
  }
  void Count(uint64_t version, const Hash128& digest, std::span<const std::byte> bytes) {
    ++me_.steps;
    if (NumberIn(bytes) != version || digest != DigestOf(version)) ++me_.wrong;
    me_.newest = version + 1;
  }

  Board& board_;
  WorkerBoard& me_;
  const std::string name_;
  const std::string leader_folder_;
  const std::string socket_path_;
  int num_registrations_ = 0;
  bool obeyed_ = false;  // a call that began after the fence was answered with OK
  std::unique_ptr<StandaloneLeader> leader_;
  HeldVersion pulled_;  // the last version that was pulled whole
};

}  // namespace titan::weightstore::testing

#endif  // TITAN_TESTS_SUPPORT_WEIGHTSTORE_WORKERS_H_
