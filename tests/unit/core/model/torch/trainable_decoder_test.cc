// SPDX-License-Identifier: Apache-2.0
//
// TrainableDecoder: autograd's nodes give the bits of the plain functions, forward and backward,
// over several microbatches; a forward that keeps nothing gives the same bits; misuse is refused by
// name.
#include "core/model/torch/trainable_decoder.h"

#include <gtest/gtest.h>

#include "tests/support/plain_trainer.h"
#include "tests/support/small_model.h"

namespace titan::test {
namespace {

SmallModelOptions Options(bool tied) {
  SmallModelOptions options;
  options.hidden_size = 48;
  options.intermediate_size = 80;
  options.vocab_size = 67;
  options.num_layers = 3;
  options.num_heads = 4;
  options.head_dim = 12;
  options.biases = !tied;
  options.tie_embeddings = tied;
  return options;
}

LoadedModel MakeModel(const SmallModelOptions& options, uint64_t seed) {
  LoadedModel loaded = ModelOf(SmallModelConfig(options));
  kernels::Pool pool(1);
  FillSmallModelSlot(pool, loaded.table(), seed, options, loaded.slot.get());
  return loaded;
}

struct Microbatch {
  PackedSamples samples;
  std::vector<int32_t> lengths, tokens, rows, targets;
  std::vector<kernels::RowRange> units;
  std::vector<float> coefficients;

  Microbatch(Random& random, const std::vector<int32_t>& sample_lengths, int32_t first,
             int64_t vocabulary) {
    for (const int32_t length : sample_lengths) {
      samples.samples.push_back(RandomTokens(random, length, vocabulary));
    }
    lengths = samples.lengths();
    tokens = samples.tokens();
    samples.Targets(first, &rows, &targets);
    units = UnitsOf(lengths);
    for (size_t i = 0; i < rows.size(); ++i) coefficients.push_back(random.Signed());
  }
  model::TrainBatch batch() const {
    return {.tokens = tokens,
            .sample_lengths = lengths,
            .rows = rows,
            .targets = targets,
            .units = units};
  }
};

constexpr model::TrainableDecoder::Limits kLimits = {
    .max_rows = 1400, .max_head_rows = 1400, .max_samples = 8, .backward = true};

TEST(TrainableDecoderTest, GivesTheBitsOfThePlainFunctions) {
  for (const bool tied : {false, true}) {
    const SmallModelOptions options = Options(tied);
    const LoadedModel model = MakeModel(options, 70);
    Random random(71);
    // The second one has a sample of several units, the third no trained token.
    const std::vector<Microbatch> microbatches = {Microbatch(random, {20, 1, 33, 5}, 4, 67),
                                                  Microbatch(random, {1300, 7}, 2, 67),
                                                  Microbatch(random, {6, 9}, 100, 67)};
    ASSERT_EQ(microbatches[1].units.size(), 3u);
    ASSERT_TRUE(microbatches[2].rows.empty());
    kernels::Pool pool(2);
    PlainTrainer plain(model, pool, 1400);
    const auto trainable =
        ValueOrDie(model::TrainableDecoder::Create(*model.decoder, pool, kLimits));
    GradientMemory expected(model.table()), gradient(model.table());
    for (const Microbatch& m : microbatches) {
      std::vector<float> plain_entropy;
      const std::vector<float> plain_log_probs =
          plain.Forward(m.samples, m.rows, m.targets, 0.9f, &plain_entropy);
      plain.Backward(m.coefficients, m.units, expected.slot.data(), expected.tied_embedding());

      std::vector<float> log_probs(m.rows.size()), entropy(m.rows.size()), again(m.rows.size());
      const Status without = trainable->Forward(model.weights, m.batch(), 0.9f, false, again, {});
      ASSERT_TRUE(without.ok()) << without;
      const Status forward =
          trainable->Forward(model.weights, m.batch(), 0.9f, true, log_probs, entropy);
      ASSERT_TRUE(forward.ok()) << forward;
      EXPECT_TRUE(SameBits(log_probs, plain_log_probs));
      EXPECT_TRUE(SameBits(again, plain_log_probs));
      EXPECT_TRUE(SameBits(entropy, plain_entropy));
      const Status backward =
          trainable->Backward(m.coefficients, {gradient.slot.data(), gradient.tied_embedding()});
      ASSERT_TRUE(backward.ok()) << backward;
    }
    expected.CloseShard(pool);
    gradient.CloseShard(pool);
    EXPECT_TRUE(SameBits(gradient.slot, expected.slot)) << "tied " << tied;
    for (int i = 0; i < model.table().size(); ++i) {
      const std::vector<float> values = gradient.Values(pool, i);
      EXPECT_TRUE(std::any_of(values.begin(), values.end(), [](float g) { return g != 0; }))
          << model.table().at(i).name;
    }
  }
}

TEST(TrainableDecoderTest, RefusesMisuseByName) {
  const LoadedModel model = MakeModel(Options(true), 80);
  kernels::Pool pool(1);
  const auto trainable = ValueOrDie(model::TrainableDecoder::Create(*model.decoder, pool, kLimits));
  GradientMemory gradient(model.table());
  const model::GradientBuffers buffers = {gradient.slot.data(), gradient.tied_embedding()};
  Random random(81);
  const Microbatch good(random, {5, 6}, 1, 67);
  std::vector<float> log_probs(good.rows.size());
  EXPECT_EQ(trainable->Backward(good.coefficients, buffers).code(),
            StatusCode::kFailedPrecondition);
  ASSERT_TRUE(trainable->Forward(model.weights, good.batch(), 1, false, log_probs, {}).ok());
  EXPECT_EQ(trainable->Backward(good.coefficients, buffers).code(),
            StatusCode::kFailedPrecondition);

  const auto refused = [&](Microbatch bad, const char* name) {
    log_probs.resize(bad.rows.size());
    const Status status = trainable->Forward(model.weights, bad.batch(), 1, true, log_probs, {});
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
    EXPECT_NE(MessageOf(status).find(name), std::string::npos) << status;
  };
  Microbatch bad = good;
  bad.tokens[3] = 67;
  refused(bad, "token 67");
  bad = good;
  bad.targets[2] = -1;
  refused(bad, "targets[2]");
  bad = good;
  bad.rows[2] = bad.rows[1];
  refused(bad, "rows[2]");
  bad = good;
  bad.units.back().end -= 1;
  refused(bad, "units");
  bad = good;
  bad.lengths[0] += 1;
  refused(bad, "sample_lengths");
  bad = good;
  bad.lengths[0] = 0;
  refused(bad, "sample of 0 tokens");

  log_probs.resize(good.rows.size());
  ASSERT_TRUE(trainable->Forward(model.weights, good.batch(), 1, true, log_probs, {}).ok());
  EXPECT_EQ(trainable->Backward(good.coefficients, {gradient.slot.data(), nullptr}).code(),
            StatusCode::kInvalidArgument);
  EXPECT_TRUE(trainable->Backward(good.coefficients, buffers).ok());
  EXPECT_EQ(trainable->Backward(good.coefficients, buffers).code(),
            StatusCode::kFailedPrecondition);
}

TEST(TrainableDecoderTest, SaysWhatMemoryItNeeds) {
  const LoadedModel model = MakeModel(Options(true), 90);
  model::TrainableDecoder::Limits limits = kLimits;
  const int64_t with = model::TrainableDecoder::MemoryNeeded(*model.decoder, limits);
  limits.backward = false;
  const int64_t without = model::TrainableDecoder::MemoryNeeded(*model.decoder, limits);
  const int64_t saved = 3 * 4 * model::BlockActivations::FloatsNeeded(*model.decoder, 1400);
  EXPECT_GT(with, without + saved);
  EXPECT_LT(with, without + 2 * saved);
  kernels::Pool pool(1);
  const auto forward_only =
      ValueOrDie(model::TrainableDecoder::Create(*model.decoder, pool, limits));
  Random random(91);
  const Microbatch m(random, {5, 6}, 1, 67);
  std::vector<float> log_probs(m.rows.size());
  EXPECT_TRUE(forward_only->Forward(model.weights, m.batch(), 1, false, log_probs, {}).ok());
  EXPECT_EQ(forward_only->Forward(model.weights, m.batch(), 1, true, log_probs, {}).code(),
            StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace titan::test
