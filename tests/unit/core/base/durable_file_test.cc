// SPDX-License-Identifier: Apache-2.0
// Goal: a file is whole or not there, whatever fails on the way, and failures name the file with
// the code that fits.
#include "core/base/durable_file.h"

#include <errno.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace titan {
namespace {

namespace fs = std::filesystem;

class DurableFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/titan_durable_XXXXXX";
    ASSERT_NE(mkdtemp(pattern), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string Content(const std::string& name) const {
    std::stringstream text;
    text << std::ifstream(folder_ + "/" + name).rdbuf();
    return text.str();
  }
  int Entries() const {
    int n = 0;
    for (const auto& entry : fs::directory_iterator(folder_)) n += entry.exists();
    return n;
  }
  std::string folder_;
};

// Files of this process have at most `bytes` while it lives: the disk that is full.
class SmallFiles {
 public:
  explicit SmallFiles(rlim_t bytes) {
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit small{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
  }
  ~SmallFiles() {
    setrlimit(RLIMIT_FSIZE, &before_);
    signal(SIGXFSZ, SIG_DFL);
  }

 private:
  rlimit before_{};
};

TEST_F(DurableFileTest, ReplacesWholeOrNotAtAll) {
  const std::string path = folder_ + "/a";
  ASSERT_TRUE(WriteFileAtomically(path, "one").ok());
  ASSERT_TRUE(WriteFileAtomically(path, "two").ok());
  EXPECT_EQ(Content("a"), "two");
  {
    SmallFiles small(2);
    const Status status = WriteFileAtomically(path, "three");
    EXPECT_FALSE(status.ok());
    EXPECT_NE(MessageOf(status).find("cannot write '" + path), std::string::npos) << status;
  }
  EXPECT_EQ(Content("a"), "two");
  EXPECT_EQ(Entries(), 1);
  fs::create_directories(folder_ + "/b/c");
  EXPECT_FALSE(WriteFileAtomically(folder_ + "/b", "x").ok());  // a folder is in the way
  EXPECT_EQ(Entries(), 2);
  EXPECT_EQ(WriteFileAtomically(folder_ + "/no/such", "x").code(), StatusCode::kNotFound);
}

TEST_F(DurableFileTest, ANewFileIsNewAndWhole) {
  const std::string path = folder_ + "/a";
  ASSERT_TRUE(WriteNewFile(path, "one").ok());
  EXPECT_EQ(WriteNewFile(path, "two").code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(Content("a"), "one");
  {
    SmallFiles small(2);
    EXPECT_FALSE(WriteNewFile(folder_ + "/b", "three").ok());
  }
  EXPECT_EQ(Entries(), 1);
  ASSERT_TRUE(RenameDurably(path, folder_ + "/c").ok());
  EXPECT_EQ(Content("c"), "one");
  EXPECT_EQ(RenameDurably(path, folder_ + "/c").code(), StatusCode::kNotFound);
  EXPECT_EQ(Entries(), 1);
  EXPECT_TRUE(SyncFolder(folder_).ok());
  EXPECT_EQ(SyncFolder(folder_ + "/none").code(), StatusCode::kNotFound);
}

TEST_F(DurableFileTest, ErrorsHaveTheCodeThatFits) {
  EXPECT_EQ(SystemError(ENOSPC, "cannot write", "f").code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(SystemError(EACCES, "cannot write", "f").code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(SystemError(EIO, "cannot write", "f").code(), StatusCode::kUnavailable);
  EXPECT_EQ(MessageOf(SystemError(EIO, "cannot write", "f")),
            "cannot write 'f': Input/output error");
}

}  // namespace
}  // namespace titan
