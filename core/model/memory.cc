// SPDX-License-Identifier: Apache-2.0
#include "core/model/memory.h"

#include <sys/mman.h>

#include <string>

namespace titan::model {

void FloatsDeleter::operator()(float* memory) const {
  if (memory != nullptr) munmap(memory, static_cast<size_t>(bytes));
}

StatusOr<Floats> AllocateFloats(int64_t num_floats) {
  if (num_floats < 0 || num_floats > int64_t{1} << 60) {
    return InvalidArgument("memory: cannot hold " + std::to_string(num_floats) + " floats");
  }
  const int64_t bytes = (num_floats * 4 + 4095) / 4096 * 4096 + (num_floats == 0 ? 4096 : 0);
  void* memory = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return ResourceExhausted("memory: the system refuses " + std::to_string(bytes) + " bytes");
  }
  return Floats(static_cast<float*>(memory), FloatsDeleter{bytes});
}

}  // namespace titan::model
