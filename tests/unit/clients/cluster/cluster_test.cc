// SPDX-License-Identifier: Apache-2.0
// Goal: generated configs are what the daemons read; a start that fails says why with the last log
// lines and leaves nothing running; a folder is used by one cluster; progress and result say what
// the events say.
#include "clients/cluster/cluster.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>

#include <nlohmann/json.hpp>

#include "clients/cluster/cluster_config.h"
#include "clients/cluster/job_client.h"
#include "clients/cluster/peer_status.h"
#include "clients/cluster/progress.h"
#include "clients/cluster/terminal.h"
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

  // Reads text over the defaults and a data folder, as a cluster's file.
  void Read(std::string_view text) {
    config_.Clear();
    FillClusterDefaults(&config_);
    config_.set_data_folder(folder_ + "/data");
    origins_ = {};
    const Status read = rpc::ReadConfigText(text, "c.json", &config_, &origins_);
    EXPECT_TRUE(read.ok()) << read;
  }
  // Of config_, one a line; empty when it is accepted.
  std::string Problems() {
    rpc::ConfigProblems problems;
    ValidateCluster(config_, origins_, &problems);
    return MessageOf(rpc::ProblemsToStatus(problems, origins_));
  }
  std::string ProblemsOf(std::string_view text) {
    Read(text);
    return Problems();
  }

  std::string folder_;
  config::v1::ClusterConfig config_;
  rpc::ConfigOrigins origins_;
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
  const std::string all = Problems();
  EXPECT_NE(all.find("trainer.orchestrator_address: is filled in"), std::string::npos) << all;
  EXPECT_NE(all.find("generators[0].daemon.worker_id: is filled in"), std::string::npos) << all;
  EXPECT_NE(all.find("num_generators: is 0; valid: 1 to 64"), std::string::npos) << all;
  EXPECT_NE(all.find("data_folder: is too long"), std::string::npos) << all;
}

TEST_F(ClusterTest, OnePortForManyIsRefusedAndWhatEveryGeneratorOverridesIsWarnedOf) {
  const std::string general =
      R"({"generator": {"daemon": {"listen": "127.0.0.1:7000", "debug": {"rpc_delay_seed": 5}},
       "max_versions": 4}, "generators": [)";
  EXPECT_EQ(ProblemsOf(general + "]}"),
            "c.json:1:37: generator.daemon.listen: is one port for 2 generators; leave it out "
            "(each takes a free port), or give each its own under generators[i].daemon.listen");
  EXPECT_EQ(ClusterWarnings(config_, origins_).size(), 1u);  // the seed
  const std::string first = R"({"daemon": {"listen": "127.0.0.1:7001"}, "max_versions": 5})";
  EXPECT_EQ(ProblemsOf(general + first + "]}"), "");
  EXPECT_EQ(ClusterWarnings(config_, origins_).size(), 1u);
  EXPECT_EQ(ProblemsOf(general + first +
                       R"(, {"daemon": {"listen": "127.0.0.1:7002"}, "max_versions": 5}]})"),
            "");
  const auto warnings = ClusterWarnings(config_, origins_);
  ASSERT_EQ(warnings.size(), 3u);
  EXPECT_EQ(warnings[0],
            "generator.daemon.listen has no effect: every entry of generators sets daemon.listen");
  EXPECT_EQ(warnings[1],
            "generator.max_versions has no effect: every entry of generators sets max_versions");
  EXPECT_NE(warnings[2].find("generator.daemon.debug.rpc_delay_seed has no effect"),
            std::string::npos);
}

TEST_F(ClusterTest, DefaultsAreValidAndThoseOfTheDaemons) {
  EXPECT_EQ(Problems(), "");
  EXPECT_TRUE(ClusterWarnings(config_, origins_).empty());
  EXPECT_EQ(config_.trainer().recompute(), "none");
  EXPECT_EQ(config_.generator().kv_cache_bytes(), uint64_t{512} << 20);
  EXPECT_EQ(config_.weightstore().daemon().log_level(), "info");
}

TEST_F(ClusterTest, WhatADaemonWouldRefuseIsRefusedAtTheUsersField) {
  EXPECT_EQ(
      ProblemsOf(R"({"trainer": {"kernels": {"isa": "avx1024"}, "recompute": "maybe"},
 "orchestrator": {"daemon": {"listen": "0.0.0.0:80"}, "rpc_deadline_ms": 1},
 "weightstore": {"role": "leader", "memory_limit_bytes": 5},
 "reward": {"max_batch_items": 0, "daemon": {"health_listen": "nowhere"}},
 "generator": {"kernels": {"threads": 2000}, "max_running_sequences": 5000}})"),
      "c.json:2:40: orchestrator.daemon.listen: '0.0.0.0:80' is not on loopback; listeners "
      "without TLS and authentication stay on 127.0.0.1 or [::1]\n"
      "c.json:2:74: orchestrator.rpc_deadline_ms: is 1; valid: 100 to 600000 ms\n"
      "c.json:3:26: weightstore.role: is \"leader\"; valid: both (leader and host in one process)\n"
      "c.json:3:58: weightstore.memory_limit_bytes: is 5; valid: at least 1048576 bytes\n"
      "c.json:4:63: reward.daemon.health_listen: address 'nowhere' has no port; write host:port, "
      "for example 127.0.0.1:0\n"
      "c.json:4:32: reward.max_batch_items: is 0; valid: 1 to 4096\n"
      "c.json:1:33: trainer.kernels.isa: is \"avx1024\"; valid: auto, avx2, avx512, avx512_bf16\n"
      "c.json:1:58: trainer.recompute: is \"maybe\"; valid: none, selective, full\n"
      "c.json:5:39: generator.kernels.threads: is 2000; valid: 1 to 1024\n"
      "c.json:5:15: generator.max_batch_tokens: is 512; valid: 5000 (max_running_sequences) to "
      "1048576");
}

TEST_F(ClusterTest, TheReaderKnowsWhatIsValid) {
  const Status read = rpc::ReadConfigText(R"({"trainer": {"kernels": {"threads": -1}},
 "generators": [{"kernels": {"threads": -1}, "max_versions": true}], "num_generators": 1e3})",
                                          "c.json", &config_, &origins_, ValidClusterValues());
  EXPECT_EQ(MessageOf(read),
            "c.json:1:37: trainer.kernels.threads: -1 is out of range; valid: 1 to 1024\n"
            "c.json:2:41: generators[0].kernels.threads: -1 is out of range; valid: 1 to 1024\n"
            "c.json:2:62: generators[0].max_versions: wants a number, has a boolean: true; valid: "
            "1 to 64\n"
            "c.json:2:88: num_generators: wants an integer, has 1e3; valid: 1 to 64");
}

TEST_F(ClusterTest, EntriesOfGeneratorsAreCheckedAsTheyAreMerged) {
  EXPECT_EQ(ProblemsOf(R"({"generator": {"max_batch_tokens": 100, "max_versions": 65},
 "generators": [{}, {"max_running_sequences": 200, "max_versions": 66,
  "daemon": {"log_level": "loud"}}]})"),
            "c.json:1:57: generator.max_versions: is 65; valid: 1 to 64\n"
            "c.json:3:27: generators[1].daemon.log_level: is \"loud\"; valid: debug, info, "
            "warning, error\n"
            "c.json:2:68: generators[1].max_versions: is 66; valid: 1 to 64\n"
            "c.json:1:36: generator.max_batch_tokens: is 100; valid: 200 (max_running_sequences) "
            "to 1048576");
  // Written zeros are not lost in the merge.
  EXPECT_EQ(ProblemsOf(R"({"generator": {"daemon": {"debug": {"rpc_delay_max_ms": 5}}},
 "generators": [{"kernels": {"threads": 0, "isa": ""}},
  {"kernels": {"threads": 2000}, "daemon": {"debug": {"rpc_delay_max_ms": 0}}}]})"),
            "c.json:2:41: generators[0].kernels.threads: is 0; valid: 1 to 1024\n"
            "c.json:2:51: generators[0].kernels.isa: is \"\"; valid: auto, avx2, avx512, "
            "avx512_bf16\n"
            "c.json:3:27: generators[1].kernels.threads: is 2000; valid: 1 to 1024\n"
            "c.json:3:75: generators[1].daemon.debug.rpc_delay_max_ms: cannot be 0 where "
            "generator.daemon.debug.rpc_delay_max_ms has a value; leave that out and set it in "
            "the entries");
}

TEST_F(ClusterTest, TwoDaemonsOnOnePortAreRefused) {
  EXPECT_EQ(ProblemsOf(R"({"orchestrator": {"daemon": {"listen": "127.0.0.1:7000"}},
 "trainer": {"daemon": {"listen": "localhost:7000", "health_listen": "0.0.0.0:7001"}},
 "generators": [{"daemon": {"listen": "127.0.0.1:7001"}}, {"daemon": {"listen": "[::1]:7000"}}]})"),
            "c.json:2:35: trainer.daemon.listen: is localhost:7000, where "
            "orchestrator.daemon.listen listens already; choose another port (0 takes a free "
            "one)\n"
            "c.json:3:39: generators[0].daemon.listen: is 127.0.0.1:7001, where "
            "trainer.daemon.health_listen listens already; choose another port (0 takes a free "
            "one)");
}

TEST_F(ClusterTest, PrintShowsResolvedValuesWithTheirOriginAndCanBeReadAgain) {
  Read(R"({"generator": {"max_versions": 4},
 "generators": [{"kernels": {"isa": "avx2"}}]})");
  const std::string text = PrintCluster(config_, origins_);
  const auto printed = nlohmann::ordered_json::parse(text);
  const auto& config = printed["config"];
  const auto& from = printed["origins"];
  EXPECT_EQ(config["trainer"]["recompute"], "none");
  EXPECT_EQ(from["trainer.recompute"], "default");
  EXPECT_GE(config["trainer"]["kernels"]["threads"], 1);
  EXPECT_EQ(config["generators"][0]["kernels"]["isa"], "avx2");
  EXPECT_EQ(from["generators[0].kernels.isa"], "c.json:2:37");
  EXPECT_EQ(config["generators"][0]["max_versions"], 4);
  EXPECT_EQ(from["generators[0].max_versions"], "c.json:1:32");
  EXPECT_EQ(config["generators"][0]["max_queued_groups"], 256);
  EXPECT_EQ(from["generators[0].max_queued_groups"], "default");
  EXPECT_EQ(config["reward"]["daemon"]["worker_id"], "");
  EXPECT_EQ(from["reward.daemon.worker_id"], "filled in at the start");
  EXPECT_EQ(from["reward.daemon.listen"], "default");
  EXPECT_EQ(ProblemsOf(config.dump()), "");
  EXPECT_EQ(nlohmann::ordered_json::parse(PrintCluster(config_, origins_))["config"], config);
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

TEST_F(ClusterTest, ADaemonThatRefusesItsConfigurationIsWrongInput) {
  // Another version's daemon, say, with stricter checks than this program knows.
  WriteProgram("titan-weightstore", "echo 'role: is wrong' >&2; exit 2");
  const Status started = Cluster::Start({config_, folder_, {}}).status();
  EXPECT_EQ(started.code(), StatusCode::kInvalidArgument) << started;
  const std::string message = MessageOf(started);
  EXPECT_NE(message.find("role: is wrong"), std::string::npos) << message;
  EXPECT_NE(message.find("(the part 'weightstore' of the cluster configuration)"),
            std::string::npos)
      << message;
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

// What a shell makes of a line: its words, each with an end.
std::vector<std::string> WordsOf(const std::string& line) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(
      popen(("set -- " + line + "; printf '%s\\0' \"$@\"").c_str(), "r"), pclose);
  std::string text;
  char buffer[4096];
  while (const size_t n = fread(buffer, 1, sizeof(buffer), pipe.get())) text.append(buffer, n);
  std::vector<std::string> words;
  for (size_t at = 0; at < text.size(); at = text.find('\0', at) + 1) {
    words.emplace_back(text.c_str() + at);
  }
  return words;
}

TEST_F(ClusterTest, TheCommandThatStartsItSurvivesAShell) {
  EXPECT_EQ(UpCommand("run"), "titanctl up --data run");  // nothing was ever started there
  const std::string data = folder_ + "/it's a \"run\" $HOME `x` *;\n~";
  std::filesystem::create_directories(data);
  for (const char* no_options : {"", "{", "[]", R"({"pid": 1})", R"({"up_options": "--config"})"}) {
    std::ofstream(SupervisorPath(data)) << no_options;
    EXPECT_EQ(WordsOf(UpCommand(data)),
              (std::vector<std::string>{"titanctl", "up", "--data", data}))
        << no_options;
  }
  const std::vector<std::string> options = {"--config", "/a b/c'd.json", "--generators", "2", ""};
  std::ofstream(SupervisorPath(data)) << nlohmann::json({{"up_options", options}}).dump();
  std::vector<std::string> up = {"titanctl", "up", "--data", data};
  up.insert(up.end(), options.begin(), options.end());
  EXPECT_EQ(WordsOf(UpCommand(data)), up);
  const std::string restart = RestartCommand(data),
                    down = "titanctl down --data " + ShellWord(data);
  EXPECT_EQ(restart, down + " && " + UpCommand(data));
  EXPECT_EQ(WordsOf(down), (std::vector<std::string>{"titanctl", "down", "--data", data}));
  EXPECT_NE(FixOfGone(data).find("titanctl status --data " + ShellWord(data) + ";"),
            std::string::npos);
  const auto address = OrchestratorAddressOf(data);
  EXPECT_NE(MessageOf(address.status()).find(UpCommand(data)), std::string::npos);
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
