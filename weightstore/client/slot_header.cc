// SPDX-License-Identifier: Apache-2.0
#include "weightstore/client/slot_header.h"

#include <atomic>

namespace titan::weightstore {
namespace {

constexpr uint64_t kMagic = 0x3152444854534c54;  // "TLSTHDR1"

uint64_t Load(const uint64_t* field) { return __atomic_load_n(field, __ATOMIC_ACQUIRE); }
void Store(uint64_t* field, uint64_t value) { __atomic_store_n(field, value, __ATOMIC_SEQ_CST); }

}  // namespace

void SlotHeaderPage::Write(const SlotHeaderFields& fields) {
  Store(&page_->grant, fields.grant);
  // Whoever writes the slot next does so after this, on every processor.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  Store(&page_->slot_id, fields.slot_id);
  Store(&page_->version, fields.version);
  Store(&page_->digest_low, fields.digest.low);
  Store(&page_->digest_high, fields.digest.high);
  Store(&page_->magic, kMagic);
}

bool SlotHeaderPage::Read(SlotHeaderFields* fields) const {
  if (Load(&page_->magic) != kMagic) return false;
  fields->grant = Load(&page_->grant);
  fields->slot_id = Load(&page_->slot_id);
  fields->version = Load(&page_->version);
  fields->digest = {Load(&page_->digest_low), Load(&page_->digest_high)};
  return GrantAfterReads() == fields->grant;
}

uint64_t SlotHeaderPage::GrantAfterReads() const {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return Load(&page_->grant);
}

}  // namespace titan::weightstore
