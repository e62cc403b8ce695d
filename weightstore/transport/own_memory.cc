// SPDX-License-Identifier: Apache-2.0
#include "weightstore/transport/own_memory.h"

#include <mutex>
#include <string>
#include <utility>

#include "core/base/check.h"
#include "core/runtime/machine.h"

namespace titan::weightstore::lanes {

using titan::transport::RmaDomain;

struct OwnMemory::Shared {
  Shared(std::function<void(double)> function, std::shared_ptr<RmaDomain> its_domain,
         bool keeps_a_spare)
      : changed(std::move(function)), domain(std::move(its_domain)), keeps_spare(keeps_a_spare) {}
  // With its OwnMemory, or with the last version that outlives that.
  ~Shared() { Free(std::move(spare)); }

  void Free(OwnBuffer buffer) {
    if (buffer.memory == nullptr) return;
    const size_t num_bytes = buffer.memory->size();
    {
      const OwnBuffer gone = std::move(buffer);  // a window keeps the memory until it is closed
    }
    if (changed) changed(-static_cast<double>(num_bytes));
  }
  void GiveBack(OwnBuffer buffer) {
    {
      std::lock_guard lock(mutex);
      if (keeps_spare) std::swap(spare, buffer);
    }
    Free(std::move(buffer));
  }
  Status Register(OwnBuffer& buffer) const {
    TITAN_CHECK(domain != nullptr);
    TITAN_ASSIGN_OR_RETURN(buffer.landing, domain->Land(buffer.bytes(), buffer.memory));
    buffer.domain = domain;
    return OkStatus();
  }

  const std::function<void(double)> changed;
  const std::shared_ptr<RmaDomain> domain;
  std::mutex mutex;
  OwnBuffer spare;
  bool keeps_spare;  // false at the latest when nobody will take again
};

OwnMemory::OwnMemory(std::function<void(double)> changed, std::shared_ptr<RmaDomain> domain,
                     bool keeps_spare)
    : shared_(std::make_shared<Shared>(std::move(changed), std::move(domain), keeps_spare)) {}

OwnMemory::~OwnMemory() {
  OwnBuffer spare;
  std::lock_guard lock(shared_->mutex);
  shared_->keeps_spare = false;
  std::swap(spare, shared_->spare);
  shared_->Free(std::move(spare));
}

StatusOr<OwnBuffer> OwnMemory::Take(size_t num_bytes, bool registered) {
  OwnBuffer buffer;
  {
    std::lock_guard lock(shared_->mutex);
    std::swap(buffer, shared_->spare);
  }
  Status ready = OkStatus();
  if (buffer.memory != nullptr && buffer.memory->size() == num_bytes) {
    ready = buffer.memory->Protect(/*writable=*/true);
  } else {
    shared_->Free(std::exchange(buffer, {}));
    const auto available = runtime::AvailableMemory();  // a system that does not say is tried
    if (available.ok() && num_bytes > *available) {
      return ResourceExhausted("a version of this run takes " + std::to_string(num_bytes) +
                               " bytes of memory, " + std::to_string(*available) +
                               " are free; lower max_versions, or run where the store's host is");
    }
    TITAN_ASSIGN_OR_RETURN(MappedMemory memory, MappedMemory::Own(num_bytes));
    buffer.memory = std::make_shared<MappedMemory>(std::move(memory));
    if (shared_->changed) shared_->changed(static_cast<double>(num_bytes));
  }
  if (ready.ok() && registered && !buffer.landing.registered()) ready = shared_->Register(buffer);
  if (ready.ok()) return buffer;
  shared_->Free(std::move(buffer));
  return ready;
}

void OwnMemory::GiveBack(OwnBuffer buffer) { shared_->GiveBack(std::move(buffer)); }
void OwnMemory::Drop(OwnBuffer buffer) { shared_->Free(std::move(buffer)); }

StatusOr<std::shared_ptr<const MappedMemory>> OwnMemory::Seal(OwnBuffer buffer) {
  if (const Status sealed = buffer.memory->Protect(/*writable=*/false); !sealed.ok()) {
    shared_->GiveBack(std::move(buffer));
    return sealed;
  }
  const MappedMemory* const memory = buffer.memory.get();
  return std::shared_ptr<const MappedMemory>(
      memory, [shared = shared_, held = std::move(buffer)](const MappedMemory*) mutable {
        shared->GiveBack(std::move(held));
      });
}

}  // namespace titan::weightstore::lanes
