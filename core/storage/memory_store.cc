// SPDX-License-Identifier: Apache-2.0
#include "core/storage/memory_store.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace titan::storage {

Status MemoryStore::Write(const WriteBatch& batch, Durability durability) {
  std::lock_guard lock(mutex_);
  TITAN_RETURN_IF_ERROR(failure_);
  for (const WriteBatch::Operation& operation : batch.operations()) {
    switch (operation.kind) {
      case WriteBatch::Operation::Kind::kPut:
        map_[operation.key] = operation.value;
        break;
      case WriteBatch::Operation::Kind::kErase:
        map_.erase(operation.key);
        break;
      case WriteBatch::Operation::Kind::kEraseRange:
        if (operation.key < operation.value) {
          map_.erase(map_.lower_bound(operation.key), map_.lower_bound(operation.value));
        }
        break;
    }
  }
  if (durability == Durability::kSynced) synced_ = map_;
  return OkStatus();
}

Status MemoryStore::Sync() {
  std::lock_guard lock(mutex_);
  TITAN_RETURN_IF_ERROR(failure_);
  synced_ = map_;
  return OkStatus();
}

StatusOr<std::optional<std::string>> MemoryStore::Get(std::string_view key) const {
  std::lock_guard lock(mutex_);
  const auto found = map_.find(key);
  if (found == map_.end()) return std::optional<std::string>();
  return std::optional<std::string>(found->second);
}

Status MemoryStore::Scan(std::string_view prefix, std::string_view start,
                         const Visitor& visitor) const {
  std::vector<Entry> entries;  // the visitor may call back into the store
  {
    std::lock_guard lock(mutex_);
    for (auto at = map_.lower_bound(std::max(prefix, start));
         at != map_.end() && at->first.starts_with(prefix); ++at) {
      entries.push_back({at->first, at->second});
    }
  }
  for (const Entry& entry : entries) {
    if (!visitor(entry.key, entry.value)) break;
  }
  return OkStatus();
}

StatusOr<std::optional<KeyValueStore::Entry>> MemoryStore::Last(std::string_view prefix) const {
  std::lock_guard lock(mutex_);
  const std::string end = PrefixEnd(prefix);
  auto at = end.empty() ? map_.end() : map_.lower_bound(end);
  if (at == map_.begin()) return std::optional<Entry>();
  --at;
  if (!at->first.starts_with(prefix)) return std::optional<Entry>();
  return std::optional<Entry>(Entry{at->first, at->second});
}

std::unique_ptr<MemoryStore> MemoryStore::AfterPowerLoss() const {
  std::lock_guard lock(mutex_);
  auto copy = std::make_unique<MemoryStore>();
  copy->map_ = synced_;
  copy->synced_ = synced_;
  return copy;
}

std::unique_ptr<MemoryStore> MemoryStore::AfterKill() const {
  std::lock_guard lock(mutex_);
  auto copy = std::make_unique<MemoryStore>();
  copy->map_ = map_;
  copy->synced_ = synced_;
  return copy;
}

void MemoryStore::FailWritesWith(Status status) {
  std::lock_guard lock(mutex_);
  failure_ = std::move(status);
}

}  // namespace titan::storage
