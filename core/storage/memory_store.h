// SPDX-License-Identifier: Apache-2.0
//
// KeyValueStore in memory: for tests and simulations. Synced and buffered writes are kept apart, so
// that a test can ask what power loss would leave, and writes can be made to fail.
#ifndef TITAN_CORE_STORAGE_MEMORY_STORE_H_
#define TITAN_CORE_STORAGE_MEMORY_STORE_H_

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "core/storage/key_value_store.h"

namespace titan::storage {

// Thread-safe.
class MemoryStore final : public KeyValueStore {
 public:
  MemoryStore() = default;

  Status Write(const WriteBatch& batch, Durability durability) override;
  Status Sync() override;
  Status Check() override { return OkStatus(); }
  StatusOr<std::optional<std::string>> Get(std::string_view key) const override;
  Status Scan(std::string_view prefix, std::string_view start,
              const Visitor& visitor) const override;
  StatusOr<std::optional<Entry>> Last(std::string_view prefix) const override;

  // What a machine that lost power now would find: everything up to the last synced write.
  std::unique_ptr<MemoryStore> AfterPowerLoss() const;
  // What a process killed now would find: every write that returned.
  std::unique_ptr<MemoryStore> AfterKill() const;
  // Every later Write and Sync returns this and changes nothing; OkStatus ends it.
  void FailWritesWith(Status status);

 private:
  using Map = std::map<std::string, std::string, std::less<>>;

  mutable std::mutex mutex_;  // guards what follows
  Map map_;
  Map synced_;
  Status failure_;
};

}  // namespace titan::storage

#endif  // TITAN_CORE_STORAGE_MEMORY_STORE_H_
