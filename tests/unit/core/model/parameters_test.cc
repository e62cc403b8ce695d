// SPDX-License-Identifier: Apache-2.0
//
// The slot layout: canonical order, alignment, leaves of known models, and values that survive
// packing.
#include "core/model/parameters.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "core/kernels/panels.h"
#include "tests/support/model_fixture.h"
#include "tests/support/small_model.h"

namespace titan::test {
namespace {

formats::ModelConfig SmolConfig() {
  formats::ModelConfig config = SmallModelConfig({});
  config.hidden_size = 576;
  config.intermediate_size = 1536;
  config.num_heads = 9;
  config.num_kv_heads = 3;
  config.vocab_size = 49152;
  config.num_layers = 30;
  config.tie_embeddings = true;
  return config;
}

TEST(ParameterTableTest, SmolLmHasTheLeavesOfTheContract) {
  const model::ParameterTable table = ValueOrDie(model::ParameterTable::Of(SmolConfig()));
  EXPECT_EQ(table.size(), 272);
  EXPECT_EQ(table.num_elements(), 134515008);
  EXPECT_TRUE(table.tied());
  for (const model::LayerParameters& l : table.layers()) {
    for (const int i : {l.q, l.k, l.v, l.gate, l.up}) EXPECT_EQ(table.at(i).forward_leaves, 2);
    EXPECT_EQ(table.at(l.o).forward_leaves, 1);
    EXPECT_EQ(table.at(l.down).forward_leaves, 4);
    for (const int i : {l.q, l.k, l.v}) EXPECT_EQ(table.at(i).input_gradient_leaves, 1);
    for (const int i : {l.o, l.down}) EXPECT_EQ(table.at(i).input_gradient_leaves, 2);
    for (const int i : {l.gate, l.up}) EXPECT_EQ(table.at(i).input_gradient_leaves, 4);
  }
  EXPECT_EQ(table.at(table.head()).forward_leaves, 2);
  EXPECT_EQ(table.at(table.head()).input_gradient_leaves, 8);
}

TEST(ParameterTableTest, IsInCanonicalOrderAlignedAndWithoutOverlap) {
  SmallModelOptions options;
  options.biases = true;
  const formats::ModelConfig config = SmallModelConfig(options);
  const model::ParameterTable table = ValueOrDie(model::ParameterTable::Of(config));
  const std::vector<formats::TensorSpec> specs = formats::CanonicalTensors(config);
  ASSERT_EQ(static_cast<size_t>(table.size()), specs.size());
  int64_t end = 0;
  for (int i = 0; i < table.size(); ++i) {
    const model::Parameter& p = table.at(i);
    EXPECT_EQ(p.name, specs[static_cast<size_t>(i)].name);
    EXPECT_EQ(p.shape, specs[static_cast<size_t>(i)].shape);
    EXPECT_EQ(table.Find(p.name), i);
    EXPECT_EQ(p.offset % model::kSlotAlignment, 0);
    EXPECT_GE(p.offset, end);
    EXPECT_LT(p.offset - end, model::kSlotAlignment);
    EXPECT_EQ(p.layout, p.is_matrix() ? model::Layout::kPanels : model::Layout::kRows);
    end = p.offset + p.bytes;
  }
  EXPECT_GE(table.slot_bytes(), end);
  EXPECT_EQ(table.slot_bytes() % model::kSlotAlignment, 0);
  EXPECT_EQ(table.Find("lm_head.bias"), -1);
  EXPECT_FALSE(table.tied());
  EXPECT_EQ(table.at(table.layers()[1].k_bias).name, "model.layers.1.self_attn.k_proj.bias");
}

TEST(ParameterTableTest, PackingKeepsEveryValueAndZeroesPadLanes) {
  SmallModelOptions options;
  options.hidden_size = 40;
  options.head_dim = 6;
  options.vocab_size = 71;
  options.intermediate_size = 33;
  const model::ParameterTable table =
      ValueOrDie(model::ParameterTable::Of(SmallModelConfig(options)));
  const auto weights = SmallModelWeights(table, 1, options);
  std::vector<float> slot(static_cast<size_t>(table.slot_floats()), 7.0f);
  kernels::Pool pool(2);
  for (int i = 0; i < table.size(); ++i) {
    const model::Parameter& p = table.at(i);
    const std::vector<float>& values = weights[static_cast<size_t>(i)];
    ASSERT_TRUE(model::StoreParameter(pool, p, values, slot.data()).ok());
    std::vector<float> back(values.size());
    model::ReadParameter(pool, p, slot.data(), back);
    EXPECT_TRUE(SameBits(values, back)) << p.name;
    if (p.is_matrix() && p.rows() % 32 != 0) {
      EXPECT_EQ(slot[static_cast<size_t>(p.offset / 4 + p.num_floats() - 1)], 0.0f) << p.name;
    }
  }
}

TEST(ParameterTableTest, RefusesImpossibleSizes) {
  formats::ModelConfig config = SmallModelConfig({});
  config.num_kv_heads = 3;
  EXPECT_EQ(model::ParameterTable::Of(config).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace titan::test
