// SPDX-License-Identifier: Apache-2.0
//
// Weights through files: what is exported loads again to the same slot bytes, also the Philox-made
// model folder with its tokenizer; failures name the path.
#include "core/model/model_files.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include "core/formats/gguf_model.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/plain_trainer.h"
#include "tests/support/small_model.h"

namespace titan::test {
namespace {

// A folder of this test's own, removed at its end.
class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "titan_model_XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  std::string operator/(const char* leaf) const { return path_ + "/" + leaf; }

 private:
  std::string path_;
};

std::vector<float> LastLogits(const LoadedModel& model, kernels::Pool& pool,
                              const std::vector<int32_t>& ids) {
  const int64_t rows = static_cast<int64_t>(ids.size());
  const auto workspace = ValueOrDie(model::Workspace::Create(
      *model.decoder, {.max_rows = rows, .max_head_rows = rows, .backward = false}));
  model::KvCache cache =
      ValueOrDie(model::KvCache::Create(model.decoder->config(), kernels::NumPages(rows)));
  std::vector<PagedSequence> sequences(1);
  sequences[0].tokens = ids;
  sequences[0].pages = PagesFor(rows);
  RunChunks({*model.decoder, pool, *workspace}, model.weights, cache, sequences,
            {static_cast<int32_t>(rows)});
  return sequences[0].logits.back();
}

SmallModelOptions SomeOptions(bool tied, bool biases) {
  SmallModelOptions options;
  options.hidden_size = 40;
  options.intermediate_size = 72;
  options.num_heads = 4;
  options.head_dim = 10;
  options.vocab_size = 611;
  options.tie_embeddings = tied;
  options.biases = biases;
  return options;
}

TEST(ModelFilesTest, WhatIsExportedLoadsToTheSameBytes) {
  for (const bool tied : {false, true}) {
    for (const int kind :
         {0, 1, 2}) {  // of the untied without biases, and with: experts of each kind
      const bool biases = kind > 0;
      const TempFolder folder;
      SmallModelOptions options = SomeOptions(tied, biases);
      options.qk_norm = !tied && !biases;
      options.gpt_oss = kind == 2;
      options.num_experts = options.qk_norm || options.gpt_oss ? 3 : 0;
      const Status made = MakeSmallModel(folder / "m", 3, options);
      ASSERT_TRUE(made.ok()) << made;
      const LoadedModel loaded = LoadModel(folder / "m");
      EXPECT_EQ(loaded.decoder->config(), SmallModelConfig(options));
      kernels::Pool pool(2);
      const formats::ModelBundle bundle = {.config = loaded.decoder->config()};
      const Status exported =
          model::ExportHfFolder(pool, loaded.table(), loaded.slot.get(), bundle, folder / "again");
      ASSERT_TRUE(exported.ok()) << exported;
      const LoadedModel again = LoadModel(folder / "again");
      EXPECT_EQ(again.decoder->config(), loaded.decoder->config());
      const size_t bytes = static_cast<size_t>(loaded.table().slot_bytes());
      EXPECT_EQ(std::memcmp(again.slot.get(), loaded.slot.get(), bytes), 0);
      // The values are those that were made.
      const auto weights = SmallModelWeights(loaded.table(), 3, options);
      for (int i = 0; i < loaded.table().size(); ++i) {
        std::vector<float> values(weights[static_cast<size_t>(i)].size());
        model::ReadParameter(pool, loaded.table().at(i), loaded.slot.get(), values);
        EXPECT_TRUE(SameBits(values, weights[static_cast<size_t>(i)])) << loaded.table().at(i).name;
      }
    }
  }
}

// The same weights through both kinds of files: a GGUF of qwen3 keeps the rows of q and k in their
// order and calls the norms of heads attn_q_norm and attn_k_norm.
TEST(ModelFilesTest, Qwen3OutOfAGgufHasTheBytesOfTheFolder) {
  const TempFolder folder;
  SmallModelOptions options = SomeOptions(true, false);
  options.qk_norm = true;
  options.num_layers = 1;
  ASSERT_TRUE(MakeSmallModel(folder / "m", 5, options).ok());
  const LoadedModel loaded = LoadModel(folder / "m");
  const formats::ModelConfig& config = loaded.decoder->config();
  GgufWriter gguf;
  gguf.Text("general.architecture", "qwen3");
  const auto size = [&](const std::string& key, int32_t value) {
    gguf.Uint32("qwen3." + key, static_cast<uint32_t>(value));
  };
  size("embedding_length", config.hidden_size);
  size("block_count", config.num_layers);
  size("attention.head_count", config.num_heads);
  size("attention.head_count_kv", config.num_kv_heads);
  size("attention.key_length", config.head_dim);
  size("attention.value_length", config.head_dim);
  size("feed_forward_length", config.intermediate_size);
  size("context_length", config.max_position_embeddings);
  gguf.Float("qwen3.attention.layer_norm_rms_epsilon", config.rms_norm_eps);
  gguf.Float("qwen3.rope.freq_base", static_cast<float>(config.rope_theta));
  const auto weights = SmallModelWeights(loaded.table(), 5, options);
  for (int i = 0; i < loaded.table().size(); ++i) {
    const model::Parameter& p = loaded.table().at(i);
    gguf.Tensor(formats::GgufNameOf(p.name), p.shape, weights[static_cast<size_t>(i)]);
  }
  gguf.Write(folder / "m.gguf");
  const LoadedModel again = LoadModel(folder / "m.gguf");
  EXPECT_TRUE(again.decoder->config().qk_norm);
  EXPECT_EQ(again.decoder->config().head_dim, config.head_dim);
  const size_t bytes = static_cast<size_t>(loaded.table().slot_bytes());
  ASSERT_EQ(again.table().slot_bytes(), loaded.table().slot_bytes());
  EXPECT_EQ(std::memcmp(again.slot.get(), loaded.slot.get(), bytes), 0);
}

// An embedding table of more than one block of rows, the last not a whole panel.
TEST(ModelFilesTest, ATableOfSeveralBlocksIsExportedWhole) {
  SmallModelOptions options = SomeOptions(true, false);
  options.vocab_size = 53003;
  const formats::ModelBundle bundle = {.config = SmallModelConfig(options)};
  const model::ParameterTable table = ValueOrDie(model::ParameterTable::Of(bundle.config));
  const model::Floats slot = ValueOrDie(model::AllocateFloats(table.slot_floats()));
  std::memset(slot.get(), 0, static_cast<size_t>(table.slot_bytes()));
  kernels::Pool pool(2);
  FillSmallModelSlot(pool, table, 3, options, slot.get());
  const TempFolder folder;
  const Status exported = model::ExportHfFolder(pool, table, slot.get(), bundle, folder / "m");
  ASSERT_TRUE(exported.ok()) << exported;
  const LoadedModel again = LoadModel(folder / "m");
  EXPECT_EQ(std::memcmp(again.slot.get(), slot.get(), static_cast<size_t>(table.slot_bytes())), 0);
}

TEST(ModelFilesTest, ExportNamesAFolderThatCannotBeMade) {
  const TempFolder folder;
  const SmallModelOptions options = SomeOptions(true, false);
  ASSERT_TRUE(MakeSmallModel(folder / "m", 3, options).ok());
  const Status status = MakeSmallModel(folder / "m/config.json/below", 3, options);
  EXPECT_FALSE(status.ok());
  EXPECT_NE(MessageOf(status).find("config.json"), std::string::npos) << status;
}

// The case tests/cases/safetensors/st-tied-head.json: tied embeddings with a stored head load and
// stay one tensor through a training step and an export; untied ones without a head are refused by
// name.
TEST(ModelFilesTest, TiedModelWithAStoredHeadLoadsAndStaysTied) {
  const std::string folder = std::string(TITAN_SOURCE_DIR) + "/tests/cases/safetensors";
  const auto refused = formats::OpenModelSource(folder + "/untied_no_head");
  ASSERT_FALSE(refused.ok());
  for (const char* name : {"lm_head.weight", "tie_word_embeddings"}) {
    EXPECT_NE(MessageOf(refused.status()).find(name), std::string::npos) << refused.status();
  }

  std::ifstream in(folder + "/st-tied-head.json");
  const nlohmann::json c = nlohmann::json::parse(in);
  const auto ids = c["input"]["ids"].get<std::vector<int32_t>>();
  const auto expected =
      c["expect"]["tied_with_head"]["last_position_logits_f64"].get<std::vector<double>>();
  LoadedModel model = LoadModel(folder + "/tied_with_head");
  EXPECT_TRUE(model.table().tied());
  EXPECT_EQ(model.weights.head.data(), model.weights.embedding.data());
  kernels::Pool pool(1);
  const std::vector<float> logits = LastLogits(model, pool, ids);
  for (size_t j = 0; j < expected.size(); ++j) EXPECT_NEAR(logits[j], expected[j], 3e-5) << j;

  const PackedSamples samples = {{ids}};
  std::vector<int32_t> rows, targets;
  samples.Targets(1, &rows, &targets);
  PlainTrainer trainer(model, pool, 8);
  trainer.Forward(samples, rows, targets, 1.0f);
  GradientMemory gradient(model.table());
  trainer.Backward(std::vector<float>(rows.size(), 1.0f), UnitsOf(samples.lengths()),
                   gradient.slot.data(), gradient.tied_embedding());
  gradient.CloseShard(pool);
  for (size_t i = 0; i < gradient.slot.size(); ++i) model.slot[i] += 0.1f * gradient.slot[i];
  const std::vector<float> trained = LastLogits(model, pool, ids);
  EXPECT_FALSE(SameBits(trained, logits));
  const TempFolder out;
  const formats::ModelBundle bundle = {.config = model.decoder->config()};
  const Status exported =
      model::ExportHfFolder(pool, model.table(), model.slot.get(), bundle, out / "m");
  ASSERT_TRUE(exported.ok()) << exported;
  const LoadedModel again = LoadModel(out / "m");
  EXPECT_TRUE(again.table().tied());
  EXPECT_TRUE(SameBits(LastLogits(again, pool, ids), trained));
}

}  // namespace
}  // namespace titan::test
