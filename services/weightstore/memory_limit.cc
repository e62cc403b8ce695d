// SPDX-License-Identifier: Apache-2.0
#include "services/weightstore/memory_limit.h"

#include "core/runtime/machine.h"

namespace titan::weightstore {

StatusOr<uint64_t> DefaultMemoryLimit() {
  const auto available = runtime::AvailableMemory();
  if (!available.ok()) return Annotate(available.status(), "set memory_limit_bytes");
  return *available / 5 * 4;
}

}  // namespace titan::weightstore
