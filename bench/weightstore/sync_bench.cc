// SPDX-License-Identifier: Apache-2.0
//
// titan-bench-sync MODEL ADDRESS SOCKET ROUNDS: what a new version costs from the optimizer's last
// write to the last of two readers, through a running titan-weightstore. The trainer's weights of
// MODEL are written into the open slot by TrainRun::WriteSlot (the layout of the kernels is that of
// the master, so that packing and writing are one pass), hashed by the publisher, hashed again by
// the daemon at PutDone and committed. The readers are processes; each is told by WatchVersions,
// takes a lease, maps the slot, checks its header and lets the version before go. One JSON object a
// line, with all figures; what bounds them is taken in turns with them:
//   sync             seconds until both readers run on the new version, beside the bytes that must
//                    be passed over at the speed of memcpy: one pass to write and pack, one to
//                    hash, one to hash again
//   sync/write, sync/finish, sync/flip    its parts: the last one is commit and flip, for readers
//                    are told before the trainer hears of its commit
//   put, get, put_get    of a reader that also copies the version into memory of its own
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/formats/model_source.h"
#include "core/kernels/isa.h"
#include "core/model/model_files.h"
#include "services/models/manifest_of.h"
#include "services/rpc/channel.h"
#include "services/weightstore_client/standalone_leader.h"
#include "trainer/train_run.h"
#include "weightstore/client/publisher.h"
#include "weightstore/client/subscriber.h"

namespace titan::weightstore {
namespace {

constexpr int kReaders = 2;
constexpr char kRun[] = "bench";
constexpr double kPasses = 3;  // write and pack, hash, hash again

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void Check(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "titan-bench-sync: %s\n", status.ToString().c_str());
  std::exit(1);
}
template <typename T>
T OrExit(StatusOr<T> value) {
  Check(value.status());
  return *std::move(value);
}

void Row(const std::string& id, const std::string& unit, const std::vector<double>& ours,
         const std::vector<double>& peer = {}, const std::string& peer_name = "") {
  const auto list = [](const std::vector<double>& values) {
    std::string text;
    for (const double value : values) {
      char number[32];
      std::snprintf(number, sizeof(number), "%s%.6g", text.empty() ? "" : ", ", value);
      text += number;
    }
    return "[" + text + "]";
  };
  std::printf("{\"id\": \"%s\", \"unit\": \"%s\", \"ours\": %s", id.c_str(), unit.c_str(),
              list(ours).c_str());
  if (!peer.empty()) {
    std::printf(", \"peer\": %s, \"peer_name\": \"%s\"", list(peer).c_str(), peer_name.c_str());
  }
  std::printf("}\n");
  std::fflush(stdout);
}

// When a reader ran on a version, and when it had a copy of its own.
struct Flip {
  uint64_t version = 0;
  double flipped = 0, copied = 0;
};

[[noreturn]] void Read(const std::string& address, const std::string& socket_path,
                       const std::string& name, bool copies, int to_trainer) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const auto leader = OrExit(StandaloneLeader::Create(address));
  const Subscriber subscriber(leader->port(), socket_path, name);
  const auto stub = v1::WeightStoreService::NewStub(OrExit(rpc::MakeChannel(address)));
  std::vector<std::byte> own;
  using Held = std::decay_t<decltype(*subscriber.Acquire(kRun, 0, false))>;
  Held held;
  for (bool known = false; !known; usleep(1000)) {  // the run begins when the trainer registers
    grpc::ClientContext context;
    v1::WatchVersionsRequest request;
    request.set_run_id(kRun);
    const auto reader = stub->WatchVersions(&context, request);
    v1::WatchVersionsResponse news;
    while (reader->Read(&news)) {
      known = true;
      for (const v1::VersionInfo& info : news.versions()) {
        if (info.state() != v1::VERSION_STATE_COMMITTED) continue;
        auto slot = OrExit(subscriber.Acquire(kRun, info.version(), false));
        if (!slot.HeaderUnchanged()) Check(Internal("the slot was taken"));
        Flip flip{info.version(), Now(), 0};
        if (copies) {
          own.resize(slot.bytes().size());
          std::memcpy(own.data(), slot.bytes().data(), own.size());
          if (!slot.HeaderUnchanged()) Check(Internal("the slot was taken"));
          flip.copied = Now();
        }
        std::swap(held, slot);
        if (slot.mapped()) (void)subscriber.Release(std::move(slot));
        (void)!write(to_trainer, &flip, sizeof(flip));
      }
    }
  }
  _exit(0);
}

// Bytes a second of memcpy, which counts what it copies once.
double MemcpySpeed(std::vector<std::byte>& to, const std::vector<std::byte>& from, size_t threads) {
  const double start = Now();
  {
    std::vector<std::jthread> helpers;
    const size_t share = from.size() / threads;
    for (size_t i = 0; i < threads; ++i) {
      helpers.emplace_back(
          [&, i] { std::memcpy(to.data() + i * share, from.data() + i * share, share); });
    }
  }
  return static_cast<double>(from.size()) / (Now() - start);
}

int Run(const char* model, const std::string& address, const std::string& socket_path, int rounds) {
  int ends[kReaders][2];
  for (int i = 0; i < kReaders; ++i) {  // before this process has threads
    if (pipe(ends[i]) != 0) return 1;
    if (fork() == 0) Read(address, socket_path, "reader-" + std::to_string(i), i == 0, ends[i][1]);
    close(ends[i][1]);
  }
  const int threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  kernels::Pool pool(threads);
  const kernels::NumericThread numeric;
  auto source = OrExit(formats::OpenModelSource(model));
  trainer::TrainConfig config;
  config.max_sequence_tokens = 64;
  const auto decoder = OrExit(
      model::Decoder::Create(source->config(), config.max_sequence_tokens, model::Mode::kF32));
  auto run = OrExit(trainer::TrainRun::Create(*decoder, pool, config, Now));
  Check(model::LoadWeights(pool, *source, decoder->master_table(), run->master()));
  source.reset();
  const auto leader = OrExit(StandaloneLeader::Create(address));
  auto publisher = OrExit(Publisher::Register(
      leader->port(), {.socket_path = socket_path,
                       .run_id = kRun,
                       .request_id = "bench",
                       .manifest = services::ManifestOf(decoder->table(), decoder->config()),
                       .hash_threads = threads}));
  const auto bytes = publisher->manifest().slot_bytes;
  std::vector<std::byte> from(bytes, std::byte{1}), to(bytes, std::byte{2});

  std::vector<double> sync, bound, write, finish, flip, put, get, put_get, single;
  const int warm_up = static_cast<int>(publisher->ring_slots()) + 1;  // each slot is mapped once
  for (int i = 0; i < warm_up + rounds; ++i) {
    const double speed = MemcpySpeed(to, from, static_cast<size_t>(threads));
    const double one = MemcpySpeed(to, from, 1);
    const auto version = static_cast<uint64_t>(i);
    const double start = Now();
    const auto begun = OrExit(publisher->Begin(version, std::chrono::seconds(60)));
    Check(run->WriteSlot(begun.bytes.data()));
    const double written = Now();
    OrExit(publisher->Finish());
    const double finished = Now();
    OrExit(publisher->Commit("", version));
    const double committed = Now();
    Flip flips[kReaders];
    for (int r = 0; r < kReaders; ++r) {
      do {
        if (read(ends[r][0], &flips[r], sizeof(Flip)) != sizeof(Flip)) return 1;
      } while (flips[r].version != version);
    }
    if (i < warm_up) continue;
    const double last = std::max(flips[0].flipped, flips[1].flipped);
    sync.push_back(last - start);
    bound.push_back(kPasses * static_cast<double>(bytes) / speed);
    single.push_back(kPasses * static_cast<double>(bytes) / one);
    write.push_back(written - start);
    finish.push_back(finished - written);
    flip.push_back(last - finished);
    put.push_back(committed - start);
    get.push_back(flips[0].copied - std::min(committed, flips[0].flipped));
    put_get.push_back(flips[0].copied - start);
  }
  Row("sync", "s", sync, bound, "3 passes at memcpy's speed");
  Row("sync/one_thread", "s", sync, single, "3 passes at one thread's memcpy");
  Row("sync/write", "s", write);
  Row("sync/finish", "s", finish);
  Row("sync/flip", "s", flip);
  Row("put", "s", put);
  Row("get", "s", get);
  Row("put_get", "s", put_get);
  _exit(0);  // the readers die with this process
}

}  // namespace
}  // namespace titan::weightstore

int main(int argc, char** argv) {
  const int rounds = argc == 5 ? std::atoi(argv[4]) : 0;
  if (rounds < 1 || rounds > 10'000) {
    std::fprintf(stderr, "usage: titan-bench-sync MODEL ADDRESS SOCKET ROUNDS\n");
    return 2;
  }
  return titan::weightstore::Run(argv[1], argv[2], argv[3], rounds);
}
