// SPDX-License-Identifier: Apache-2.0
// Goal: each grader gives the value its page promises, faults are typed, and no reply makes it
// slow. Method: tables of replies, hostile ones among them; numbers checked against a second,
// slower reading.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "rewards/numeric_match.h"
#include "rewards/regex_match.h"
#include "rewards/registry.h"

namespace titan::rewards {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Grade Score(std::string_view grader, const char* parameters, std::string completion,
            std::string answer) {
  const auto made = MakeGrader(grader, Json::parse(parameters));
  EXPECT_TRUE(made.ok()) << made.status();
  if (!made.ok()) return Grade::InfraFault("not made");
  Sample sample;
  sample.completion = std::move(completion);
  sample.answer = std::move(answer);
  const Grade grade = (*made)->Score(sample);
  EXPECT_EQ((*made)->Score(sample).value, grade.value);
  return grade;
}

double Value(std::string_view grader, const char* parameters, std::string completion,
             std::string answer) {
  const Grade grade = Score(grader, parameters, std::move(completion), std::move(answer));
  EXPECT_EQ(grade.kind, GradeKind::kOk) << grade.reason;
  EXPECT_EQ(grade.components.size(), 1u);
  return grade.value;
}

constexpr char kInteger[] = R"j({"numbers": "integer"})j";

TEST(NumericMatch, LastIntegerOfTheReply) {
  EXPECT_EQ(Value("numeric_match", kInteger, "3 + 4 is 7.", "7"), 1);
  EXPECT_EQ(Value("numeric_match", kInteger, "3 + 4 is 7. No, 8", "7"), 0);
  EXPECT_EQ(Value("numeric_match", kInteger, "-7", "7"), 0);
  EXPECT_EQ(Value("numeric_match", kInteger, "it is -7!", " -7 "), 1);
  EXPECT_EQ(Value("numeric_match", kInteger, "12-5", "-5"), 1);
  EXPECT_EQ(Value("numeric_match", kInteger, "3.25", "25"), 1);  // integers only: 3 and 25
  EXPECT_EQ(Value("numeric_match", kInteger, "--007", "-7"), 1);
  EXPECT_EQ(Value("numeric_match", kInteger, "-0", "0"), 1);
  EXPECT_EQ(Value("numeric_match", kInteger, "7", "7.0"), 1);
}

TEST(NumericMatch, DecimalsAreExact) {
  EXPECT_EQ(Value("numeric_match", "{}", "0.10", "0.1"), 1);
  EXPECT_EQ(Value("numeric_match", "{}", "3.", "3"), 1);
  EXPECT_EQ(Value("numeric_match", "{}", "9007199254740993", "9007199254740992"), 0);  // one double
  EXPECT_EQ(Value("numeric_match", "{}", "0.1000000000000000055511151231257827", "0.1"), 0);
  EXPECT_EQ(Value("numeric_match", "{}", "1e400", "400"), 1);  // no exponents: 1 and 400
  const std::string huge(100000, '9');
  EXPECT_EQ(Value("numeric_match", "{}", "is " + huge, huge), 1);
  EXPECT_EQ(Value("numeric_match", "{}", "is " + huge + "8", huge + "9"), 0);
  EXPECT_EQ(
      Value("numeric_match", R"j({"select": "first", "correct": 2, "incorrect": -1})j", "1 2", "1"),
      2);
  EXPECT_EQ(
      Value("numeric_match", R"j({"select": "first", "correct": 2, "incorrect": -1})j", "1 2", "2"),
      -1);
}

TEST(NumericMatch, FaultsAreTyped) {
  Grade grade = Score("numeric_match", R"j({"incorrect": -1})j", "no idea", "7");
  EXPECT_EQ(grade.kind, GradeKind::kModelFault);
  EXPECT_EQ(grade.value, -1);
  // Digits of other scripts are not numbers here: Arabic-Indic, full width, superscript.
  for (const char* reply : {"\u0667", "\uff17", "\u00b2", "", "-", "\xff\xfe"}) {
    EXPECT_EQ(Score("numeric_match", "{}", reply, "7").kind, GradeKind::kModelFault) << reply;
  }
  for (const char* answer : {"", "seven", "1,000", "7 8", "0x10", "1e3", "\uff17", ".5", "5."}) {
    EXPECT_EQ(Score("numeric_match", "{}", "7", answer).kind, GradeKind::kInfraFault) << answer;
  }
  EXPECT_EQ(Score("numeric_match", "{}", "7", " ").reason, "the row has no answer");
  EXPECT_EQ(Score("numeric_match", kInteger, "7", "7.5").kind, GradeKind::kInfraFault);
}

// A second reading of the grammar, one character at a time from each start.
std::vector<std::string> SlowNumbers(const std::string& text, bool integers) {
  std::vector<std::string> out;
  const auto digits = [&](size_t i) {
    size_t n = 0;
    while (i + n < text.size() &&
           std::string_view("0123456789").find(text[i + n]) != std::string::npos)
      ++n;
    return n;
  };
  for (size_t i = 0; i < text.size();) {
    size_t length = text[i] == '-' && digits(i + 1) > 0 ? 1 + digits(i + 1) : digits(i);
    if (length > 0 && !integers && i + length < text.size() && text[i + length] == '.') {
      const size_t fraction = digits(i + length + 1);
      if (fraction > 0) length += 1 + fraction;
    }
    if (length > 0) out.push_back(text.substr(i, length));
    i += std::max<size_t>(1, length);
  }
  return out;
}

TEST(NumericMatch, ReadsRandomTextsLikeTheSecondReading) {
  constexpr std::string_view kAlphabet = "0123-..- a9";
  uint64_t state = 1;
  const auto next = [&state] {
    return (state = state * 6364136223846793005u + 1442695040888963407u) >> 33;
  };
  int with_numbers = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (uint64_t i = next() % 12; i > 0; --i) text += kAlphabet[next() % kAlphabet.size()];
    for (const bool integers : {false, true}) {
      const auto found = FindNumbers(text, integers);
      const std::vector<std::string> got(found.begin(), found.end());
      ASSERT_EQ(got, SlowNumbers(text, integers)) << text;
      with_numbers += !got.empty();
    }
  }
  EXPECT_GT(with_numbers, 10000);
}

TEST(NumericMatch, CanonicalSpelling) {
  EXPECT_EQ(CanonicalNumber("+0012.3400"), "12.34");
  EXPECT_EQ(CanonicalNumber("-000.000"), "0");
  EXPECT_EQ(CanonicalNumber("-0.50"), "-0.5");
  for (const char* bad : {"", "-", "+", ".", "1.", ".1", "1.2.3", "1 ", "--1", "1-"}) {
    EXPECT_EQ(CanonicalNumber(bad), "") << bad;
  }
}

TEST(ExactMatch, BytesAndTrimming) {
  EXPECT_EQ(Value("exact_match", "{}", " \t\r\n\v\fParis \n", "Paris"), 1);
  EXPECT_EQ(Value("exact_match", "{}", "Paris", "\nParis"), 1);
  EXPECT_EQ(Value("exact_match", R"j({"trim": false})j", "Paris ", "Paris"), 0);
  EXPECT_EQ(Value("exact_match", R"j({"trim": false})j", "Paris", "Paris"), 1);
  EXPECT_EQ(Value("exact_match", "{}", "paris", "Paris"), 0);
  EXPECT_EQ(Value("exact_match", "{}", "New  York", "New York"), 0);
  EXPECT_EQ(Value("exact_match", "{}", "\u00a0Paris", "Paris"), 0);       // no-break space counts
  EXPECT_EQ(Value("exact_match", "{}", "e\u0301", "\u00e9"), 0);          // no normalisation
  EXPECT_EQ(Value("exact_match", "{}", std::string("a\0b", 3), "a"), 0);  // NUL is a byte
  EXPECT_EQ(Value("exact_match", "{}", "", " "), 1);
}

TEST(RegexMatch, ComparesTheFirstGroupOrTheWholeMatch) {
  EXPECT_EQ(Value("regex_match", R"j({"pattern": "<answer>(.*?)</answer>"})j",
                  "x <answer> 7 </answer>", "7"),
            1);
  EXPECT_EQ(Value("regex_match", R"j({"pattern": "<answer>(.*?)</answer>", "trim": false})j",
                  "x <answer> 7 </answer>", "7"),
            0);
  EXPECT_EQ(Value("regex_match", R"j({"pattern": "-?\\d+", "select": "last"})j", "1 then -2", "-2"),
            1);
  EXPECT_EQ(Value("regex_match", R"j({"pattern": "-?\\d+"})j", "1 then -2", "1"), 1);
  EXPECT_EQ(Value("regex_match", R"j({"pattern": "^yes", "compare": "none", "ignore_case": true})j",
                  "YES!", ""),
            1);
  EXPECT_EQ(Value("regex_match", R"j({"pattern": "^b$", "compare": "none", "multi_line": true})j",
                  "a\nb", ""),
            1);
  EXPECT_EQ(Value("regex_match", R"j({"pattern": "a.b", "compare": "none", "dot_all": true})j",
                  "a\nb", ""),
            1);
  // A group that took no part is empty.
  EXPECT_EQ(Value("regex_match", R"j({"pattern": "x(a)?y(b)"
})j",
                  "xyb", ""),
            1);
  // Empty matches end, and the last one counts.
  EXPECT_EQ(
      Value("regex_match", R"j({"pattern": "\\d*", "select": "last"})j", "12 \u00e9\u00e9", ""), 1);
  EXPECT_EQ(Value("regex_match", R"j({"pattern": "a\\Kb|c?", "select": "last", "compare": "none"
  })j",
                  "abcab", ""),
            1);
}

TEST(RegexMatch, FaultsAreTyped) {
  const Grade absent = Score("regex_match", R"j({"pattern": "x", "incorrect": -2})j", "y", "x");
  EXPECT_EQ(absent.kind, GradeKind::kModelFault);
  EXPECT_EQ(absent.value, -2);
  const Grade large =
      Score("regex_match", R"j({"pattern": "x"})j", std::string(kMaxRegexReplyBytes + 1, 'x'), "x");
  EXPECT_EQ(large.kind, GradeKind::kModelFault);
  // Bytes that are not UTF-8 are text that nothing matches, not an error.
  EXPECT_EQ(Value("regex_match", R"j({"pattern": "a(.)b"})j",
                  "a\xff"
                  "b axb",
                  "x"),
            1);
}

TEST(RegexMatch, CatastrophicPatternsEndInAFault) {
  const char* kPatterns[] = {
      R"j({"pattern": "^(a+)+$"})j",
      R"j({"pattern": "(a|aa)+$"})j",
      R"j({"pattern": "(.*)*x\\d"})j",
      R"j({"pattern": "a*+b", "select": "last"})j",
      R"j({"pattern": "(a*)(a*)(a*)(a*)b", "select": "last"})j",
      R"j({"pattern": "((a{0,20}){0,20}){0,20}b"})j",
      R"j({"pattern": "(?:(?=(a+))\\1)+b", "select": "last"})j",
  };
  for (const char* parameters : kPatterns) {
    for (const size_t length : {size_t{64}, kMaxRegexReplyBytes - 1}) {
      const Grade grade = Score("regex_match", parameters, std::string(length, 'a') + "!", "a");
      EXPECT_EQ(grade.kind, GradeKind::kModelFault) << parameters << " " << grade.reason;
    }
  }
  // Many cheap matches are fine; very many are a fault, not a wait.
  EXPECT_EQ(
      Value("regex_match", R"j({"pattern": "a", "select": "last"})j", std::string(10000, 'a'), "a"),
      1);
}

TEST(RegexMatch, TheLastOfManyMatchesTakesTimeInProportionToTheReply) {
  // With a check of the whole rest at each of the 500,000 searches this would take minutes.
  const char* const kLast = R"j({"pattern": "\\d", "select": "last"})j";
  for (const size_t size : {size_t{1} << 16, kMaxRegexReplyBytes}) {
    std::string reply;
    while (reply.size() < size) reply += "1 ";
    reply[size - 2] = '7';
    EXPECT_EQ(Value("regex_match", kLast, reply, "7"), 1) << size;
  }
  std::string accented;
  while (accented.size() < size_t{1} << 16) accented += "\u00e93";
  EXPECT_EQ(Value("regex_match", kLast, accented, "3"), 1);

  // Bytes that are not UTF-8 need that check, so it counts: few matches pass, many are a fault.
  std::string few = "\x80" + std::string((size_t{1} << 16) - 8, ' ') + "5 \xff 6";
  EXPECT_EQ(Value("regex_match", kLast, few, "6"), 1);
  std::string many = "\x80";
  while (many.size() < size_t{1} << 16) many += "1 ";
  const Grade grade = Score("regex_match", kLast, many, "1");
  EXPECT_EQ(grade.kind, GradeKind::kModelFault);
}

TEST(Graders, ComponentsCarryTheGradersName) {
  const Grade grade = Score("numeric_match", "{}", "7", "7");
  EXPECT_THAT(grade.components, ElementsAre(std::make_pair("numeric_match", 1.0)));
  EXPECT_STREQ(GradeKindName(grade.kind), "kOk");
}

}  // namespace
}  // namespace titan::rewards
