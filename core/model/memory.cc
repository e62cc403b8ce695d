// SPDX-License-Identifier: Apache-2.0
#include "core/model/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <string>

namespace titan::model {
namespace {

// Of the system, where it gives them. A smaller array takes small ones.
constexpr int64_t kHugePage = 2 << 20;

}  // namespace

void FloatsDeleter::operator()(float* memory) const {
  if (memory != nullptr) munmap(memory, static_cast<size_t>(bytes));
}

StatusOr<Floats> AllocateFloats(int64_t num_floats) {
  if (num_floats < 0 || num_floats > int64_t{1} << 60) {
    return InvalidArgument("memory: cannot hold " + std::to_string(num_floats) + " floats");
  }
  const int64_t bytes = (num_floats * 4 + 4095) / 4096 * 4096 + (num_floats == 0 ? 4096 : 0);
  // So much more is mapped, and given back, that the array can begin where a huge page does.
  const int64_t spare = bytes < kHugePage ? 0 : kHugePage - 4096;
  void* mapped = mmap(nullptr, static_cast<size_t>(bytes + spare), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) {
    return ResourceExhausted("memory: the system refuses " + std::to_string(bytes) + " bytes");
  }
  char* memory = static_cast<char*>(mapped);
  if (spare > 0) {
    const int64_t before = -reinterpret_cast<intptr_t>(memory) & (kHugePage - 1);
    if (before > 0) munmap(memory, static_cast<size_t>(before));
    memory += before;
    if (spare > before) munmap(memory + bytes, static_cast<size_t>(spare - before));
    madvise(memory, static_cast<size_t>(bytes), MADV_HUGEPAGE);  // speed only
  }
  return Floats(reinterpret_cast<float*>(memory), FloatsDeleter{bytes});
}

void TakePages(kernels::Pool& pool, float* memory, int64_t num_floats) {
  constexpr int64_t kFloats = kHugePage / static_cast<int64_t>(sizeof(float));
  pool.Run(static_cast<int>((num_floats + kFloats - 1) / kFloats), [&](int task) {
    const int64_t first = task * kFloats;
    const int64_t count = std::min(kFloats, num_floats - first);
    std::memset(memory + first, 0, static_cast<size_t>(count) * sizeof(float));
  });
}

}  // namespace titan::model
