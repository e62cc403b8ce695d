// SPDX-License-Identifier: Apache-2.0
#include "core/base/nearest_name.h"

#include <gtest/gtest.h>

namespace titan {
namespace {

TEST(NearestNameTest, IsNearOrNothing) {
  EXPECT_EQ(NearestName("max_verions", {"max_versions", "max_running"}), "max_versions");
  EXPECT_EQ(NearestName("selct", {"trim", "select"}), "select");
  EXPECT_EQ(NearestName("submti", {"status", "submit"}), "submit");  // two edits
  EXPECT_EQ(NearestName("q", {"max_versions"}), "");
  EXPECT_EQ(NearestName("xyzw", {"trim", "select"}), "");
  EXPECT_EQ(NearestName("", {}), "");
}

TEST(NearestNameTest, OfSeveralTheFirst) { EXPECT_EQ(NearestName("b", {"ab", "bc"}), "ab"); }

TEST(NearestNameTest, LongNamesAreBounded) {
  EXPECT_EQ(NearestName(std::string(1u << 20, 'a'), {"trim"}), "");
}

}  // namespace
}  // namespace titan
