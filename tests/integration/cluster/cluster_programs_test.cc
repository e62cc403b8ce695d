// SPDX-License-Identifier: Apache-2.0
// Goal: titanctl and titan-demo as people use them, over real processes: up, status, submit, watch,
// cancel, down, a killed generator, a killed trainer, a parity failure, an interrupt. Method: the
// real titanctl, titan-demo and titan-reward in one folder with stand-ins of the other daemons
// (fake_daemon.cc).
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include <nlohmann/json.hpp>

namespace titan {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using std::chrono::milliseconds;

class ClusterProgramsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    bin_ = fs::path(TITAN_BINARY_DIR) / "tests" / "cluster_programs";
    fs::remove_all(bin_);
    fs::create_directories(bin_);
    for (const char* real : {"titanctl", "titan-demo", "titan-reward"}) {
      fs::create_hard_link(fs::path(TITAN_BINARY_DIR) / "bin" / real, bin_ / real);
    }
    for (const char* fake :
         {"titan-orchestrator", "titan-weightstore", "titan-trainer", "titan-generator"}) {
      fs::create_hard_link(fs::path(TITAN_BINARY_DIR) / "tests" / "fake_daemon", bin_ / fake);
    }
  }

  void SetUp() override {
    char pattern[] = "/tmp/titan_programs_XXXXXX";
    ASSERT_NE(mkdtemp(pattern), nullptr);
    folder_ = pattern;
    data_ = folder_ + "/data";
    std::ofstream(folder_ + "/model.gguf") << "weights";
    std::ofstream(folder_ + "/rows.jsonl") << "{}\n";
  }
  void TearDown() override {
    Titanctl("down --data " + data_);
    fs::remove_all(folder_);
  }

  // Runs a shell line in the folder of programs; its output goes to output_.
  int Shell(const std::string& line) {
    FILE* pipe = popen((line + " 2>&1").c_str(), "r");
    output_.clear();
    char buffer[4096];
    while (const size_t n = fread(buffer, 1, sizeof(buffer), pipe)) output_.append(buffer, n);
    const int status = pclose(pipe);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  int Titanctl(const std::string& arguments) {
    return Shell((bin_ / "titanctl").string() + " " + arguments);
  }

  static bool Eventually(const std::function<bool()>& condition) {
    for (int i = 0; i < 1000; ++i) {
      if (condition()) return true;
      std::this_thread::sleep_for(milliseconds(10));
    }
    return false;
  }

  json ReadJson(const std::string& path) {
    std::ifstream in(path);
    return json::parse(in, nullptr, false);
  }
  json Process(const std::string& name) {
    const json supervisor = ReadJson(data_ + "/supervisor.json");
    if (supervisor.is_object()) {
      for (const auto& process : supervisor["processes"]) {
        if (process["name"] == name) return process;
      }
    }
    return json::object();
  }
  std::string JobFile(uint64_t seed) {
    const std::string path = folder_ + "/job.json";
    std::ofstream(path) << R"({"name": "t", "seed": )" << seed
                        << R"(, "model": {"path": "model.gguf"}, "data": {"path": "rows.jsonl"},)"
                        << R"("schedule": {"steps": 3}})";
    return path;
  }

  static inline fs::path bin_;
  std::string folder_;
  std::string data_;
  std::string output_;
};

TEST_F(ClusterProgramsTest, UpStatusSubmitCancelDown) {
  ASSERT_EQ(Titanctl("up --data " + data_), 0) << output_;
  EXPECT_NE(output_.find("generator-1"), std::string::npos) << output_;
  const json endpoints = ReadJson(data_ + "/endpoints.json");
  EXPECT_EQ(endpoints["endpoints"].size(), 6u);

  EXPECT_EQ(Titanctl("up --data " + data_), 6);
  EXPECT_NE(output_.find("a cluster runs in " + data_ + " already (orchestrator 127.0.0.1:"),
            std::string::npos)
      << output_;

  ASSERT_EQ(Titanctl("status -o json --data " + data_), 0);
  const json status = json::parse(output_, nullptr, false);
  EXPECT_EQ(status["state"], "running");
  EXPECT_EQ(status["workers"].size(), 4u) << output_;

  EXPECT_EQ(Titanctl("submit " + JobFile(1) + " -w --data " + data_), 0) << output_;
  EXPECT_NE(output_.find("log-prob difference max 0, tokens differing 0 of 30"), std::string::npos)
      << output_;
  EXPECT_NE(output_.find("warning: this orchestrator is a stand-in"), std::string::npos) << output_;

  EXPECT_EQ(Titanctl("submit " + JobFile(777) + " --data " + data_), 0);
  EXPECT_EQ(Titanctl("cancel job-1 --data " + data_), 0) << output_;
  EXPECT_EQ(Titanctl("watch job-1 --data " + data_), 4) << output_;
  EXPECT_NE(output_.find("CANCELLED (cancelled by user)"), std::string::npos) << output_;
  EXPECT_EQ(Titanctl("cancel job-1 --data " + data_), 0) << output_;
  EXPECT_EQ(output_, "job job-1 had ended already: CANCELLED\n");
  EXPECT_EQ(Titanctl("cancel job-9 --data " + data_), 7) << output_;
  EXPECT_EQ(Titanctl("watch job-9 --data " + data_), 7) << output_;
  EXPECT_EQ(Titanctl("get job-9 --data " + data_), 7) << output_;
  EXPECT_EQ(Titanctl("list --data " + data_), 0) << output_;
  EXPECT_NE(output_.find("job-1  t     CANCELLED"), std::string::npos) << output_;
  EXPECT_EQ(Titanctl("list -o json --data " + data_), 0) << output_;
  EXPECT_EQ(json::parse(output_, nullptr, false)["jobs"][0]["job_id"], "job-1") << output_;
  EXPECT_EQ(Titanctl("get job-1 -o json --data " + data_), 0) << output_;
  EXPECT_EQ(json::parse(output_, nullptr, false)["state"], "JOB_STATE_CANCELLED") << output_;
  std::ofstream(folder_ + "/bad.json") << "{\"sed\": 1}";
  EXPECT_EQ(Titanctl("submit " + folder_ + "/bad.json --data " + data_), 2);
  EXPECT_NE(output_.find("bad.json:1:2: sed: unknown field; did you mean \"seed\"?"),
            std::string::npos)
      << output_;

  EXPECT_EQ(Titanctl("down --data " + data_), 0) << output_;
  EXPECT_EQ(output_.find("no job runs or waits\nending the cluster in " + data_ + "\n"), 0u)
      << output_;
  EXPECT_EQ(Titanctl("status --data " + data_), 5);
  EXPECT_EQ(Titanctl("list --data " + data_), 5);
  EXPECT_NE(output_.find("titanctl up --data"), std::string::npos) << output_;
  const json supervisor = ReadJson(data_ + "/supervisor.json");
  EXPECT_EQ(supervisor["state"], "stopped");
  for (const auto& process : supervisor["processes"]) {
    ASSERT_EQ(process["exits"].size(), 1u);
    EXPECT_EQ(process["exits"][0]["exit"], 0) << process;
  }
}

TEST_F(ClusterProgramsTest, KilledGeneratorComesBackAndKilledTrainerDegrades) {
  std::ofstream(folder_ + "/c.json") << "{}";
  ASSERT_EQ(Shell("(cd " + folder_ + " && " + (bin_ / "titanctl").string() +
                  " up --config c.json --generators 1 --data " + data_ + ")"),
            0)
      << output_;
  // Whatever names the start of this cluster names what it was given.
  const std::string up =
      "titanctl up --data " + data_ + " --config " + folder_ + "/c.json --generators 1";
  const int first = Process("generator-0")["pid"];
  ASSERT_EQ(kill(first, SIGKILL), 0);
  ASSERT_TRUE(Eventually([&] {
    const json process = Process("generator-0");
    if (process["restarts"] != 1 || process["state"] != "running") return false;
    const json endpoints = ReadJson(data_ + "/endpoints.json");
    for (const auto& endpoint : endpoints["endpoints"]) {
      if (endpoint["worker_id"] == "generator-0" && endpoint["pid"] == process["pid"]) return true;
    }
    return false;
  }));
  EXPECT_EQ(Process("generator-0")["exits"][0]["exit"], 137);
  EXPECT_EQ(ReadJson(data_ + "/supervisor.json")["state"], "running");
  kill(Process("trainer")["pid"].get<int>(), SIGKILL);
  ASSERT_TRUE(
      Eventually([&] { return ReadJson(data_ + "/supervisor.json")["state"] == "degraded"; }));
  EXPECT_EQ(Titanctl("status --data " + data_), 0);
  EXPECT_NE(output_.find("trainer (pid"), std::string::npos) << output_;
  EXPECT_NE(output_.find("fix: titanctl logs trainer --data " + data_ +
                         " shows the last words of trainer; titanctl down --data " + data_ +
                         " && " + up + " starts everything anew"),
            std::string::npos)
      << output_;
  kill(Process("orchestrator")["pid"].get<int>(), SIGKILL);
  ASSERT_TRUE(Eventually([&] { return Process("orchestrator")["state"] != "running"; }));
  EXPECT_EQ(Titanctl("list --data " + data_), 5);
  EXPECT_NE(output_.find("fix: see what runs with: titanctl status --data " + data_ +
                         "; start the cluster anew with: titanctl down --data " + data_ + " && " +
                         up + "\n"),
            std::string::npos)
      << output_;
  EXPECT_EQ(Titanctl("status -o json --data " + data_), 5);
  EXPECT_NE(json::parse(output_, nullptr, false)["fix"].get<std::string>().find("titanctl logs"),
            std::string::npos);
  ASSERT_EQ(Titanctl("down --data " + data_), 0) << output_;
  EXPECT_EQ(Titanctl("list --data " + data_), 5);
  EXPECT_NE(output_.find("start one with: " + up + "\n"), std::string::npos) << output_;
}

TEST_F(ClusterProgramsTest, WhatUpRefusesLeavesNoFolder) {
  std::ofstream(folder_ + "/big.json") << R"({"generator": {"kv_cache_bytes": 17592186044416}})";
  EXPECT_EQ(Titanctl("up --config " + folder_ + "/big.json --data " + data_), 1);
  EXPECT_FALSE(fs::exists(data_)) << output_;
  // A daemon's refusal of its part is one of the configuration; its words stay.
  const std::string picky = folder_ + "/picky";
  fs::create_directories(picky);
  fs::copy_file(bin_ / "titanctl", picky + "/titanctl");
  std::ofstream(picky + "/titan-weightstore") << "#!/bin/sh\necho no >&2\nexit 2\n";
  fs::permissions(picky + "/titan-weightstore", fs::perms::owner_all);
  EXPECT_EQ(Shell(picky + "/titanctl up --data " + data_), 2) << output_;
  EXPECT_NE(output_.find("(the part 'weightstore' of the cluster configuration)"),
            std::string::npos)
      << output_;
  EXPECT_TRUE(fs::exists(data_ + "/logs/weightstore.log"));
  // What was there before stays, too.
  fs::create_directories(folder_ + "/mine");
  EXPECT_EQ(Titanctl("up --config " + folder_ + "/big.json --data " + folder_ + "/mine"), 1);
  EXPECT_TRUE(fs::exists(folder_ + "/mine"));
}

TEST_F(ClusterProgramsTest, AnotherUsersFolderIsSaidToBeHis) {
  if (getuid() != 0) GTEST_SKIP() << "only root can be two users";
  fs::create_directories(data_);
  fs::permissions(folder_, fs::perms::all);
  const std::string up = "setpriv --reuid 65534 --regid 65534 --clear-groups " +
                         (bin_ / "titanctl").string() + " up --data " + data_;
  EXPECT_EQ(Shell(up), 1);
  EXPECT_NE(output_.find("folder '" + data_ + "' belongs to user 'root' and cannot be written to"),
            std::string::npos)
      << output_;
  std::ofstream(data_ + "/cluster.lock") << "";
  EXPECT_EQ(Shell(up), 1);
  EXPECT_NE(output_.find("the cluster in '" + data_ + "' belongs to user 'root'"),
            std::string::npos)
      << output_;
}

TEST_F(ClusterProgramsTest, AnotherDaemonAtAnAddressIsNamedWithWhatWasExpectedThere) {
  ASSERT_EQ(Titanctl("up --generators 1 --data " + data_), 0) << output_;
  std::map<std::string, std::string> addresses;  // by role
  const json endpoints = ReadJson(data_ + "/endpoints.json");
  for (const json& endpoint : endpoints["endpoints"]) {
    addresses[endpoint["role"]] = endpoint["address"];
  }
  const auto said = [](const std::string& daemon, const std::string& address,
                       const std::string& method) {
    return "expected " + daemon + " at " + address + "; what answers there does not serve " +
           method + ": it is another daemon, or of another version";
  };
  const std::string service = "titan.orchestrator.v1.OrchestratorService/";
  for (const char* role : {"weightstore", "generator"}) {
    const std::string address = addresses[role];
    EXPECT_EQ(Titanctl("list --address " + address), 1) << output_;
    EXPECT_EQ(output_, "titanctl: " + said("an orchestrator", address, service + "ListJobs") +
                           "\nfix: give the address of the orchestrator; titanctl status --data "
                           "FOLDER shows those of a cluster\n");
    EXPECT_EQ(Titanctl("watch job-1 --address " + address), 1) << output_;  // a stream
    EXPECT_NE(output_.find(said("an orchestrator", address, service + "WatchJob")),
              std::string::npos)
        << output_;
  }
  // A daemon that was given it waits, and says what for.
  std::ofstream(folder_ + "/d.json")
      << R"({"daemon": {"data_folder": ")" << folder_ << R"(/d"}, "orchestrator_address": ")"
      << addresses["weightstore"] << R"("})";
  EXPECT_EQ(Shell("timeout --foreground --preserve-status -s INT 8 " +
                  (bin_ / "titan-reward").string() + " --config " + folder_ + "/d.json"),
            0);
  EXPECT_NE(
      output_.find(said("an orchestrator", addresses["weightstore"], service + "RegisterWorker")),
      std::string::npos)
      << output_;
}

TEST_F(ClusterProgramsTest, APortInUseIsNamedByTheFieldOfTheUsersFile) {
  ASSERT_EQ(Titanctl("up --generators 1 --data " + data_), 0) << output_;
  const std::string taken = ReadJson(data_ + "/endpoints.json")["endpoints"][0]["address"];
  const std::string said = "cannot listen on " + taken +
                           ": Address already in use; choose another port (0 takes a free one) or "
                           "stop the process that holds this one\n";
  std::ofstream(folder_ + "/cluster.json")
      << R"({"orchestrator": {"daemon": {"listen": ")" << taken << R"("}}})";
  const std::string other = folder_ + "/other";
  EXPECT_EQ(Titanctl("up --config " + folder_ + "/cluster.json --data " + other), 1);
  EXPECT_NE(output_.find(folder_ + "/cluster.json:1:40: orchestrator.daemon.listen: " + said),
            std::string::npos)
      << output_;
  EXPECT_FALSE(fs::exists(other + "/weightstore"));  // nothing was started
  // The daemon by itself says the same, and nobody else says anything but its log.
  std::ofstream(folder_ + "/d.json")
      << R"({"daemon": {"data_folder": ")" << folder_ << R"(/d", "listen": ")" << taken
      << R"("}, "orchestrator_address": "127.0.0.1:1"})";
  EXPECT_EQ(Shell((bin_ / "titan-reward").string() + " --config " + folder_ + "/d.json"), 1);
  EXPECT_NE(output_.find("\ntitan-reward: " + folder_ + "/d.json:1:"), std::string::npos)
      << output_;
  EXPECT_NE(output_.find(": daemon.listen: " + said), std::string::npos) << output_;
  EXPECT_EQ(output_.find("chttp2"), std::string::npos) << output_;
}

TEST_F(ClusterProgramsTest, UpRefusesWhatADaemonWouldRefuseAndStartsNothing) {
  struct Wrong {
    const char* text;
    const char* problem;
  };
  for (const Wrong& wrong : {
           Wrong{R"({"trainer": {"kernels": {"isa": "avx1024"}}})",
                 "1:33: trainer.kernels.isa: is \"avx1024\"; valid: auto, avx2, avx512, "
                 "avx512_bf16"},
           {R"({"generator": {"kernels": {"threads": 100000}}})",
            "1:39: generator.kernels.threads: is 100000; valid: 1 to 1024"},
           {R"({"trainer": {"kernels": {"threads": -1}}})",
            "1:37: trainer.kernels.threads: -1 is out of range; valid: 1 to 1024"},
           {R"({"orchestrator": {"daemon": {"log_level": "loud"}}})",
            "1:43: orchestrator.daemon.log_level: is \"loud\"; valid: debug, info, warning, error"},
           {R"({"data_folder": "run"})",
            "1:17: data_folder: is filled in from the command line; leave it out"},
           {R"({"trainer": {"recompute": "maybe"}})",
            "1:27: trainer.recompute: is \"maybe\"; valid: none, selective, full"},
           {R"({"weightstore": {"daemon": {"listen": "10.0.0.1:80"}}})",
            "1:39: weightstore.daemon.listen: '10.0.0.1:80' is not on loopback"},
           {R"({"reward": {"daemon": {"listen": "rubbish"}}})",
            "1:34: reward.daemon.listen: address 'rubbish' has no port"},
           {R"({"generators": [{"daemon": {"shutdown_deadline_ms": 1}}]})",
            "1:53: generators[0].daemon.shutdown_deadline_ms: is 1; valid: 100 to 600000 ms"},
       }) {
    std::ofstream(folder_ + "/c.json") << wrong.text;
    for (const char* flags : {" --check_config", " --print_config", ""}) {
      EXPECT_EQ(Titanctl("up --config " + folder_ + "/c.json --data " + data_ + flags), 2)
          << wrong.text << flags << output_;
      EXPECT_NE(output_.find(folder_ + "/c.json:" + wrong.problem), std::string::npos) << output_;
      EXPECT_FALSE(fs::exists(data_)) << wrong.text << flags;
    }
    EXPECT_EQ(Shell((bin_ / "titan-demo").string() + " --model " + folder_ +
                    "/model.gguf --cluster " + folder_ + "/c.json --output " + folder_ + "/demo"),
              2);
    EXPECT_NE(output_.find(folder_ + "/c.json:" + wrong.problem), std::string::npos) << output_;
    EXPECT_FALSE(fs::exists(folder_ + "/demo"));
  }
}

TEST_F(ClusterProgramsTest, ADaemonWithoutItsOrchestratorSaysSoSoonAndNotOften) {
  std::ofstream(folder_ + "/d.json") << R"({"daemon": {"data_folder": ")" << folder_
                                     << R"(/d"}, "orchestrator_address": "127.0.0.1:1"})";
  EXPECT_EQ(Shell("timeout --foreground --preserve-status -s INT 5 " +
                  (bin_ / "titan-reward").string() + " --config " + folder_ + "/d.json"),
            0);
  const size_t said = output_.find("\"level\":\"warning\"");
  ASSERT_NE(said, std::string::npos) << output_;
  EXPECT_NE(output_.find("\"event\":\"not_registered\",\"orchestrator\":\"127.0.0.1:1\"", said),
            std::string::npos)
      << output_;
  EXPECT_NE(output_.find("tries again until the orchestrator answers", said), std::string::npos);
  EXPECT_EQ(output_.find("\"level\":\"warning\"", said + 1), std::string::npos) << output_;
}

TEST_F(ClusterProgramsTest, HelpAndWrongUseAnswerAtOnce) {
  for (const auto& [arguments, code] :
       {std::pair("--help", 0), {"submit --help", 0}, {"sumbit", 2}, {"submit --wacth x", 2}}) {
    auto best = std::chrono::steady_clock::duration::max();
    for (int i = 0; i < 10;
         ++i) {  // the machine may be busy: the quickest run is the program's own
      const auto begin = std::chrono::steady_clock::now();
      EXPECT_EQ(Titanctl(arguments), code) << output_;
      best = std::min(best, std::chrono::steady_clock::now() - begin);
    }
    EXPECT_LE(std::chrono::duration_cast<milliseconds>(best).count(), 50) << arguments;
  }
  EXPECT_NE(output_.find("did you mean '--watch'?"), std::string::npos) << output_;
}

TEST_F(ClusterProgramsTest, ConfigsSayWhereEachValueCameFromAndWhatHasNoEffect) {
  std::ofstream(folder_ + "/c.json") << "{\"generator\":\n {\"max_queued_groups\": 7}}";
  ASSERT_EQ(
      Titanctl("up --print_config --generators 3 --config " + folder_ + "/c.json --data " + data_),
      0)
      << output_;
  const json printed = json::parse(output_, nullptr, false);
  EXPECT_EQ(printed["config"]["num_generators"], 3);
  EXPECT_EQ(printed["origins"]["num_generators"], "flag --generators");
  EXPECT_EQ(printed["origins"]["generator.max_queued_groups"], folder_ + "/c.json:2:24");
  EXPECT_EQ(printed["origins"]["trainer.orchestrator_address"], "filled in at the start");
  EXPECT_EQ(printed["config"]["trainer"]["recompute"], "none");
  EXPECT_EQ(printed["origins"]["trainer.recompute"], "default");
  std::ofstream(folder_ + "/c.json") << "{\"generater\": {}}";
  EXPECT_EQ(Titanctl("up --check_config --config " + folder_ + "/c.json --data " + data_), 2);
  EXPECT_NE(output_.find("c.json:1:2: generater: unknown field; did you mean \"generator\"?"),
            std::string::npos)
      << output_;
  EXPECT_FALSE(fs::exists(data_));
  std::ofstream(folder_ + "/d.json")
      << R"({"daemon": {"data_folder": ")" << folder_ << R"(", "debug": {"rpc_delay_seed": 5}},)"
      << R"( "orchestrator_address": "127.0.0.1:1"})";
  EXPECT_EQ(
      Shell((bin_ / "titan-reward").string() + " --check_config --config " + folder_ + "/d.json"),
      0);
  EXPECT_NE(output_.find("warning: daemon.debug.rpc_delay_seed has no effect"), std::string::npos)
      << output_;
}

TEST_F(ClusterProgramsTest, EveryProblemOfAConfigurationIsToldAtOnce) {
  const auto lines = [this] { return std::count(output_.begin(), output_.end(), '\n'); };
  const auto expect = [this](const std::string& text) {
    EXPECT_NE(output_.find(text), std::string::npos) << text << "\nis not in\n" << output_;
  };
  std::ofstream(folder_ + "/d.json")
      << "{\"daemon\": {\"log_level\": \"loud\", \"data_foldr\": \"x\"},\n"
         " \"max_versions\": \"3\", \"max_batch_tokens\": 5,\n"
         " \"orchestrator_addres\": \"127.0.0.1:1\"}";
  EXPECT_EQ(Shell((bin_ / "titan-generator").string() + " --check_config --config " + folder_ +
                  "/d.json"),
            2);
  expect("d.json:1:34: daemon.data_foldr: unknown field; did you mean \"data_folder\"?\n");
  expect("d.json:2:18: max_versions: wants a number, has a string: \"3\"; valid: 1 to 64\n");
  expect(
      "d.json:3:2: orchestrator_addres: unknown field; did you mean \"orchestrator_address\"?\n");
  expect("d.json:1:26: daemon.log_level: is \"loud\"; valid: ");
  expect("d.json:1:1: weightstore_address: is required");
  expect("d.json:2:43: max_batch_tokens: is 5; valid: 64 (max_running_sequences) to ");
  EXPECT_EQ(lines(), 6) << output_;  // what was misspelt is not missing as well
  std::ofstream(folder_ + "/c.json")
      << "{\"generater\": {}, \"num_generators\": 0,\n \"trainer\": {\"recompute\": \"some\"}}";
  EXPECT_EQ(Titanctl("up --check_config --config " + folder_ + "/c.json --data " + data_), 2);
  expect("c.json:1:2: generater: unknown field; did you mean \"generator\"?\n");
  expect("c.json:1:37: num_generators: is 0; valid: 1 to ");
  expect("c.json:2:27: trainer.recompute: is \"some\"; valid: ");
  EXPECT_EQ(lines(), 3) << output_;
}

TEST_F(ClusterProgramsTest, WhatDoesNotFitIsRefusedBeforeAnythingStarts) {
  std::ofstream(folder_ + "/big.json") << R"({"generator": {"kv_cache_bytes": 17592186044416}})";
  EXPECT_EQ(Titanctl("up --config " + folder_ + "/big.json --data " + data_), 1);
  EXPECT_NE(output_.find("too little memory: the caches of 2 generators take 33554432 MiB, "),
            std::string::npos)
      << output_;
  EXPECT_FALSE(fs::exists(data_ + "/weightstore"));
  fs::create_directories(data_);
  std::ofstream(data_ + "/format.json") << R"({"format": 999})";
  EXPECT_EQ(Titanctl("up --data " + data_), 1);
  EXPECT_NE(output_.find("written by a newer version of the program"), std::string::npos)
      << output_;
  std::ofstream(data_ + "/format.json") << "x";
  EXPECT_EQ(Titanctl("up --data " + data_), 8);
  EXPECT_NE(output_.find("format.json' does not say"), std::string::npos) << output_;
  EXPECT_FALSE(fs::exists(data_ + "/weightstore"));
  fs::remove(data_ + "/format.json");
  EXPECT_EQ(Titanctl("up --data " + folder_ + "/rows.jsonl/x"), 1);  // below a file
  EXPECT_NE(output_.find("rows.jsonl/x"), std::string::npos) << output_;
}

TEST_F(ClusterProgramsTest, ReadOnlyAndFullFoldersAreNamed) {
  if (Shell("unshare -m true") != 0) GTEST_SKIP() << "mounts are not allowed here: " << output_;
  fs::create_directories(data_);
  const auto in_mount = [&](const std::string& options, const std::string& command) {
    return Shell("unshare -m sh -c 'mount -t tmpfs -o " + options + " tmpfs " + data_ + " && " +
                 command + "'");
  };
  const std::string up = (bin_ / "titanctl").string() + " up --data " + data_;
  EXPECT_EQ(in_mount("ro", up), 1);
  EXPECT_NE(output_.find("Read-only file system"), std::string::npos) << output_;
  EXPECT_EQ(in_mount("size=1m", up), 1);
  EXPECT_NE(output_.find("too little disk: the volume of '" + data_ + "' has "), std::string::npos)
      << output_;
  EXPECT_NE(output_.find("a cluster wants at least 64 MiB"), std::string::npos) << output_;
}

TEST_F(ClusterProgramsTest, ChangedProgramsAreToldAndAnInterruptedStartLeavesNothing) {
  ASSERT_EQ(Titanctl("up --generators 1 --data " + data_), 0) << output_;
  EXPECT_EQ(Titanctl("status --data " + data_), 0);
  EXPECT_EQ(output_.find("note:"), std::string::npos) << output_;
  const fs::path reward = bin_ / "titan-reward";
  fs::copy_file(reward, bin_ / "copy");
  fs::rename(bin_ / "copy", reward);  // the same bytes, but who knows
  EXPECT_EQ(Titanctl("status --data " + data_), 0);
  EXPECT_NE(output_.find("changed since this cluster was started"), std::string::npos) << output_;
  EXPECT_EQ(Titanctl("up --data " + data_), 6);
  EXPECT_NE(output_.find("titanctl down --data " + data_ + " && titanctl up"), std::string::npos)
      << output_;
  ASSERT_EQ(Titanctl("down --data " + data_), 0) << output_;

  const std::string slow = folder_ + "/slow";
  fs::create_directories(slow);
  fs::copy_file(bin_ / "titanctl", slow + "/titanctl");
  std::ofstream(slow + "/titan-weightstore") << "#!/bin/sh\nexec sleep 600\n";
  fs::permissions(slow + "/titan-weightstore", fs::perms::owner_all);
  EXPECT_EQ(Shell("timeout --foreground --preserve-status -s INT 1 " + slow +
                  "/titanctl up --data " + data_),
            130)
      << output_;
  EXPECT_NE(output_.find("interrupted; the cluster was not started"), std::string::npos) << output_;
  EXPECT_EQ(Titanctl("status --data " + data_), 5);
  EXPECT_NE(kill(Process("weightstore")["pid"].get<int>(), 0), 0);
}

TEST_F(ClusterProgramsTest, ASecondCtrlCLeavesAtOnceInWordsForPeople) {
  const std::string slow = folder_ + "/slow";
  fs::create_directories(slow);
  fs::copy_file(bin_ / "titanctl", slow + "/titanctl");
  std::ofstream(slow + "/titan-weightstore") << "#!/bin/sh\ntrap '' TERM\nexec sleep 600\n";
  fs::permissions(slow + "/titan-weightstore", fs::perms::owner_all);
  std::ofstream(folder_ + "/c.json")
      << R"({"weightstore": {"daemon": {"shutdown_deadline_ms": 3000}}})";
  const std::string up = slow + "/titanctl up --config " + folder_ + "/c.json --data " + data_;
  EXPECT_EQ(Shell("bash -mc '" + up + " & p=$!; sleep 1; kill -INT $p; sleep 0.5; kill -INT $p; " +
                  "wait $p'"),
            130)
      << output_;
  EXPECT_NE(output_.find("titanctl: interrupted twice; left at once"), std::string::npos)
      << output_;
  EXPECT_EQ(output_.find('{'), std::string::npos) << output_;  // no line of a log
  // What it left ends by itself; `down` says whom it waits for.
  EXPECT_EQ(Titanctl("down --data " + data_), 0) << output_;
  EXPECT_NE(output_.find("s: weightstore\n"), std::string::npos) << output_;
}

TEST_F(ClusterProgramsTest, CtrlCDetachesFromAJob) {
  ASSERT_EQ(Titanctl("up --generators 1 --data " + data_), 0) << output_;
  ASSERT_EQ(Titanctl("submit " + JobFile(777) + " --data " + data_), 0) << output_;
  EXPECT_EQ(Shell("timeout --foreground --preserve-status -s INT 1 " +
                  (bin_ / "titanctl").string() + " watch job-1 --data " + data_),
            130)
      << output_;
  EXPECT_NE(output_.find("Come back with: titanctl watch job-1"), std::string::npos) << output_;
  EXPECT_EQ(Shell("(" + (bin_ / "titanctl").string() + " down -o json --data " + data_ + " 2>" +
                  folder_ + "/words)"),
            0)
      << output_;
  EXPECT_EQ(json::parse(output_, nullptr, false)["ended_jobs"], json::array({"job-1"})) << output_;
  EXPECT_EQ(Shell("cat " + folder_ + "/words"), 0);
  EXPECT_EQ(output_.find("job-1 (t) is RUNNING, 0 of 3 steps done: it ends with the cluster and is "
                         "not resumed, and its newest version is kept; submit it again after the "
                         "next start\n"),
            0u)
      << output_;
}

TEST_F(ClusterProgramsTest, DemoWritesItsResultAndFailsOnParity) {
  const std::string demo =
      (bin_ / "titan-demo").string() + " --steps 2 --model " + folder_ + "/model.gguf --output ";
  EXPECT_EQ(Shell(demo + folder_ + "/good --seed 1"), 0) << output_;
  const json good = ReadJson(folder_ + "/good/result.json");
  EXPECT_EQ(good["heldout_accuracy_start"], 0.25);
  EXPECT_EQ(good["heldout_accuracy_end"], 0.75);
  EXPECT_EQ(good["tokens_compared"], 20);
  EXPECT_EQ(good["final_weights_digest"], "digest-2");
  EXPECT_EQ(good["seconds"], 30.0);
  ASSERT_EQ(good["processes"].size(), 6u);
  for (const auto& process : good["processes"]) EXPECT_EQ(process["exit"], 0) << process;

  EXPECT_EQ(Shell(demo + folder_ + "/bad --seed 666"), 1) << output_;
  EXPECT_NE(output_.find("rollout and training differ"), std::string::npos) << output_;
  EXPECT_EQ(ReadJson(folder_ + "/bad/result.json")["tokens_differing"], 2);
}

TEST_F(ClusterProgramsTest, AnOrchestratorThatIsNotThereIsNamedWithAFix) {
  for (const char* command : {"list", "status"}) {
    EXPECT_EQ(Shell((bin_ / "titanctl").string() + " " + command + " --address 127.0.0.1:1"), 5);
    EXPECT_NE(output_.find("the orchestrator does not answer"), std::string::npos) << output_;
    EXPECT_NE(output_.find("fix: start an orchestrator that listens at 127.0.0.1:1, or give"),
              std::string::npos)
        << output_;
    EXPECT_EQ(output_.find("failed to connect"), std::string::npos) << output_;
  }
}

// A port that another program has is not said to be free.
TEST_F(ClusterProgramsTest, WhatListensAndIsNoOrchestratorIsNotTakenForNothing) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(listener, 16), 0);
  ASSERT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), 0);
  std::jthread http([listener] {  // as a web server answers what it does not understand
    for (int peer; (peer = accept(listener, nullptr, nullptr)) >= 0; close(peer)) {
      char request[256];
      const std::string answer = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";
      if (read(peer, request, sizeof(request)) > 0) {
        EXPECT_GT(send(peer, answer.data(), answer.size(), MSG_NOSIGNAL), 0);
      }
    }
  });
  const std::string there = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  EXPECT_EQ(Shell((bin_ / "titanctl").string() + " list --address " + there), 5);
  shutdown(listener, SHUT_RDWR);  // ends the accept
  http.join();
  close(listener);
  EXPECT_NE(output_.find("what listens at its address does not answer as gRPC does"),
            std::string::npos)
      << output_;
  EXPECT_NE(output_.find("fix: give another address, or end what listens at " + there),
            std::string::npos)
      << output_;
}

// Nothing listens: what is wrong with the command line is said before anything is asked.
TEST_F(ClusterProgramsTest, WrongUseIsCode2AndNamesItsFix) {
  const std::string nowhere = " --address 127.0.0.1:1";
  Shell("mkfifo " + folder_ + "/fifo");
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"report job-1 --out " + folder_ + nowhere,
       "--out '" + folder_ + "' is a folder; name a file, for example --out " + folder_ +
           "/job-1.html"},
      {"report job-1 --out /nonexist/a.html" + nowhere,
       "--out '/nonexist/a.html': the folder '/nonexist' does not exist; make it"},
      {"up --data " + folder_ + "/model.gguf",
       "'" + folder_ + "/model.gguf' is a file; --data wants a folder"},
      {"doctor --config " + folder_ + "/nope.json", "nope.json': No such file"},
      {"up --check_config --config " + folder_ + "/nope.json", "nope.json': No such file"},
      {"data upload " + folder_ + "/nope.jsonl" + nowhere,
       "'" + folder_ + "/nope.jsonl' does not exist"},
      {"data upload " + folder_ + "/fifo" + nowhere,
       "'" + folder_ + "/fifo' is a pipe or device; give a file"},
      {"data upload " + folder_ + nowhere, "'" + folder_ + "' is a folder; give a file"},
      {"rollouts job-1 --group abc" + nowhere, "--group abc: is no group id; wants one as"},
  };
  for (const auto& [arguments, message] : cases) {
    EXPECT_EQ(Shell("timeout 5 " + (bin_ / "titanctl").string() + " " + arguments), 2) << output_;
    EXPECT_NE(output_.find(message), std::string::npos) << output_;
  }
  // A sparse file takes no room.
  Shell("truncate -s 1100M " + folder_ + "/big.jsonl");
  EXPECT_EQ(Titanctl("data upload " + folder_ + "/big.jsonl" + nowhere), 2);
  EXPECT_NE(output_.find("has 1.1 GiB; data upload takes at most 1.0 GiB; name larger files by"),
            std::string::npos)
      << output_;
  const std::string demo = (bin_ / "titan-demo").string() + " --steps 2 --output " + folder_ + "/d";
  EXPECT_EQ(Shell(demo + " --model " + folder_ + "/nope.gguf"), 2);
  EXPECT_NE(output_.find("nope.gguf' does not exist; name a GGUF file"), std::string::npos)
      << output_;
  EXPECT_FALSE(fs::exists(folder_ + "/d"));
  std::ofstream(folder_ + "/bad.json") << R"({"num_generators": 0})";
  EXPECT_EQ(Shell(demo + " --model " + folder_ + "/model.gguf --cluster " + folder_ + "/bad.json"),
            2);
  EXPECT_NE(output_.find("num_generators: is 0; valid: 1 to 64"), std::string::npos) << output_;
}

TEST_F(ClusterProgramsTest, AMetricThatNobodyHasIsAnError) {
  ASSERT_EQ(Titanctl("up --generators 1 --data " + data_), 0) << output_;
  EXPECT_EQ(Titanctl("metrics --data " + data_), 0) << output_;
  EXPECT_EQ(Titanctl("metrics --name nothing --data " + data_), 7);
  EXPECT_NE(output_.find("no metric has 'nothing' in its name"), std::string::npos) << output_;
  EXPECT_EQ(output_.find("DAEMON"), std::string::npos) << output_;
}

TEST_F(ClusterProgramsTest, DemoLeavesWhatItDidNotMake) {
  const std::string foreign = folder_ + "/foreign";
  EXPECT_EQ(Shell("mkdir -p " + foreign + "/cluster && echo mine > " + foreign + "/cluster/file"),
            0);
  const std::string demo =
      (bin_ / "titan-demo").string() + " --steps 2 --model " + folder_ + "/model.gguf --output ";
  EXPECT_EQ(Shell(demo + foreign), 2) << output_;
  EXPECT_NE(output_.find("was not made by titan-demo"), std::string::npos) << output_;
  EXPECT_EQ(Shell("cat " + foreign + "/cluster/file"), 0);
  EXPECT_EQ(output_, "mine\n");
  // Nor what was put into its own folder later; then nothing of it goes.
  const std::string own = folder_ + "/own";
  EXPECT_EQ(Shell(demo + own), 0) << output_;
  EXPECT_EQ(Shell("echo mine > " + own + "/cluster/notes"), 0);
  EXPECT_EQ(Shell(demo + own), 2) << output_;
  EXPECT_NE(output_.find("own/cluster/notes' was not made by titan-demo"), std::string::npos)
      << output_;
  EXPECT_TRUE(fs::exists(own + "/cluster/notes"));
  EXPECT_TRUE(fs::exists(own + "/cluster/supervisor.json"));
  EXPECT_TRUE(fs::exists(own + "/result.json"));
  fs::remove(own + "/cluster/notes");
  EXPECT_EQ(Shell(demo + own), 0) << output_;
}

TEST_F(ClusterProgramsTest, InterruptedDemoEndsItsDaemons) {
  const std::string out = folder_ + "/stuck";
  EXPECT_EQ(
      Shell("timeout --foreground --preserve-status -s INT 4 " + (bin_ / "titan-demo").string() +
            " --steps 2 --seed 777 --model " + folder_ + "/model.gguf --output " + out),
      130)
      << output_;
  EXPECT_NE(output_.find("interrupted after 2 of 2 steps: the job ends with its daemons"),
            std::string::npos)
      << output_;
  // The same folder serves the next demo, unless one runs in it.
  EXPECT_EQ(Shell("flock " + out + "/cluster/cluster.lock " + (bin_ / "titan-demo").string() +
                  " --steps 2 --model " + folder_ + "/model.gguf --output " + out),
            1)
      << output_;
  EXPECT_NE(output_.find("another demo runs in"), std::string::npos) << output_;
  const json supervisor = ReadJson(out + "/cluster/supervisor.json");
  EXPECT_EQ(supervisor["state"], "stopped") << output_;
  for (const auto& process : supervisor["processes"])
    EXPECT_NE(kill(process["pid"].get<int>(), 0), 0);
}

}  // namespace
}  // namespace titan
