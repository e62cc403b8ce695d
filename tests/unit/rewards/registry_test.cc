// SPDX-License-Identifier: Apache-2.0
// Goal: graders are made by name with checked parameters; every error names the field and a near
// name.
#include "rewards/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "rewards/parameters.h"

namespace titan::rewards {
namespace {

using ::testing::HasSubstr;

std::string ErrorOf(std::string_view name, const char* parameters) {
  const auto made = MakeGrader(name, Json::parse(parameters));
  EXPECT_FALSE(made.ok()) << name << " " << parameters;
  return made.ok() ? "" : MessageOf(made.status());
}

TEST(Registry, ListsEveryGraderInOrderAndMakesItWithDefaults) {
  std::string before;
  for (const GraderInfo& info : ListGraders()) {
    EXPECT_LT(before, info.name);
    before = info.name;
    EXPECT_TRUE(info.deterministic);
    EXPECT_GE(info.version, 1);
    EXPECT_FALSE(info.summary.empty());
    Json parameters;
    if (info.name == "regex_match") parameters["pattern"] = "x";
    const auto made = MakeGrader(info.name, parameters);
    ASSERT_TRUE(made.ok()) << made.status();
    EXPECT_EQ((*made)->info().name, info.name);
    // Every documented parameter is known, and nothing else is.
    for (const auto& [name, meaning] : info.parameters) {
      Json wrong = parameters;
      wrong[name] = Json::array();
      const auto refused = MakeGrader(info.name, wrong);
      ASSERT_FALSE(refused.ok());
      EXPECT_THAT(MessageOf(refused.status()), HasSubstr(info.name + "." + name + ": "));
    }
  }
}

TEST(Registry, ErrorsNameTheFieldAndTheNearestName) {
  EXPECT_THAT(ErrorOf("numeric_mach", "{}"), HasSubstr("'numeric_match'"));
  EXPECT_THAT(ErrorOf("zzz", "{}"), HasSubstr("known are exact_match numeric_match regex_match"));
  EXPECT_THAT(ErrorOf("numeric_match", R"j({"number": "integer"})j"),
              HasSubstr("did you mean 'numbers'"));
  EXPECT_THAT(
      ErrorOf("numeric_match", R"j({"numbers": "integr"})j"),
      HasSubstr(
          "numeric_match.numbers: 'integr' is none of decimal, integer; did you mean 'integer'"));
  EXPECT_THAT(ErrorOf("numeric_match", R"j({"correct": "1"})j"),
              HasSubstr("numeric_match.correct"));
  EXPECT_THAT(ErrorOf("numeric_match", R"j({"correct": null})j"),
              HasSubstr("numeric_match.correct"));
  EXPECT_THAT(ErrorOf("exact_match", R"j({"trim": 1})j"), HasSubstr("exact_match.trim"));
  EXPECT_THAT(ErrorOf("exact_match", "[]"), HasSubstr("object"));
  EXPECT_THAT(ErrorOf("regex_match", "{}"), HasSubstr("regex_match.pattern: is required"));
  EXPECT_THAT(ErrorOf("regex_match", R"j({"pattern": "a("})j"),
              HasSubstr("regex_match.pattern: at byte 2"));
  EXPECT_THAT(ErrorOf("regex_match", R"j({"pattern": "(*LIMIT_MATCH=1)a"})j"),
              HasSubstr("regex_match.pattern"));
  EXPECT_THAT(ErrorOf("regex_match", R"j({"pattern": "a(?C1)"
})j"),
              HasSubstr("regex_match.pattern"));
  Json large;
  large["pattern"] = std::string(5000, 'a');
  EXPECT_FALSE(MakeGrader("regex_match", large).ok());
}

}  // namespace
}  // namespace titan::rewards
