// SPDX-License-Identifier: Apache-2.0
//
// Large zeroed float arrays, aligned for the kernels and straight from the operating system, so
// that pages are taken when first touched and given back when freed. Any thread.
#ifndef TITAN_CORE_MODEL_MEMORY_H_
#define TITAN_CORE_MODEL_MEMORY_H_

#include <cstdint>
#include <memory>

#include "core/base/status.h"
#include "core/kernels/pool.h"

namespace titan::model {

struct FloatsDeleter {
  int64_t bytes = 0;
  void operator()(float* memory) const;
};
using Floats = std::unique_ptr<float[], FloatsDeleter>;

// num_floats zeros, aligned to 4096 bytes, from 2 MiB on in huge pages where the system gives them.
// ResourceExhausted, with the bytes: the memory cannot be had. InvalidArgument: negative, or more
// than 2^60.
StatusOr<Floats> AllocateFloats(int64_t num_floats);

// Writes zeros, each huge page by one thread of the pool: the system gives the pages now, so that
// no step waits for them or finds too little memory, and where the threads run.
void TakePages(kernels::Pool& pool, float* memory, int64_t num_floats);

}  // namespace titan::model

#endif  // TITAN_CORE_MODEL_MEMORY_H_
