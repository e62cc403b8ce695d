// SPDX-License-Identifier: Apache-2.0
//
// PagePool: which pages of the key-value cache are free, and how many sequences share a used one.
// It knows ids only; the floats are model::KvCache's. Not thread-safe; the engine owns it.
#ifndef TITAN_GENERATOR_PAGE_POOL_H_
#define TITAN_GENERATOR_PAGE_POOL_H_

#include <cstdint>
#include <vector>

namespace titan::generator {

class PagePool {
 public:
  explicit PagePool(int num_pages);

  int num_pages() const { return static_cast<int>(references_.size()); }
  int num_free() const { return static_cast<int>(free_.size()); }

  // A page with one reference. REQUIRES: num_free() > 0.
  int32_t Take();
  // One more owner of a used page.
  void Share(int32_t page);
  // One owner less; the page is free again when none is left.
  void Release(int32_t page);

 private:
  std::vector<int32_t> references_;  // 0 = free
  std::vector<int32_t> free_;        // stack
};

}  // namespace titan::generator

#endif  // TITAN_GENERATOR_PAGE_POOL_H_
