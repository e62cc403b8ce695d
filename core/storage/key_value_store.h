// SPDX-License-Identifier: Apache-2.0
//
// An ordered map from byte strings to byte strings that outlives the process: records of the weight
// store's index and of the orchestrator's journal. Small values only (no weight bytes, no tokens).
//
// Two implementations: OpenRocksDbStore (rocksdb_store.h) and MemoryStore (memory_store.h, for
// tests and simulations). Keys are ordered bytewise; BigEndianKey makes numbers sort as numbers.
#ifndef TITAN_CORE_STORAGE_KEY_VALUE_STORE_H_
#define TITAN_CORE_STORAGE_KEY_VALUE_STORE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"

namespace titan::storage {

// Changes that are applied all or none, in order (a later one of the same key wins). A value; may
// be reused after Clear.
class WriteBatch {
 public:
  struct Operation {
    enum class Kind { kPut, kErase, kEraseRange } kind;
    std::string key;    // kEraseRange: first key that goes
    std::string value;  // kEraseRange: first key that stays
  };

  void Put(std::string_view key, std::string_view value);
  void Erase(std::string_view key);
  // Erases every key k with begin <= k < end.
  void EraseRange(std::string_view begin, std::string_view end);
  void Clear() { operations_.clear(); }

  bool empty() const { return operations_.empty(); }
  size_t size() const { return operations_.size(); }
  const std::vector<Operation>& operations() const { return operations_; }

 private:
  std::vector<Operation> operations_;
};

enum class Durability {
  kBuffered,  // survives the death of the process, not of the machine
  kSynced,    // survives power loss: returns after the disk has it, with everything written before
};

// Thread-safe. A write that fails is not acknowledged, and what the disk holds of it is unknown: it
// may be found by the next write's look at the disk, or at the next start, whole.
class KeyValueStore {
 public:
  // Called in key order; false ends the scan. It does not call the store.
  using Visitor = std::function<bool(std::string_view key, std::string_view value)>;

  KeyValueStore() = default;
  KeyValueStore(const KeyValueStore&) = delete;
  KeyValueStore& operator=(const KeyValueStore&) = delete;
  virtual ~KeyValueStore() = default;

  // ResourceExhausted: disk full. DataLoss: corruption. Unavailable: another failure of the disk.
  virtual Status Write(const WriteBatch& batch, Durability durability) = 0;

  // Makes everything written so far survive power loss. Codes as Write.
  virtual Status Sync() = 0;

  // Reads what the disk has, as the next one to open it would. Writes go on meanwhile; where
  // something seems wrong it is read once more, and they wait. DataLoss: it is damaged; from then
  // on every Write is refused with that. Unavailable: it cannot be read now.
  virtual Status Check() = 0;

  // nullopt: no such key. DataLoss, Unavailable as above.
  virtual StatusOr<std::optional<std::string>> Get(std::string_view key) const = 0;

  // Visits the keys >= start that begin with prefix, in order, as they were at the call. An empty
  // start (or one before prefix) begins at prefix. DataLoss, Unavailable as above.
  virtual Status Scan(std::string_view prefix, std::string_view start,
                      const Visitor& visitor) const = 0;
  Status ScanPrefix(std::string_view prefix, const Visitor& visitor) const {
    return Scan(prefix, {}, visitor);
  }

  // The greatest key that begins with prefix, and its value. nullopt: none.
  struct Entry {
    std::string key;
    std::string value;
  };
  virtual StatusOr<std::optional<Entry>> Last(std::string_view prefix) const = 0;
};

// 8 bytes, most significant first; and back from the first 8 bytes (nullopt: fewer).
std::string BigEndianKey(uint64_t number);
std::optional<uint64_t> NumberFromBigEndianKey(std::string_view bytes);

// The first key after all keys that begin with prefix; empty: there is none (prefix is empty or all
// 0xff). EraseRange(prefix, PrefixEnd(prefix)) erases exactly the keys of a prefix.
std::string PrefixEnd(std::string_view prefix);

}  // namespace titan::storage

#endif  // TITAN_CORE_STORAGE_KEY_VALUE_STORE_H_
