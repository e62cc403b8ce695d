// SPDX-License-Identifier: Apache-2.0
//
// A weight store inside a test, leader and host: index in a RocksDB folder, slots, unix socket, in
// a folder of its own.
#ifndef TITAN_TESTS_SUPPORT_WEIGHTSTORE_HOST_H_
#define TITAN_TESTS_SUPPORT_WEIGHTSTORE_HOST_H_

#include <gtest/gtest.h>
#include <stdlib.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>

#include "core/storage/memory_store.h"
#include "core/storage/rocksdb_store.h"
#include "tests/support/weightstore.h"
#include "weightstore/client/publisher.h"
#include "weightstore/client/subscriber.h"
#include "weightstore/host.h"
#include "weightstore/leader.h"
#include "weightstore/socket_server.h"
#include "weightstore/transport/tcp_server.h"

namespace titan::weightstore::testing {

class Host {
 public:
  static constexpr int64_t kMapDeadlineMs = 15'000;
  enum class IndexKind { kMemory, kDisk };  // kMemory: no test waits for a slow disk

  explicit Host(uint64_t memory_limit_bytes = 64u << 20, IndexKind kind = IndexKind::kMemory,
                bool serves_tcp = false)  // to readers that pull
      : memory_limit_bytes_(memory_limit_bytes), kind_(kind), serves_tcp_(serves_tcp) {
    std::string pattern = (std::filesystem::temp_directory_path() / "titan_ws_XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    Start();
  }
  ~Host() {
    Stop();
    std::filesystem::remove_all(folder_);
  }

  void Start() {
    if (kind_ == IndexKind::kDisk) {
      auto index = storage::OpenRocksDbStore(folder_ + "/index");
      ASSERT_TRUE(index.ok()) << index.status();
      disk_ = *std::move(index);
    }
    LibraryOptions disk;
    disk.folder = folder_ + "/blobs";
    disk.unix_ms = [] { return int64_t{1234}; };
    auto library = Library::Open(index(), std::move(disk));
    ASSERT_TRUE(library.ok()) << library.status();
    library_ = *std::move(library);
    LeaderOptions options;
    options.library = library_.get();
    options.map_deadline_ms = kMapDeadlineMs;
    options.first_number = next_life_ += 1'000'000;
    options.unix_ms = [] { return int64_t{1234}; };
    options.monotonic_ms = [this] { return now_ms.load(); };
    auto leader = Leader::Open(index(), std::move(options));
    ASSERT_TRUE(leader.ok()) << leader.status();
    leader_ = *std::move(leader);
    slots_ = std::make_unique<weightstore::Host>(
        HostOptions{.threads = 2, .hash_tiles = serves_tcp_, .make_slot = make_slot}, *leader_);
    DataPlane data_plane;
    if (serves_tcp_) {
      auto tcp = lanes::TcpServer::Start({}, *slots_);
      ASSERT_TRUE(tcp.ok()) << tcp.status();
      tcp_ = *std::move(tcp);
      data_plane = {{Lane::kTcp}, tcp_->address()};
    }
    leader_->AttachHost("local", Unowned(*slots_), memory_limit_bytes_, data_plane,
                        slots_->Report());
    auto server = SocketServer::Start(socket_path(), *slots_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  // What SIGKILL leaves: the index on disk, the maps of other processes.
  void Stop() {
    server_.reset();
    tcp_.reset();
    slots_.reset();
    leader_.reset();
    library_.reset();
    disk_.reset();
  }
  // Readers that pull find nobody there.
  void StopDataPlane() { tcp_.reset(); }
  void Shutdown() {
    leader_->Shutdown();
    slots_->Shutdown();
  }

  Leader& leader() { return *leader_; }
  Library& library() { return *library_; }
  std::string blobs() const { return folder_ + "/blobs"; }
  weightstore::Host& slots() { return *slots_; }
  std::string socket_path() const { return folder_ + "/ws.sock"; }

  std::unique_ptr<Publisher> Register(uint32_t max_age = 0, Manifest manifest = SmallManifest(),
                                      uint32_t evaluation_slots = 1) {
    auto publisher = Publisher::Register(*leader_, {.socket_path = socket_path(),
                                                    .run_id = "run",
                                                    .request_id = "",
                                                    .manifest = std::move(manifest),
                                                    .max_age = max_age,
                                                    .evaluation_slots = evaluation_slots});
    EXPECT_TRUE(publisher.ok()) << publisher.status();
    return publisher.ok() ? *std::move(publisher) : nullptr;
  }
  Subscriber Reader(const std::string& holder = "generator-0") {
    return Subscriber(*leader_, socket_path(), holder);
  }

  std::atomic<int64_t> now_ms{0};
  SlotMaker::Make make_slot;  // of the next Start

 private:
  storage::KeyValueStore& index() { return disk_ ? *disk_ : memory_; }

  const uint64_t memory_limit_bytes_;
  const IndexKind kind_;
  const bool serves_tcp_;
  uint64_t next_life_ = 0;
  std::string folder_;
  storage::MemoryStore memory_;  // outlives restarts
  std::unique_ptr<storage::KeyValueStore> disk_;
  std::unique_ptr<Library> library_;
  std::unique_ptr<Leader> leader_;
  std::unique_ptr<weightstore::Host> slots_;
  std::unique_ptr<SocketServer> server_;
  std::unique_ptr<lanes::TcpServer> tcp_;
};

// Publishes a version whose every 8 bytes hold `number` (default: the version).
inline Hash128 Publish(Publisher& publisher, uint64_t version, int64_t number = -1) {
  const auto begun = publisher.Begin(version, std::chrono::seconds(5));
  EXPECT_TRUE(begun.ok()) << begun.status();
  if (!begun.ok()) return {};
  EXPECT_FALSE(begun->recorded);
  Fill(begun->bytes, number < 0 ? version : static_cast<uint64_t>(number));
  const auto digest = publisher.Finish();
  EXPECT_TRUE(digest.ok()) << digest.status();
  const auto committed = publisher.Commit("plan", version);
  EXPECT_TRUE(committed.ok()) << committed.status();
  return digest.ok() ? *digest : Hash128{};
}

}  // namespace titan::weightstore::testing

#endif  // TITAN_TESTS_SUPPORT_WEIGHTSTORE_HOST_H_
