// SPDX-License-Identifier: Apache-2.0
#include "core/base/hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace titan {

uint64_t Hash64(const void* data, size_t num_bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(data, num_bytes, seed);
}

Hash128& Hash128::operator+=(const Hash128& other) {
  const uint64_t sum = low + other.low;
  high += other.high + (sum < low ? 1 : 0);
  low = sum;
  return *this;
}

Hash128 Hash128Of(const void* data, size_t num_bytes, uint64_t seed) {
  const XXH128_hash_t h = XXH3_128bits_withSeed(data, num_bytes, seed);
  return {h.low64, h.high64};
}

std::string ToHex(uint64_t value) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string hex(16, '0');
  for (int i = 15; i >= 0; --i, value >>= 4) hex[i] = kDigits[value & 15];
  return hex;
}

std::string ToHex(const Hash128& value) { return ToHex(value.high) + ToHex(value.low); }

bool FromHex(std::string_view hex, Hash128* value) {
  if (hex.size() != 32) return false;
  uint64_t parts[2] = {0, 0};
  for (int i = 0; i < 32; ++i) {
    const char c = hex[i];
    uint64_t digit;
    if (c >= '0' && c <= '9') {
      digit = c - '0';
    } else if (c >= 'a' && c <= 'f') {
      digit = c - 'a' + 10;
    } else {
      return false;
    }
    parts[i / 16] = parts[i / 16] << 4 | digit;
  }
  *value = {parts[1], parts[0]};
  return true;
}

}  // namespace titan
