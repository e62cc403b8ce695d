// SPDX-License-Identifier: Apache-2.0
//
// How much memory the slots may take when the config does not say. Any thread.
#ifndef TITAN_SERVICES_WEIGHTSTORE_MEMORY_LIMIT_H_
#define TITAN_SERVICES_WEIGHTSTORE_MEMORY_LIMIT_H_

#include <cstdint>
#include <optional>
#include <string_view>

#include "core/base/status.h"

namespace titan::weightstore {

// 80 % of the memory that is free now: of the machine (MemAvailable), or of this process's control
// group where that is less. Unavailable: /proc/meminfo does not say.
StatusOr<uint64_t> DefaultMemoryLimit();

// The bytes that /proc/meminfo calls MemAvailable.
std::optional<uint64_t> AvailableFromMeminfo(std::string_view text);
// What a control group leaves, from its memory.max and memory.current; nullopt: no limit.
std::optional<uint64_t> FreeOfControlGroup(std::string_view max, std::string_view current);

}  // namespace titan::weightstore

#endif  // TITAN_SERVICES_WEIGHTSTORE_MEMORY_LIMIT_H_
