// SPDX-License-Identifier: Apache-2.0
//
// Memory for versions that a process pulls: one buffer for each that it holds, and the last one
// that was given back, which the next version of that size gets without the system clearing pages
// for it.
#ifndef TITAN_WEIGHTSTORE_TRANSPORT_OWN_MEMORY_H_
#define TITAN_WEIGHTSTORE_TRANSPORT_OWN_MEMORY_H_

#include <cstddef>
#include <functional>
#include <memory>

#include "core/base/status.h"
#include "weightstore/client/slot_mapping.h"

namespace titan::weightstore::lanes {

// Thread-safe. What Seal returned may outlive it.
class OwnMemory {
 public:
  // changed: called with what was taken from the system, or given back to it (negative); any
  // thread, must not block. May be empty.
  explicit OwnMemory(std::function<void(double num_bytes)> changed);
  ~OwnMemory();
  OwnMemory(const OwnMemory&) = delete;
  OwnMemory& operator=(const OwnMemory&) = delete;

  // Of this size, writable, with any bytes in it. Give it to Seal or to GiveBack.
  // ResourceExhausted: so much is not free, with the bytes of both.
  StatusOr<MappedMemory> Take(size_t num_bytes);
  void GiveBack(MappedMemory memory);
  // Read-only from here on; given back when the last one lets go of it. Internal: the kernel
  // refused.
  StatusOr<std::shared_ptr<const MappedMemory>> Seal(MappedMemory memory);

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace titan::weightstore::lanes

#endif  // TITAN_WEIGHTSTORE_TRANSPORT_OWN_MEMORY_H_
