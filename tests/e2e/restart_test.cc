// SPDX-License-Identifier: Apache-2.0
// Goal: what happens to jobs when daemons end, in words and in bits. A job that had not begun when
// the orchestrator was killed or the cluster taken down is queued again and gives the weights of an
// undisturbed run; one that had begun says what became of it and leaves its newest version; the
// loss of a daemon names it, the step and what to do, and the queue waits for it. Method: titanctl
// over real daemons, real signals, a model made by Philox.
#include <gtest/gtest.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <sstream>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

#include "services/rpc/config.h"
#include "tests/e2e/small_job.h"

namespace titan::e2e {
namespace {

using nlohmann::json;

class JobsAndDaemonsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    config::v1::ClusterConfig config = SmallCluster("");
    config.set_num_generators(1);
    std::ofstream(folder_.path() + "/cluster.json") << rpc::ToJsonText(config);
    config::v1::JobSpec spec = SmallJob(3);
    spec.mutable_evaluation()->set_every_steps(0);
    spec.mutable_deadlines()->set_workers_ms(4000);
    std::ofstream(folder_.path() + "/job.json") << rpc::ToJsonText(spec);
    ASSERT_EQ(Up(), 0) << errors_;
  }
  void TearDown() override { Titanctl("down"); }

  int Up() { return Titanctl("up --config " + folder_.path() + "/cluster.json"); }
  int Titanctl(const std::string& arguments) {
    const std::string errors = folder_.path() + "/stderr";
    const std::string line = std::string(TITAN_BINARY_DIR) + "/bin/titanctl " + arguments +
                             " --data " + folder_.path() + "/run 2>" + errors + " </dev/null";
    FILE* pipe = popen(line.c_str(), "r");
    output_.clear();
    char buffer[4096];
    while (const size_t n = fread(buffer, 1, sizeof(buffer), pipe)) output_.append(buffer, n);
    const int status = pclose(pipe);
    std::ifstream in(errors);
    errors_.assign(std::istreambuf_iterator<char>(in), {});
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  std::string Submit(const std::string& more = "") {
    EXPECT_EQ(Titanctl("submit " + folder_.path() + "/job.json " + more), 0) << errors_;
    return output_.substr(0, output_.find('\n'));
  }
  // A job that runs until somebody ends it.
  std::string SubmitLong() {
    return Submit("--set schedule.steps=100000 --set training.learning_rate=1e-9");
  }
  json Get(const std::string& job) {
    EXPECT_EQ(Titanctl("get " + job + " -o json"), 0) << errors_;
    return json::parse(output_, nullptr, false);
  }
  bool Reaches(const std::string& job, const std::function<bool(const json&)>& state) {
    for (int i = 0; i < 600; ++i) {
      if (state(Get(job))) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return false;
  }
  static bool HasStepped(const json& job) {
    return job.contains("steps_done") && job["steps_done"] != 0 && job["steps_done"] != "0";
  }
  json Supervisor() const {
    std::ifstream in(folder_.path() + "/run/supervisor.json");
    return json::parse(in, nullptr, false);
  }
  // False: it does not run now.
  bool Kill(const std::string& process) {
    const json supervisor = Supervisor();
    for (const auto& entry : supervisor["processes"]) {
      if (entry["name"] == process) return kill(entry["pid"].get<int>(), SIGKILL) == 0;
    }
    return false;
  }
  // Watches to the end; the digests of its steps.
  std::vector<std::string> DigestsOf(const std::string& job, int exit_code) {
    EXPECT_EQ(Titanctl("watch " + job + " -o json"), exit_code) << output_ << errors_;
    std::vector<std::string> digests;
    std::istringstream lines(output_);
    for (std::string line; std::getline(lines, line);) {
      const json event = json::parse(line, nullptr, false);
      if (event.contains("step_done")) digests.push_back(event["step_done"]["weights_digest"]);
    }
    return digests;
  }
  static bool Has(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  }

  TestFolder folder_{"restart"};
  std::string output_, errors_;
};

// The parameter: a signal to the orchestrator before the cluster is taken down; 0: none.
class RestartTest : public JobsAndDaemonsTest, public ::testing::WithParamInterface<int> {};

TEST_P(RestartTest, AQueuedJobRunsAfterARestartToTheSameBits) {
  const std::string running = SubmitLong();
  const std::string first = Submit();
  const std::string second = Submit("--set seed=4");
  ASSERT_TRUE(Reaches(running, HasStepped));
  if (GetParam() != 0) {
    ASSERT_TRUE(Kill("orchestrator"));
    // A killed orchestrator degrades the cluster; there is a word on what to do.
    for (int i = 0; i < 100 && !Has(output_, "degraded"); ++i) Titanctl("status");
    EXPECT_TRUE(Has(output_, "fix: titanctl logs orchestrator --data ")) << output_;
    EXPECT_TRUE(Has(output_, "titanctl down --data " + folder_.path() +
                                 "/run && titanctl up --data " + folder_.path() + "/run"))
        << output_;
  }
  ASSERT_EQ(Titanctl("down"), 0) << errors_;
  if (GetParam() != 0) {
    EXPECT_TRUE(Has(errors_, "queued jobs stay queued")) << errors_;
  } else {
    EXPECT_TRUE(Has(errors_, running + " (small) is RUNNING, ")) << errors_;
    EXPECT_TRUE(Has(errors_, "it ends with the cluster and is not resumed")) << errors_;
    EXPECT_TRUE(Has(errors_, "2 jobs have not begun and stay queued; titanctl up --data " +
                                 folder_.path() + "/run --config " + folder_.path() +
                                 "/cluster.json runs them in this order: "))
        << errors_;
    EXPECT_TRUE(Has(errors_, ": " + first + ", " + second + "\n")) << errors_;
  }
  ASSERT_EQ(Up(), 0) << errors_;

  const json ended = Get(running);
  EXPECT_EQ(ended["state"], "JOB_STATE_FAILED");
  EXPECT_TRUE(Has(ended["reason"], "the orchestrator was stopped or died while the job ran ("))
      << ended["reason"];
  EXPECT_TRUE(Has(ended["reason"], "submit it again"));
  // Its newest version is kept.
  ASSERT_EQ(Titanctl("weights ls " + running + " --all -o json"), 0) << errors_;
  const json versions = json::parse(output_, nullptr, false);
  ASSERT_FALSE(versions.empty());
  EXPECT_NE(versions.back()["stored_id"], "") << versions;
  EXPECT_EQ(Titanctl("weights verify " + running), 0) << errors_;
  const auto digests = DigestsOf(first, 0);
  EXPECT_EQ(digests.size(), 3u);
  EXPECT_EQ(DigestsOf(second, 0).size(), 3u);
  EXPECT_LE(Get(first)["ended_unix_ms"], Get(second)["running_unix_ms"]);
  EXPECT_EQ(DigestsOf(Submit(), 0), digests);  // of an undisturbed run
}

INSTANTIATE_TEST_SUITE_P(Signals, RestartTest, ::testing::Values(0, SIGKILL));

TEST_F(JobsAndDaemonsTest, AWatcherHearsThatTheClusterWasTakenDownAndHowToComeBack) {
  const std::string job = SubmitLong();
  const std::string data = folder_.path() + "/run";
  const std::string come_back = "titanctl watch " + job + " --data " + data;
  FILE* watcher = popen(
      (std::string(TITAN_BINARY_DIR) + "/bin/" + come_back + " 2>&1 </dev/null").c_str(), "r");
  std::string said;
  char line[4096];
  while (!Has(said, "step   0") && fgets(line, sizeof(line), watcher) != nullptr) said += line;
  ASSERT_TRUE(Has(said, "step   0")) << said;
  ASSERT_EQ(Titanctl("down"), 0) << errors_;
  while (fgets(line, sizeof(line), watcher) != nullptr) said += line;
  const int status = pclose(watcher);
  EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 5);
  EXPECT_TRUE(Has(said, "titanctl: the cluster in '" + data + "' was taken down while " + job +
                            " was watched; a job that had begun ends with it, a queued one stays\n"
                            "fix: start it again with: titanctl up --data " +
                            data + " --config " + folder_.path() +
                            "/cluster.json; come back with: " + come_back + "\n"))
      << said;
  EXPECT_FALSE(Has(said, "nothing listens")) << said;
}

class LossTest : public JobsAndDaemonsTest {
 protected:
  // More often than it is started again.
  void KillForGood(const std::string& process) {
    for (int i = 0; i < 400 && Supervisor()["state"] != "degraded"; ++i) {
      Kill(process);
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }
  // The reason of a job whose daemon is killed while it runs.
  std::string ReasonAfter(const std::function<void()>& kill) {
    const std::string job = SubmitLong();
    EXPECT_TRUE(Reaches(job, HasStepped));
    kill();
    EXPECT_EQ(Titanctl("watch " + job), 3) << output_ << errors_;  // the job FAILED
    return Get(job)["reason"];
  }
};

TEST_F(LossTest, OfTheTrainerNamesItTheStepAndWhatToDo) {
  const std::string reason = ReasonAfter([this] { EXPECT_TRUE(Kill("trainer")); });
  EXPECT_TRUE(Has(reason, "the trainer (worker trainer) was lost ")) << reason;
  EXPECT_TRUE(Has(reason, " step ")) << reason;
  EXPECT_TRUE(Has(reason, "titanctl logs trainer shows its last words; start the cluster anew"))
      << reason;
  EXPECT_EQ(Titanctl("logs trainer"), 0) << errors_;
  ASSERT_EQ(Titanctl("submit " + folder_.path() + "/job.json --check"), 0) << errors_;
  EXPECT_TRUE(Has(errors_, "warning: no trainer is registered now; the job stays queued until"))
      << errors_;
  // Jobs that are queued then are there when the cluster was started anew, as status promises.
  const std::string next = Submit("--set deadlines.workers_ms=1");
  EXPECT_TRUE(Has(errors_, "warning: no trainer is registered now")) << errors_;
  const std::string last = Submit("--set deadlines.workers_ms=1");
  ASSERT_TRUE(Reaches(next, [](const json& job) { return job["reason"] != ""; }));
  EXPECT_TRUE(Has(Get(next)["reason"], "waits: no trainer (trainer was lost: ")) << output_;
  EXPECT_EQ(Get(next)["state"], "JOB_STATE_QUEUED");
  ASSERT_EQ(Titanctl("status"), 0) << errors_;
  EXPECT_TRUE(Has(output_, "2 queued (" + next + " waits: no trainer (trainer was lost: "))
      << output_;
  EXPECT_TRUE(Has(output_, "starts everything anew, queued jobs stay")) << output_;
  ASSERT_EQ(Titanctl("down"), 0) << errors_;
  ASSERT_EQ(Up(), 0) << errors_;
  EXPECT_EQ(DigestsOf(next, 0).size(), 3u);
  EXPECT_EQ(DigestsOf(last, 0).size(), 3u);
}

TEST_F(LossTest, OfEveryGeneratorNamesTheLastOne) {
  const std::string reason = ReasonAfter([this] { KillForGood("generator-0"); });
  EXPECT_TRUE(Has(reason, "no generator (generator-0 was lost: ")) << reason;
  EXPECT_TRUE(Has(reason, "titanctl logs why one ended")) << reason;
  EXPECT_EQ(Titanctl("status"), 0);
  EXPECT_TRUE(Has(output_, "fix: titanctl logs generator-0 --data ")) << output_;
}

TEST_F(LossTest, OfTheRewardServiceNamesIt) {
  const std::string reason = ReasonAfter([this] { KillForGood("reward"); });
  EXPECT_TRUE(Has(reason, "no reward service with the grader regex_match (reward was lost: "))
      << reason;
  EXPECT_TRUE(Has(reason, "submit the job again")) << reason;
}

TEST_F(LossTest, OfTheWeightStoreNamesIt) {
  const std::string reason = ReasonAfter([this] { EXPECT_TRUE(Kill("weightstore")); });
  EXPECT_TRUE(Has(reason, "the weight store (worker weightstore) was lost ")) << reason;
  EXPECT_TRUE(Has(reason, "titanctl logs weightstore")) << reason;
}

}  // namespace
}  // namespace titan::e2e
