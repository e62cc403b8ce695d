// SPDX-License-Identifier: Apache-2.0
//
// UCX reads addresses and keys without looking at their ends, so bytes that were cut or changed on
// their way must not reach it: what we give away begins with a mark and a hash. Any thread.
#ifndef TITAN_CORE_TRANSPORT_SEALED_H_
#define TITAN_CORE_TRANSPORT_SEALED_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "core/base/hash.h"

namespace titan::transport {

inline constexpr std::string_view kAddressMark = "TITAN-UCX1-ADDRESS ";
inline constexpr std::string_view kKeyMark = "TITAN-UCX1-KEY ";

inline std::string Sealed(std::string_view mark, const void* bytes, size_t size) {
  const uint64_t hash = Hash64(bytes, size);
  std::string sealed(mark);
  sealed.append(reinterpret_cast<const char*>(&hash), sizeof(hash));
  return sealed.append(static_cast<const char*>(bytes), size);
}

// Empty: not what Sealed made.
inline std::string_view Unsealed(std::string_view mark, std::string_view sealed) {
  uint64_t hash = 0;
  if (!sealed.starts_with(mark) || sealed.size() < mark.size() + sizeof(hash)) return {};
  std::memcpy(&hash, sealed.data() + mark.size(), sizeof(hash));
  const std::string_view bytes = sealed.substr(mark.size() + sizeof(hash));
  return Hash64(bytes) == hash ? bytes : std::string_view();
}

}  // namespace titan::transport

#endif  // TITAN_CORE_TRANSPORT_SEALED_H_
