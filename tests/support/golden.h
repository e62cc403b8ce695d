// SPDX-License-Identifier: Apache-2.0
//
// The golden harness: finds the folder of golden vectors, loads a file, runs its cases and keeps
// count of what ran and what was skipped.
//
// Folder: the environment variable TITAN_GOLDEN_DIR, else tests/golden of this repository. A folder
// given by the variable may hold other cases of the same schema, lack files, or hold files and
// kinds of case that no runner covers: such files and cases are listed on stdout as
//   skipped: <file>[/<case>]: <reason>
// and never fail. In the default folder every file must exist, run at least one case, and skip
// exactly the number of cases that the runner states (the lock).
//
// A runner (tests/golden_runner/<area>_golden_test.cc, ctest label `golden`):
//   using golden::GoldenFile;
//   TEST(PhiloxGolden, TenRounds) {
//     GoldenFile file("philox/philox4x32_10.json");
//     file.Run([](const nlohmann::json& c) -> std::string {
//       if (!Covered(c)) return "why this kind of case is not covered";  // counts as skipped
//       EXPECT_EQ(...);                                                  // failures name the case
//       return "";                                                       // counts as run
//     });
//     file.ExpectSkipped(0);
//   }
// and in its tests/cmake/<area>.cmake, so that the index test (golden_index_test) knows that the
// file has a runner; files without one are listed as skipped by that test:
//   titan_test(philox_golden_test LABEL golden SOURCES ... USES core/base LIBS
//   nlohmann_json::nlohmann_json) set_property(GLOBAL APPEND PROPERTY TITAN_GOLDEN_FILES
//   philox/philox4x32_10.json)
//
// Test code, one thread.
#ifndef TITAN_TESTS_SUPPORT_GOLDEN_H_
#define TITAN_TESTS_SUPPORT_GOLDEN_H_

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace titan::golden {

inline bool IsDefaultGoldenDir() {
  const char* folder = std::getenv("TITAN_GOLDEN_DIR");
  return folder == nullptr || folder[0] == '\0';
}

inline std::filesystem::path GoldenDir() {
  if (!IsDefaultGoldenDir()) return std::getenv("TITAN_GOLDEN_DIR");
  return std::filesystem::path(TITAN_SOURCE_DIR) / "tests" / "golden";
}

// The bytes of a file; a test failure and "" if it cannot be read.
inline std::string ReadTestFile(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    ADD_FAILURE() << "cannot read " << path;
    return "";
  }
  std::ostringstream bytes;
  bytes << in.rdbuf();
  return bytes.str();
}

// A number of a golden file: a JSON number, or one of the strings "nan", "inf", "-inf".
inline double GoldenNumber(const nlohmann::json& value) {
  if (value.is_number()) return value.get<double>();
  if (value == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (value == "inf") return std::numeric_limits<double>::infinity();
  if (value == "-inf") return -std::numeric_limits<double>::infinity();
  ADD_FAILURE() << "not a number: " << value.dump();
  return 0;
}

inline std::vector<double> GoldenNumbers(const nlohmann::json& values) {
  std::vector<double> out;
  out.reserve(values.size());
  for (const nlohmann::json& value : values) out.push_back(GoldenNumber(value));
  return out;
}

// One file {what, oracle, ..., "cases": [{"name": ...}, ...]} under GoldenDir().
class GoldenFile {
 public:
  // name: path under the golden folder. A file that is not there fails the test in the default
  // folder and is reported as absent in another one; then Run does nothing.
  explicit GoldenFile(std::string name) : name_(std::move(name)) {
    const std::filesystem::path path = GoldenDir() / name_;
    if (!std::filesystem::exists(path)) {
      if (IsDefaultGoldenDir()) ADD_FAILURE() << "golden file is missing: " << path;
      std::printf("absent: %s\n", name_.c_str());
      return;
    }
    root_ = nlohmann::json::parse(ReadTestFile(path), nullptr, /*allow_exceptions=*/false);
    present_ = root_.is_object() && root_.contains("cases") && root_["cases"].is_array();
    if (!present_) ADD_FAILURE() << name_ << ": not a JSON object with an array \"cases\"";
  }

  bool present() const { return present_; }
  const std::string& name() const { return name_; }
  const nlohmann::json& root() const { return root_; }
  // Path of a file that lies beside this one.
  std::filesystem::path Sibling(const std::string& leaf) const {
    return (GoldenDir() / name_).parent_path() / leaf;
  }

  // Calls run_case(case) for each case in file order; it returns "" if it ran the case, else the
  // reason why cases of this kind are skipped.
  template <typename RunCase>
  void Run(RunCase run_case) {
    if (!present_) return;
    for (const nlohmann::json& c : root_["cases"]) {
      const std::string case_name = c.value("name", "(no name)");
      SCOPED_TRACE(name_ + "/" + case_name);
      const std::string reason = run_case(c);
      if (reason.empty()) {
        ++num_ran_;
      } else {
        ++num_skipped_;
        std::printf("skipped: %s/%s: %s\n", name_.c_str(), case_name.c_str(), reason.c_str());
      }
    }
    std::printf("golden: %s: %d cases run, %d skipped\n", name_.c_str(), num_ran_, num_skipped_);
  }

  // The lock: in the default folder exactly `expected` cases were skipped and at least one ran.
  void ExpectSkipped(int expected) const {
    if (!IsDefaultGoldenDir()) return;
    EXPECT_EQ(num_skipped_, expected) << name_ << ": the number of skipped cases is locked";
    EXPECT_GT(num_ran_, 0) << name_ << ": no case ran";
  }

  int num_ran() const { return num_ran_; }
  int num_skipped() const { return num_skipped_; }

 private:
  std::string name_;
  nlohmann::json root_;
  bool present_ = false;
  int num_ran_ = 0;
  int num_skipped_ = 0;
};

}  // namespace titan::golden

#endif  // TITAN_TESTS_SUPPORT_GOLDEN_H_
