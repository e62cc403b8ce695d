// SPDX-License-Identifier: Apache-2.0
#include "core/storage/rocksdb_store.h"

#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/options.h>
#include <rocksdb/write_batch.h>

#include <algorithm>
#include <cstdarg>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

namespace titan::storage {
namespace {

rocksdb::Slice SliceOf(std::string_view bytes) { return {bytes.data(), bytes.size()}; }
std::string_view ViewOf(const rocksdb::Slice& slice) { return {slice.data(), slice.size()}; }

Status FromRocksDb(const rocksdb::Status& status, std::string_view what) {
  if (status.ok()) return OkStatus();
  const std::string message = std::string(what) + ": " + status.ToString();
  if (status.IsNoSpace()) return ResourceExhausted(message);
  if (status.IsCorruption()) return DataLoss(message);
  if (status.IsInvalidArgument()) return InvalidArgument(message);
  return Unavailable(message);
}

// RocksDB keeps a log of its own beside the data, and where its library was built with assertions
// the second line that finds no room on the disk ends the process. What matters is in the Status of
// a call.
class NoLog final : public rocksdb::Logger {
 public:
  using rocksdb::Logger::Logv;
  void Logv(const char* /*format*/, va_list /*arguments*/) override {}
};

rocksdb::Options OptionsOfStore() {
  rocksdb::Options options;
  options.create_if_missing = true;
  options.paranoid_checks = true;
  // A torn last record of the log was never acknowledged as synced and is dropped. A record in the
  // middle that is damaged is corruption, and the store does not open: what follows it was synced.
  options.wal_recovery_mode = rocksdb::WALRecoveryMode::kTolerateCorruptedTailRecords;
  options.compression = rocksdb::kNoCompression;  // small records
  options.write_buffer_size = 8u << 20;
  options.max_background_jobs = 2;
  options.info_log = std::make_shared<NoLog>();
  options.max_open_files = 64;
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  return options;
}

class RocksDbStore final : public KeyValueStore {
 public:
  explicit RocksDbStore(std::unique_ptr<rocksdb::DB> db) : db_(std::move(db)) {}

  ~RocksDbStore() override { (void)db_->Close(); }

  Status Write(const WriteBatch& batch, Durability durability) override {
    rocksdb::WriteBatch changes;
    for (const WriteBatch::Operation& operation : batch.operations()) {
      rocksdb::Status status;
      switch (operation.kind) {
        case WriteBatch::Operation::Kind::kPut:
          status = changes.Put(operation.key, operation.value);
          break;
        case WriteBatch::Operation::Kind::kErase:
          status = changes.Delete(operation.key);
          break;
        case WriteBatch::Operation::Kind::kEraseRange:
          if (operation.key < operation.value) {
            status =
                changes.DeleteRange(db_->DefaultColumnFamily(), operation.key, operation.value);
          }
          break;
      }
      TITAN_RETURN_IF_ERROR(FromRocksDb(status, "batch"));
    }
    rocksdb::WriteOptions options;
    options.sync = durability == Durability::kSynced;
    return FromRocksDb(db_->Write(options, &changes), "write");
  }

  Status Sync() override { return FromRocksDb(db_->SyncWAL(), "sync"); }

  StatusOr<std::optional<std::string>> Get(std::string_view key) const override {
    std::string value;
    const rocksdb::Status status = db_->Get(rocksdb::ReadOptions(), SliceOf(key), &value);
    if (status.IsNotFound()) return std::optional<std::string>();
    TITAN_RETURN_IF_ERROR(FromRocksDb(status, "read"));
    return std::optional<std::string>(std::move(value));
  }

  Status Scan(std::string_view prefix, std::string_view start,
              const Visitor& visitor) const override {
    const std::unique_ptr<rocksdb::Iterator> at(db_->NewIterator(rocksdb::ReadOptions()));
    for (at->Seek(SliceOf(std::max(prefix, start)));
         at->Valid() && ViewOf(at->key()).starts_with(prefix); at->Next()) {
      if (!visitor(ViewOf(at->key()), ViewOf(at->value()))) break;
    }
    return FromRocksDb(at->status(), "scan");
  }

  StatusOr<std::optional<Entry>> Last(std::string_view prefix) const override {
    const std::unique_ptr<rocksdb::Iterator> at(db_->NewIterator(rocksdb::ReadOptions()));
    const std::string end = PrefixEnd(prefix);
    if (end.empty()) {
      at->SeekToLast();
    } else {
      at->SeekForPrev(end);
      if (at->Valid() && ViewOf(at->key()) == end) at->Prev();
    }
    TITAN_RETURN_IF_ERROR(FromRocksDb(at->status(), "scan"));
    if (!at->Valid() || !ViewOf(at->key()).starts_with(prefix)) return std::optional<Entry>();
    return std::optional<Entry>(
        Entry{std::string(ViewOf(at->key())), std::string(ViewOf(at->value()))});
  }

 private:
  const std::unique_ptr<rocksdb::DB> db_;
};

}  // namespace

StatusOr<std::unique_ptr<KeyValueStore>> OpenRocksDbStore(const std::string& folder) {
  rocksdb::DB* opened = nullptr;
  const rocksdb::Status status = rocksdb::DB::Open(OptionsOfStore(), folder, &opened);
  std::unique_ptr<rocksdb::DB> db(opened);
  if (!status.ok()) {
    if (status.ToString().find("lock") != std::string::npos) {
      return FailedPrecondition(
          "store " + folder +
          " is held by another process; end it or choose another folder: " + status.ToString());
    }
    return FromRocksDb(status, "opening store " + folder);
  }
  return std::unique_ptr<KeyValueStore>(std::make_unique<RocksDbStore>(std::move(db)));
}

}  // namespace titan::storage
