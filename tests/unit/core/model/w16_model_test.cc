// SPDX-License-Identifier: Apache-2.0
//
// Mode W16 of the model: matrices are stored rounded once, everything else as in F32, and forward
// and backward have the bits of an F32 model whose matrices hold the upconverted values. With that,
// what the tests of F32 show of chunks, batches, pages, threads and instruction sets holds in W16.
// Mode BF16: the bits of products in F32 of rows rounded by hand with the upconverted weights.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "core/base/hash.h"
#include "core/kernels/attention.h"
#include "core/kernels/bf16.h"
#include "core/kernels/embedding.h"
#include "core/kernels/isa.h"
#include "core/kernels/linear.h"
#include "core/kernels/norm.h"
#include "core/kernels/rope.h"
#include "core/kernels/sampling.h"
#include "core/kernels/swiglu.h"
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

LoadedModel W16Model(const SmallModelOptions& options, uint64_t seed,
                     model::Mode mode = model::Mode::kW16) {
  LoadedModel loaded = ModelOf(SmallModelConfig(options), 0, mode);
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
  for (const int kind : {0, 1, 2, 3, 4}) {
    SmallModelOptions options = Options(kind % 2 == 1);
    options.qk_norm = kind == 2 || kind == 3;
    options.biases = !options.qk_norm;
    if (kind >= 3) {  // experts; the router stays binary32 in both
      options.gpt_oss = kind == 4;
      options.num_experts = 4;
      options.intermediate_size = 96;
      options.layer_windows = {30, 30};
    }
    const LoadedModel w16 = W16Model(options, 3);
    const auto& router = w16.table().layers()[1].router;
    if (kind >= 3) {
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

// Logits of tokens at positions 0.., layer by layer from the kernels: each row is rounded here
// before it is multiplied, in F32, with the upconverted weights. Nothing else is rounded.
std::vector<std::vector<float>> LogitsByHand(const LoadedModel& f32,
                                             const std::vector<int32_t>& tokens) {
  const kernels::NumericThread numeric;
  const model::Decoder& d = *f32.decoder;
  const model::Weights& w = f32.weights;
  const auto rows = static_cast<int64_t>(tokens.size());
  const float eps = d.config().rms_norm_eps;
  kernels::Pool pool(1);
  const auto array = [rows](int64_t width) {
    return std::vector<float>(static_cast<size_t>(rows * width));
  };
  const auto multiply = [&](int parameter, kernels::ConstPanels panels, const float* bias,
                            std::vector<float> x) {
    for (float& v : x) v = kernels::ToFloat(kernels::RoundToBf16(v));
    const model::Parameter& p = f32.table().at(parameter);
    std::vector<float> out = array(p.rows());
    kernels::Linear(pool, {x.data(), p.columns(), rows, p.columns()},
                    {panels, p.rows(), p.forward_leaves, bias, out.data(), p.rows()});
    return out;
  };
  const auto norm = [&](const std::vector<float>& x, const float* gain) {
    std::vector<float> out = x;
    kernels::RmsNorm(pool, x.data(), rows, d.hidden(), gain, eps, out.data(), nullptr);
    return out;
  };
  std::vector<int32_t> positions(tokens.size());
  std::iota(positions.begin(), positions.end(), 0);
  const std::vector<int32_t> pages = PagesFor(rows);
  const kernels::Segment segment = {.first_row = 0,
                                    .num_rows = static_cast<int32_t>(rows),
                                    .first_position = 0,
                                    .pages = pages.data()};
  const kernels::AttentionShape& shape = d.attention_shape();
  std::vector<float> cache(pages.size() * static_cast<size_t>(kernels::PageFloats(shape)));
  std::vector<float> x = array(d.hidden());
  kernels::EmbeddingGather(pool, w.embedding, d.vocabulary(), d.hidden(), tokens.data(), rows,
                           x.data());
  const auto add = [&x](const std::vector<float>& branch) {
    for (size_t i = 0; i < x.size(); ++i) x[i] = x[i] + branch[i];
  };
  for (size_t l = 0; l < w.layers.size(); ++l) {
    const model::LayerWeights& lw = w.layers[l];
    const model::LayerParameters& p = f32.table().layers()[l];
    const std::vector<float> normed = norm(x, lw.input_norm);
    std::vector<float> q = multiply(p.q, lw.q, lw.q_bias, normed);
    std::vector<float> k = multiply(p.k, lw.k, lw.k_bias, normed);
    const std::vector<float> v = multiply(p.v, lw.v, lw.v_bias, normed);
    kernels::ApplyRope(pool, d.rope(static_cast<int>(l)), q.data(), d.query_width(), rows,
                       shape.num_heads, positions.data());
    kernels::ApplyRope(pool, d.rope(static_cast<int>(l)), k.data(), d.kv_width(), rows,
                       shape.num_kv_heads, positions.data());
    kernels::WriteKv(pool, shape, k.data(), v.data(), {&segment, 1}, cache.data());
    std::vector<float> attention = array(d.query_width());
    kernels::AttentionForward(pool, shape, q.data(), {&segment, 1}, cache.data(), attention.data(),
                              nullptr, nullptr);
    add(multiply(p.o, lw.o, lw.o_bias, attention));
    const std::vector<float> middle = norm(x, lw.post_norm);
    const std::vector<float> gate = multiply(p.gate, lw.gate, lw.gate_bias, middle);
    const std::vector<float> up = multiply(p.up, lw.up, lw.up_bias, middle);
    std::vector<float> activation = gate;
    kernels::SwiGlu(pool, rows * d.intermediate(), gate.data(), up.data(), activation.data());
    add(multiply(p.down, lw.down, lw.down_bias, activation));
  }
  const std::vector<float> flat =
      multiply(f32.table().head(), w.head, nullptr, norm(x, w.final_norm));
  std::vector<std::vector<float>> logits;
  for (int64_t r = 0; r < rows; ++r) {
    logits.emplace_back(flat.begin() + r * d.vocabulary(), flat.begin() + (r + 1) * d.vocabulary());
  }
  return logits;
}

std::vector<std::string> IsaNames() {
  std::vector<std::string> names = {"avx2"};
  if (*kernels::DetectIsa() == kernels::Isa::kAvx512) names.push_back("avx512");
  names.push_back("auto");
  return names;
}

TEST(Bf16ModelTest, ForwardHasTheBitsOfRowsRoundedByHand) {
  for (const bool tied : {false, true}) {
    const SmallModelOptions options = Options(tied);
    const LoadedModel bf16 = W16Model(options, 3, model::Mode::kBf16);
    EXPECT_EQ(bf16.decoder->mode(), model::Mode::kBf16);
    const LoadedModel f32 = Upconverted(bf16);
    Random random(4);
    const std::vector<int32_t> tokens = RandomTokens(random, 40, options.vocab_size);
    const auto wanted = LogitsByHand(f32, tokens);
    const auto unrounded = Prefill(f32, tokens);
    for (const std::string& isa : IsaNames()) {
      ASSERT_TRUE(kernels::SetIsa(isa).ok());
      const auto got = Prefill(bf16, tokens);  // in chunks and token by token
      ASSERT_EQ(got.size(), wanted.size());
      for (size_t t = 0; t < got.size(); ++t) {
        EXPECT_TRUE(SameBits(got[t], wanted[t])) << isa << " position " << t;
        EXPECT_FALSE(SameBits(got[t], unrounded[t]));  // the rounding is seen
      }
    }
    ASSERT_TRUE(kernels::SetIsa("auto").ok());
  }
}

// The order of mode BF16 as one number for each direction, the same on every machine and for every
// instruction set; and how far the rounding of the rows moves log-probs and gradient.
TEST(Bf16ModelTest, TrainingHasTheBitsThatAreWrittenHereNearThoseOfW16) {
  for (const bool tied : {false, true}) {
    const SmallModelOptions options = Options(tied);
    const LoadedModel bf16 = W16Model(options, 3, model::Mode::kBf16);
    Random random(4);
    PackedSamples samples;
    for (const int32_t length : {40, 3, 25}) {
      samples.samples.push_back(RandomTokens(random, length, options.vocab_size));
    }
    Trained trained;
    for (const std::string& isa : IsaNames()) {
      ASSERT_TRUE(kernels::SetIsa(isa).ok());
      trained = Train(bf16, samples);
      const auto hash = [](const std::vector<float>& v) {
        return ToHex(Hash64(v.data(), v.size() * sizeof(float)));
      };
      EXPECT_EQ(hash(trained.log_probs), tied ? "70f3144fc62568c8" : "3f34f151e7d9150c") << isa;
      EXPECT_EQ(hash(trained.gradient), tied ? "443b57952379b57e" : "b9c7c4ef1815c2b0") << isa;
    }
    ASSERT_TRUE(kernels::SetIsa("auto").ok());
    const Trained w16 = Train(W16Model(options, 3), samples);
    double max = 0, difference = 0, norm = 0;
    for (size_t i = 0; i < w16.log_probs.size(); ++i) {
      max = std::max<double>(max, std::fabs(trained.log_probs[i] - w16.log_probs[i]));
    }
    for (size_t i = 0; i < w16.gradient.size(); ++i) {
      difference += std::pow(trained.gradient[i] - w16.gradient[i], 2);
      norm += std::pow(w16.gradient[i], 2);
    }
    const double relative = std::sqrt(difference / norm);
    std::printf("bf16 - w16, tied %d: log-probs at most %.5f, gradient %.5f of its norm\n", tied,
                max, relative);
    EXPECT_GT(max, 1e-5);
    EXPECT_LT(max, 0.05);
    EXPECT_GT(relative, 1e-5);
    EXPECT_LT(relative, 0.02);
  }
}

void CheckGeneration(const SmallModelOptions& options) {
  ASSERT_TRUE(kernels::SetIsa("auto").ok());
  const LoadedModel bf16 = W16Model(options, 5, model::Mode::kBf16);
  Random random(6);
  PackedSamples samples;
  for (const int32_t length : {33, 12}) {
    samples.samples.push_back(RandomTokens(random, length, options.vocab_size));
  }
  const Trained trained = Train(bf16, samples);
  const kernels::NumericThread numeric;
  size_t next = 0;
  for (const std::vector<int32_t>& tokens : samples.samples) {
    const auto logits = Prefill(bf16, tokens);
    for (size_t i = 1; i + 1 < tokens.size(); ++i, ++next) {
      const auto stats = kernels::ComputeLogSoftmax(logits[i].data(), options.vocab_size, 0.8f);
      const float log_prob = kernels::LogProbOf(logits[i].data(), tokens[i + 1], 0.8f, stats);
      EXPECT_EQ(std::bit_cast<uint32_t>(log_prob), std::bit_cast<uint32_t>(trained.log_probs[next]))
          << next;
    }
  }
  EXPECT_EQ(next, trained.log_probs.size());
  ASSERT_TRUE(kernels::SetIsa("avx2").ok());
  const Trained other = Train(bf16, samples);
  ASSERT_TRUE(kernels::SetIsa("auto").ok());
  EXPECT_TRUE(SameBits(other.log_probs, trained.log_probs));
  EXPECT_TRUE(SameBits(other.gradient, trained.gradient));
  EXPECT_FALSE(SameBits(Train(W16Model(options, 5), samples).log_probs, trained.log_probs));
}

TEST(Bf16ModelTest, TrainingLogProbsHaveTheBitsOfGeneration) { CheckGeneration(Options(false)); }

// Experts' products are rounded too; the router stays in F32.
TEST(Bf16ModelTest, ExpertsTrainingLogProbsHaveTheBitsOfGeneration) {
  SmallModelOptions options = Options(false);
  options.biases = false;
  options.qk_norm = true;
  options.num_experts = 4;
  CheckGeneration(options);
  const LoadedModel bf16 = W16Model(options, 5, model::Mode::kBf16);
  const model::Parameter& router = bf16.table().at(bf16.table().layers()[1].router);
  const model::Parameter& up = bf16.table().at(bf16.table().layers()[1].experts[0].up);
  EXPECT_EQ(bf16.decoder->InputsOf(router), kernels::Inputs::kF32);
  EXPECT_EQ(bf16.decoder->InputsOf(up), kernels::Inputs::kBf16);
}

// Gemma's embedding scale is rounded as under W16.
TEST(Bf16ModelTest, GemmaTrainingLogProbsHaveTheBitsOfGeneration) {
  SmallModelOptions options = Options(true);
  options.hidden_size = 40;  // its root is no bfloat16
  options.biases = false;
  options.qk_norm = true;
  options.gemma = true;
  CheckGeneration(options);
  EXPECT_EQ(W16Model(options, 5, model::Mode::kBf16).decoder->embedding_scale(),
            W16Model(options, 5).decoder->embedding_scale());
  EXPECT_NE(W16Model(options, 5, model::Mode::kF32).decoder->embedding_scale(),
            W16Model(options, 5).decoder->embedding_scale());
}

}  // namespace
}  // namespace titan::test
