// SPDX-License-Identifier: Apache-2.0
// Goal: the estimate counts the last version and the checkpoints that are there at one time; what
// does not fit is said with the numbers.
#include "orchestrator/disk_needs.h"

#include <gtest/gtest.h>

#include "orchestrator/memory_needs.h"
#include "tests/support/small_model.h"

namespace titan::orchestrator {
namespace {

TEST(DiskNeedsTest, CountsTheLastVersionAndTheCheckpointsThatAreThereAtOnce) {
  const formats::ModelConfig model = test::SmallModelConfig({});
  const uint64_t weights = WeightBytes(model);
  JobSpec spec;
  spec.schedule.steps = 100;
  DiskNeeds needs = DiskNeedsOf(model, spec);
  EXPECT_EQ(needs.version, weights);
  EXPECT_EQ(needs.checkpoints, 0u);
  EXPECT_EQ(DiskProblem(needs, weights), "");
  EXPECT_NE(DiskProblem(needs, weights - 1).find(std::to_string(weights >> 20) + " MiB"),
            std::string::npos);
  struct Case {
    uint32_t max_age, every, steps;
    uint64_t checkpoints;
  };
  for (const Case& one : {Case{0, 1, 100, 2},
                          {1, 1, 100, 3},
                          {1, 5, 100, 3},
                          {4, 2, 100, 4},
                          {5, 2, 100, 5},
                          {1, 50, 100, 2},
                          {1, 200, 100, 0}}) {
    spec.schedule.max_age = one.max_age;
    spec.schedule.steps = one.steps;
    spec.training.checkpoint_every_steps = one.every;
    spec.model.mode = "f32";
    needs = DiskNeedsOf(model, spec);
    EXPECT_EQ(needs.num_checkpoints, one.checkpoints) << one.max_age << " " << one.every;
    EXPECT_EQ(needs.checkpoints, one.checkpoints * 3 * weights);
    EXPECT_EQ(CheckpointWarning(needs, needs.version + needs.checkpoints), "");
    EXPECT_EQ(DiskProblem(needs, needs.version), "");
    spec.model.mode = "w16";  // the version of each is not its weights
    needs = DiskNeedsOf(model, spec);
    EXPECT_EQ(needs.checkpoints, one.checkpoints * (3 * weights + weights / 2));
  }
  needs.num_checkpoints = 2;
  needs.checkpoints = weights;
  EXPECT_NE(CheckpointWarning(needs, needs.version).find("some will not be written"),
            std::string::npos);
}

}  // namespace
}  // namespace titan::orchestrator
