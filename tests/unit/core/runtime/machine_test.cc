// SPDX-License-Identifier: Apache-2.0
//
// Goal: the memory that is left is read from the machine or its control group, whichever is less,
// and taken by one process at a time.
#include "core/runtime/machine.h"

#include <gtest/gtest.h>

#include <thread>

#include "tests/support/child_process.h"

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

TEST(MachineTest, ProcessesOfOneMachineNameItAlike) {
  const std::string name = MemoryName();
  EXPECT_NE(name, "");
  EXPECT_EQ(name.find('\n'), std::string::npos);
  testing::ChildProcess child(
      [&](testing::ChildProcess& test) { test.Send(static_cast<uint64_t>(MemoryName() == name)); });
  EXPECT_EQ(child.Receive(), 1u);
  EXPECT_EQ(child.Wait(), 0);
}

// Other programs of the machine may have it for a while.
MemoryTurn AwaitTurn() {
  for (;;) {
    if (std::optional<MemoryTurn> turn = MemoryTurn::Try()) return *std::move(turn);
    std::this_thread::yield();
  }
}

TEST(MachineTest, OneProcessAtATimeHasTheTurnUntilItEnds) {
  testing::ChildProcess other([](testing::ChildProcess& test) {
    std::optional<MemoryTurn> turn = AwaitTurn();
    test.Send(1);
    test.Receive();
    turn.reset();
    turn = AwaitTurn();
    test.Send(2);
    test.Receive();
  });
  ASSERT_EQ(other.Receive(), 1u);
  EXPECT_FALSE(MemoryTurn::Try().has_value());
  other.Send(1);
  ASSERT_EQ(other.Receive(), 2u);
  EXPECT_FALSE(MemoryTurn::Try().has_value());
  other.Kill();
  const MemoryTurn turn = AwaitTurn();
  EXPECT_FALSE(MemoryTurn::Try().has_value());  // nor twice in one process
}

}  // namespace
}  // namespace titan::runtime
