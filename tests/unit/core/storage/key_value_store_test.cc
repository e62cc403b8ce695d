// SPDX-License-Identifier: Apache-2.0
//
// Goal: both stores behave as one ordered map, and what a synced write acknowledged survives
// SIGKILL. Method: random operations on MemoryStore, RocksDB and a std::map side by side, RocksDB
// reopened in between; a child process that is killed after a synced write.
#include "core/storage/key_value_store.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <thread>

#include "core/storage/memory_store.h"
#include "core/storage/rocksdb_store.h"
#include "tests/support/child_process.h"

namespace titan::storage {
namespace {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "titan_storage_XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

using Map = std::map<std::string, std::string>;

Map Contents(const KeyValueStore& store, std::string_view prefix, std::string_view start = {}) {
  Map map;
  std::string previous;
  EXPECT_TRUE(store
                  .Scan(prefix, start,
                        [&](std::string_view key, std::string_view value) {
                          EXPECT_TRUE(map.empty() || previous < key);
                          previous = key;
                          map.emplace(key, value);
                          return true;
                        })
                  .ok());
  return map;
}

Map Expected(const Map& model, const std::string& prefix, const std::string& start = {}) {
  Map map;
  for (const auto& [key, value] : model) {
    if (key.starts_with(prefix) && key >= start) map.emplace(key, value);
  }
  return map;
}

std::string RandomKey(std::mt19937& random) {
  // Few letters, with the extremes of a byte, so that keys collide and prefixes matter.
  static const std::string kLetters("a\0b\xff", 4);
  std::string key;
  const int size = static_cast<int>(random() % 4);
  for (int i = 0; i < size; ++i) key += kLetters[random() % 4];
  return key;
}

void Compare(const KeyValueStore& store, const Map& model, std::mt19937& random) {
  for (int i = 0; i < 20; ++i) {
    const std::string prefix = RandomKey(random);
    const std::string start = RandomKey(random);
    ASSERT_EQ(Contents(store, prefix), Expected(model, prefix));
    ASSERT_EQ(Contents(store, prefix, start), Expected(model, prefix, start));
    const auto last = store.Last(prefix);
    ASSERT_TRUE(last.ok());
    const Map expected = Expected(model, prefix);
    ASSERT_EQ(last->has_value(), !expected.empty());
    if (!expected.empty()) {
      EXPECT_EQ((*last)->key, expected.rbegin()->first);
      EXPECT_EQ((*last)->value, expected.rbegin()->second);
    }
    const auto value = store.Get(start);
    ASSERT_TRUE(value.ok());
    ASSERT_EQ(value->has_value(), model.contains(start));
    if (value->has_value()) {
      EXPECT_EQ(**value, model.at(start));
    }
  }
}

// The first test: it forks while the process has one thread, as ThreadSanitizer wants.
TEST(KeyValueStoreTest, WhatWasAcknowledgedSurvivesSigkill) {
  TemporaryFolder folder;
  titan::testing::ChildProcess child([&](titan::testing::ChildProcess& test) {
    auto store = OpenRocksDbStore(folder.path() + "/db");
    if (!store.ok()) _exit(1);
    WriteBatch batch;
    batch.Put("version/1", "digest");
    batch.Put("version/2", "other");
    if (!(*store)->Write(batch, Durability::kSynced).ok()) _exit(1);
    test.Send(1);
    test.Receive();
  });
  ASSERT_EQ(child.Receive(), 1u);
  child.Kill();
  auto store = OpenRocksDbStore(folder.path() + "/db");
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_EQ(Contents(**store, "version/"), (Map{{"version/1", "digest"}, {"version/2", "other"}}));
}

TEST(KeyValueStoreTest, BothStoresEqualAnOrderedMapUnderRandomOperations) {
  TemporaryFolder folder;
  std::mt19937 random(7);
  MemoryStore memory;
  auto opened = OpenRocksDbStore(folder.path() + "/db");
  ASSERT_TRUE(opened.ok()) << opened.status();
  std::unique_ptr<KeyValueStore> disk = *std::move(opened);
  Map model;
  for (int round = 0; round < 150; ++round) {
    WriteBatch batch;
    const int size = 1 + static_cast<int>(random() % 5);
    for (int i = 0; i < size; ++i) {
      const std::string key = RandomKey(random);
      switch (random() % 4) {
        case 0:
          batch.Erase(key);
          model.erase(key);
          break;
        case 1: {
          if (random() % 4 != 0) break;
          const std::string end = RandomKey(random);
          batch.EraseRange(key, end);
          if (key < end) model.erase(model.lower_bound(key), model.lower_bound(end));
          break;
        }
        default: {
          const std::string value = std::to_string(random());
          batch.Put(key, value);
          model[key] = value;
        }
      }
    }
    const Durability durability = random() % 20 == 0 ? Durability::kSynced : Durability::kBuffered;
    ASSERT_TRUE(memory.Write(batch, durability).ok());
    ASSERT_TRUE(disk->Write(batch, durability).ok());
    if (round % 50 == 49) {
      disk.reset();
      auto again = OpenRocksDbStore(folder.path() + "/db");
      ASSERT_TRUE(again.ok()) << again.status();
      disk = *std::move(again);
    }
    if (round % 5 == 0) {
      Compare(memory, model, random);
      Compare(*disk, model, random);
    }
  }
}

TEST(KeyValueStoreTest, ASecondOpenerIsRefusedAndToldWhy) {
  TemporaryFolder folder;
  auto first = OpenRocksDbStore(folder.path() + "/db");
  ASSERT_TRUE(first.ok());
  const auto second = OpenRocksDbStore(folder.path() + "/db");
  EXPECT_EQ(second.status().code(), StatusCode::kFailedPrecondition) << second.status();
}

TEST(KeyValueStoreTest, MemoryStoreTellsSyncedFromBuffered) {
  MemoryStore store;
  WriteBatch first, second;
  first.Put("a", "1");
  second.Put("b", "2");
  ASSERT_TRUE(store.Write(first, Durability::kSynced).ok());
  ASSERT_TRUE(store.Write(second, Durability::kBuffered).ok());
  EXPECT_EQ(Contents(*store.AfterPowerLoss(), ""), (Map{{"a", "1"}}));
  EXPECT_EQ(Contents(*store.AfterKill(), ""), (Map{{"a", "1"}, {"b", "2"}}));
  store.FailWritesWith(ResourceExhausted("disk full"));
  EXPECT_EQ(store.Write(first, Durability::kSynced).code(), StatusCode::kResourceExhausted);
  store.FailWritesWith(OkStatus());
  ASSERT_TRUE(store.Sync().ok());
  EXPECT_EQ(Contents(*store.AfterPowerLoss(), ""), (Map{{"a", "1"}, {"b", "2"}}));
}

TEST(KeyValueStoreTest, BigEndianKeysSortAsNumbers) {
  const uint64_t numbers[] = {0, 1, 255, 256, 65535, 1ull << 40, ~0ull};
  for (size_t i = 0; i < std::size(numbers); ++i) {
    EXPECT_EQ(NumberFromBigEndianKey(BigEndianKey(numbers[i])), numbers[i]);
    if (i > 0) {
      EXPECT_LT(BigEndianKey(numbers[i - 1]), BigEndianKey(numbers[i]));
    }
  }
  EXPECT_FALSE(NumberFromBigEndianKey("1234567").has_value());
  EXPECT_EQ(PrefixEnd("ab"), "ac");
  EXPECT_EQ(PrefixEnd("a\xff"), "b");
  EXPECT_EQ(PrefixEnd("\xff\xff"), "");
}

// Fifty synced records in a log that was not yet taken over; returns the log's file.
std::string WriteLog(const std::string& folder) {
  {
    auto store = OpenRocksDbStore(folder);
    EXPECT_TRUE(store.ok()) << store.status();
    for (int i = 100; i < 150; ++i) {
      WriteBatch batch;
      batch.Put("key-" + std::to_string(i), std::string(100, 'v'));
      EXPECT_TRUE((*store)->Write(batch, Durability::kSynced).ok());
    }
  }
  std::string log;
  uintmax_t size = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".log" && entry.file_size() > size) {
      size = entry.file_size();
      log = entry.path().string();
    }
  }
  EXPECT_GT(size, 5000u);
  return log;
}

TEST(RocksDbStoreTest, ADamagedRecordInTheMiddleOfTheLogIsReported) {
  TemporaryFolder folder;
  const std::string log = WriteLog(folder.path() + "/db");
  std::fstream file(log, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(std::filesystem::file_size(log) / 2));
  file.put('\x7f');
  file.close();
  const auto store = OpenRocksDbStore(folder.path() + "/db");
  EXPECT_EQ(store.status().code(), StatusCode::kDataLoss) << store.status();
}

TEST(RocksDbStoreTest, ATornLastRecordIsDropped) {
  TemporaryFolder folder;
  const std::string log = WriteLog(folder.path() + "/db");
  std::filesystem::resize_file(log, std::filesystem::file_size(log) - 3);
  const auto store = OpenRocksDbStore(folder.path() + "/db");
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_EQ(Contents(**store, "key-").size(), 49u);
}

// Tables, a log, and a memory table that becomes one now and then.
TEST(RocksDbStoreTest, WritesGoOnWhileWhatTheDiskHasIsRead) {
  TemporaryFolder folder;
  auto store = OpenRocksDbStore(folder.path() + "/db");
  ASSERT_TRUE(store.ok()) << store.status();
  WriteBatch large, small;
  for (uint64_t i = 0; i < 600; ++i) {
    large.Clear();
    large.Put("large-" + BigEndianKey(i), std::string(64 << 10, static_cast<char>(i)));
    ASSERT_TRUE((*store)->Write(large, Durability::kBuffered).ok());
  }
  int most = 0;  // of a round; the writer may be kept from the CPU
  for (int round = 0; round < 5; ++round) {
    std::atomic<bool> begun{false}, ended{false};
    Status checked;
    std::jthread check([&] {
      begun = true;
      checked = (*store)->Check();
      ended = true;
    });
    while (!begun) std::this_thread::yield();
    int writes = 0;
    for (uint64_t i = 0; !ended; ++i) {
      small.Clear();
      small.Put("small-" + BigEndianKey(i % 1000), std::string(4 << 10, 's'));
      EXPECT_TRUE((*store)->Write(small, Durability::kBuffered).ok());
      writes += !ended;
    }
    check.join();
    EXPECT_TRUE(checked.ok()) << checked;
    most = std::max(most, writes);
  }
  EXPECT_GT(most, 20);
}

}  // namespace
}  // namespace titan::storage
