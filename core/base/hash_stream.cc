// SPDX-License-Identifier: Apache-2.0
#include "core/base/hash_stream.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace titan {

struct Hash128Stream::State {
  XXH3_state_t xxh3;
};

Hash128Stream::Hash128Stream() : state_(std::make_unique<State>()) { Reset(); }
Hash128Stream::~Hash128Stream() = default;

void Hash128Stream::Reset() { XXH3_128bits_reset(&state_->xxh3); }

void Hash128Stream::Add(const void* data, size_t num_bytes) {
  XXH3_128bits_update(&state_->xxh3, data, num_bytes);
}

Hash128 Hash128Stream::Digest() const {
  const XXH128_hash_t h = XXH3_128bits_digest(&state_->xxh3);
  return {h.low64, h.high64};
}

}  // namespace titan
