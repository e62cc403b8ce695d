// SPDX-License-Identifier: Apache-2.0
#include "weightstore/transport/own_memory.h"

#include <mutex>
#include <string>
#include <utility>

#include "core/runtime/machine.h"

namespace titan::weightstore::lanes {

struct OwnMemory::Shared {
  explicit Shared(std::function<void(double)> function) : changed(std::move(function)) {}
  // With its OwnMemory, or with the last version that outlives that.
  ~Shared() { Free(std::move(spare)); }

  void Free(MappedMemory memory) {
    const size_t num_bytes = memory.size();
    memory = MappedMemory();
    if (changed && num_bytes > 0) changed(-static_cast<double>(num_bytes));
  }
  void GiveBack(MappedMemory memory) {
    {
      std::lock_guard lock(mutex);
      if (!closed) std::swap(spare, memory);
    }
    Free(std::move(memory));
  }

  const std::function<void(double)> changed;
  std::mutex mutex;
  MappedMemory spare;
  bool closed = false;  // nobody will take again
};

OwnMemory::OwnMemory(std::function<void(double)> changed)
    : shared_(std::make_shared<Shared>(std::move(changed))) {}

OwnMemory::~OwnMemory() {
  MappedMemory spare;
  std::lock_guard lock(shared_->mutex);
  shared_->closed = true;
  std::swap(spare, shared_->spare);
  shared_->Free(std::move(spare));
}

StatusOr<MappedMemory> OwnMemory::Take(size_t num_bytes) {
  MappedMemory memory;
  {
    std::lock_guard lock(shared_->mutex);
    std::swap(memory, shared_->spare);
  }
  if (memory.size() == num_bytes) {
    const Status writable = memory.Protect(/*writable=*/true);
    if (writable.ok()) return memory;
    shared_->Free(std::move(memory));
    return writable;
  }
  shared_->Free(std::move(memory));
  const auto available = runtime::AvailableMemory();  // a system that does not say is tried
  if (available.ok() && num_bytes > *available) {
    return ResourceExhausted("a version of this run takes " + std::to_string(num_bytes) +
                             " bytes of memory, " + std::to_string(*available) +
                             " are free; lower max_versions, or run where the store's host is");
  }
  TITAN_ASSIGN_OR_RETURN(memory, MappedMemory::Own(num_bytes));
  if (shared_->changed) shared_->changed(static_cast<double>(num_bytes));
  return memory;
}

void OwnMemory::GiveBack(MappedMemory memory) { shared_->GiveBack(std::move(memory)); }

StatusOr<std::shared_ptr<const MappedMemory>> OwnMemory::Seal(MappedMemory memory) {
  if (const Status sealed = memory.Protect(/*writable=*/false); !sealed.ok()) {
    shared_->GiveBack(std::move(memory));
    return sealed;
  }
  return std::shared_ptr<const MappedMemory>(new MappedMemory(std::move(memory)),
                                             [shared = shared_](MappedMemory* held) {
                                               shared->GiveBack(std::move(*held));
                                               delete held;
                                             });
}

}  // namespace titan::weightstore::lanes
