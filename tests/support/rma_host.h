// SPDX-License-Identifier: Apache-2.0
//
// A host whose slot others read by one-sided reads: a real process, to be stopped and killed. Test
// code; make it before this process has threads.
#ifndef TITAN_TESTS_SUPPORT_RMA_HOST_H_
#define TITAN_TESTS_SUPPORT_RMA_HOST_H_

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "core/transport/rma.h"
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
  RmaHost() {
    EXPECT_EQ(pipe(to_host_), 0);
    EXPECT_EQ(pipe(from_host_), 0);
    pid_ = fork();
    if (pid_ == 0) Serve();
    close(to_host_[0]);
    close(from_host_[1]);
    address = ReceiveString();
    bytes = ReceiveKey();
    header = ReceiveKey();
  }
  ~RmaHost() {
    Kill();
    close(to_host_[1]);
    close(from_host_[0]);
  }
  RmaHost(const RmaHost&) = delete;
  RmaHost& operator=(const RmaHost&) = delete;
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  void Stop() {
    kill(pid_, SIGSTOP);
    int status = 0;
    waitpid(pid_, &status, WUNTRACED);
  }
  void Continue() { kill(pid_, SIGCONT); }
  // Begins to write it; NextVersionIsWritten waits for the last byte.
  void NextVersion() { ASSERT_EQ(write(to_host_[1], "n", 1), 1); }
  void NextVersionIsWritten() {
    char answer = 0;
    ASSERT_EQ(read(from_host_[0], &answer, 1), 1);
  }

  std::string address;
  RmaWindowKey bytes;
  RmaWindowKey header;

 private:
  [[noreturn]] void Serve() {
    {
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
      SendString((*domain)->address());
      SendKey(own_bytes->key());
      SendKey(own_header->key());
      char what = 0;
      while (read(to_host_[0], &what, 1) == 1) {
        ++fields.version;
        ++fields.grant;
        fields.digest.low = fields.version;
        page.Write(fields);
        FillRmaSlot(slot.map, fields.version);
        (void)!write(from_host_[1], &what, 1);
      }
    }
    _exit(0);
  }
  void SendString(const std::string& text) {
    const uint64_t size = text.size();
    (void)!write(from_host_[1], &size, sizeof(size));
    (void)!write(from_host_[1], text.data(), size);
  }
  void SendKey(const RmaWindowKey& key) {
    (void)!write(from_host_[1], &key.address, 8);
    (void)!write(from_host_[1], &key.bytes, 8);
    SendString(key.key);
    SendString(key.file);
  }
  uint64_t ReceiveNumber() {
    uint64_t number = 0;
    EXPECT_EQ(read(from_host_[0], &number, 8), 8) << "the host process did not start";
    return number;
  }
  std::string ReceiveString() {
    std::string text(ReceiveNumber(), '\0');
    EXPECT_EQ(read(from_host_[0], text.data(), text.size()), static_cast<ssize_t>(text.size()));
    return text;
  }
  RmaWindowKey ReceiveKey() {
    RmaWindowKey key;
    key.address = ReceiveNumber();
    key.bytes = ReceiveNumber();
    key.key = ReceiveString();
    key.file = ReceiveString();
    return key;
  }

  int to_host_[2];
  int from_host_[2];
  pid_t pid_ = 0;
};

}  // namespace titan::testing

#endif  // TITAN_TESTS_SUPPORT_RMA_HOST_H_
