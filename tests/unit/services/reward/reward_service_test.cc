// SPDX-License-Identifier: Apache-2.0
// Goal: batches are scored item by item in order, the same request answers the same, and what is
// wrong with a request is named.
#include "services/reward/reward_service.h"

#include <gtest/gtest.h>

#include "services/rpc/status_convert.h"

namespace titan::reward {
namespace {

v1::ScoreRequest Request(std::initializer_list<std::pair<const char*, const char*>> items) {
  v1::ScoreRequest request;
  request.set_grader("numeric_match");
  for (const auto& [completion, answer] : items) {
    v1::ScoreItem* item = request.add_items();
    item->set_completion(completion);
    item->set_answer(answer);
  }
  return request;
}

TEST(RewardServiceTest, ResultsAreParallelToItemsAndRepeatable) {
  const auto request = Request({{"3 + 4 is 7.", "7"}, {"It is 8", "7"}, {"no number", "7"}});
  const auto first = ScoreBatch(request, 256);
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_EQ(first->results_size(), 3);
  EXPECT_EQ(first->results(0).ok().value(), 1.0);
  EXPECT_EQ(first->results(1).ok().value(), 0.0);
  EXPECT_TRUE(first->results(2).has_model_fault());
  EXPECT_EQ(first->results(2).model_fault().value(), 0.0);
  EXPECT_EQ(ScoreBatch(request, 256)->SerializeAsString(), first->SerializeAsString());
}

TEST(RewardServiceTest, WrongRequestsAreNamed) {
  v1::ScoreRequest request = Request({{"7", "7"}});
  request.set_grader("numeric_mach");
  const auto unknown = ScoreBatch(request, 256);
  EXPECT_EQ(unknown.status().code(), StatusCode::kNotFound);
  EXPECT_EQ(rpc::ReasonOf(unknown.status()), "NO_SUCH_GRADER");
  EXPECT_NE(MessageOf(unknown.status()).find("numeric_match"), std::string::npos);
  request.set_grader("numeric_match");
  request.set_parameters_json("{\"no_such\": 1}");
  EXPECT_EQ(rpc::ReasonOf(ScoreBatch(request, 256).status()), "BAD_GRADER_PARAMETERS");
  request.set_parameters_json("[1]");
  EXPECT_EQ(ScoreBatch(request, 256).status().code(), StatusCode::kInvalidArgument);
  request.set_parameters_json("");
  request.mutable_items(0)->set_metadata_json("{");
  EXPECT_NE(MessageOf(ScoreBatch(request, 256).status()).find("items[0].metadata_json"),
            std::string::npos);
  EXPECT_EQ(ScoreBatch(Request({}), 256).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(ScoreBatch(Request({{"1", "1"}, {"2", "2"}}), 1).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(ScoreBatch(Request({{std::string(2 << 20, 'x').c_str(), "1"}}), 9).status().code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace titan::reward
