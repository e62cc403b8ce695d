// SPDX-License-Identifier: Apache-2.0
// Goal: a wait is told of within 5 s, then once a minute, and anew after it was over.
#include "services/rpc/wait_notice.h"

#include <gtest/gtest.h>

#include <vector>

namespace titan::rpc {
namespace {

using std::chrono::milliseconds;

TEST(WaitNoticeTest, SoonThenOnceAMinute) {
  WaitNotice notice;
  const Instant begin = std::chrono::hours(7);
  std::vector<int64_t> told;
  for (int tenth = 0; tenth < 1300; ++tenth) {
    const Instant now = begin + milliseconds(100) * tenth;
    if (notice.Due(now)) told.push_back(notice.Waited(now).count());
  }
  EXPECT_EQ(told, (std::vector<int64_t>{2, 62, 122}));
  notice.Over();
  EXPECT_FALSE(notice.Due(begin + std::chrono::hours(1)));
  EXPECT_TRUE(notice.Due(begin + std::chrono::hours(1) + milliseconds(2500)));
  EXPECT_EQ(WaitNotice().Waited(begin).count(), 0);
}

}  // namespace
}  // namespace titan::rpc
