// SPDX-License-Identifier: Apache-2.0
// Goal: files are replaced whole or not at all, errors name the file, locks are exclusive, and an
// endpoint file belongs to who wrote it.
#include "core/runtime/files.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include "core/runtime/endpoint.h"

namespace titan::runtime {
namespace {

class FilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/titan_files_test_XXXXXX";
    ASSERT_NE(mkdtemp(pattern), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string folder_;
};

TEST_F(FilesTest, WriteReplacesTheContentAndLeavesNothingElse) {
  const std::string path = folder_ + "/a.json";
  ASSERT_TRUE(WriteFileAtomically(path, "one").ok());
  ASSERT_TRUE(WriteFileAtomically(path, "two").ok());
  EXPECT_EQ(*ReadFile(path), "two");
  int entries = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) entries += entry.exists();
  EXPECT_EQ(entries, 1);
}

TEST_F(FilesTest, ErrorsNameTheFileAndTheBound) {
  EXPECT_EQ(ReadFile(folder_ + "/none").status().code(), StatusCode::kNotFound);
  ASSERT_TRUE(WriteFileAtomically(folder_ + "/big", std::string(100, 'x')).ok());
  EXPECT_EQ(ReadFile(folder_ + "/big", 99).status().code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(ReadFile(folder_ + "/big", 100).ok());
  EXPECT_EQ(ReadFile(folder_ + "/big", 99).status().message(),
            "'" + folder_ + "/big' has more than 99 bytes");
  std::filesystem::resize_file(folder_ + "/big", (1 << 20) + 1);
  EXPECT_EQ(ReadFile(folder_ + "/big", 1 << 20).status().message(),
            "'" + folder_ + "/big' has more than 1 MiB");
  EXPECT_FALSE(WriteFileAtomically(folder_ + "/no/such/folder", "x").ok());
}

TEST_F(FilesTest, LockIsExclusiveAndEndsWithItsHolder) {
  const std::string path = folder_ + "/lock";
  EXPECT_FALSE(FileLock::IsHeld(path));
  {
    auto held = FileLock::Acquire(path);
    ASSERT_TRUE(held.ok());
    EXPECT_TRUE(FileLock::IsHeld(path));
    EXPECT_EQ(FileLock::Acquire(path).status().code(), StatusCode::kFailedPrecondition);
  }
  EXPECT_FALSE(FileLock::IsHeld(path));
  EXPECT_TRUE(FileLock::Acquire(path).ok());
}

TEST_F(FilesTest, EndpointFileBelongsToItsIncarnation) {
  const Endpoint first{"generator-0", "generator",   "aa",         12,
                       "/bin/x",      "127.0.0.1:1", "127.0.0.1:2"};
  ASSERT_TRUE(WriteEndpoint(folder_, first).ok());
  EXPECT_EQ(*ReadEndpoint(folder_, "generator-0"), first);
  Endpoint second = first;
  second.incarnation = "bb";
  RemoveEndpoint(folder_, second);  // not its file
  EXPECT_TRUE(ReadEndpoint(folder_, "generator-0").ok());
  RemoveEndpoint(folder_, first);
  EXPECT_EQ(ReadEndpoint(folder_, "generator-0").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(EndpointFromJsonText("{\"worker_id\": 3}").status().code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace titan::runtime
