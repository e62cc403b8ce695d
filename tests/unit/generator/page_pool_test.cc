// SPDX-License-Identifier: Apache-2.0
// Goal: a page is free exactly when nobody owns it.
#include "generator/page_pool.h"

#include <gtest/gtest.h>

namespace titan::generator {
namespace {

TEST(PagePoolTest, SharedPageIsFreeOnlyAfterItsLastOwner) {
  PagePool pool(2);
  const int32_t page = pool.Take();
  pool.Share(page);
  pool.Release(page);
  EXPECT_EQ(pool.num_free(), 1);
  pool.Release(page);
  EXPECT_EQ(pool.num_free(), 2);
  EXPECT_NE(pool.Take(), pool.Take());
}

}  // namespace
}  // namespace titan::generator
