// SPDX-License-Identifier: Apache-2.0
//
// titan-bench-weightstore [--quick]: how fast a version comes out of a host's slot by each lane,
// one JSON row a line with all figures of ours and of the yardstick, taken in turns. Rows:
//   map/<size>     lease in hand to mapped and checked slot, first and last byte read, microseconds
//   touch/<size>   a byte of each page of 4 KiB right after the map, what filling the tables costs
//   copy           a private copy over the lane map, beside memcpy of the same bytes, GB/s
//   copy_hashed    the same and the weights digest of the copy
//   tcp            from another process, beside plain sendfile and recv over as many sockets
//   cost/...       the numbers behind reshard::CostModel's defaults
//   plan/...       making a plan for the layouts of a large model, milliseconds
// The slot of copy and tcp is 512 MiB (--quick: 64), more than a last-level cache.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "weightstore/client/weights_digest.h"
#include "weightstore/reshard/cuts.h"
#include "weightstore/reshard/plan.h"
#include "weightstore/slot_memory.h"
#include "weightstore/socket_server.h"
#include "weightstore/transport/map_transport.h"
#include "weightstore/transport/tcp_server.h"
#include "weightstore/transport/tcp_transport.h"

namespace titan::weightstore::lanes {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr int kStreams = 4;

void Check(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "titan-bench-weightstore: %s\n", status.ToString().c_str());
  std::exit(1);
}
template <typename T>
T OrExit(StatusOr<T> value) {
  Check(value.status());
  return *std::move(value);
}

double Seconds(const std::function<void()>& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

SteadyTime Later() { return std::chrono::steady_clock::now() + std::chrono::minutes(5); }

std::string List(const std::vector<double>& values) {
  std::string text = "[";
  for (const double value : values) {
    char number[32];
    std::snprintf(number, sizeof(number), "%s%.6g", text.size() == 1 ? "" : ", ", value);
    text += number;
  }
  return text + "]";
}

void Row(const std::string& id, const std::string& unit, const std::vector<double>& ours,
         const std::vector<double>& peer = {}, const std::string& peer_name = "") {
  std::printf("{\"id\": \"%s\", \"unit\": \"%s\", \"ours\": %s", id.c_str(), unit.c_str(),
              List(ours).c_str());
  if (!peer.empty()) {
    std::printf(", \"peer\": %s, \"peer_name\": \"%s\"", List(peer).c_str(), peer_name.c_str());
  }
  std::printf("}\n");
  std::fflush(stdout);
}

// One f32 tensor that fills the slot.
Manifest OneTensor(uint64_t num_bytes) {
  Manifest manifest;
  manifest.tensors = {{"w",
                       {static_cast<int64_t>(num_bytes / 4096), 1024},
                       DType::kF32,
                       Layout::kRows,
                       0,
                       num_bytes}};
  manifest.slot_bytes = num_bytes;
  manifest.model_config_json = "{}";
  return manifest;
}

// A slot of version 1, behind the unix socket and behind a server of the lane tcp.
class OneSlot final : public SlotSource, public SlotReads {
 public:
  explicit OneSlot(uint64_t num_bytes)
      : memory_(OrExit(SlotMemory::Create(1, num_bytes, SlotMemory::Writer::kDaemon))),
        fd_(OrExit(memory_->DuplicateForReader())) {
    const auto words = memory_->writable_bytes();
    for (uint64_t i = 0; i + 8 <= words.size(); i += 8) std::memcpy(&words[i], &i, 8);
    memory_->WriteHeader({.slot_id = 1, .version = 1, .grant = 1, .digest = {1, 1}});
    tile_hashes_ = TileHashes(memory_->bytes(), 2);
    grant_.lease.lease_id = grant_.lease.grant = grant_.lease.version = 1;
    grant_.lease.digest = {1, 1};
    grant_.lease.manifest = std::make_shared<const Manifest>(OneTensor(num_bytes));
  }
  const PullGrant& grant() const { return grant_; }
  int fd() const { return fd_.get(); }
  std::span<const std::byte> bytes() const { return memory_->bytes(); }

  StatusOr<SlotDescriptors> MapLease(uint64_t, uint64_t, uint64_t) override {
    SlotDescriptors descriptors{.slot_id = 1, .slot_bytes = memory_->num_bytes()};
    descriptors.fds.push_back(OrExit(memory_->DuplicateForReader()));
    descriptors.fds.push_back(OrExit(memory_->DuplicateHeader()));
    return descriptors;
  }
  StatusOr<SlotDescriptors> MapForWriting(uint64_t, uint64_t, uint64_t) override {
    return FailedPrecondition("read only");
  }
  Status WriterHasMapped(uint64_t, uint64_t, uint64_t) override {
    return FailedPrecondition("read only");
  }
  StatusOr<SlotDescriptors> OfferSlot(uint64_t, SlotOffer, UniqueFd) override {
    return FailedPrecondition("read only");
  }
  StatusOr<SlotDescriptors> OfferState(uint64_t) override {
    return FailedPrecondition("read only");
  }
  const std::string& host_name() const override { return host_name_; }
  void ConnectionClosed(uint64_t) override {}

  StatusOr<ReadableSlot> OpenForRead(const ReadHandle&) override {
    return ReadableSlot{fd_.get(),    memory_->bytes(), {memory_->num_bytes(), 1, {1, 1}},
                        tile_hashes_, nullptr,          memory_};
  }
  Status CheckReadable(const ReadHandle&) override { return OkStatus(); }

 private:
  std::shared_ptr<SlotMemory> memory_;
  UniqueFd fd_;
  std::vector<uint64_t> tile_hashes_;
  const std::string host_name_ = "bench";
  PullGrant grant_;
};

std::string SocketPath() {
  return (std::filesystem::temp_directory_path() / ("titan_bench_" + std::to_string(getpid())))
      .string();
}

std::string NameOfSize(uint64_t bytes) {
  return bytes >= 1024 * kMiB ? std::to_string(bytes / kMiB / 1024) + "GB"
                              : std::to_string(bytes / kMiB) + "MB";
}

void BenchMap(const std::vector<uint64_t>& sizes) {
  std::vector<std::vector<double>> times(sizes.size()), touches(sizes.size());
  std::vector<std::unique_ptr<OneSlot>> slots;
  std::vector<std::unique_ptr<SocketServer>> servers;
  std::vector<std::unique_ptr<MapTransport>> lanes;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const std::string path = SocketPath() + "_" + std::to_string(i);
    slots.push_back(std::make_unique<OneSlot>(sizes[i]));
    servers.push_back(OrExit(SocketServer::Start(path, *slots[i])));
    lanes.push_back(OrExit(MapTransport::Create(path)));
  }
  for (int round = 0; round < 50; ++round) {
    for (size_t i = 0; i < sizes.size(); ++i) {  // in turns
      std::unique_ptr<RemoteSlot> slot;
      times[i].push_back(1e6 * Seconds([&] {
                           slot = OrExit(lanes[i]->Open(slots[i]->grant(), Later()));
                           volatile auto first = slot->mapped()[0];
                           volatile auto last = slot->mapped().back();
                           (void)first, (void)last;
                           Check(slot->Confirm(Later()));
                         }));
      if (round % 10 != 0) continue;
      touches[i].push_back(1e6 * Seconds([&] {
                             for (size_t at = 0; at < slot->mapped().size(); at += 4096) {
                               volatile auto byte = slot->mapped()[at];
                               (void)byte;
                             }
                           }));
    }
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    Row("map/" + NameOfSize(sizes[i]), "us", times[i], i == 0 ? std::vector<double>{} : times[0],
        "map/" + NameOfSize(sizes[0]));
  }
  for (size_t i = 0; i < sizes.size(); ++i) Row("touch/" + NameOfSize(sizes[i]), "us", touches[i]);
}

void BenchCopy(uint64_t num_bytes, int rounds) {
  OneSlot slot(num_bytes);
  auto server = OrExit(SocketServer::Start(SocketPath(), slot));
  auto lane = OrExit(MapTransport::Create(SocketPath()));
  auto open = OrExit(lane->Open(slot.grant(), Later()));
  std::vector<std::byte> to(num_bytes, std::byte{1});
  const std::vector<Piece> pieces = {{.source_offset = 0, .destination = to}};
  const double gigabytes = static_cast<double>(num_bytes) / 1e9;
  const int threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  std::vector<double> copy, hashed, plain;
  for (int round = 0; round < rounds; ++round) {
    plain.push_back(gigabytes /
                    Seconds([&] { std::memcpy(to.data(), open->mapped().data(), num_bytes); }));
    copy.push_back(gigabytes / Seconds([&] { Check(open->Read(pieces, Later())); }));
    hashed.push_back(gigabytes / Seconds([&] {
                       Check(open->Read(pieces, Later()));
                       (void)WeightsDigest(*slot.grant().lease.manifest, to, threads);
                     }));
  }
  Row("copy", "GB/s", copy, plain, "memcpy");
  Row("copy_hashed", "GB/s", hashed, plain, "memcpy");
}

int ListenLoopback(uint16_t* port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(fd, 64) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    std::perror("titan-bench-weightstore: listen");
    std::exit(1);
  }
  *port = ntohs(address.sin_port);
  return fd;
}

// The yardstick's sender: to every connection the share of the slot that it asks for, again and
// again, by sendfile and without looking at anything.
void SendShares(int listener, int fd, uint64_t share) {
  for (;;) {
    const int connection = accept(listener, nullptr, nullptr);
    if (connection < 0) return;
    std::thread([connection, fd, share] {
      uint64_t index;
      while (recv(connection, &index, sizeof(index), MSG_WAITALL) == sizeof(index)) {
        auto at = static_cast<off_t>(index * share);
        for (uint64_t left = share; left > 0;) {
          const ssize_t sent = sendfile(connection, fd, &at, left);
          if (sent <= 0) break;
          left -= static_cast<uint64_t>(sent);
        }
      }
      close(connection);
    }).detach();
  }
}

// A process that serves a slot by both ways; killed at the end.
struct Sender {
  explicit Sender(uint64_t num_bytes) {
    int ends[2];
    if (pipe(ends) != 0) std::exit(1);
    pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      signal(SIGPIPE, SIG_IGN);
      OneSlot slot(num_bytes);
      auto server = OrExit(TcpServer::Start({.threads = 2}, slot));
      const int listener = ListenLoopback(&plain_port);
      const std::string address = server->address();
      port = static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
      const uint16_t ports[2] = {port, plain_port};
      (void)!write(ends[1], ports, sizeof(ports));
      SendShares(listener, slot.fd(), num_bytes / kStreams);
      _exit(0);
    }
    uint16_t ports[2];
    if (read(ends[0], ports, sizeof(ports)) != sizeof(ports)) std::exit(1);
    port = ports[0];
    plain_port = ports[1];
    close(ends[0]);
    close(ends[1]);
  }
  ~Sender() {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
  pid_t pid = 0;
  uint16_t port = 0, plain_port = 0;
};

void BenchTcp(uint64_t num_bytes, int rounds) {
  const Sender sender(num_bytes);  // before this process has threads
  PullGrant grant;
  grant.lease.lease_id = grant.lease.grant = grant.lease.version = 1;
  grant.lease.digest = {1, 1};
  auto lane = OrExit(TcpTransport::Create("127.0.0.1:" + std::to_string(sender.port),
                                          {.streams = kStreams, .threads = 2}));
  auto open = OrExit(lane->Open(grant, Later()));
  std::vector<std::byte> to(num_bytes, std::byte{1});
  const std::vector<Piece> pieces = {{.source_offset = 0, .destination = to}};
  const double gigabytes = static_cast<double>(num_bytes) / 1e9;
  std::vector<int> sockets;
  for (int i = 0; i < kStreams; ++i) {
    sockets.push_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(sender.plain_port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(sockets.back(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
      std::perror("titan-bench-weightstore: connect");
      std::exit(1);
    }
  }
  const uint64_t share = num_bytes / kStreams;
  const auto plain = [&] {
    std::vector<std::jthread> threads;
    for (uint64_t i = 0; i < kStreams; ++i) {
      threads.emplace_back([&, i] {
        (void)!send(sockets[i], &i, sizeof(i), MSG_NOSIGNAL);
        for (uint64_t done = 0; done < share;) {
          const ssize_t got = recv(sockets[i], to.data() + i * share + done, share - done, 0);
          if (got <= 0) return;
          done += static_cast<uint64_t>(got);
        }
      });
    }
  };
  std::vector<double> ours, peer;
  for (int round = 0; round < rounds; ++round) {
    peer.push_back(gigabytes / Seconds(plain));
    ours.push_back(gigabytes / Seconds([&] { Check(open->Read(pieces, Later())); }));
  }
  Row("tcp", "GB/s", ours, peer, "sendfile+recv, no hashes");

  // A request of one element beside others on the way, and packed runs.
  const uint64_t num_small = std::min<uint64_t>(20'000, num_bytes / 4096);
  std::vector<Piece> small;
  for (uint64_t i = 0; i < num_small; ++i) {
    small.push_back({.source_offset = i * 4096, .destination = std::span(to).subspan(i * 64, 64)});
  }
  std::vector<double> reads;
  for (int round = 0; round < rounds; ++round) {
    reads.push_back(1e6 * Seconds([&] { Check(open->Read(small, Later())); }) /
                    static_cast<double>(num_small));
  }
  Row("cost/tcp_read", "us", reads);
  std::vector<Piece> packed;  // 64 B of every 4 KiB, 1 MiB an answer
  for (uint64_t i = 0; i + 1 < num_bytes / (64 * kMiB); ++i) {
    packed.push_back({.source_offset = i * 64 * kMiB,
                      .destination = std::span(to).subspan(i * kMiB, kMiB),
                      .run_bytes = 64,
                      .loops = {{16'384, 4096}}});
  }
  std::vector<double> runs;
  for (int round = 0; round < rounds && !packed.empty(); ++round) {
    runs.push_back(1e9 * Seconds([&] { Check(open->Read(packed, Later())); }) /
                   (16'384.0 * static_cast<double>(packed.size())));
  }
  if (!runs.empty()) Row("cost/tcp_packed_run", "ns", runs);
  for (const int fd : sockets) close(fd);
}

// 80 layers, rows over 64 ranks of FSDP to 8 ranks of TP with columns cut as well.
void BenchPlan(int rounds) {
  using reshard::AxisRule;
  reshard::MeshCut from, to;
  const AxisRule rows = {.kind = AxisRule::Kind::kShard, .dimension = 0};
  const AxisRule columns = {.kind = AxisRule::Kind::kShard, .dimension = 1};
  from.mesh = {64};
  to.mesh = {8};
  const auto add = [&](std::string name, std::vector<int64_t> shape, AxisRule rule) {
    from.tensors.push_back({name, shape, DType::kBf16, Layout::kRows});
    to.tensors.push_back({std::move(name), std::move(shape), DType::kBf16, Layout::kRows});
    from.rules.push_back({rows});
    to.rules.push_back({rule});
  };
  for (int layer = 0; layer < 80; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    for (const char* name : {"q", "o", "gate", "up", "down"}) {
      add(prefix + name, {8192, 8192}, *name == 'o' || *name == 'd' ? columns : rows);
    }
    add(prefix + "k", {1024, 8192}, rows);
    add(prefix + "v", {1024, 8192}, rows);
    add(prefix + "norm", {8192}, {});
  }
  const auto source = OrExit(reshard::CutByMesh(from));
  const auto destination = OrExit(reshard::CutByMesh(to));
  std::vector<double> times;
  for (int round = 0; round < rounds; ++round) {
    times.push_back(1e3 * Seconds([&] {
                      (void)OrExit(reshard::MakePlan(source, destination, reshard::CostModel{}));
                    }));
  }
  Row("plan/80layers/fsdp64_to_tp8", "ms", times);
}

}  // namespace
}  // namespace titan::weightstore::lanes

int main(int argc, char** argv) {
  using namespace titan::weightstore::lanes;
  const bool quick = argc > 1 && std::strcmp(argv[1], "--quick") == 0;
  if (argc > 1 && !quick) {
    std::fprintf(stderr, "usage: titan-bench-weightstore [--quick]\n");
    return 2;
  }
  const uint64_t slot_bytes = quick ? 64 * kMiB : 512 * kMiB;
  BenchTcp(slot_bytes, quick ? 3 : 9);
  BenchCopy(slot_bytes, quick ? 3 : 9);
  BenchMap(quick ? std::vector<uint64_t>{64 * kMiB, 256 * kMiB}
                 : std::vector<uint64_t>{64 * kMiB, 512 * kMiB, 4096 * kMiB});
  BenchPlan(quick ? 1 : 5);
  return 0;
}
