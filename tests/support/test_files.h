// SPDX-License-Identifier: Apache-2.0
//
// Files for tests: a folder of its own per test, removed at the end; reading and writing of bytes;
// the small input files of tests/cases.
#ifndef TITAN_TESTS_SUPPORT_TEST_FILES_H_
#define TITAN_TESTS_SUPPORT_TEST_FILES_H_

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace titan {

class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "titan-test-XXXXXX").string();
    EXPECT_NE(mkdtemp(pattern.data()), nullptr);
    path_ = pattern;
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  std::string path(const std::string& leaf = "") const { return (path_ / leaf).string(); }

 private:
  std::filesystem::path path_;
};

// Writes the bytes and returns the path.
inline std::string WriteBytes(const std::string& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << bytes;
  EXPECT_TRUE(out.good()) << path;
  return path;
}

inline std::string ReadBytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  std::ostringstream bytes;
  bytes << in.rdbuf();
  return bytes.str();
}

// A file of tests/cases, for example "gguf/pad_wrap.gguf".
inline std::string CasePath(const std::string& name) {
  return (std::filesystem::path(TITAN_SOURCE_DIR) / "tests" / "cases" / name).string();
}

}  // namespace titan

#endif  // TITAN_TESTS_SUPPORT_TEST_FILES_H_
