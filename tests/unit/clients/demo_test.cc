// SPDX-License-Identifier: Apache-2.0
// Goal: the demo's data is the 441 questions, its result has every promised key and its verdict
// fails when parity fails, is missing, or the job did not succeed.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include <nlohmann/json.hpp>

#include "clients/demo/demo_data.h"
#include "clients/demo/demo_folder.h"
#include "clients/demo/demo_result.h"

namespace titan::demo {
namespace {

using orchestrator::v1::WatchJobResponse;

TEST(DemoDataTest, EveryPairOnceWithItsAnswer) {
  std::istringstream lines(DataText());
  std::set<std::string> ids;
  int n = 0;
  for (std::string line; std::getline(lines, line); ++n) {
    const auto row = nlohmann::json::parse(line);
    const int a = n / 21, b = n % 21;
    EXPECT_EQ(row["prompt"][0]["role"], "user");
    EXPECT_EQ(row["prompt"][0]["content"],
              "What is " + std::to_string(a) + " + " + std::to_string(b) + "?");
    EXPECT_EQ(row["answer"], std::to_string(a + b));
    ids.insert(row["id"]);
  }
  EXPECT_EQ(n, 441);
  EXPECT_EQ(ids.size(), 441u);
  EXPECT_TRUE(ids.contains("add-00-05"));
}

class DemoFolderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/titan_demo_folder_XXXXXX";
    ASSERT_NE(mkdtemp(pattern), nullptr);
    folder_ = std::string(pattern) + "/cluster";
    for (const char* file :
         {"cluster.lock", "endpoints.json", "supervisor.json", "format.json",
          "supervisor.json.new.12", "config/trainer.json", "config/trainer.json.new.7",
          "logs/generator-0.log", "orchestrator/journal/1", "weightstore/x", "trainer/e.json",
          "reward/e.json", "generator-0/e.json", "generator-12/e.json"}) {
      Make(file);
    }
  }
  void TearDown() override { std::filesystem::remove_all(folder_ + "/.."); }
  void Make(const std::string& file) {
    const std::filesystem::path path = folder_ + "/" + file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << "x";
  }
  std::string folder_;
};

TEST_F(DemoFolderTest, WhatAClusterMadeGoes) {
  ASSERT_TRUE(RemoveClusterFiles(folder_).ok()) << RemoveClusterFiles(folder_);
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
  EXPECT_TRUE(RemoveClusterFiles(folder_).ok());
  EXPECT_TRUE(RemoveClusterFiles(folder_ + "/none").ok());
}

TEST_F(DemoFolderTest, WhatIsSomebodyElsesStaysAndSoDoesTheRest) {
  for (const char* foreign : {"precious.txt", "generator-", "generator-1x/a", "notes/a",
                              "logs/readme.txt", "config/sub/a.json", "endpoints.json2"}) {
    Make(foreign);
    const Status status = RemoveClusterFiles(folder_);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << foreign;
    const std::string top = std::string(foreign).starts_with("config")
                                ? "config/sub"
                                : std::string(foreign).substr(0, std::string(foreign).find("/a"));
    EXPECT_NE(MessageOf(status).find("'" + folder_ + "/" + top + "' was not made by titan-demo"),
              std::string::npos)
        << status;
    EXPECT_TRUE(std::filesystem::exists(folder_ + "/" + foreign));
    EXPECT_TRUE(std::filesystem::exists(folder_ + "/orchestrator/journal/1")) << foreign;
    std::filesystem::remove_all(folder_ + "/" + top);
  }
  Make("one");
  Make("two");
  EXPECT_NE(MessageOf(RemoveClusterFiles(folder_)).find("one' and 1 more were"), std::string::npos);
}

class DemoResultTest : public ::testing::Test {
 protected:
  DemoResultTest() : progress_(cluster::Terminal(false)) {
    job_.set_state(orchestrator::v1::JOB_STATE_SUCCEEDED);
    job_.set_steps_total(2);
    job_.set_running_unix_ms(1000);
    job_.set_ended_unix_ms(61000);
    Evaluate(0, 0.33, 5);
    Step(0, 0, 0, 40);
  }
  void Evaluate(uint64_t version, double accuracy, double seconds) {
    WatchJobResponse event;
    event.mutable_evaluation_done()->set_version(version);
    event.mutable_evaluation_done()->set_questions(200);
    event.mutable_evaluation_done()->set_accuracy(accuracy);
    event.mutable_evaluation_done()->set_seconds_since_running(seconds);
    progress_.OnEvent(event);
  }
  void Step(uint64_t step, double difference, uint64_t differing, uint64_t compared) {
    WatchJobResponse event;
    auto* report = event.mutable_step_done();
    report->set_step(step);
    report->set_weights_digest("digest" + std::to_string(step));
    report->mutable_parity()->set_logprob_difference_max(difference);
    report->mutable_parity()->set_tokens_differing(differing);
    report->mutable_parity()->set_tokens_compared(compared);
    progress_.OnEvent(event);
  }
  nlohmann::json Result() {
    return nlohmann::json::parse(
        ResultText(job_, progress_, processes_, Failures(job_, progress_)));
  }

  orchestrator::v1::Job job_;
  cluster::JobProgress progress_;
  std::vector<cluster::ProcessState> processes_;
};

TEST_F(DemoResultTest, GoodRunHasEveryKey) {
  Step(1, 0, 0, 60);
  Evaluate(2, 0.75, 42.5);
  cluster::ProcessState process;
  process.spec.name = "generator-0";
  process.spec.exe = "/bin/titan-generator";
  process.exits = {{11, {137, 9}, 5}, {12, {0, 0}, 9}};
  processes_.push_back(process);
  EXPECT_TRUE(Failures(job_, progress_).empty());
  const auto result = Result();
  EXPECT_EQ(result["heldout_questions"], 200);
  EXPECT_EQ(result["heldout_accuracy_start"], 0.33);
  EXPECT_EQ(result["heldout_accuracy_end"], 0.75);
  EXPECT_EQ(result["seconds_to_accuracy"]["0.6"], 42.5);
  EXPECT_EQ(result["seconds_to_accuracy"]["0.7"], 42.5);
  EXPECT_TRUE(result["seconds_to_accuracy"]["0.8"].is_null());
  EXPECT_EQ(result["steps"], 2);
  EXPECT_EQ(result["logprob_diff_max"], 0.0);
  EXPECT_EQ(result["tokens_differing"], 0);
  EXPECT_EQ(result["tokens_compared"], 100);
  EXPECT_EQ(result["final_weights_digest"], "digest1");
  EXPECT_EQ(result["seconds"], 60.0);
  ASSERT_EQ(result["processes"].size(), 2u);
  EXPECT_EQ(result["processes"][0], (nlohmann::json{{"name", "generator-0"},
                                                    {"pid", 11},
                                                    {"exe", "/bin/titan-generator"},
                                                    {"exit", 137},
                                                    {"peak_memory_mib", 0}}));
}

TEST_F(DemoResultTest, EveryWayToFailIsNamed) {
  EXPECT_EQ(Failures(job_, progress_).size(), 1u);  // 1 of 2 steps
  Step(1, 0.5, 1, 60);
  ASSERT_EQ(Failures(job_, progress_).size(), 1u);
  EXPECT_NE(Failures(job_, progress_)[0].find("tokens differing 1 of 100"), std::string::npos);
  job_.set_state(orchestrator::v1::JOB_STATE_FAILED);
  job_.set_reason("trainer lost");
  EXPECT_NE(Failures(job_, progress_)[0].find("FAILED: trainer lost"), std::string::npos);
  EXPECT_TRUE(Result()["heldout_accuracy_end"].is_null());
}

TEST(DemoVerdictTest, NothingComparedIsAFailure) {
  orchestrator::v1::Job job;
  job.set_state(orchestrator::v1::JOB_STATE_SUCCEEDED);
  cluster::JobProgress progress{cluster::Terminal(false)};
  EXPECT_EQ(Failures(job, progress).size(), 1u);
}

}  // namespace
}  // namespace titan::demo
