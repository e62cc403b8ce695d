// SPDX-License-Identifier: Apache-2.0
//
// The header page of a slot: which version its bytes are, and the grant number. The page is a
// memory file of its own, mapped for writing by the host daemon alone. The daemon raises the grant
// number before the bytes of the slot may change or the slot is taken from its readers, so a reader
// that finds its own number *after* it used the bytes knows that they were whole while it did.
#ifndef TITAN_WEIGHTSTORE_CLIENT_SLOT_HEADER_H_
#define TITAN_WEIGHTSTORE_CLIENT_SLOT_HEADER_H_

#include <cstddef>
#include <cstdint>

#include "core/base/hash.h"

namespace titan::weightstore {

inline constexpr size_t kSlotHeaderBytes = 4096;

struct SlotHeaderFields {
  uint64_t slot_id = 0;
  uint64_t version = 0;
  uint64_t grant = 0;
  Hash128 digest;  // zero until the daemon has verified the bytes
};

// A page of kSlotHeaderBytes, page aligned. One process writes, any number read.
class SlotHeaderPage {
 public:
  explicit SlotHeaderPage(void* page) : page_(static_cast<Page*>(page)) {}

  // REQUIRES: the page is mapped for writing. The grant number is visible first when it changes.
  void Write(const SlotHeaderFields& fields);
  // False: the page is no slot header, or was written meanwhile.
  bool Read(SlotHeaderFields* fields) const;
  // The grant number now; reads of the slot made before this call happened before it.
  uint64_t GrantAfterReads() const;

 private:
  struct Page {
    uint64_t magic;
    uint64_t slot_id;
    uint64_t grant;
    uint64_t version;
    uint64_t digest_low;
    uint64_t digest_high;
  };
  static_assert(sizeof(Page) <= kSlotHeaderBytes);

  Page* page_;
};

}  // namespace titan::weightstore

#endif  // TITAN_WEIGHTSTORE_CLIENT_SLOT_HEADER_H_
