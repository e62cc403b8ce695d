// SPDX-License-Identifier: Apache-2.0
//
// The weights digest, free of layout. For each run of 256 elements along a tensor's last dimension
// (the tail run of a row is shorter):
//
//   xxh3-128, seed = xxh3-64(name), over  u64 row-major index of the run's first element | u32
//   number of elements | the elements,  all little-endian in the tensor's dtype
//
// and all of them added modulo 2^128: parts may be computed anywhere, in any order, and summed.
// Equal weights have equal digests whatever the layout, the cut into ranks and the number of
// threads; pad lanes and gaps do not count. Pure functions, any thread.
#ifndef TITAN_WEIGHTSTORE_CLIENT_WEIGHTS_DIGEST_H_
#define TITAN_WEIGHTSTORE_CLIENT_WEIGHTS_DIGEST_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/hash.h"
#include "weightstore/client/manifest.h"

namespace titan::weightstore {

inline constexpr int64_t kDigestRun = 256;

// Rows first_row..last_row-1 of a tensor whose first byte is at `data`. REQUIRES: 0 <= first_row <=
// last_row <= NumRows; for panels, first_row is a multiple of 32.
Hash128 TensorRowsDigest(const TensorEntry& tensor, const std::byte* data, int64_t first_row,
                         int64_t last_row);

// The whole tensor.
Hash128 TensorDigest(const TensorEntry& tensor, const std::byte* data);

// All tensors of a slot, by num_threads threads (the calling one included; at least 1). REQUIRES: a
// validated manifest, slot.size() >= manifest.slot_bytes.
Hash128 WeightsDigest(const Manifest& manifest, std::span<const std::byte> slot, int num_threads);

}  // namespace titan::weightstore

#endif  // TITAN_WEIGHTSTORE_CLIENT_WEIGHTS_DIGEST_H_
