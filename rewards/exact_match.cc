// SPDX-License-Identifier: Apache-2.0
#include "rewards/exact_match.h"

#include "rewards/parameters.h"
#include "rewards/text.h"

namespace titan::rewards {
namespace {

class ExactMatch : public Grader {
 public:
  const GraderInfo& info() const override { return info_; }

  Grade Score(const Sample& sample) const override {
    const bool equal = trim_ ? TrimAscii(sample.completion) == TrimAscii(sample.answer)
                             : sample.completion == sample.answer;
    const double value = equal ? correct_ : incorrect_;
    return Grade::Ok(value, {{info_.name, value}});
  }

  static StatusOr<std::unique_ptr<Grader>> Make(const Json& json) {
    auto grader = std::make_unique<ExactMatch>();
    Parameters parameters(grader->info_.name, json);
    grader->trim_ = parameters.Flag("trim", true);
    grader->correct_ = parameters.Number("correct", 1);
    grader->incorrect_ = parameters.Number("incorrect", 0);
    TITAN_RETURN_IF_ERROR(parameters.Finish());
    return std::unique_ptr<Grader>(std::move(grader));
  }

 private:
  const GraderInfo info_ = ExactMatchInfo();
  bool trim_ = true;
  double correct_ = 1;
  double incorrect_ = 0;
};

}  // namespace

GraderInfo ExactMatchInfo() {
  GraderInfo info;
  info.name = "exact_match";
  info.summary = "the reply is the answer, byte for byte";
  info.parameters = {{"trim", "ignore white space at the ends of both, default true"},
                     {"correct", "value of a right reply, default 1"},
                     {"incorrect", "value of a wrong reply, default 0"}};
  return info;
}

StatusOr<std::unique_ptr<Grader>> MakeExactMatch(const Json& parameters) {
  return ExactMatch::Make(parameters);
}

}  // namespace titan::rewards
