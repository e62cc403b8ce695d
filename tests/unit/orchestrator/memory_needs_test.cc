// SPDX-License-Identifier: Apache-2.0
// Goal: the estimate counts slots and arrays as documented, and what does not fit is said with the
// numbers.
#include "orchestrator/memory_needs.h"

#include <gtest/gtest.h>

namespace titan::orchestrator {
namespace {

TEST(MemoryNeedsTest, CountsSlotsAndTrainingArrays) {
  formats::ModelConfig model;
  model.family = "llama";
  model.hidden_size = 64;
  model.num_layers = 1;
  model.num_heads = model.num_kv_heads = 1;
  model.head_dim = 64;
  model.intermediate_size = 64;
  model.vocab_size = 1 << 20;
  model.tie_embeddings = true;
  uint64_t weights = 0;
  for (const auto& tensor : formats::CanonicalTensors(model)) {
    weights += 4 * static_cast<uint64_t>(tensor.num_elements());
  }
  JobSpec spec;
  spec.schedule.max_age = 1;
  spec.training.shards = 4;
  auto needs = MemoryNeeds(model, spec);
  ASSERT_EQ(needs.size(), 2u);
  EXPECT_EQ(needs[0].holder, "trainer");
  EXPECT_EQ(needs[0].bytes, 6 * weights);  // weights, two moments, a stack of 3 gradients
  EXPECT_EQ(needs[1].bytes, 5 * weights);  // a ring of 4, one for evaluation
  spec.schedule.max_age = 2;
  spec.training.shards = 1;
  needs = MemoryNeeds(model, spec);
  EXPECT_EQ(needs[0].holder, "weightstore");
  EXPECT_EQ(needs[0].bytes, 6 * weights);
  EXPECT_EQ(needs[1].bytes, 4 * weights);
  spec.model.mode = "bf16";
  EXPECT_EQ(MemoryNeeds(model, spec)[1].bytes, 3 * weights);  // as in w16
  spec.model.mode = "w16";
  EXPECT_EQ(MemoryNeeds(model, spec)[1].bytes, 3 * weights);  // of the store: half of 6
  EXPECT_EQ(MemoryProblem(needs, 10 * weights), "");
  const std::string problem = MemoryProblem(needs, 10 * weights - 1);
  EXPECT_NE(problem.find("needs at least " + std::to_string(10 * weights >> 20) + " MiB"),
            std::string::npos)
      << problem;
}

}  // namespace
}  // namespace titan::orchestrator
