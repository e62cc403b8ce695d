// SPDX-License-Identifier: Apache-2.0
//
// The leader's records: runs, committed versions, epochs. Every write is synced: it is the commit
// point, and survives power loss once it returned. No weight bytes.
//
// Keys: run/<run id>, version/<run id>/<big-endian number>, epoch/orchestrator.
#ifndef TITAN_WEIGHTSTORE_INDEX_H_
#define TITAN_WEIGHTSTORE_INDEX_H_

#include <cstdint>
#include <string>

#include "core/base/status.h"
#include "core/storage/key_value_store.h"
#include "weightstore/store_state.h"

namespace titan::weightstore {

// Not thread-safe. Codes of KeyValueStore::Write; after an error the write may or may not stand.
class Index {
 public:
  // store must outlive the index.
  explicit Index(storage::KeyValueStore& store) : store_(store) {}

  // Reads everything into an empty state. DataLoss: a record is damaged.
  Status Restore(StoreState& state) const;

  Status PutRun(const std::string& run_id, const RunRecord& record);
  Status PutVersion(const std::string& run_id, uint64_t version, const VersionRecord& record);
  Status PutOrchestratorEpoch(uint64_t epoch);

 private:
  storage::KeyValueStore& store_;
};

}  // namespace titan::weightstore

#endif  // TITAN_WEIGHTSTORE_INDEX_H_
