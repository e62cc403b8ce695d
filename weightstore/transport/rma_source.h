// SPDX-License-Identifier: Apache-2.0
//
// Where a host's slot is to be read by one-sided reads, as the host tells it to who has a lease.
// Pure functions, any thread.
#ifndef TITAN_WEIGHTSTORE_TRANSPORT_RMA_SOURCE_H_
#define TITAN_WEIGHTSTORE_TRANSPORT_RMA_SOURCE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/transport/rma.h"

namespace titan::weightstore::lanes {

struct RmaSource {
  std::string address;  // of the host's domain
  titan::transport::RmaWindowKey bytes;
  titan::transport::RmaWindowKey header;  // of kSlotHeaderBytes
  uint64_t slot_id = 0;
};

// Always as many, so that a reader knows what to wait for: an address has some hundred bytes for
// each adapter.
inline constexpr size_t kRmaSourceBytes = 16 << 10;

// Internal: it does not fit.
StatusOr<std::vector<std::byte>> EncodeRmaSource(const RmaSource& source);
// DataLoss: not what EncodeRmaSource made.
StatusOr<RmaSource> ParseRmaSource(std::span<const std::byte> bytes);

}  // namespace titan::weightstore::lanes

#endif  // TITAN_WEIGHTSTORE_TRANSPORT_RMA_SOURCE_H_
