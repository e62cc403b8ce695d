// SPDX-License-Identifier: Apache-2.0
//
// titan-bench-rma BYTES ROUNDS: reads one range of another process's window over and over through
// RmaTransport, each time with the look at the slot's header behind it, as ucx_perftest does
// without. Prints one JSON object: the lane (rdma where there is an adapter, else shm-test) and
// GB/s.
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "weightstore/client/slot_header.h"
#include "weightstore/transport/rma_transport.h"

namespace titan::weightstore::lanes {
namespace {

using titan::transport::RmaDomain;
using titan::transport::RmaLane;
using titan::transport::RmaOptions;
using titan::transport::RmaWindow;
using titan::transport::RmaWindowKey;

template <typename T>
T OrExit(StatusOr<T> value) {
  if (!value.ok()) {
    std::fprintf(stderr, "titan-bench-rma: %s\n", value.status().ToString().c_str());
    std::exit(1);
  }
  return *std::move(value);
}

std::unique_ptr<RmaDomain> OpenDomain() {
  RmaOptions options;
  auto rdma = RmaDomain::Open(options);
  if (rdma.ok()) return *std::move(rdma);
  options.lane = RmaLane::kShmTest;
  return OrExit(RmaDomain::Open(options));
}

void Send(int fd, const std::string& text) {
  const uint64_t size = text.size();
  (void)!write(fd, &size, sizeof(size));
  (void)!write(fd, text.data(), size);
}
std::string Receive(int fd) {
  uint64_t size = 0;
  if (read(fd, &size, sizeof(size)) != sizeof(size)) std::exit(1);
  std::string text(size, '\0');
  if (read(fd, text.data(), size) != static_cast<ssize_t>(size)) std::exit(1);
  return text;
}
void SendKey(int fd, const RmaWindowKey& key) {
  Send(fd, std::to_string(key.address));
  Send(fd, std::to_string(key.bytes));
  Send(fd, key.key);
}
RmaWindowKey ReceiveKey(int fd) {
  RmaWindowKey key;
  key.address = std::stoull(Receive(fd));
  key.bytes = std::stoull(Receive(fd));
  key.key = Receive(fd);
  return key;
}

// The host: offers a slot of version 1 and sleeps.
[[noreturn]] void Offer(int to_reader, size_t num_bytes) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  auto domain = OpenDomain();
  const RmaWindow bytes = OrExit(domain->Allocate(num_bytes));
  const RmaWindow header = OrExit(domain->Allocate(kSlotHeaderBytes));
  std::memset(bytes.memory().data(), 1, num_bytes);
  SlotHeaderPage(header.memory().data()).Write({.slot_id = 1, .version = 1, .grant = 1});
  Send(to_reader, domain->address());
  SendKey(to_reader, bytes.key());
  SendKey(to_reader, header.key());
  for (;;) pause();
}

int Run(size_t num_bytes, int rounds) {
  int ends[2];
  if (pipe(ends) != 0) return 1;
  const pid_t host = fork();  // before this process has threads
  if (host == 0) Offer(ends[1], num_bytes);
  RmaSource source;
  source.address = Receive(ends[0]);
  source.bytes = ReceiveKey(ends[0]);
  source.header = ReceiveKey(ends[0]);
  source.slot_id = 1;
  auto domain = OpenDomain();
  const RmaWindow landing = OrExit(domain->Allocate(num_bytes));
  auto transport = OrExit(RmaTransport::Create(*domain, source, landing));
  PullGrant grant;
  grant.lease.lease_id = grant.lease.grant = grant.lease.version = 1;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(5);
  auto slot = OrExit(transport->Open(grant, deadline));
  const std::vector<Piece> pieces = {{.source_offset = 0, .destination = landing.memory()}};
  const auto read = [&] {
    const Status status = slot->Read(pieces, deadline);
    if (!status.ok()) OrExit(StatusOr<int>(status));
  };
  for (int i = 0; i < 4; ++i) read();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < rounds; ++i) read();
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::printf("{\"lane\": \"%s\", \"ours\": %.6g}\n",
              std::string(NameOf(transport->lane())).c_str(),
              static_cast<double>(num_bytes) * rounds / seconds / 1e9);
  kill(host, SIGKILL);
  waitpid(host, nullptr, 0);
  return 0;
}

}  // namespace
}  // namespace titan::weightstore::lanes

int main(int argc, char** argv) {
  const auto number = [&](int i) { return argc == 3 ? std::strtoull(argv[i], nullptr, 10) : 0; };
  if (number(1) == 0 || number(2) == 0 || number(2) > 1'000'000) {
    std::fprintf(stderr, "usage: titan-bench-rma BYTES ROUNDS\n");
    return 2;
  }
  return titan::weightstore::lanes::Run(number(1), static_cast<int>(number(2)));
}
