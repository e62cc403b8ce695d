// SPDX-License-Identifier: Apache-2.0
#include "rewards/numeric_match.h"

#include "rewards/parameters.h"
#include "rewards/text.h"

namespace titan::rewards {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

class NumericMatch : public Grader {
 public:
  const GraderInfo& info() const override { return info_; }

  Grade Score(const Sample& sample) const override {
    if (TrimAscii(sample.answer).empty()) return Grade::InfraFault("the row has no answer");
    const std::string answer = CanonicalNumber(TrimAscii(sample.answer));
    if (answer.empty()) return Grade::InfraFault("the answer is not a number");
    if (integers_ && answer.find('.') != std::string::npos) {
      return Grade::InfraFault("the answer is not an integer, and numbers is 'integer'");
    }
    const std::vector<std::string_view> numbers = FindNumbers(sample.completion, integers_);
    if (numbers.empty()) return Grade::ModelFault("no number in the reply", incorrect_);
    const std::string_view chosen = last_ ? numbers.back() : numbers.front();
    const double value = CanonicalNumber(chosen) == answer ? correct_ : incorrect_;
    return Grade::Ok(value, {{info_.name, value}});
  }

  static StatusOr<std::unique_ptr<Grader>> Make(const Json& json) {
    auto grader = std::make_unique<NumericMatch>();
    Parameters parameters(grader->info_.name, json);
    grader->integers_ = parameters.Option("numbers", {"decimal", "integer"}) == "integer";
    grader->last_ = parameters.Option("select", {"last", "first"}) == "last";
    grader->correct_ = parameters.Number("correct", 1);
    grader->incorrect_ = parameters.Number("incorrect", 0);
    TITAN_RETURN_IF_ERROR(parameters.Finish());
    return std::unique_ptr<Grader>(std::move(grader));
  }

 private:
  const GraderInfo info_ = NumericMatchInfo();
  bool integers_ = false;
  bool last_ = true;
  double correct_ = 1;
  double incorrect_ = 0;
};

}  // namespace

std::vector<std::string_view> FindNumbers(std::string_view text, bool integers) {
  std::vector<std::string_view> numbers;
  for (size_t i = 0; i < text.size();) {
    if (!IsDigit(text[i])) {
      ++i;
      continue;
    }
    const size_t start = i > 0 && text[i - 1] == '-' ? i - 1 : i;
    while (i < text.size() && IsDigit(text[i])) ++i;
    if (!integers && i + 1 < text.size() && text[i] == '.' && IsDigit(text[i + 1])) {
      ++i;
      while (i < text.size() && IsDigit(text[i])) ++i;
    }
    numbers.push_back(text.substr(start, i - start));
  }
  return numbers;
}

std::string CanonicalNumber(std::string_view text) {
  bool negative = false;
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) {
    negative = text[0] == '-';
    text.remove_prefix(1);
  }
  const size_t dot = text.find('.');
  std::string_view whole = text.substr(0, dot);
  std::string_view fraction = dot == std::string_view::npos ? "" : text.substr(dot + 1);
  if (whole.empty() || (dot != std::string_view::npos && fraction.empty())) return "";
  for (char c : whole) {
    if (!IsDigit(c)) return "";
  }
  for (char c : fraction) {
    if (!IsDigit(c)) return "";
  }
  while (whole.size() > 1 && whole.front() == '0') whole.remove_prefix(1);
  while (!fraction.empty() && fraction.back() == '0') fraction.remove_suffix(1);
  std::string out(whole);
  if (!fraction.empty()) out += "." + std::string(fraction);
  return negative && out != "0" ? "-" + out : out;
}

GraderInfo NumericMatchInfo() {
  GraderInfo info;
  info.name = "numeric_match";
  info.summary = "a number of the reply equals the answer exactly";
  info.parameters = {
      {"numbers", "decimal (default): -?[0-9]+(\\.[0-9]+)?; integer: -?[0-9]+"},
      {"select", "which number of the reply: last (default) or first"},
      {"correct", "value of a right reply, default 1"},
      {"incorrect", "value of a wrong reply and of one without a number, default 0"}};
  return info;
}

StatusOr<std::unique_ptr<Grader>> MakeNumericMatch(const Json& parameters) {
  return NumericMatch::Make(parameters);
}

}  // namespace titan::rewards
