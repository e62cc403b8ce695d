// SPDX-License-Identifier: Apache-2.0
//
// KeyValueStore in a RocksDB folder. One process opens a folder at a time. RocksDB's headers stay
// in rocksdb_store.cc.
#ifndef TITAN_CORE_STORAGE_ROCKSDB_STORE_H_
#define TITAN_CORE_STORAGE_ROCKSDB_STORE_H_

#include <memory>
#include <string>

#include "core/base/status.h"
#include "core/storage/key_value_store.h"

namespace titan::storage {

// Opens (makes if missing) the folder; its parent must exist. FailedPrecondition: another process
// holds it. DataLoss: its files are damaged beyond the unsynced tail of the log. InvalidArgument:
// the path cannot be a folder. Unavailable: another failure of the disk. After a failed write the
// next one opens the folder again first.
StatusOr<std::unique_ptr<KeyValueStore>> OpenRocksDbStore(const std::string& folder);

}  // namespace titan::storage

#endif  // TITAN_CORE_STORAGE_ROCKSDB_STORE_H_
