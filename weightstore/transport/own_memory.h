// SPDX-License-Identifier: Apache-2.0
//
// Memory for versions that a process pulls: one buffer for each that it holds, and the last one
// that was given back, which the next version of that size gets without the system clearing pages
// for it, and without being registered again where one-sided reads bring the bytes.
#ifndef TITAN_WEIGHTSTORE_TRANSPORT_OWN_MEMORY_H_
#define TITAN_WEIGHTSTORE_TRANSPORT_OWN_MEMORY_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "core/base/status.h"
#include "core/transport/rma.h"
#include "weightstore/client/slot_mapping.h"

namespace titan::weightstore::lanes {

// Of one version, until it is sealed. Movable.
struct OwnBuffer {
  std::shared_ptr<titan::transport::RmaDomain> domain;  // first: it outlives its window
  std::shared_ptr<MappedMemory> memory;
  titan::transport::RmaWindow landing;  // over all of it, if it is registered

  std::span<std::byte> bytes() const { return {memory->data(), memory->size()}; }
};

// Thread-safe. What Seal returned may outlive it.
class OwnMemory {
 public:
  // changed: called with what was taken from the system, or given back to it (negative); any
  // thread, must not block. May be empty. domain: that registers; null: none does. keeps_spare:
  // else what is given back is the system's at once.
  explicit OwnMemory(std::function<void(double num_bytes)> changed,
                     std::shared_ptr<titan::transport::RmaDomain> domain = nullptr,
                     bool keeps_spare = true);
  ~OwnMemory();
  OwnMemory(const OwnMemory&) = delete;
  OwnMemory& operator=(const OwnMemory&) = delete;

  // Of this size, writable, with any bytes in it. Give it to Seal, GiveBack or Drop.
  // ResourceExhausted: so much is not free, or may not be locked, with the bytes of both.
  // REQUIRES: a domain, if it is to be registered.
  StatusOr<OwnBuffer> Take(size_t num_bytes, bool registered = false);
  // For the next one.
  void GiveBack(OwnBuffer buffer);
  // Back to the system: who wrote to it may not have ended.
  void Drop(OwnBuffer buffer);
  // Read-only from here on; given back when the last one lets go of it. Internal: the kernel
  // refused.
  StatusOr<std::shared_ptr<const MappedMemory>> Seal(OwnBuffer buffer);

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace titan::weightstore::lanes

#endif  // TITAN_WEIGHTSTORE_TRANSPORT_OWN_MEMORY_H_
