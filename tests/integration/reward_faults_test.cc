// SPDX-License-Identifier: Apache-2.0
//
// Goal: a reward service that is slow, answers nonsense or goes away ends the job FAILED, with a
// reason that names the service, what it did and what to do; the orchestrator lives, the workers
// are let go, and the next job runs. Method: titan-orchestrator and the bad service are processes
// over real gRPC.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/runtime/endpoint.h"
#include "tests/support/orchestrator_process.h"

namespace titan::test {
namespace {

using config::v1::JobSpec;

class RewardFaultsTest : public OrchestratorProcessTest {
 protected:
  void SetUp() override {
    OrchestratorProcessTest::SetUp();
    rpc_deadline_ms_ = 500;
    StartDaemon();
    RegisterAll(1);
  }
  void TearDown() override {
    StopJudge();
    OrchestratorProcessTest::TearDown();
  }

  void StartJudge(const std::string& mode) {
    const auto endpoint = runtime::ReadEndpoint(folder_ + "/orchestrator", "orchestrator");
    ASSERT_TRUE(endpoint.ok()) << endpoint.status();
    int said[2];
    ASSERT_EQ(pipe2(said, O_CLOEXEC), 0);
    judge_.emplace(std::vector<std::string>{TITAN_BINARY_DIR "/tests/nonsense_reward",
                                            endpoint->address, mode},
                   folder_ + "/judge.log", [said] { dup2(said[1], STDOUT_FILENO); });
    close(said[1]);
    char word[16];
    EXPECT_GT(read(said[0], word, sizeof(word)), 0) << mode;  // it has registered
    close(said[0]);
  }
  void StopJudge() { judge_.reset(); }

  JobSpec JudgedSpec() const {
    JobSpec spec = Spec();
    spec.mutable_schedule()->set_steps(2);
    spec.mutable_reward()->set_grader("judge");
    spec.mutable_deadlines()->set_reward_ms(700);
    spec.mutable_deadlines()->set_workers_ms(1500);
    return spec;
  }
  // Runs a job on a judge of this mode to its end; answers the reason.
  std::string ReasonOf(const std::string& mode) {
    StartJudge(mode);
    JobSpec spec = JudgedSpec();
    // A message that is too long is refused only when it is there.
    if (mode == "huge") spec.mutable_deadlines()->set_reward_ms(6000);
    const auto job = Submit(spec, mode);
    EXPECT_TRUE(job.ok()) << mode << ": " << job.status();
    if (!job.ok()) return "";
    Watch(*job);
    StopJudge();
    const ov::Job ended = Get(*job);
    EXPECT_EQ(ended.state(), ov::JOB_STATE_FAILED) << mode << ": " << ended.reason();
    EXPECT_LT(ended.reason().size(), 1500u) << mode;
    std::lock_guard lock(generators_[0].mutex);
    EXPECT_TRUE(generators_[0].held.empty()) << mode;
    return ended.reason();
  }
  // Files that the orchestrator has open, and its threads.
  size_t Count(const char* what) const {
    size_t num = 0;
    for (const auto& entry : std::filesystem::directory_iterator(
             "/proc/" + std::to_string(process_->pid()) + "/" + what)) {
      num += !entry.path().empty();
    }
    return num;
  }

  std::optional<titan::testing::ChildProcess> judge_;
};

TEST_F(RewardFaultsTest, EndTheJobWithAReasonAndLeaveNothing) {
  const struct {
    std::string mode, says;
  } cases[] = {
      {"slow", "did not answer within 500 ms"},
      {"few", " results for "},
      {"many", " results for "},
      {"empty", "answered 0 results for "},
      {"no_outcome", "a result without an outcome"},
      {"infra", "reports a fault of its own: xxx"},
      {"model_fault_nan", "answered the value nan, which is not a finite reward"},
      {"nan", "answered the value nan, which is not a finite reward"},
      {"inf", "answered the value -inf, which is not a finite reward"},
      {"enormous", "which is not a finite reward of at most 1e100"},
      {"component_nan", "the value nan for the component style"},
      {"component_unnamed", "a component with a name of 0 bytes"},
      {"component_flood", "answered 1000 components; at most 64"},
      {"huge", "larger than max"},
      {"garbage", "the answer to /titan.reward.v1.RewardService/Score does not decode"},
      {"cut", "the answer to /titan.reward.v1.RewardService/Score does not decode"},
      {"code:1", "answered CANCELLED: because it is so"},
      {"code:2", "answered UNKNOWN: because it is so"},
      {"code:3", "refuses: because it is so"},
      {"code:5", "answered NOT_FOUND: because it is so"},
      {"code:8", "answered RESOURCE_EXHAUSTED: because it is so"},
      {"code:12", "does not implement titan.reward.v1.RewardService"},
      {"code:13", "answered INTERNAL: because it is so"},
      {"code:16", "answered UNAUTHENTICATED: because it is so"},
      {"code:99", "because it is so"},
      {"die", "answered UNAVAILABLE"},
  };
  size_t files = 0, threads = 0, num = 0;
  int trained = trainer_.ended, ended = store_.ended;
  for (const auto& c : cases) {
    const std::string reason = ReasonOf(c.mode);
    EXPECT_NE(reason.find("reward service judge"), std::string::npos) << reason;
    EXPECT_NE(reason.find(c.says), std::string::npos) << c.mode << ": " << reason;
    EXPECT_NE(reason.find("submit again"), std::string::npos) << c.mode << ": " << reason;
    EXPECT_EQ(trainer_.ended, ++trained) << c.mode;
    EXPECT_EQ(store_.ended, ++ended) << c.mode;
    if (++num == 5) {  // what starts up has started
      files = Count("fd");
      threads = Count("task");
    }
  }
  EXPECT_LE(Count("fd"), files + 3);
  EXPECT_LE(Count("task"), threads + 3);
  const auto next = Submit(Spec(), "honest");
  ASSERT_TRUE(next.ok()) << next.status();
  Watch(*next);
  EXPECT_EQ(Get(*next).state(), ov::JOB_STATE_SUCCEEDED) << Get(*next).reason();
}

TEST_F(RewardFaultsTest, AServiceThatCannotDescribeItselfIsNamed) {
  const std::string reason = ReasonOf("describe_fails");
  EXPECT_NE(reason.find("no reward service with the grader judge"), std::string::npos) << reason;
  EXPECT_NE(reason.find("reward service judge registered, but does not answer what it is asked "
                        "first: Describe: answered INTERNAL: describes nothing"),
            std::string::npos)
      << reason;
}

TEST_F(RewardFaultsTest, ASilenceLongerThanTheDeadlineIsNamedToo) {
  StartJudge("slow");
  JobSpec spec = JudgedSpec();
  spec.mutable_deadlines()->set_reward_ms(300);  // ends before the call does
  const auto job = Submit(spec, "mute");
  ASSERT_TRUE(job.ok()) << job.status();
  Watch(*job);
  const std::string reason = Get(*job).reason();
  EXPECT_NE(reason.find("reward service judge has not answered a request of "), std::string::npos)
      << reason;
}

TEST_F(RewardFaultsTest, WhatAServiceWouldRefuseIsRefusedAtTheSubmission) {
  StartJudge("refuses");
  const auto refused = Submit(JudgedSpec(), "refused");
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().ToString().find(
                "reward.grader_parameters_json: it does not like these parameters"),
            std::string::npos)
      << refused.status();
  JobSpec spec = JudgedSpec();
  spec.mutable_reward()->set_grader("juge");
  const auto unknown = Submit(spec, "unknown");
  ASSERT_FALSE(unknown.ok());
  EXPECT_NE(unknown.status().ToString().find("has the grader \"juge\"; valid: "), std::string::npos)
      << unknown.status();
  EXPECT_NE(unknown.status().ToString().find("judge"), std::string::npos) << unknown.status();
}

TEST_F(RewardFaultsTest, ARowThatTheServiceCannotScoreIsRefusedAtTheSubmission) {
  const struct {
    std::string mode, says;
  } cases[] = {
      // 30 rows, and the service takes 5 items a request: the lines 1, 8, 15, 22, 30.
      {"bad_row:0", "line 1: the grader judge cannot score this row: no answer in item 1 of 5"},
      {"bad_row:2", "line 15: the grader judge cannot score this row: no answer in item 3 of 5"},
      {"bad_row:4", "line 30: the grader judge cannot score this row: no answer in item 5 of 5"},
      // It takes 100: 16 rows.
      {"bad_rows:1", "line 2: the grader judge cannot score this row: no answer in item 2 of 16"},
      {"bad_rows:14",
       "line 28: the grader judge cannot score this row: no answer in item 15 of 16"},
  };
  for (const auto& c : cases) {
    StartJudge(c.mode);
    const auto refused = Submit(JudgedSpec(), c.mode);
    ASSERT_FALSE(refused.ok()) << c.mode;
    EXPECT_NE(refused.status().ToString().find("data.path: " + c.says), std::string::npos)
        << c.mode << ": " << refused.status();
    const ov::CheckJobResponse checked = Check(JudgedSpec());
    ASSERT_EQ(checked.problems_size(), 1) << c.mode;
    EXPECT_EQ(checked.problems(0).path(), "data.path");
    EXPECT_EQ(checked.problems(0).description(), c.says);
    StopJudge();
  }
}

TEST_F(RewardFaultsTest, ACheckSaysWhatASubmissionWouldSay) {
  StartJudge("refuses");
  const ov::CheckJobResponse parameters = Check(JudgedSpec());
  ASSERT_EQ(parameters.problems_size(), 1) << parameters.ShortDebugString();
  EXPECT_EQ(parameters.problems(0).path(), "reward.grader_parameters_json");
  JobSpec spec = JudgedSpec();
  spec.mutable_reward()->set_grader("juge");
  const ov::CheckJobResponse unknown = Check(spec);
  ASSERT_EQ(unknown.problems_size(), 1) << unknown.ShortDebugString();
  EXPECT_EQ(unknown.problems(0).path(), "reward.grader");
  EXPECT_NE(unknown.problems(0).description().find("valid: "), std::string::npos);
}

TEST_F(RewardFaultsTest, ALimitOfNoItemsMeansOneItemARequest) {
  StartJudge("zero_batch");
  const auto job = Submit(JudgedSpec(), "zero");
  ASSERT_TRUE(job.ok()) << job.status();
  Watch(*job);
  // The judge gives every single item 0.
  EXPECT_EQ(Get(*job).state(), ov::JOB_STATE_SUCCEEDED) << Get(*job).reason();
  EXPECT_EQ(Get(*job).last_step().reward_mean(), 0.0);
}

}  // namespace
}  // namespace titan::test
