// SPDX-License-Identifier: Apache-2.0
//
// Goal: the memory that is left is read from the machine or its control group, whichever is less.
#include "core/runtime/machine.h"

#include <gtest/gtest.h>

namespace titan::runtime {
namespace {

TEST(MachineTest, ReadsMeminfoAndControlGroups) {
  EXPECT_EQ(AvailableFromMeminfo("MemTotal:       100 kB\nMemAvailable:    64 kB\nBuffers: 1 kB\n"),
            64u * 1024);
  EXPECT_FALSE(AvailableFromMeminfo("MemTotal: 100 kB\n").has_value());
  EXPECT_FALSE(AvailableFromMeminfo("MemAvailable: many\n").has_value());
  EXPECT_FALSE(AvailableFromMeminfo("MemAvailable: 99999999999999999999 kB\n").has_value());
  EXPECT_EQ(FreeOfControlGroup("1000\n", "400\n"), 600u);
  EXPECT_EQ(FreeOfControlGroup("1000\n", "4000\n"), 0u);
  EXPECT_FALSE(FreeOfControlGroup("max\n", "400\n").has_value());
  const auto left = AvailableMemory();
  ASSERT_TRUE(left.ok()) << left.status();
  EXPECT_GT(*left, 0u);
}

}  // namespace
}  // namespace titan::runtime
