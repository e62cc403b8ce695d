// SPDX-License-Identifier: Apache-2.0
// Goal: titanctl over real daemons, as a person uses it on the first day: a job with --set on
// uploaded data, watched, listed, read token by token, reported, chatted with, its logs and
// metrics; what is wrong is refused by name and leaves nothing behind. Method: one small cluster
// for the whole file, the real programs, a model made by Philox.
#include <gtest/gtest.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <vector>

#include <nlohmann/json.hpp>

#include "services/rpc/config.h"
#include "tests/e2e/small_job.h"

namespace titan::e2e {
namespace {

using nlohmann::json;

class CliTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TestFolder("cli");
    config::v1::ClusterConfig config = SmallCluster("");
    std::ofstream(folder_->path() + "/cluster.json") << rpc::ToJsonText(config);
    // The job as a person writes it: a base file and what differs.
    config::v1::JobSpec spec = SmallJob(3);
    std::ofstream(folder_->path() + "/base.json") << rpc::ToJsonText(spec);
    std::ofstream(folder_->path() + "/job.json")
        << R"({"extends": "base.json", "name": "first day", "evaluation": {"every_steps": 0}})";
    ASSERT_EQ(Titanctl("up --config " + folder_->path() + "/cluster.json"), 0) << output_;
  }
  static void TearDownTestSuite() {
    Titanctl("down");
    EXPECT_EQ(Titanctl("status"), 5) << output_;
    delete folder_;
    folder_ = nullptr;
  }

  // Standard output goes to output_, errors to errors_.
  static int Titanctl(const std::string& arguments, const std::string& input = "/dev/null") {
    const std::string errors = folder_->path() + "/stderr";
    // The options of the cluster's folder fit every command that is tested here but `completion`.
    const std::string line = std::string(TITAN_BINARY_DIR) + "/bin/titanctl " + arguments +
                             " --data " + folder_->path() + "/run 2>" + errors + " <" + input;
    FILE* pipe = popen(line.c_str(), "r");
    output_.clear();
    char buffer[4096];
    while (const size_t n = fread(buffer, 1, sizeof(buffer), pipe)) output_.append(buffer, n);
    const int status = pclose(pipe);
    std::ifstream in(errors);
    errors_.assign(std::istreambuf_iterator<char>(in), {});
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  static json Json(const std::string& arguments) {
    EXPECT_EQ(Titanctl(arguments + " -o json"), 0) << errors_;
    return json::parse(output_, nullptr, false);
  }
  static std::string Path(const std::string& name) { return folder_->path() + "/" + name; }

  static inline TestFolder* folder_ = nullptr;
  static inline std::string output_, errors_;
};

TEST_F(CliTest, AJobOnUploadedDataFromSubmitToReport) {
  ASSERT_EQ(Titanctl("data upload " + SmallDataFile()), 0) << errors_;
  const std::string id = output_.substr(0, 32);
  EXPECT_NE(errors_.find("48 rows"), std::string::npos) << errors_;
  EXPECT_TRUE(Json("data upload " + SmallDataFile())["existed"].get<bool>());
  EXPECT_EQ(Json("data list")["data"].size(), 1u) << output_;

  const std::string job = "submit " + Path("job.json") + " --set data.id=" + id;
  EXPECT_EQ(Titanctl(job + " --set model.max_sequence_tokens=17"), 2);  // a line's fault
  EXPECT_NE(errors_.find("--set data.id=" + id + ": data.id: data " + id + ":1: prompt: has "),
            std::string::npos)
      << errors_;
  ASSERT_EQ(Titanctl(job + " --check"), 0) << errors_;
  EXPECT_NE(output_.find("48 rows, the longest prompt has"), std::string::npos) << output_;
  const json resolved = Json(job + " --print_config");
  EXPECT_EQ(resolved["config"]["data"]["id"], id);
  EXPECT_EQ(resolved["origins"]["data.id"], "--set data.id=" + id);
  EXPECT_EQ(resolved["origins"]["name"], Path("job.json") + ":1:34") << resolved["origins"]["name"];
  EXPECT_EQ(resolved["origins"]["training.beta1"], "default");
  EXPECT_EQ(Json("list")["jobs"].size(), 0u);  // only looked at

  std::ofstream(Path("more.jsonl")) << R"({"id": "a", "prompt": "1 + 1?", "answer": 2})"
                                    << "\n";
  ASSERT_EQ(Titanctl("data upload " + Path("more.jsonl")), 0) << errors_;
  const std::string more = output_.substr(0, 32);
  ASSERT_EQ(Titanctl("data rm " + more), 0) << errors_;
  EXPECT_EQ(output_, more + " (more.jsonl): deleted, 0.0 KiB freed\n");
  EXPECT_EQ(Titanctl("data rm " + more), 7);
  EXPECT_NE(errors_.find("no data '" + more + "' is stored here"), std::string::npos) << errors_;
  EXPECT_EQ(Json("data list")["data"].size(), 1u) << output_;

  ASSERT_EQ(Titanctl(job + " -w"), 0) << output_ << errors_;
  EXPECT_NE(output_.find("job job-1: SUCCEEDED"), std::string::npos) << output_;
  EXPECT_NE(output_.find("step   2 (3/3)"), std::string::npos) << output_;

  const json listed = Json("list");
  ASSERT_EQ(listed["jobs"].size(), 1u);
  EXPECT_EQ(listed["jobs"][0]["state"], "JOB_STATE_SUCCEEDED");
  EXPECT_EQ(Json("get job-1")["spec"]["name"], "first day");
  EXPECT_EQ(Titanctl("get job-1"), 0);
  EXPECT_NE(output_.find("steps       3 of 3"), std::string::npos) << output_;
  EXPECT_EQ(Titanctl("watch job-1 -o json"), 0);  // events again, one a line
  EXPECT_NE(output_.find("\"step_done\""), std::string::npos) << output_;

  ASSERT_EQ(Titanctl("rollouts job-1 --step 2 --limit 100 -o json"), 0) << errors_;
  std::istringstream lines(output_);
  size_t groups = 0;
  for (std::string line; std::getline(lines, line); ++groups) {
    const json group = json::parse(line);
    EXPECT_EQ(group["step"], 2);
    EXPECT_EQ(group["version"], 1);
    EXPECT_FALSE(group["prompt"].get<std::string>().empty());
    ASSERT_EQ(group["samples"].size(), 4u);
    for (const json& sample : group["samples"]) {
      ASSERT_EQ(sample["token_ids"].size(), sample["logprobs"].size());
      ASSERT_EQ(sample["token_ids"].size(), sample["token_texts"].size());
      EXPECT_EQ(sample["token_ids"].size(), sample["num_tokens"].get<size_t>());
      EXPECT_TRUE(sample["scored"].get<bool>());
      for (const json& logprob : sample["logprobs"]) EXPECT_LE(logprob.get<double>(), 0);
    }
  }
  EXPECT_EQ(groups, 4u);
  EXPECT_EQ(Titanctl("rollouts job-1 --group 0x0000000001000200 --limit 5"), 0) << errors_;
  EXPECT_NE(output_.find("group 0x0000000001000200  step 1  slot 2  candidate 0  version 0"),
            std::string::npos)
      << output_;
  EXPECT_NE(output_.find("LOG-PROB"), std::string::npos) << output_;
  EXPECT_EQ(Titanctl("rollouts job-1 --step 99"), 7);

  ASSERT_EQ(Titanctl("report job-1 --out " + Path("report.html")), 0) << errors_;
  std::ifstream in(Path("report.html"));
  const std::string html(std::istreambuf_iterator<char>(in), {});
  EXPECT_NE(html.find("<h3>Step 2</h3>"), std::string::npos);
  EXPECT_NE(html.find("first day"), std::string::npos);

  const json metrics = Json("metrics orchestrator --name steps_total");
  ASSERT_EQ(metrics.size(), 1u) << output_;
  EXPECT_EQ(metrics[0]["value"], 3.0);
  std::set<std::string> daemons;
  for (const json& row : Json("metrics")) daemons.insert(row["daemon"]);
  EXPECT_EQ(daemons.size(), 6u) << output_;
  EXPECT_EQ(Titanctl("logs orchestrator -n 0"), 0);
  EXPECT_NE(output_.find("step_done"), std::string::npos) << output_;
  EXPECT_EQ(Titanctl("logs trianer"), 7);
  EXPECT_NE(errors_.find("did you mean 'trainer'?"), std::string::npos) << errors_;
}

TEST_F(CliTest, AStartInterruptedAtItsEndSaysWhetherTheClusterRuns) {
  const std::string folder = Path("interrupted");
  const std::string titanctl = std::string(TITAN_BINARY_DIR) + "/bin/titanctl";
  // `up` stands still until the supervisor has reported that all is ready, and finds both then;
  // which it sees first is open, but what it says must hold.
  std::ofstream(Path("interrupt.sh")) << titanctl << " up --data " << folder << R"( 2>&1 & up=$!
    appears() { for i in $(seq 6000); do [ -e "$1" ] && return; sleep 0.01; done; }
    appears )" << folder << R"(/supervisor.json; kill -STOP $up
    appears )" << folder << R"(/endpoints.json; sleep 0.5
    kill -TERM $up; kill -CONT $up; wait $up)";
  FILE* pipe = popen(("bash " + Path("interrupt.sh")).c_str(), "r");
  std::string text;
  for (int c = fgetc(pipe); c != EOF; c = fgetc(pipe)) text.push_back(static_cast<char>(c));
  const int code = WEXITSTATUS(pclose(pipe));
  const bool interrupted = text.find("interrupted; the cluster was not started") != text.npos;
  EXPECT_EQ(code, interrupted ? 130 : 0) << text;
  EXPECT_EQ(text.find("running") == text.npos, interrupted) << text;
  const int status = std::system((titanctl + " status --data " + folder).c_str());
  EXPECT_EQ(WEXITSTATUS(status), interrupted ? 5 : 0);
  EXPECT_EQ(std::system((titanctl + " down --data " + folder).c_str()), 0);
}

TEST_F(CliTest, ChatAnswersFromARunningJobAndSaysWhatIsHeld) {
  ASSERT_EQ(Titanctl("submit " + Path("job.json") + " --set schedule.steps=100000 -o json"), 0)
      << errors_;
  const std::string job = json::parse(output_)["job_id"];
  std::string first;
  for (int i = 0; i < 600 && first.empty(); ++i) {
    if (Titanctl("chat " + job +
                 " --message 'What is 1 + 2?' --seed 4 --max_new_tokens 8 -o json") == 0) {
      first = output_;
    } else {
      ASSERT_NE(errors_.find("fix: "), std::string::npos) << errors_;  // not yet: and what to do
      usleep(50'000);
    }
  }
  ASSERT_FALSE(first.empty()) << errors_;
  const json part = json::parse(first.substr(0, first.find('\n')), nullptr, false);
  EXPECT_TRUE(part.contains("version")) << first;
  EXPECT_EQ(Titanctl("chat " + job + " --version 999999 --message x"), 7);
  EXPECT_NE(errors_.find("versions that are held now"), std::string::npos) << errors_;
  // A job that waits for this one has nothing to chat with, and says so at once.
  ASSERT_EQ(Titanctl("submit " + Path("job.json") + " -o json"), 0) << errors_;
  const std::string waiting = json::parse(output_)["job_id"];
  EXPECT_EQ(Titanctl("chat " + waiting + " --message x"), 1);
  EXPECT_NE(errors_.find("is QUEUED"), std::string::npos) << errors_;
  ASSERT_EQ(Titanctl("cancel " + waiting), 0) << errors_;
  const json versions = Json("weights ls " + job);
  ASSERT_FALSE(versions.empty());
  // The newest may be retired while it is read; the next one is there then.
  int verified = -1;
  for (int i = 0; i < 20 && verified != 0; ++i) verified = Titanctl("weights verify " + job);
  EXPECT_EQ(verified, 0) << errors_;
  EXPECT_NE(output_.find("have the recorded digest"), std::string::npos) << output_;
  int shown = -1;
  for (int i = 0; i < 20 && shown != 0; ++i) shown = Titanctl("weights show " + job + " -o json");
  ASSERT_EQ(shown, 0) << errors_;
  EXPECT_EQ(json::parse(output_, nullptr, false)["config"]["hidden_size"], 512);
  // Exported and imported again, the weights are the same to the last bit.
  int exported = -1;
  const std::string folder = Path("exported");
  for (int i = 0; i < 20 && exported != 0; ++i) {
    exported = Titanctl("weights export " + job + " --to " + folder + " -o json");
  }
  ASSERT_EQ(exported, 0) << errors_;
  const std::string digest = json::parse(output_, nullptr, false)["weights_digest"];
  EXPECT_EQ(Json("weights import " + folder)["weights_digest"], digest);
  // The newest in memory is that version, or one that was trained meanwhile.
  int compared = -1;
  for (int i = 0; i < 20 && compared != 0 && compared != 1; ++i) {
    compared = Titanctl("weights diff " + job + " " + folder + " -o json");
  }
  const json difference = json::parse(output_, nullptr, false);
  EXPECT_EQ(difference["equal"], compared == 0) << errors_;
  EXPECT_TRUE(difference["a"].get<std::string>().ends_with(" of " + job)) << difference["a"];
  for (const json& tensor : difference["tensors"]) EXPECT_TRUE(tensor.contains("rms")) << tensor;
  EXPECT_EQ(Titanctl("weights export " + job + " --to " + folder), 1);
  EXPECT_NE(errors_.find("not an empty folder"), std::string::npos) << errors_;
  EXPECT_EQ(Titanctl("weights import " + SmallDataFile()), 2);
  EXPECT_EQ(Titanctl("weights show " + job + "@999999"), 7);
  EXPECT_EQ(Titanctl("weights show " + job + "@x"), 2);
  ASSERT_EQ(Titanctl("cancel " + job + " --reason 'seen enough'"), 0) << errors_;
  EXPECT_EQ(Titanctl("watch " + job), 4) << output_;
  EXPECT_NE(output_.find("CANCELLED (seen enough)"), std::string::npos) << output_;
  EXPECT_EQ(Titanctl("chat " + job + " --message x"), 1);
  EXPECT_NE(errors_.find("is CANCELLED"), std::string::npos) << errors_;
  EXPECT_EQ(Titanctl("chat " + job), 1);  // before anything is typed
  EXPECT_NE(errors_.find("is CANCELLED"), std::string::npos) << errors_;
}

// "<section> <name> <type> <help>" of each metric. A section is a program, or "every worker".
std::set<std::string> DocumentedMetrics() {
  std::set<std::string> rows;
  std::ifstream in(TITAN_SOURCE_DIR "/docs/metrics.md");
  std::string section;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("## ")) section = line.substr(3, line.find(':') - 3);
    if (!line.starts_with("| `titan_")) continue;
    std::vector<std::string> cells;
    std::istringstream parts(line);
    for (std::string cell; std::getline(parts, cell, '|');) {
      const size_t begin = cell.find_first_not_of(' ');
      cells.push_back(begin == std::string::npos
                          ? ""
                          : cell.substr(begin, cell.find_last_not_of(' ') + 1 - begin));
    }
    const std::string name = cells[1].substr(1, cells[1].size() - 2);
    rows.insert(section + " " + name + " " + cells[2] + " " + cells[4]);
  }
  return rows;
}

TEST_F(CliTest, MetricsPageEqualsWhatTheDaemonsExpose) {
  std::set<std::string> exposed;
  for (const std::string daemon :
       {"orchestrator", "generator-0", "trainer", "weightstore", "reward"}) {
    ASSERT_EQ(Titanctl("metrics " + daemon + " --raw"), 0) << errors_;
    const std::string program =
        "titan-" + (daemon == "generator-0" ? std::string("generator") : daemon);
    std::istringstream lines(output_);
    std::string help;
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("# HELP ")) help = line.substr(line.find(' ', 7) + 1);
      if (!line.starts_with("# TYPE ")) continue;
      const std::string name = line.substr(7, line.rfind(' ') - 7);
      const bool shared = name.starts_with("titan_worker_");
      exposed.insert((shared ? "every worker" : program) + " " + name + " " +
                     line.substr(line.rfind(' ') + 1) + " " + help);
    }
  }
  std::string differences;
  const std::set<std::string> documented = DocumentedMetrics();
  for (const std::string& row : exposed) {
    if (!documented.contains(row)) differences += "not in docs/metrics.md: " + row + "\n";
  }
  for (const std::string& row : documented) {
    if (!exposed.contains(row)) differences += "no longer exposed: " + row + "\n";
  }
  EXPECT_EQ(differences, "");
}

TEST_F(CliTest, WhatIsWrongIsRefusedByNameAndLeavesNothing) {
  std::ofstream(Path("bad.jsonl"))
      << "{\"id\": 1, \"prompt\": \"a\"}\n{\"id\": 2, \"prompt\": 3}\n";
  EXPECT_EQ(Titanctl("data upload " + Path("bad.jsonl")), 2);
  EXPECT_NE(errors_.find("titanctl: " + Path("bad.jsonl") + ":2: prompt"), std::string::npos)
      << errors_;
  std::ofstream(Path("empty.jsonl")) << "";
  EXPECT_EQ(Titanctl("data upload " + Path("empty.jsonl")), 2);
  EXPECT_NE(errors_.find("empty.jsonl"), std::string::npos) << errors_;
  std::ofstream(Path("bad.json")) << "{\"extends\": \"base.json\",\n"
                                  << " \"training\": {\"learning_rate\": -1}}";
  EXPECT_EQ(Titanctl("submit " + Path("bad.json")), 2);
  EXPECT_NE(errors_.find("bad.json:2:32: training.learning_rate: is -1"), std::string::npos)
      << errors_;
  EXPECT_EQ(Titanctl("submit " + Path("bad.json") + " --check"), 2);
  EXPECT_EQ(Titanctl("submit " + Path("job.json") + " --set schedule.groups_per_stp=1"), 2);
  EXPECT_NE(errors_.find("did you mean \"groups_per_step\"?"), std::string::npos) << errors_;
  EXPECT_EQ(Titanctl("submit " + Path("job.json") + " --set data.id=zz"), 2);
  EXPECT_NE(errors_.find("data.id"), std::string::npos) << errors_;
  EXPECT_EQ(
      Titanctl("submit " + Path("job.json") + " --set data.id=00000000000000000000000000000000"),
      2);
  // The same fault has one code and one text, however it is found.
  std::filesystem::create_directories(Path("no_model"));
  for (const std::string& model :
       {std::string("model.id=nobody"), "model.path=" + Path("no_model")}) {
    const std::string job = "submit " + Path("job.json") + " --set " + model;
    EXPECT_EQ(Titanctl(job), 2);
    const std::string said = errors_;
    EXPECT_EQ(Titanctl(job + " --check"), 2);
    EXPECT_EQ(said.substr(0, said.find('\n')), errors_.substr(0, errors_.find('\n')));
    EXPECT_NE(errors_.find("--set " + model + ": model."), std::string::npos) << errors_;
  }
  EXPECT_EQ(Titanctl("get job-99"), 7);
  // What only a reward service knows, before anything is queued.
  for (const char* check : {"", " --check"}) {
    const std::string job = "submit " + Path("job.json") + check;
    EXPECT_EQ(Titanctl(job + " --set reward.grader=regex_mach"), 2);
    EXPECT_NE(errors_.find("--set reward.grader=regex_mach: reward.grader: no registered reward "
                           "service has the grader \"regex_mach\"; valid: "),
              std::string::npos)
        << errors_;
    EXPECT_EQ(Titanctl(job + " --set 'reward.grader_parameters_json={\"patern\": \"x\"}'"), 2);
    EXPECT_NE(errors_.find("reward.grader_parameters_json: "), std::string::npos) << errors_;
    std::ofstream rows(Path("late.jsonl"));
    for (int i = 1; i <= 40; ++i) {
      rows << "{\"id\": " << i << ", \"prompt\": \"a\", \"answer\": \"" << (i < 40 ? "1" : "many")
           << "\"}\n";
    }
    rows.close();
    EXPECT_EQ(Titanctl(job + " --set data.path=" + Path("late.jsonl") +
                       " --set reward.grader=numeric_match"
                       " --set 'reward.grader_parameters_json={}'"),
              2);
    EXPECT_NE(errors_.find("data.path: line 40: the grader numeric_match cannot score this row: "),
              std::string::npos)
        << errors_;
  }
  for (const json& job : Json("list")["jobs"]) EXPECT_NE(job["state"], "JOB_STATE_QUEUED");
}

}  // namespace
}  // namespace titan::e2e
