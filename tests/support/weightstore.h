// SPDX-License-Identifier: Apache-2.0
//
// Small manifests and made-up weights for tests of the weight store.
#ifndef TITAN_TESTS_SUPPORT_WEIGHTSTORE_H_
#define TITAN_TESTS_SUPPORT_WEIGHTSTORE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "weightstore/client/manifest.h"

namespace titan::weightstore::testing {

// Two tensors, one as panels and one as rows, that fill a slot of 32 * 33 * 4 * num_panels + 256
// bytes.
inline Manifest SmallManifest(int64_t num_panels = 2) {
  Manifest manifest;
  const uint64_t matrix_bytes = static_cast<uint64_t>(num_panels) * 32 * 33 * 4;
  manifest.tensors = {
      {"matrix", {num_panels * 32, 33}, DType::kF32, Layout::kPanels32, 0, matrix_bytes},
      {"vector", {64}, DType::kF32, Layout::kRows, matrix_bytes, 256},
  };
  manifest.slot_bytes = matrix_bytes + 256;
  manifest.model_config_json = "{}";
  manifest.contract_forward = "forward";
  manifest.contract_training = "training";
  return manifest;
}

// Every 8 bytes of the slot hold the same number, so that a torn read shows two.
inline void Fill(std::span<std::byte> slot, uint64_t number) {
  for (size_t i = 0; i + 8 <= slot.size(); i += 8) std::memcpy(&slot[i], &number, 8);
}

// The number that the whole slot holds, or ~0 if it holds several.
inline uint64_t NumberIn(std::span<const std::byte> slot) {
  uint64_t first;
  std::memcpy(&first, slot.data(), 8);
  for (size_t i = 0; i + 8 <= slot.size(); i += 8) {
    uint64_t number;
    std::memcpy(&number, &slot[i], 8);
    if (number != first) return ~uint64_t{0};
  }
  return first;
}

}  // namespace titan::weightstore::testing

#endif  // TITAN_TESTS_SUPPORT_WEIGHTSTORE_H_
