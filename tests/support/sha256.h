// SPDX-License-Identifier: Apache-2.0
//
// SHA-256 for tests that compare with golden hashes. Link OpenSSL::Crypto.
#ifndef TITAN_TESTS_SUPPORT_SHA256_H_
#define TITAN_TESTS_SUPPORT_SHA256_H_

#include <openssl/sha.h>

#include <cstdint>
#include <string>

namespace titan {

// 64 lower-case hex digits.
inline std::string Sha256Hex(const void* data, size_t num_bytes) {
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(static_cast<const unsigned char*>(data), num_bytes, digest);
  constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  for (const unsigned char byte : digest) {
    out += kHex[byte >> 4];
    out += kHex[byte & 15];
  }
  return out;
}

}  // namespace titan

#endif  // TITAN_TESTS_SUPPORT_SHA256_H_
