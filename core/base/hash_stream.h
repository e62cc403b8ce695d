// SPDX-License-Identifier: Apache-2.0
//
// xxh3-128 of bytes that come in parts: cut anywhere, it is Hash128Of(all of them, seed 0).
#ifndef TITAN_CORE_BASE_HASH_STREAM_H_
#define TITAN_CORE_BASE_HASH_STREAM_H_

#include <cstddef>
#include <memory>

#include "core/base/hash.h"

namespace titan {

// One thread at a time.
class Hash128Stream {
 public:
  Hash128Stream();
  ~Hash128Stream();
  Hash128Stream(const Hash128Stream&) = delete;
  Hash128Stream& operator=(const Hash128Stream&) = delete;

  void Add(const void* data, size_t num_bytes);
  // Of what was added so far.
  Hash128 Digest() const;
  // Begins again.
  void Reset();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace titan

#endif  // TITAN_CORE_BASE_HASH_STREAM_H_
