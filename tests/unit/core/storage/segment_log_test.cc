// SPDX-License-Identifier: Apache-2.0
//
// Goal: what was appended and synced is read back, and a damaged or torn record is told from a good
// one.
#include "core/storage/segment_log.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace titan::storage {
namespace {

class SegmentLogTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "segment_log_" + std::to_string(getpid()) + "_" +
              ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::unique_ptr<SegmentLog> Open(SegmentLogOptions options = {}) {
    auto log = SegmentLog::Open(folder_, options);
    EXPECT_TRUE(log.ok()) << log.status();
    return *std::move(log);
  }
  std::string folder_;
};

TEST(Crc32cTest, KnownAnswers) {
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(Crc32c(""), 0u);
}

TEST_F(SegmentLogTest, ReadsBackWhatWasAppended) {
  auto log = Open();
  std::vector<std::pair<SegmentPlace, std::string>> written;
  for (int i = 0; i < 100; ++i) {
    const std::string payload(static_cast<size_t>(i * 7), static_cast<char>('a' + i % 26));
    const auto place = log->Append(payload);
    ASSERT_TRUE(place.ok());
    written.emplace_back(*place, payload);
  }
  ASSERT_TRUE(log->Sync().ok());
  for (const auto& [place, payload] : written) EXPECT_EQ(log->Read(place).value(), payload);
  log = Open();
  for (const auto& [place, payload] : written) EXPECT_EQ(log->Read(place).value(), payload);
  // A new file is begun; the old ones are left alone.
  EXPECT_GT(log->Append("x")->segment, written.back().first.segment);
}

TEST_F(SegmentLogTest, StartsANewFileWhenOneIsFull) {
  auto log = Open({.max_segment_bytes = 100});
  const auto a = log->Append(std::string(90, 'a'));
  const auto b = log->Append(std::string(90, 'b'));
  const auto c = log->Append(std::string(90, 'c'));
  EXPECT_EQ(a->segment, 1u);
  EXPECT_EQ(b->segment, 1u);  // 98 bytes were not yet full
  EXPECT_EQ(c->segment, b->segment + 1);
  EXPECT_EQ(log->Read(*b).value(), std::string(90, 'b'));
}

TEST_F(SegmentLogTest, ATornTailHarmsOnlyItself) {
  auto log = Open();
  const auto good = log->Append("whole");
  const auto torn = log->Append("this record will be cut");
  ASSERT_TRUE(log->Sync().ok());
  log.reset();
  const std::string path = folder_ + "/00000001.seg";
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 3);
  log = Open();
  EXPECT_EQ(log->Read(*good).value(), "whole");
  EXPECT_EQ(log->Read(*torn).status().code(), StatusCode::kDataLoss);
  const auto next = log->Append("after");
  EXPECT_EQ(log->Read(*next).value(), "after");
  EXPECT_EQ(log->Read(*torn).status().code(), StatusCode::kDataLoss);
}

TEST_F(SegmentLogTest, EveryFlippedBitIsFound) {
  auto log = Open();
  const auto place = log->Append("payload");
  ASSERT_TRUE(log->Sync().ok());
  const std::string path = folder_ + "/00000001.seg";
  const auto size = static_cast<int>(std::filesystem::file_size(path));
  for (int at = 0; at < size; ++at) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(at);
    const char old = static_cast<char>(file.get());
    file.seekp(at);
    file.put(static_cast<char>(old ^ 0x10));
    file.flush();
    EXPECT_EQ(log->Read(*place).status().code(), StatusCode::kDataLoss) << at;
    file.seekp(at);
    file.put(old);
  }
  EXPECT_EQ(log->Read(*place).value(), "payload");
}

TEST_F(SegmentLogTest, PlacesThatDoNotExistAreErrors) {
  auto log = Open();
  EXPECT_EQ(log->Read({7, 0, 1, 1}).status().code(), StatusCode::kNotFound);
  ASSERT_TRUE(log->Append("x").ok());
  EXPECT_EQ(log->Read({1, uint64_t{1} << 63, 1, 1}).status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(log->Read({1, 0, 0xffffffffu, 1}).status().code(), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace titan::storage
