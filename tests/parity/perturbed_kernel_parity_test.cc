// SPDX-License-Identifier: Apache-2.0
// Goal: the parity check of the trainer is not vacuous. Method: this program is linked with a
// Linear that runs its chains in another order when a call has more than 14 rows, so a packed
// forward and decode steps of few sequences no longer agree; the very check that passes with the
// real kernels must see it. So must the contract's digest, by which the others would refuse this
// process.
#include <gtest/gtest.h>

#include "core/kernels/digest.h"
#include "tests/support/recorded_items.h"
#include "tests/support/rollout.h"

namespace titan {
namespace {

TEST(PerturbedKernelParityTest, ATrainersForwardInAnotherOrderIsSeen) {
  const testing::TinyModel model = testing::LoadTinyModel(testing::kRolloutModel);
  kernels::Pool pool(2);
  const auto samples = testing::Rollout(model, pool);
  const auto run = testing::MakeRun(model, pool, {});
  const auto result = run->Compare(model.slot.get(), samples);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_GT(result->tokens_compared, 200u);
  EXPECT_GT(result->tokens_differing, result->tokens_compared / 4);
  EXPECT_GT(result->difference_max, 0.0);
  EXPECT_LT(result->difference_max, 1e-3);  // another order, not another model
  EXPECT_FALSE(result->differences.empty());
}

TEST(PerturbedKernelParityTest, TheContractNamesTheLinearOfAnotherOrder) {
  kernels::Pool pool(2);
  EXPECT_NE(testing::ItemOf(kernels::ForwardKernelItems(pool), "canned.linear"),
            testing::kRecordedLinear);
}

}  // namespace
}  // namespace titan
