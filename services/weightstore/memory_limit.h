// SPDX-License-Identifier: Apache-2.0
//
// How much memory the slots may take when the config does not say. Any thread.
#ifndef TITAN_SERVICES_WEIGHTSTORE_MEMORY_LIMIT_H_
#define TITAN_SERVICES_WEIGHTSTORE_MEMORY_LIMIT_H_

#include <cstdint>

#include "core/base/status.h"

namespace titan::weightstore {

// 80 % of the memory that is free now: of the machine (MemAvailable), or of this process's control
// group where that is less. Unavailable: /proc/meminfo does not say.
StatusOr<uint64_t> DefaultMemoryLimit();

}  // namespace titan::weightstore

#endif  // TITAN_SERVICES_WEIGHTSTORE_MEMORY_LIMIT_H_
