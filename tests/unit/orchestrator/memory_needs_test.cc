// SPDX-License-Identifier: Apache-2.0
// Goal: the estimate counts slots and arrays as documented, and generators as they plan themselves;
// what does not fit is said with the numbers.
#include "orchestrator/memory_needs.h"

#include <gtest/gtest.h>

#include "generator/engine.h"
#include "tests/support/small_model.h"

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
  auto needs = MemoryNeeds(model, spec, {});
  ASSERT_EQ(needs.size(), 2u);
  EXPECT_EQ(needs[0].holder, "trainer");
  EXPECT_EQ(needs[0].bytes, 6 * weights);  // weights, two moments, a stack of 3 gradients
  EXPECT_EQ(needs[1].bytes, 5 * weights);  // a ring of 4, one for evaluation
  spec.schedule.max_age = 2;
  spec.training.shards = 1;
  needs = MemoryNeeds(model, spec, {});
  EXPECT_EQ(needs[0].holder, "weightstore");
  EXPECT_EQ(needs[0].bytes, 6 * weights);
  EXPECT_EQ(needs[1].bytes, 4 * weights);
  spec.training.checkpoint_every_steps = 2;
  EXPECT_EQ(MemoryNeeds(model, spec, {})[0].bytes, 7 * weights);  // and a second set of three
  spec.training.checkpoint_every_steps = 0;
  spec.model.mode = "bf16";
  EXPECT_EQ(MemoryNeeds(model, spec, {})[1].bytes, 3 * weights);  // as in w16
  spec.model.mode = "w16";
  EXPECT_EQ(MemoryNeeds(model, spec, {})[1].bytes, 3 * weights);  // of the store: half of 6
  EXPECT_EQ(MemoryProblem(needs, 10 * weights), "");
  const std::string problem = MemoryProblem(needs, 10 * weights - 1);
  EXPECT_NE(problem.find("needs at least " + std::to_string(10 * weights >> 20) + " MiB"),
            std::string::npos)
      << problem;
}

// Of generators alone.
MemoryNeed OfGenerators(const formats::ModelConfig& model,
                        std::span<const GeneratorMemory> generators) {
  for (const MemoryNeed& need : MemoryNeeds(model, JobSpec(), generators)) {
    if (need.holder == "generators") return need;
  }
  return {};
}

TEST(MemoryNeedsTest, CountsGeneratorsAsTheirEnginesPlan) {
  test::SmallModelOptions dense, experts;
  experts.qk_norm = true;
  experts.num_experts = 6;
  dense.gemma = dense.qk_norm = true;
  dense.layer_windows = {16, 0};
  for (const test::SmallModelOptions& options : {dense, experts}) {
    const formats::ModelConfig model = test::SmallModelConfig(options);
    const auto decoder = model::Decoder::Create(model);
    ASSERT_TRUE(decoder.ok()) << decoder.status();
    GeneratorMemory one = {
        .kv_cache_bytes = 64 << 20, .max_batch_tokens = 512, .max_running_sequences = 64};
    generator::Engine::Limits limits;
    limits.kv_cache_bytes = 64 << 20;
    limits.max_batch_rows = 512;
    limits.max_running = 64;
    const auto planned =
        static_cast<uint64_t>(generator::Engine::MemoryNeeded(**decoder, limits).total());
    const uint64_t bytes = OfGenerators(model, {&one, 1}).bytes;
    EXPECT_LE(bytes, planned + (1 << 16));  // the last page of the cache
    EXPECT_GE(bytes, planned - (1 << 16));  // arrays begin at cache lines
    const GeneratorMemory two[] = {one, one};
    const MemoryNeed both = OfGenerators(model, two);
    EXPECT_EQ(both.bytes, 2 * bytes);
    EXPECT_NE(both.what.find("2 with caches of 128 MiB (kv_cache_bytes)"), std::string::npos)
        << both.what;
    // What an earlier job's engine took is given back, or used again.
    one.taken_bytes = bytes - 1000;
    EXPECT_EQ(OfGenerators(model, {&one, 1}).bytes, 1000u);
    one.taken_bytes = 2 * bytes;
    EXPECT_EQ(OfGenerators(model, {&one, 1}).bytes, 0u);
  }
  EXPECT_EQ(OfGenerators(test::SmallModelConfig(dense), {}).holder, "");
}

}  // namespace
}  // namespace titan::orchestrator
