// SPDX-License-Identifier: Apache-2.0
//
// Items of the kernels' contract as they are recorded, for tests that look at one of them.
#ifndef TITAN_TESTS_SUPPORT_RECORDED_ITEMS_H_
#define TITAN_TESTS_SUPPORT_RECORDED_ITEMS_H_

#include <gtest/gtest.h>

#include <span>
#include <string>
#include <string_view>

#include "core/kernels/digest.h"

namespace titan::testing {

// canned.linear: the bits of Linear for 1, 5 and 33 rows and every number of leaves.
inline constexpr char kRecordedLinear[] = "55b71a17463a07ec4fe728aab4e85401";

// The value of the item of that name.
inline std::string ItemOf(std::span<const kernels::ContractItem> items, std::string_view name) {
  for (const kernels::ContractItem& item : items) {
    if (item.name == name) return item.value;
  }
  ADD_FAILURE() << "no item " << name;
  return "";
}

}  // namespace titan::testing

#endif  // TITAN_TESTS_SUPPORT_RECORDED_ITEMS_H_
