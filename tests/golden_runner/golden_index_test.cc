// SPDX-License-Identifier: Apache-2.0
// Goal: no golden file is forgotten. Every file with cases under the golden folder has a runner, or
// is listed as skipped by name. Method: the build writes the names that runners registered
// (TITAN_GOLDEN_FILES) into a list; this test compares it with what lies in the folder. In the
// default folder no file may be without a runner.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "tests/support/golden.h"

namespace titan {
namespace {

std::set<std::string> FilesWithRunner() {
  std::istringstream list(
      golden::ReadTestFile(std::filesystem::path(TITAN_BINARY_DIR) / "golden_files.txt"));
  std::set<std::string> names;
  for (std::string name; std::getline(list, name);) {
    if (!name.empty()) names.insert(name);
  }
  return names;
}

// Files of the golden schema below the folder, sorted. Others (weights, configurations, a
// tokenizer) belong to a case file.
std::set<std::string> FilesWithCases() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(golden::GoldenDir())) {
    if (entry.path().extension() != ".json" || !entry.is_regular_file()) continue;
    const auto root = nlohmann::json::parse(golden::ReadTestFile(entry.path()), nullptr, false);
    if (!root.is_object() || !root.contains("cases")) continue;
    names.insert(std::filesystem::relative(entry.path(), golden::GoldenDir()).generic_string());
  }
  return names;
}

TEST(GoldenIndex, EveryFileHasARunnerOrIsListed) {
  const std::set<std::string> runners = FilesWithRunner();
  const std::set<std::string> files = FilesWithCases();
  ASSERT_FALSE(runners.empty());
  int num_skipped = 0;
  for (const std::string& name : files) {
    if (runners.contains(name)) continue;
    ++num_skipped;
    std::printf("skipped: %s: no runner covers this kind of file\n", name.c_str());
  }
  std::printf("golden: %zu files, %d without a runner\n", files.size(), num_skipped);
  if (golden::IsDefaultGoldenDir()) {
    EXPECT_EQ(num_skipped, 0) << "the number of files without a runner is locked";
  }
}

}  // namespace
}  // namespace titan
