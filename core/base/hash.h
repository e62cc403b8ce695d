// SPDX-License-Identifier: Apache-2.0
//
// hash64 and the 128-bit sums of the weights digest. hash64 is xxh3-64 with seed 0 over the fields as
// little-endian bytes (architecture.md section 7). Pure functions, any thread.
#ifndef TITAN_CORE_BASE_HASH_H_
#define TITAN_CORE_BASE_HASH_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

namespace titan {

static_assert(std::endian::native == std::endian::little, "bytes are hashed as they lie in memory");

// xxh3-64 of raw bytes.
uint64_t Hash64(const void* data, size_t num_bytes, uint64_t seed = 0);
inline uint64_t Hash64(std::string_view bytes, uint64_t seed = 0) {
  return Hash64(bytes.data(), bytes.size(), seed);
}

// xxh3-64 over the concatenated little-endian bytes of integer fields.
template <typename... Ints>
uint64_t HashFields(Ints... fields) {
  unsigned char bytes[(sizeof(Ints) + ... + 0)];
  size_t at = 0;
  ((std::memcpy(bytes + at, &fields, sizeof(fields)), at += sizeof(fields)), ...);
  return Hash64(bytes, at);
}

// A 128-bit number with addition modulo 2^128.
struct Hash128 {
  uint64_t low = 0;
  uint64_t high = 0;

  Hash128& operator+=(const Hash128& other);
  friend bool operator==(const Hash128&, const Hash128&) = default;
};

// xxh3-128 of raw bytes.
Hash128 Hash128Of(const void* data, size_t num_bytes, uint64_t seed);

// 32 lower-case hex digits, most significant first; and back (false: not 32 hex digits).
std::string ToHex(const Hash128& value);
bool FromHex(std::string_view hex, Hash128* value);
// 16 lower-case hex digits.
std::string ToHex(uint64_t value);

}  // namespace titan

#endif  // TITAN_CORE_BASE_HASH_H_
