// SPDX-License-Identifier: Apache-2.0
#include "core/storage/rocksdb_store.h"

#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/options.h>
#include <rocksdb/write_batch.h>

#include <algorithm>
#include <cstdarg>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string_view>
#include <utility>

#include "core/base/durable_file.h"

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
  options.fail_if_options_file_error = true;  // what cannot be written or synced is said
  options.max_open_files = 64;
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  return options;
}

// Told in words alone, those of RocksDB 7.8; messages on damage speak of blocks, and paths of
// anything.
bool IsLocked(const rocksdb::Status& status) {
  const std::string text = status.ToString();
  return status.IsIOError() && (text.find("While lock file") != std::string::npos ||
                                text.find("lock hold by") != std::string::npos);
}

StatusOr<std::unique_ptr<rocksdb::DB>> OpenFolder(const std::string& folder) {
  rocksdb::DB* opened = nullptr;
  const rocksdb::Status status = rocksdb::DB::Open(OptionsOfStore(), folder, &opened);
  std::unique_ptr<rocksdb::DB> db(opened);
  if (!status.ok()) {
    if (IsLocked(status)) {
      return FailedPrecondition(
          "store " + folder +
          " is held by another process; end it or choose another folder: " + status.ToString());
    }
    return FromRocksDb(status, "opening store " + folder);
  }
  TITAN_RETURN_IF_ERROR(SyncFolder(std::filesystem::path(folder).parent_path().string()));
  return db;
}

class RocksDbStore final : public KeyValueStore {
 public:
  RocksDbStore(std::string folder, std::unique_ptr<rocksdb::DB> db)
      : folder_(std::move(folder)), db_(std::move(db)) {}
  ~RocksDbStore() override { Close(); }

  Status Write(const WriteBatch& batch, Durability durability) override {
    return Change([&] { return WriteNow(batch, durability); });
  }

  Status Sync() override {
    return Change([&] { return Told(db_->SyncWAL(), "sync"); });
  }

  Status Check() override {
    {
      const std::shared_lock lock(mutex_);
      TITAN_RETURN_IF_ERROR(failure_);
      if (ReadDisk().ok()) return OkStatus();
    }
    // Files that are written to meanwhile may look damaged: once more, and nobody writes.
    const std::unique_lock lock(mutex_);
    TITAN_RETURN_IF_ERROR(failure_);
    const rocksdb::Status read = ReadDisk();
    const Status told = Told(read, "what the disk has");
    if (!read.IsCorruption() && !read.IsPathNotFound()) return told;
    failure_ = DataLoss(MessageOf(told));
    return failure_;
  }

  StatusOr<std::optional<std::string>> Get(std::string_view key) const override {
    const std::shared_lock lock(mutex_);
    if (db_ == nullptr) return failure_;
    std::string value;
    const rocksdb::Status status = db_->Get(rocksdb::ReadOptions(), SliceOf(key), &value);
    if (status.IsNotFound()) return std::optional<std::string>();
    TITAN_RETURN_IF_ERROR(Told(status, "read"));
    return std::optional<std::string>(std::move(value));
  }

  Status Scan(std::string_view prefix, std::string_view start,
              const Visitor& visitor) const override {
    const std::shared_lock lock(mutex_);
    if (db_ == nullptr) return failure_;
    const std::unique_ptr<rocksdb::Iterator> at(db_->NewIterator(rocksdb::ReadOptions()));
    for (at->Seek(SliceOf(std::max(prefix, start)));
         at->Valid() && ViewOf(at->key()).starts_with(prefix); at->Next()) {
      if (!visitor(ViewOf(at->key()), ViewOf(at->value()))) break;
    }
    return Told(at->status(), "scan");
  }

  StatusOr<std::optional<Entry>> Last(std::string_view prefix) const override {
    const std::shared_lock lock(mutex_);
    if (db_ == nullptr) return failure_;
    const std::unique_ptr<rocksdb::Iterator> at(db_->NewIterator(rocksdb::ReadOptions()));
    const std::string end = PrefixEnd(prefix);
    if (end.empty()) {
      at->SeekToLast();
    } else {
      at->SeekForPrev(end);
      if (at->Valid() && ViewOf(at->key()) == end) at->Prev();
    }
    TITAN_RETURN_IF_ERROR(Told(at->status(), "scan"));
    if (!at->Valid() || !ViewOf(at->key()).starts_with(prefix)) return std::optional<Entry>();
    return std::optional<Entry>(
        Entry{std::string(ViewOf(at->key())), std::string(ViewOf(at->value()))});
  }

 private:
  // What a failed write has left is not known: RocksDB's log may hold it, and RocksDB would write
  // the next one behind it under the same number, which no later start could read. So the next
  // write begins with what the disk has, as after a restart; unless that is damaged. One change at
  // a time: none comes between another's failure and its being known.
  Status Change(const std::function<Status()>& change) {
    const std::lock_guard one_at_a_time(change_mutex_);
    Status changed;
    {
      const std::shared_lock lock(mutex_);
      const bool open = failure_.ok();
      if (open) changed = change();
      if (open && changed.ok()) return changed;
    }
    const std::unique_lock lock(mutex_);
    if (changed.ok()) {  // an earlier one failed
      TITAN_RETURN_IF_ERROR(OpenAgain());
      changed = change();
    }
    if (!changed.ok()) failure_ = changed;
    return changed;
  }
  // All files, as the next one to open the folder would. Under mutex_, shared or alone.
  rocksdb::Status ReadDisk() {
    // Files that are of no use any more stay until they have been read.
    rocksdb::Status read = db_->DisableFileDeletions();
    if (!read.ok()) return read;
    rocksdb::DB* opened = nullptr;
    read = rocksdb::DB::OpenForReadOnly(OptionsOfStore(), folder_, &opened);
    std::unique_ptr<rocksdb::DB> reader(opened);
    if (read.ok()) read = reader->VerifyChecksum();
    reader.reset();
    (void)db_->EnableFileDeletions(/*force=*/false);
    return read;
  }
  Status OpenAgain() {
    if (failure_.ok() || failure_.code() == StatusCode::kDataLoss) return failure_;
    Close();
    StatusOr<std::unique_ptr<rocksdb::DB>> opened = OpenFolder(folder_);
    failure_ = opened.status();
    if (opened.ok()) db_ = *std::move(opened);
    return failure_;
  }
  void Close() {
    if (db_ != nullptr) (void)db_->Close();
    db_.reset();
  }

  Status WriteNow(const WriteBatch& batch, Durability durability) {
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
      TITAN_RETURN_IF_ERROR(Told(status, "batch"));
    }
    rocksdb::WriteOptions options;
    options.sync = durability == Durability::kSynced;
    return Told(db_->Write(options, &changes), "write");
  }

  // RocksDB itself does not always say which file or folder it speaks of.
  Status Told(const rocksdb::Status& status, std::string_view what) const {
    return FromRocksDb(status, "store " + folder_ + ": " + std::string(what));
  }

  const std::string folder_;
  std::mutex change_mutex_;  // held over a change, taken before mutex_
  mutable std::shared_mutex
      mutex_;  // held alone to open again, and by Check to be sure; guards what follows
  std::unique_ptr<rocksdb::DB> db_;  // null: it could not be opened again
  Status failure_;                   // of a write, since which it was not opened again
};

}  // namespace

StatusOr<std::unique_ptr<KeyValueStore>> OpenRocksDbStore(const std::string& folder) {
  TITAN_ASSIGN_OR_RETURN(std::unique_ptr<rocksdb::DB> db, OpenFolder(folder));
  return std::unique_ptr<KeyValueStore>(std::make_unique<RocksDbStore>(folder, std::move(db)));
}

}  // namespace titan::storage
