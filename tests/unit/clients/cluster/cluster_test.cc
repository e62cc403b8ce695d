// SPDX-License-Identifier: Apache-2.0
// Goal: generated configs are what the daemons read; a start that fails says why with the last log
// lines and leaves nothing running; a folder is used by one cluster; progress and result say what
// the events say.
#include "clients/cluster/cluster.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include "clients/cluster/cluster_config.h"
#include "clients/cluster/job_client.h"
#include "clients/cluster/progress.h"
#include "core/runtime/files.h"
#include "core/runtime/log.h"

namespace titan::cluster {
namespace {

using namespace orchestrator::v1;  // NOLINT: the test speaks of little else

class ClusterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    runtime::InitLog({.write = [](std::string_view) {}});
    char pattern[] = "/tmp/titan_cluster_test_XXXXXX";
    ASSERT_NE(mkdtemp(pattern), nullptr);
    folder_ = pattern;
    FillClusterDefaults(&config_);
    config_.set_data_folder(folder_ + "/data");
  }
  void TearDown() override {
    runtime::InitLog({});
    std::filesystem::remove_all(folder_);
  }

  void WriteProgram(const std::string& name, const std::string& script) {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path) << "#!/bin/sh\n" << script << "\n";
    ASSERT_EQ(chmod(path.c_str(), 0755), 0);
  }

  std::string folder_;
  config::v1::ClusterConfig config_;
};

TEST_F(ClusterTest, PlansFillInNamesFoldersAndAddressesAndMergeGenerators) {
  config_.set_num_generators(3);
  config_.mutable_generator()->set_max_running_sequences(16);
  config_.mutable_generator()->mutable_kernels()->set_threads(1);
  config_.add_generators();
  config_.add_generators()->mutable_kernels()->set_isa("avx2");
  const auto plans = PlanWorkers(config_, {"127.0.0.1:1", "127.0.0.1:2"});
  ASSERT_EQ(plans.size(), 5u);
  EXPECT_EQ(plans[0].name, "trainer");
  EXPECT_FALSE(plans[0].restart);
  EXPECT_TRUE(plans[1].restart);
  const auto generator = nlohmann::json::parse(plans[3].config_json);
  EXPECT_EQ(plans[3].name, "generator-1");
  EXPECT_EQ(generator["daemon"]["worker_id"], "generator-1");
  EXPECT_EQ(generator["daemon"]["data_folder"], folder_ + "/data/generator-1");
  EXPECT_EQ(generator["orchestrator_address"], "127.0.0.1:1");
  EXPECT_EQ(generator["weightstore_address"], "127.0.0.1:2");
  EXPECT_EQ(generator["weightstore_socket"], folder_ + "/data/ws.sock");
  EXPECT_EQ(generator["max_running_sequences"], 16);
  EXPECT_EQ(generator["kernels"]["isa"], "avx2");
  EXPECT_EQ(generator["kernels"]["threads"], 1);
}

TEST_F(ClusterTest, ConfigsThatNameWhatTheClusterFillsInAreRefused) {
  config_.mutable_trainer()->set_orchestrator_address("x");
  config_.add_generators()->mutable_daemon()->set_worker_id("me");
  config_.set_num_generators(0);
  config_.set_data_folder("/" + std::string(120, 'd'));
  rpc::ConfigProblems problems;
  ValidateCluster(config_, &problems);
  std::string all;
  for (const auto& problem : problems) all += problem.path + ": " + problem.description + "\n";
  EXPECT_NE(all.find("trainer.orchestrator_address: is filled in"), std::string::npos) << all;
  EXPECT_NE(all.find("generators[0].daemon.worker_id: is filled in"), std::string::npos) << all;
  EXPECT_NE(all.find("num_generators: is 0; valid: 1 to 64"), std::string::npos) << all;
  EXPECT_NE(all.find("data_folder: is too long"), std::string::npos) << all;
}

TEST_F(ClusterTest, OnePortForManyIsRefusedAndWhatEveryGeneratorOverridesIsWarnedOf) {
  config_.set_num_generators(2);
  config_.mutable_generator()->mutable_daemon()->set_listen("127.0.0.1:7000");
  config_.mutable_generator()->set_max_versions(4);
  config_.mutable_generator()->mutable_daemon()->mutable_debug()->set_rpc_delay_seed(5);
  rpc::ConfigProblems problems;
  ValidateCluster(config_, &problems);
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0].path, "generator.daemon.listen");
  EXPECT_EQ(ClusterWarnings(config_).size(), 1u);  // the seed
  for (const char* own : {"127.0.0.1:7001", "127.0.0.1:7002"}) {
    EXPECT_EQ(ClusterWarnings(config_).size(), 1u);
    auto* generator = config_.add_generators();
    generator->mutable_daemon()->set_listen(own);
    generator->set_max_versions(5);
  }
  problems.clear();
  ValidateCluster(config_, &problems);
  EXPECT_TRUE(problems.empty());
  const auto warnings = ClusterWarnings(config_);
  ASSERT_EQ(warnings.size(), 3u);
  EXPECT_EQ(warnings[0],
            "generator.daemon.listen has no effect: every entry of generators sets daemon.listen");
  EXPECT_EQ(warnings[1],
            "generator.max_versions has no effect: every entry of generators sets max_versions");
  EXPECT_NE(warnings[2].find("generator.daemon.debug.rpc_delay_seed has no effect"),
            std::string::npos);
}

TEST_F(ClusterTest, FailedStartNamesTheDaemonAndItsLastLines) {
  WriteProgram("titan-weightstore", "echo hello; echo the port is taken >&2; exit 1");
  const auto cluster = Cluster::Start({config_, folder_, {}});
  ASSERT_EQ(cluster.status().code(), StatusCode::kUnavailable);
  const std::string message = MessageOf(cluster.status());
  EXPECT_NE(message.find("weightstore ended during the start with exit code 1"), std::string::npos)
      << message;
  EXPECT_NE(message.find("hello\nthe port is taken"), std::string::npos) << message;
  const auto file =
      nlohmann::json::parse(*runtime::ReadFile(SupervisorPath(config_.data_folder())));
  EXPECT_EQ(file["state"], "failed");
  EXPECT_EQ(file["processes"][0]["name"], "weightstore");
  EXPECT_EQ(file["processes"][0]["exits"][0]["exit"], 1);
  EXPECT_FALSE(runtime::FileLock::IsHeld(LockPath(config_.data_folder())));
  EXPECT_EQ(OrchestratorAddressOf(config_.data_folder()).status().code(), StatusCode::kNotFound);
}

TEST_F(ClusterTest, MissingProgramIsNamedAndInterruptedStartLeavesNothing) {
  const auto missing = Cluster::Start({config_, folder_ + "/none", {}});
  EXPECT_NE(MessageOf(missing.status()).find("titan-weightstore"), std::string::npos);
  WriteProgram("titan-weightstore", "exec sleep 600");
  const auto interrupted = Cluster::Start({config_, folder_, {}}, [] { return true; });
  EXPECT_EQ(interrupted.status().code(), StatusCode::kCancelled);
  const auto file =
      nlohmann::json::parse(*runtime::ReadFile(SupervisorPath(config_.data_folder())));
  EXPECT_NE(kill(file["processes"][0]["pid"].get<int>(), 0), 0);
}

TEST_F(ClusterTest, FolderInUseIsRefusedWithTheFix) {
  ASSERT_TRUE(runtime::MakeWritableFolder(config_.data_folder()).ok());
  const auto held = runtime::FileLock::Acquire(LockPath(config_.data_folder()));
  ASSERT_TRUE(held.ok());
  const auto cluster = Cluster::Start({config_, folder_, {}});
  EXPECT_EQ(cluster.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(MessageOf(cluster.status()).find("titanctl down"), std::string::npos);
}

StepReport Step(uint64_t step, double difference, uint64_t differing, uint64_t compared) {
  StepReport report;
  report.set_step(step);
  report.set_reward_mean(0.25);
  report.set_groups_trained(7);
  report.set_groups_untrainable(1);
  report.set_samples_per_pack_min(static_cast<uint32_t>(6 - step));
  report.set_sequences_running_max(static_cast<uint32_t>(8 + step));
  report.set_generated_before_previous_commit(step == 1);
  report.mutable_phases()->set_wall(10);
  report.mutable_parity()->set_logprob_difference_max(difference);
  report.mutable_parity()->set_tokens_differing(differing);
  report.mutable_parity()->set_tokens_compared(compared);
  return report;
}

TEST(ProgressTest, LinesSayWhatTheEventsSay) {
  JobProgress progress{Terminal(false)};
  WatchJobResponse event;
  event.mutable_state_changed()->set_job_id("job-1");
  event.mutable_state_changed()->set_state(JOB_STATE_RUNNING);
  event.mutable_state_changed()->set_steps_total(3);
  EXPECT_EQ(progress.OnEvent(event), "job job-1: RUNNING\n");
  *event.mutable_step_done() = Step(0, 0, 0, 100);
  EXPECT_EQ(progress.OnEvent(event),
            "step   0 (1/3)  reward 0.250  accuracy     -  groups 7/8     0 tokens/s  "
            "log-prob difference max 0, tokens differing 0 of 100  left 20s\n");
  event.mutable_evaluation_done()->set_version(1);
  event.mutable_evaluation_done()->set_accuracy(0.5);
  event.mutable_evaluation_done()->set_questions(200);
  progress.OnEvent(event);
  *event.mutable_step_done() = Step(1, 0, 0, 0);
  const std::string line = progress.OnEvent(event);
  EXPECT_NE(line.find("accuracy 0.500"), std::string::npos) << line;
  EXPECT_NE(line.find("not checked"), std::string::npos) << line;
  *event.mutable_step_done() = Step(2, 0.125, 3, 50);
  progress.OnEvent(event);
  EXPECT_EQ(FormatParity(progress.parity()),
            "log-prob difference max 0.125, tokens differing 3 of 150");
  EXPECT_EQ(progress.samples_per_pack_min(), 4u);
  EXPECT_EQ(progress.sequences_running_max(), 10u);
  EXPECT_EQ(progress.overlap_share(), 0.5);
  EXPECT_NE(progress.Summary().find("tokens differing 3 of 150"), std::string::npos);
  EXPECT_NE(progress.Summary().find("held at least 4 samples"), std::string::npos);
}

TEST(ProgressTest, AJobWithoutAStepSaysSoInsteadOfZeros) {
  JobProgress progress{Terminal(false)};
  WatchJobResponse event;
  event.mutable_state_changed()->set_state(orchestrator::v1::JOB_STATE_FAILED);
  event.mutable_state_changed()->set_steps_total(3);
  progress.OnEvent(event);
  EXPECT_EQ(progress.Summary(), "no step of 3 was done; there is nothing to compare or to plot\n");
  *event.mutable_step_done() = Step(0, 0, 0, 0);
  event.mutable_step_done()->set_samples_per_pack_min(0);
  progress.OnEvent(event);
  const std::string one = progress.Summary();
  EXPECT_EQ(one.find("held at least"), std::string::npos) << one;
  EXPECT_EQ(one.find("% of the steps"), std::string::npos) << one;
}

TEST(ProgressTest, DifferenceThatIsNotANumberIsNotHidden) {
  JobProgress progress{Terminal(false)};
  WatchJobResponse event;
  for (uint64_t step = 0; step < 2; ++step) {
    *event.mutable_step_done() = Step(step, step == 0 ? std::nan("") : 0.0, 0, 10);
    progress.OnEvent(event);
  }
  EXPECT_NE(progress.parity().logprob_difference_max(), 0);
}

TEST(TerminalTest, TextsForPeople) {
  EXPECT_EQ(FormatSeconds(59.6), "1m00s");
  EXPECT_EQ(FormatSeconds(3700), "1h01m");
  EXPECT_EQ(FormatSeconds(std::nan("")), "?");
  EXPECT_EQ(FormatTable({{"A", "B"}, {"long", "x"}}), "A     B\nlong  x\n");
  EXPECT_EQ(Terminal(false).Paint(Color::kRed, "x"), "x");
  EXPECT_EQ(Terminal(true).Paint(Color::kRed, "x"), "\033[31mx\033[0m");
  const std::string plot = FormatPlot({{'*', "reward", {{0, 0}, {10, 1}}}}, 10, "step", 20, 3);
  EXPECT_EQ(plot,
            "1.00 |                    *\n     |\n     |\n0.00 |*\n     +---------------------\n"
            "      0                  10\n      step:  * reward\n");
}

}  // namespace
}  // namespace titan::cluster
