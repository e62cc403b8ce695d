// SPDX-License-Identifier: Apache-2.0
#include "generator/page_pool.h"

#include "core/base/check.h"

namespace titan::generator {

PagePool::PagePool(int num_pages) : references_(static_cast<size_t>(num_pages), 0) {
  free_.reserve(static_cast<size_t>(num_pages));
  for (int32_t page = num_pages; page-- > 0;) free_.push_back(page);
}

int32_t PagePool::Take() {
  TITAN_CHECK(!free_.empty());
  const int32_t page = free_.back();
  free_.pop_back();
  references_[static_cast<size_t>(page)] = 1;
  return page;
}

void PagePool::Share(int32_t page) {
  TITAN_CHECK(references_[static_cast<size_t>(page)] > 0);
  ++references_[static_cast<size_t>(page)];
}

void PagePool::Release(int32_t page) {
  TITAN_CHECK(references_[static_cast<size_t>(page)] > 0);
  if (--references_[static_cast<size_t>(page)] == 0) free_.push_back(page);
}

}  // namespace titan::generator
