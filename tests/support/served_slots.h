// SPDX-License-Identifier: Apache-2.0
//
// Slots behind a server of a remote lane, without a store: leases are numbers that a test ends or
// makes stale, slots are real memory files. And a proxy that turns one bit on the way. Test code.
#ifndef TITAN_TESTS_SUPPORT_SERVED_SLOTS_H_
#define TITAN_TESTS_SUPPORT_SERVED_SLOTS_H_

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "weightstore/client/reason.h"
#include "weightstore/slot_memory.h"
#include "weightstore/transport/slot_reads.h"

namespace titan::weightstore::lanes::testing {

// Byte number i of a slot of this version.
inline std::byte ByteOf(uint64_t version, uint64_t i) {
  return static_cast<std::byte>((i * 2654435761u + version * 97) >> 11);
}

// Another version's bytes in a slot that is being read: what another process does, which is why
// ThreadSanitizer is not to look.
__attribute__((no_sanitize_thread)) inline void Overwrite(std::span<std::byte> slot) {
  auto* bytes = reinterpret_cast<volatile unsigned char*>(slot.data());
  for (size_t i = 0; i < slot.size(); ++i) bytes[i] = static_cast<unsigned char>(bytes[i] ^ 0xff);
}

class ServedSlots final : public SlotReads {
 public:
  // Adds a slot with ByteOf(version, .) in it; its lease and grant are its number, from 1 on.
  uint64_t Add(uint64_t num_bytes, uint64_t version) {
    auto memory = SlotMemory::Create(slots_.size() + 1, num_bytes, SlotMemory::Writer::kDaemon);
    EXPECT_TRUE(memory.ok()) << memory.status();
    const auto bytes = (*memory)->writable_bytes();
    for (uint64_t i = 0; i < num_bytes; ++i) bytes[i] = ByteOf(version, i);
    return AddMemory(*std::move(memory), version);
  }
  uint64_t AddMemory(std::unique_ptr<SlotMemory> memory, uint64_t version) {
    return AddMemory(std::move(memory), version, {version, 7});
  }
  uint64_t AddMemory(std::unique_ptr<SlotMemory> memory, uint64_t version, const Hash128& digest) {
    Slot slot;
    slot.digest = digest;
    slot.memory = std::move(memory);
    slot.fd = *slot.memory->DuplicateForReader();
    slot.grant = slots_.size() + 1;
    slot.version = version;
    slots_.push_back(std::move(slot));
    return slots_.size();
  }
  std::span<std::byte> bytes(uint64_t lease) { return slots_[lease - 1].memory->writable_bytes(); }

  PullGrant GrantOf(uint64_t lease) const {
    PullGrant grant;
    grant.lease.lease_id = lease;
    grant.lease.grant = slots_[lease - 1].grant;
    grant.lease.version = slots_[lease - 1].version;
    grant.lease.digest = slots_[lease - 1].digest;
    grant.epoch = 3;
    grant.token = {lease * 11, 5};
    return grant;
  }

  // As a daemon that has verified the slot.
  void HashTiles(uint64_t lease) {
    slots_[lease - 1].tile_hashes = TileHashes(slots_[lease - 1].memory->bytes(), 2);
  }

  // What becomes of lease, slot and epoch; any thread.
  void EndLease() { lease_ended_ = true; }
  void RaiseGrants() { ++grant_raised_; }
  void RaiseEpoch() { ++epoch_; }
  // Of every slot; null: the slot's own.
  const RmaSource* windows_instead = nullptr;
  // Called after the server hashed and before it looks at the handle again.
  std::function<void()> before_second_look;
  std::atomic<uint64_t> num_opens{0};

  StatusOr<ReadableSlot> OpenForRead(const ReadHandle& handle) override {
    ++num_opens;
    TITAN_RETURN_IF_ERROR(Check(handle));
    const Slot& slot = slots_[handle.lease_id - 1];
    ReadableSlot readable;
    readable.fd = slot.fd.get();
    readable.bytes = slot.memory->bytes();
    readable.facts = {readable.bytes.size(), slot.version, slot.digest};
    readable.tile_hashes = slot.tile_hashes;
    readable.windows = windows_instead != nullptr ? windows_instead : slot.memory->windows();
    readable.owner = slot.memory;
    return readable;
  }
  Status CheckReadable(const ReadHandle& handle) override {
    if (before_second_look) before_second_look();
    return Check(handle);
  }

 private:
  struct Slot {
    std::shared_ptr<SlotMemory> memory;
    UniqueFd fd;
    uint64_t grant = 0;
    uint64_t version = 0;
    Hash128 digest;
    std::vector<uint64_t> tile_hashes;
  };

  Status Check(const ReadHandle& handle) const {
    if (handle.lease_id == 0 || handle.lease_id > slots_.size() || lease_ended_) {
      return WithReason(Aborted("the lease has ended"), kLeaseExpired);
    }
    const Slot& slot = slots_[handle.lease_id - 1];
    if (handle.token != Hash128{handle.lease_id * 11, 5}) {
      return FailedPrecondition("the token is not the lease's");
    }
    if (handle.epoch != epoch_) {
      return WithReason(Aborted("the epoch is superseded"), kEpochSuperseded);
    }
    if (handle.grant != slot.grant + grant_raised_) {
      return WithReason(Aborted("the grant number is stale"), kStaleHandle);
    }
    return OkStatus();
  }

  std::vector<Slot> slots_;
  std::atomic<bool> lease_ended_{false};
  std::atomic<uint64_t> grant_raised_{0}, epoch_{3};
};

// A socket at 127.0.0.1.
inline sockaddr_in Loopback(uint16_t port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}
inline uint16_t PortOf(const std::string& address) {
  return static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
}
inline UniqueFd ListenLoopback(uint16_t* port) {
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof(address);
  EXPECT_EQ(bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(listen(fd.get(), 64), 0);
  EXPECT_EQ(getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  *port = ntohs(address.sin_port);
  return fd;
}
inline UniqueFd ConnectLoopback(uint16_t port) {
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = Loopback(port);
  EXPECT_EQ(connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  return fd;
}

// Relays connections to a server and turns the bits that it is told to, counted over all
// connections of a direction.
class FlippingProxy {
 public:
  // flip_answers: byte numbers among what the server sends; flip_requests: among what it gets.
  FlippingProxy(uint16_t server, std::vector<uint64_t> flip_answers,
                std::vector<uint64_t> flip_requests)
      : server_(server), stop_(eventfd(0, EFD_CLOEXEC)) {
    flips_[0] = std::move(flip_requests);
    flips_[1] = std::move(flip_answers);
    listener_ = ListenLoopback(&port_);
    thread_ = std::jthread([this] { Relay(); });
  }
  ~FlippingProxy() {
    const uint64_t one = 1;
    (void)!write(stop_.get(), &one, sizeof(one));
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

 private:
  struct Pair {
    UniqueFd ends[2];  // client, server
  };

  void Relay() {
    for (;;) {
      std::vector<pollfd> polled = {{stop_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
      for (const auto& pair : pairs_) {
        for (const UniqueFd& end : pair->ends) polled.push_back({end.get(), POLLIN, 0});
      }
      poll(polled.data(), polled.size(), -1);
      if (polled[0].revents != 0) return;
      std::vector<size_t> ended;
      for (size_t i = 0; i < pairs_.size(); ++i) {
        for (size_t side = 0; side < 2; ++side) {
          if (polled[2 + 2 * i + side].revents != 0 && !Pump(*pairs_[i], side)) ended.push_back(i);
        }
      }
      while (!ended.empty()) {
        const size_t i = ended.back();
        while (!ended.empty() && ended.back() == i) ended.pop_back();
        pairs_.erase(pairs_.begin() + static_cast<std::ptrdiff_t>(i));
      }
      if (polled[1].revents != 0) {
        auto pair = std::make_unique<Pair>();
        pair->ends[0] = UniqueFd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        pair->ends[1] = ConnectLoopback(server_);
        pairs_.push_back(std::move(pair));
      }
    }
  }

  bool Pump(Pair& pair, size_t side) {
    char buffer[65536];
    const ssize_t size = recv(pair.ends[side].get(), buffer, sizeof(buffer), 0);
    if (size <= 0) return false;
    for (const uint64_t at : flips_[side]) {
      if (at >= seen_[side] && at < seen_[side] + static_cast<uint64_t>(size)) {
        buffer[at - seen_[side]] ^= 0x10;
      }
    }
    seen_[side] += static_cast<uint64_t>(size);
    return send(pair.ends[1 - side].get(), buffer, static_cast<size_t>(size), MSG_NOSIGNAL) == size;
  }

  const uint16_t server_;
  UniqueFd stop_, listener_;
  uint16_t port_ = 0;
  std::vector<uint64_t> flips_[2];
  uint64_t seen_[2] = {0, 0};
  std::vector<std::unique_ptr<Pair>> pairs_;
  std::jthread thread_;
};

}  // namespace titan::weightstore::lanes::testing

#endif  // TITAN_TESTS_SUPPORT_SERVED_SLOTS_H_
