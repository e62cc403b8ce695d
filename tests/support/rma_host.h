// SPDX-License-Identifier: Apache-2.0
//
// A host whose slot others read by one-sided reads: a real process, to be stopped and killed. Test
// code; make it before this process has threads.
#ifndef TITAN_TESTS_SUPPORT_RMA_HOST_H_
#define TITAN_TESTS_SUPPORT_RMA_HOST_H_

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "core/transport/rma.h"
#include "tests/support/child_process.h"
#include "weightstore/client/slot_header.h"

namespace titan::testing {

using transport::RmaDomain;
using transport::RmaLane;
using transport::RmaOptions;
using transport::RmaWindowKey;
using weightstore::kSlotHeaderBytes;
using weightstore::SlotHeaderFields;
using weightstore::SlotHeaderPage;

inline constexpr size_t kRmaSlotBytes = size_t{8} << 20;

inline uint64_t WordAt(uint64_t version, uint64_t index) {
  return (version + 1) * 0x9e3779b97f4a7c15 ^ index * 0xbf58476d1ce4e5b9;
}

inline void FillRmaSlot(std::span<std::byte> slot, uint64_t version) {
  auto* words = reinterpret_cast<uint64_t*>(slot.data());
  for (size_t i = 0; i < slot.size() / 8; ++i) words[i] = WordAt(version, i);
}

// How many words are not `version`'s.
inline size_t Differing(std::span<const std::byte> bytes, uint64_t version, size_t first_word = 0) {
  const auto* words = reinterpret_cast<const uint64_t*>(bytes.data());
  size_t differing = 0;
  for (size_t i = 0; i < bytes.size() / 8; ++i) {
    differing += words[i] != WordAt(version, first_word + i);
  }
  return differing;
}

inline RmaOptions RmaTestLane() {
  RmaOptions options;
  options.lane = RmaLane::kShmTest;
  options.piece_bytes = size_t{1} << 20;
  return options;
}

// A memory file and a map of it, as a host has them: not made by UCX.
struct MemoryFile {
  explicit MemoryFile(size_t num_bytes) : fd(memfd_create("rma-host", MFD_CLOEXEC)) {
    if (ftruncate(fd, static_cast<off_t>(num_bytes)) != 0) abort();
    void* at = mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) abort();
    map = {static_cast<std::byte*>(at), num_bytes};
  }
  ~MemoryFile() {
    munmap(map.data(), map.size());
    close(fd);
  }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  const int fd;
  std::span<std::byte> map;
};

// A process with slot 7 in windows of lane shm-test: version 0 under grant 1, the digest
// {version, 7}. At `NextVersion` it raises the grant before the first byte changes.
class RmaHost {
 public:
  RmaHost() : process_(Serve) {
    address = process_.ReceiveText();
    EXPECT_NE(address, "") << "the host process did not start";
    bytes = ReceiveKey();
    header = ReceiveKey();
  }
  void Kill() { process_.Kill(); }
  void Stop() { process_.Stop(); }
  void Continue() { process_.Continue(); }
  // Begins to write it; NextVersionIsWritten waits for the last byte.
  void NextVersion() { process_.Send(1); }
  void NextVersionIsWritten() { ASSERT_EQ(process_.Receive(), 1u); }

  std::string address;
  RmaWindowKey bytes;
  RmaWindowKey header;

 private:
  static void Serve(ChildProcess& test) {
    auto domain = RmaDomain::Open(RmaTestLane());
    if (!domain.ok()) _exit(2);
    const MemoryFile slot(kRmaSlotBytes), header_page(kSlotHeaderBytes);
    auto own_bytes = (*domain)->Share(slot.fd, slot.map, nullptr);
    auto own_header = (*domain)->Share(header_page.fd, header_page.map, nullptr);
    if (!own_bytes.ok() || !own_header.ok()) _exit(3);
    SlotHeaderPage page(header_page.map.data());
    SlotHeaderFields fields{.slot_id = 7, .version = 0, .grant = 1, .digest = {0, 7}};
    FillRmaSlot(slot.map, 0);
    page.Write(fields);
    test.SendText((*domain)->address());
    SendKey(test, own_bytes->key());
    SendKey(test, own_header->key());
    for (;;) {
      const uint64_t next = test.Receive();
      ++fields.version;
      ++fields.grant;
      fields.digest.low = fields.version;
      page.Write(fields);
      FillRmaSlot(slot.map, fields.version);
      test.Send(next);
    }
  }
  static void SendKey(ChildProcess& test, const RmaWindowKey& key) {
    test.Send(key.address);
    test.Send(key.bytes);
    test.SendText(key.key);
    test.SendText(key.file);
  }
  RmaWindowKey ReceiveKey() {
    RmaWindowKey key;
    key.address = process_.Receive();
    key.bytes = process_.Receive();
    key.key = process_.ReceiveText();
    key.file = process_.ReceiveText();
    return key;
  }

  ChildProcess process_;
};

}  // namespace titan::testing

#endif  // TITAN_TESTS_SUPPORT_RMA_HOST_H_
