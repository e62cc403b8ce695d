// SPDX-License-Identifier: Apache-2.0
// Goal: a killed process that may be restarted is restarted with back-off and at most five times a
// minute; the end of another one degrades the group; children end when they are told to. Method:
// /bin/sleep and /bin/sh as children, a clock that the test moves.
#include "clients/cluster/process_group.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <filesystem>
#include <thread>

#include "core/runtime/log.h"

namespace titan::cluster {
namespace {

using std::chrono::milliseconds;

class ProcessGroupTest : public ::testing::Test {
 protected:
  void SetUp() override {
    runtime::InitLog({.write = [](std::string_view) {}});
    char pattern[] = "/tmp/titan_process_test_XXXXXX";
    ASSERT_NE(mkdtemp(pattern), nullptr);
    folder_ = pattern;
  }
  void TearDown() override {
    runtime::InitLog({});
    std::filesystem::remove_all(folder_);
  }

  ProcessSpec Sleeper(const std::string& name, bool restart) {
    return {name, "generator", "/bin/sleep", {"600"}, folder_ + "/" + name + ".log", restart};
  }

  // Polls until something changes.
  bool PollUntilChange(ProcessGroup& group) {
    for (int i = 0; i < 2000; ++i) {
      if (group.Poll()) return true;
      std::this_thread::sleep_for(milliseconds(2));
    }
    return false;
  }

  std::string folder_;
  ManualClock clock_{1000};
};

TEST_F(ProcessGroupTest, KilledProcessIsRestartedAfterItsBackoff) {
  ProcessGroup group(clock_);
  ASSERT_TRUE(group.Start(Sleeper("generator-0", true)).ok());
  const pid_t first = group.Find("generator-0")->pid;
  kill(first, SIGKILL);
  ASSERT_TRUE(PollUntilChange(group));
  const ProcessState* state = group.Find("generator-0");
  EXPECT_FALSE(state->running);
  ASSERT_EQ(state->exits.size(), 1u);
  EXPECT_EQ(state->exits[0].exit.signal, SIGKILL);
  EXPECT_EQ(state->exits[0].exit.code, 137);
  EXPECT_FALSE(group.Poll());  // the back-off has not passed
  clock_.Advance(ProcessGroup::kFirstBackoff);
  EXPECT_TRUE(group.Poll());
  state = group.Find("generator-0");
  EXPECT_TRUE(state->running);
  EXPECT_NE(state->pid, first);
  EXPECT_EQ(state->restarts, 1u);
  EXPECT_EQ(group.degraded(), "");
  EXPECT_EQ(kill(state->pid, 0), 0);
}

TEST_F(ProcessGroupTest, SixthEndWithinAMinuteGivesUpAndDegrades) {
  ProcessGroup group(clock_);
  ASSERT_TRUE(
      group.Start({"reward", "reward", "/bin/sh", {"-c", "exit 3"}, folder_ + "/r.log", true})
          .ok());
  for (int i = 0; i < ProcessGroup::kMaxRestarts; ++i) {
    ASSERT_TRUE(PollUntilChange(group)) << i;  // it ended
    EXPECT_EQ(group.degraded(), "");
    clock_.Advance(ProcessGroup::kMaxBackoff);
    ASSERT_TRUE(group.Poll()) << i;  // it was started again
  }
  ASSERT_TRUE(PollUntilChange(group));
  EXPECT_TRUE(group.Find("reward")->given_up);
  EXPECT_NE(group.degraded().find("exit code 3 after 5 restarts"), std::string::npos)
      << group.degraded();
  clock_.Advance(std::chrono::minutes(5));
  EXPECT_FALSE(group.Poll());
}

TEST_F(ProcessGroupTest, RestartsLongAgoDoNotCount) {
  ProcessGroup group(clock_);
  ASSERT_TRUE(group.Start(Sleeper("generator-0", true)).ok());
  for (int i = 0; i < ProcessGroup::kMaxRestarts + 3; ++i) {
    kill(group.Find("generator-0")->pid, SIGKILL);
    ASSERT_TRUE(PollUntilChange(group));
    clock_.Advance(std::chrono::seconds(30));
    ASSERT_TRUE(group.Poll());
  }
  EXPECT_EQ(group.degraded(), "");
  EXPECT_EQ(group.Find("generator-0")->restarts, 8u);
}

TEST_F(ProcessGroupTest, LossOfAnotherProcessDegradesWithoutRestart) {
  ProcessGroup group(clock_);
  ASSERT_TRUE(group.Start(Sleeper("trainer", false)).ok());
  kill(group.Find("trainer")->pid, SIGKILL);
  ASSERT_TRUE(PollUntilChange(group));
  EXPECT_NE(group.degraded().find("trainer (pid "), std::string::npos);
  EXPECT_NE(group.degraded().find("signal 9"), std::string::npos);
  clock_.Advance(std::chrono::minutes(1));
  EXPECT_FALSE(group.Poll());
}

TEST_F(ProcessGroupTest, StoppingRestartsAndDegradesNothing) {
  ProcessGroup group(clock_);
  ASSERT_TRUE(group.Start(Sleeper("generator-0", true)).ok());
  ASSERT_TRUE(group.Start(Sleeper("trainer", false)).ok());
  group.BeginStop();
  EXPECT_TRUE(group.Signal("generator-0", SIGTERM));
  EXPECT_TRUE(group.Signal("trainer", SIGTERM));
  while (group.Find("generator-0")->running || group.Find("trainer")->running) {
    ASSERT_TRUE(PollUntilChange(group));
  }
  clock_.Advance(std::chrono::minutes(1));
  EXPECT_FALSE(group.Poll());
  EXPECT_EQ(group.degraded(), "");
  EXPECT_FALSE(group.Signal("trainer", SIGTERM));
}

TEST_F(ProcessGroupTest, OutputIsKeptAndProgramsThatAreNotThereAreNamed) {
  ProcessGroup group(clock_);
  const std::string log = folder_ + "/x.log";
  ASSERT_TRUE(
      group.Start({"x", "x", "/bin/sh", {"-c", "echo one; echo two >&2; echo three"}, log, false})
          .ok());
  ASSERT_TRUE(PollUntilChange(group));
  EXPECT_EQ(LastLines(log, 2), "two\nthree");
  EXPECT_EQ(LastLines(log, 9), "one\ntwo\nthree");
  EXPECT_EQ(LastLines(folder_ + "/none", 2), "");
  const Status missing = group.Start({"y", "y", folder_ + "/titan-y", {}, log, false});
  EXPECT_EQ(missing.code(), StatusCode::kNotFound);
  EXPECT_NE(MessageOf(missing).find("titan-y"), std::string::npos);
}

}  // namespace
}  // namespace titan::cluster
