// SPDX-License-Identifier: Apache-2.0
//
// Mode W16 of the model: matrices are stored rounded once, everything else as in F32, and forward
// and backward have the bits of an F32 model whose matrices hold the upconverted values. With that,
// what the tests of F32 show of chunks, batches, pages, threads and instruction sets holds in W16.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "core/kernels/bf16.h"
#include "core/kernels/isa.h"
#include "tests/support/plain_trainer.h"
#include "tests/support/small_model.h"

namespace titan::test {
namespace {

SmallModelOptions Options(bool tied) {
  SmallModelOptions options;
  options.hidden_size = 48;
  options.intermediate_size = 1024;  // four leaves of down
  options.vocab_size = 67;
  options.num_heads = 4;
  options.num_kv_heads = 2;
  options.head_dim = 12;
  options.biases = true;
  options.tie_embeddings = tied;
  options.max_position_embeddings = 256;
  return options;
}

LoadedModel W16Model(const SmallModelOptions& options, uint64_t seed) {
  LoadedModel loaded = ModelOf(SmallModelConfig(options), 0, model::Mode::kW16);
  kernels::Pool pool(1);
  FillSmallModelSlot(pool, loaded.table(), seed, options, loaded.slot.get());
  return loaded;
}

std::vector<float> ValuesOf(const LoadedModel& model, int parameter) {
  kernels::Pool pool(1);
  std::vector<float> values(static_cast<size_t>(model.table().at(parameter).num_elements()));
  model::ReadParameter(pool, model.table().at(parameter), model.slot.get(), values);
  return values;
}

// The F32 model with the values that the other one holds.
LoadedModel Upconverted(const LoadedModel& w16) {
  LoadedModel f32 = ModelOf(w16.decoder->config());
  kernels::Pool pool(1);
  for (int i = 0; i < f32.table().size(); ++i) {
    const Status stored =
        model::StoreParameter(pool, f32.table().at(i), ValuesOf(w16, i), f32.slot.get());
    EXPECT_TRUE(stored.ok()) << stored;
  }
  return f32;
}

TEST(W16ModelTest, MatricesAreRoundedOnceInHalfTheBytesAndVectorsStayF32) {
  SmallModelOptions options = Options(false);
  options.hidden_size = 40;
  options.head_dim = 10;
  options.intermediate_size = 33;  // odd: a padded pair
  const LoadedModel model = W16Model(options, 1);
  const model::ParameterTable& table = model.table();
  const model::ParameterTable& master = model.decoder->master_table();
  EXPECT_EQ(model.decoder->mode(), model::Mode::kW16);
  EXPECT_EQ(master.mode(), model::Mode::kF32);
  const auto weights = SmallModelWeights(table, 1, options);
  ASSERT_EQ(table.size(), master.size());
  int64_t end = 0;
  for (int i = 0; i < table.size(); ++i) {
    const model::Parameter& p = table.at(i);
    const model::Parameter& m = master.at(i);
    EXPECT_EQ(p.offset % model::kSlotAlignment, 0);
    EXPECT_GE(p.offset, end);
    end = p.offset + p.bytes;
    EXPECT_EQ(p.forward_leaves, m.forward_leaves) << p.name;
    EXPECT_EQ(p.input_gradient_leaves, m.input_gradient_leaves) << p.name;
    const int64_t pairs = p.columns() + p.columns() % 2;
    EXPECT_EQ(p.bytes, p.is_matrix() ? m.bytes / 2 / p.columns() * pairs : m.bytes) << p.name;
    std::vector<float> expected = weights[static_cast<size_t>(i)];
    if (p.is_matrix()) {
      for (float& x : expected) x = kernels::ToFloat(kernels::RoundToBf16(x));
    }
    EXPECT_TRUE(SameBits(ValuesOf(model, i), expected)) << p.name;
  }
  EXPECT_GE(table.slot_bytes(), end);
  EXPECT_LT(table.slot_bytes(), master.slot_bytes() * 6 / 10);
}

TEST(W16ModelTest, RoundingTheMasterGivesTheBytesOfStoring) {
  const SmallModelOptions options = Options(true);
  const LoadedModel stored = W16Model(options, 2);
  LoadedModel master = ModelOf(stored.decoder->config());
  kernels::Pool pool(2);
  FillSmallModelSlot(pool, master.table(), 2, options, master.slot.get());
  std::vector<float> rounded(static_cast<size_t>(stored.table().slot_floats()));
  const auto round = [&] {
    return model::RoundMaster(pool, master.table(), master.slot.get(), stored.table(),
                              rounded.data());
  };
  ASSERT_TRUE(round().ok());
  EXPECT_EQ(std::memcmp(rounded.data(), stored.slot.get(),
                        static_cast<size_t>(stored.table().slot_bytes())),
            0);
  // The largest f32 is finite, but nearer to 2^128 than to any bfloat16.
  const model::Parameter& p = master.table().at(master.table().layers()[1].up);
  master.slot[static_cast<size_t>(p.offset / 4 + 7)] = std::numeric_limits<float>::max();
  const Status refused = round();
  EXPECT_EQ(refused.code(), StatusCode::kDataLoss);
  EXPECT_NE(refused.ToString().find(p.name), std::string::npos) << refused;
  std::vector<float> values(static_cast<size_t>(p.num_elements()), 1.0f);
  values.back() = std::numeric_limits<float>::quiet_NaN();
  const model::Parameter& bf16 = stored.table().at(stored.table().Find(p.name));
  EXPECT_EQ(model::StoreParameter(pool, bf16, values, rounded.data()).code(),
            StatusCode::kInvalidArgument);
}

// A file is read once into F32 and once into W16.
TEST(W16ModelTest, LoadingRoundsTheFilesValues) {
  const std::string folder = std::string(TITAN_SOURCE_DIR) + "/tests/golden/model/tiny/";
  for (const char* name : {"llama_llama3rope_tied"}) {
    const LoadedModel f32 = LoadModel(folder + name);
    const LoadedModel w16 = LoadModel(folder + name, 0, model::Mode::kW16);
    for (int i = 0; i < f32.table().size(); ++i) {
      std::vector<float> expected = ValuesOf(f32, i);
      if (f32.table().at(i).is_matrix()) {
        for (float& x : expected) x = kernels::ToFloat(kernels::RoundToBf16(x));
      }
      EXPECT_TRUE(SameBits(ValuesOf(w16, i), expected)) << f32.table().at(i).name;
    }
  }
}

std::vector<std::vector<float>> Prefill(const LoadedModel& model,
                                        const std::vector<int32_t>& tokens) {
  kernels::Pool pool(2);
  const int64_t rows = static_cast<int64_t>(tokens.size());
  const auto workspace = ValueOrDie(model::Workspace::Create(
      *model.decoder, {.max_rows = rows, .max_head_rows = rows, .backward = false}));
  model::KvCache cache = ValueOrDie(model::KvCache::Create(model.decoder->config(), rows / 16 + 1));
  std::vector<PagedSequence> sequences(1);
  sequences[0].tokens = tokens;
  sequences[0].pages = PagesFor(rows);
  const model::DecoderContext context = {*model.decoder, pool, *workspace};
  // A prefill of all but three tokens, then one at a time.
  RunChunks(context, model.weights, cache, sequences, {static_cast<int32_t>(rows) - 3});
  for (int i = 0; i < 3; ++i) RunChunks(context, model.weights, cache, sequences, {1});
  return sequences[0].logits;
}

struct Trained {
  std::vector<float> log_probs, gradient;
};

Trained Train(const LoadedModel& model, const PackedSamples& samples) {
  kernels::Pool pool(3);
  std::vector<int32_t> rows, targets;
  samples.Targets(2, &rows, &targets);
  Random random(5);
  std::vector<float> coefficients(rows.size());
  for (float& c : coefficients) c = random.Signed();
  PlainTrainer trainer(model, pool, 128);
  Trained trained;
  trained.log_probs = trainer.Forward(samples, rows, targets, 0.8f);
  GradientMemory gradient(model.decoder->master_table());
  trainer.Backward(coefficients, UnitsOf(samples.lengths()), gradient.slot.data(),
                   gradient.tied_embedding());
  gradient.CloseShard(pool);
  trained.gradient = gradient.slot;
  return trained;
}

TEST(W16ModelTest, ForwardAndBackwardHaveTheBitsOfF32OnTheUpconvertedWeights) {
  std::vector<kernels::Isa> isas = {kernels::Isa::kAvx2};
  if (*kernels::DetectIsa() == kernels::Isa::kAvx512) isas.push_back(kernels::Isa::kAvx512);
  for (const int kind : {0, 1, 2, 3}) {
    SmallModelOptions options = Options(kind % 2 == 1);
    options.qk_norm = kind >= 2;
    options.biases = !options.qk_norm;
    if (kind == 3) {  // experts; the router stays binary32 in both
      options.num_experts = 4;
      options.intermediate_size = 96;
      options.layer_windows = {30, 30};
    }
    const LoadedModel w16 = W16Model(options, 3);
    const auto& router = w16.table().layers()[1].router;
    if (kind == 3) {
      EXPECT_EQ(w16.table().at(router).element, kernels::Element::kF32);
    }
    const LoadedModel f32 = Upconverted(w16);
    LoadedModel exact = ModelOf(w16.decoder->config());
    kernels::Pool pool(1);
    FillSmallModelSlot(pool, exact.table(), 3, options, exact.slot.get());
    Random random(4);
    PackedSamples samples;
    for (const int32_t length : {40, 3, 25}) {
      samples.samples.push_back(RandomTokens(random, length, options.vocab_size));
    }
    const Trained expected = Train(f32, samples);
    const auto logits = Prefill(f32, samples.samples[0]);
    for (const kernels::Isa isa : isas) {
      ASSERT_TRUE(kernels::SetIsa(isa).ok());
      const auto got = Prefill(w16, samples.samples[0]);
      ASSERT_EQ(got.size(), logits.size());
      for (size_t t = 0; t < got.size(); ++t) {
        EXPECT_TRUE(SameBits(got[t], logits[t])) << "position " << t;
      }
      const Trained trained = Train(w16, samples);
      EXPECT_TRUE(SameBits(trained.log_probs, expected.log_probs));
      EXPECT_TRUE(SameBits(trained.gradient, expected.gradient)) << "kind " << kind;
    }
    ASSERT_TRUE(kernels::SetIsa("auto").ok());
    // The rounding is seen: other weights give other bits.
    EXPECT_FALSE(SameBits(Train(exact, samples).log_probs, expected.log_probs));
  }
}

}  // namespace
}  // namespace titan::test
