// SPDX-License-Identifier: Apache-2.0
// Goal: a log line is one JSON object with the promised keys; levels filter; odd bytes stay valid
// JSON.
#include "core/runtime/log.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace titan::runtime {
namespace {

class LogTest : public ::testing::Test {
 protected:
  void SetUp() override {
    InitLog({.level = LogLevel::kInfo,
             .worker = "generator-0",
             .clock = &clock_,
             .write = [this](std::string_view line) { lines_.emplace_back(line); }});
  }
  void TearDown() override { InitLog({}); }

  ManualClock clock_{1'700'000'000'123};
  std::vector<std::string> lines_;
};

TEST_F(LogTest, LineIsOneJsonObjectWithTimeLevelWorkerEventAndFields) {
  TITAN_LOG(kInfo, "version_loaded", {"version", uint64_t{18446744073709551615u}}, {"delta", -3},
            {"share", 0.5}, {"ok", true}, {"name", std::string("a\"b\n")});
  ASSERT_EQ(lines_.size(), 1u);
  EXPECT_EQ(lines_[0],
            "{\"time\":\"2023-11-14T22:13:20.123Z\",\"level\":\"info\",\"worker\":\"generator-0\","
            "\"event\":\"version_loaded\",\"version\":18446744073709551615,\"delta\":-3,"
            "\"share\":0.5,\"ok\":true,\"name\":\"a\\\"b\\n\"}");
}

TEST_F(LogTest, LevelsBelowTheLimitAreNotWritten) {
  TITAN_LOG(kDebug, "detail");
  EXPECT_TRUE(lines_.empty());
  SetLogLevel(LogLevel::kDebug);
  TITAN_LOG(kDebug, "detail");
  EXPECT_EQ(lines_.size(), 1u);
  SetLogLevel(LogLevel::kError);
  TITAN_LOG(kWarning, "odd");
  EXPECT_EQ(lines_.size(), 1u);
}

TEST_F(LogTest, BytesThatAreNoTextAndNumbersThatAreNoneStayJson) {
  TITAN_LOG(kError, "broken", {"bytes", std::string("\xff\xfe")},
            {"nan", std::numeric_limits<double>::quiet_NaN()}, {"status", NotFound("no such run")});
  ASSERT_EQ(lines_.size(), 1u);
  const auto parsed = nlohmann::json::parse(lines_[0], nullptr, false);
  ASSERT_TRUE(parsed.is_object());
  EXPECT_TRUE(parsed["nan"].is_null());
  EXPECT_EQ(parsed["status"], "NOT_FOUND: no such run");
}

TEST(LogLevelTest, NamesAreParsedStrictly) {
  EXPECT_EQ(*ParseLogLevel("warning"), LogLevel::kWarning);
  EXPECT_EQ(ParseLogLevel("warn").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(ParseLogLevel("").status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace titan::runtime
