// SPDX-License-Identifier: Apache-2.0
//
// The backward: against central differences of a decoder in double, and its bits: the same for any
// split into microbatches at unit ends, any thread count and either instruction set. Training
// log-probs have the bits of the generator's.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "core/base/hash.h"
#include "core/kernels/isa.h"
#include "core/kernels/sampling.h"
#include "tests/support/double_decoder.h"
#include "tests/support/plain_trainer.h"
#include "tests/support/small_model.h"

namespace titan::test {
namespace {

SmallModelOptions TinyOptions() {
  SmallModelOptions options;
  options.hidden_size = 48;
  options.intermediate_size = 80;
  options.vocab_size = 67;
  options.num_heads = 4;
  options.num_kv_heads = 2;
  options.head_dim = 12;
  options.biases = true;
  options.max_position_embeddings = 2048;
  return options;
}

LoadedModel MakeModel(const SmallModelOptions& options, uint64_t seed) {
  LoadedModel loaded = ModelOf(SmallModelConfig(options));
  kernels::Pool pool(1);
  FillSmallModelSlot(pool, loaded.table(), seed, options, loaded.slot.get());
  return loaded;
}

PackedSamples RandomSamples(Random& random, const std::vector<int32_t>& lengths,
                            int64_t vocabulary) {
  PackedSamples samples;
  for (const int32_t length : lengths)
    samples.samples.push_back(RandomTokens(random, length, vocabulary));
  return samples;
}

// sum of coefficients * log-probs over all samples, in double.
double LossInDouble(const formats::ModelConfig& config, const DoubleWeights& weights,
                    const PackedSamples& samples, int32_t first, double temperature,
                    const std::vector<float>& coefficients) {
  const DoubleDecoder decoder(config, weights);
  double loss = 0;
  size_t next = 0;
  for (const std::vector<int32_t>& sample : samples.samples) {
    std::vector<int32_t> targets(sample.begin() + 1, sample.end());
    targets.push_back(0);
    const std::vector<double> log_probs = decoder.LogProbs(sample, targets, temperature);
    for (size_t i = 0; i + 1 < sample.size(); ++i) {
      if (static_cast<int32_t>(i) + 1 >= first) loss += coefficients[next++] * log_probs[i];
    }
  }
  return loss;
}

void ExpectGradientOfDouble(const SmallModelOptions& options, uint64_t seed) {
  const LoadedModel model = MakeModel(options, seed);
  const auto values = SmallModelWeights(model.table(), seed, options);
  DoubleWeights weights;
  for (int i = 0; i < model.table().size(); ++i) {
    const std::vector<float>& v = values[static_cast<size_t>(i)];
    weights[model.table().at(i).name] = std::vector<double>(v.begin(), v.end());
  }
  Random random(seed);
  const PackedSamples samples = RandomSamples(random, {9, 2, 23}, options.vocab_size);
  std::vector<int32_t> rows, targets;
  samples.Targets(2, &rows, &targets);
  std::vector<float> coefficients(rows.size());
  for (float& c : coefficients) c = random.Signed();
  const double temperature = 1.25;

  kernels::Pool pool(2);
  PlainTrainer trainer(model, pool, 64);
  trainer.Forward(samples, rows, targets, static_cast<float>(1 / temperature));
  GradientMemory gradient(model.table());
  trainer.Backward(coefficients, UnitsOf(samples.lengths()), gradient.slot.data(),
                   gradient.tied_embedding());
  gradient.CloseShard(pool);

  for (int i = 0; i < model.table().size(); ++i) {
    const model::Parameter& p = model.table().at(i);
    const std::vector<float> ours = gradient.Values(pool, i);
    double squares = 0;
    for (const float g : ours) squares += static_cast<double>(g) * g;
    const double typical = std::sqrt(squares / static_cast<double>(ours.size()));
    EXPECT_GT(typical, 0) << p.name;
    // The largest entry, one of a token that occurs (for tables), and random ones.
    std::vector<size_t> picks;
    size_t largest = 0;
    for (size_t j = 0; j < ours.size(); ++j) {
      if (std::fabs(ours[j]) > std::fabs(ours[largest])) largest = j;
    }
    picks.push_back(largest);
    for (int n = 0; n < 3; ++n) {
      picks.push_back(static_cast<size_t>(random.Below(static_cast<int32_t>(ours.size()))));
    }
    for (const size_t j : picks) {
      double& w = weights[p.name][j];
      const double step = 1e-5, before = w;
      w = before + step;
      const double up =
          LossInDouble(model.decoder->config(), weights, samples, 2, temperature, coefficients);
      w = before - step;
      const double down =
          LossInDouble(model.decoder->config(), weights, samples, 2, temperature, coefficients);
      w = before;
      EXPECT_NEAR(ours[j], (up - down) / (2 * step),
                  2e-4 * typical + 2e-4 * std::fabs(ours[j]) + 1e-6)
          << p.name << "[" << j << "]";
    }
  }
}

TEST(GradientTest, IsTheDerivativeOfADecoderInDouble) { ExpectGradientOfDouble(TinyOptions(), 21); }

TEST(GradientTest, IsTheDerivativeOfATiedDecoderInDouble) {
  SmallModelOptions options = TinyOptions();
  options.tie_embeddings = true;
  options.num_layers = 1;
  ExpectGradientOfDouble(options, 22);
}

SmallModelOptions QwenOptions() {
  SmallModelOptions options = TinyOptions();
  options.biases = false;
  options.qk_norm = true;
  options.tie_embeddings = true;
  options.layer_windows = {0, 7};  // the samples of the derivative's test have up to 23 tokens
  options.head_dim = 20;           // heads * head_dim is not hidden_size
  // Queries and keys turn and grow by 0.1 ln 4 + 1.
  options.rope_scaling = {.kind = formats::RopeScaling::Kind::kYarn,
                          .factor = 4,
                          .original_max_position_embeddings = 16};
  return options;
}

TEST(GradientTest, IsTheDerivativeOfAQwen3DecoderInDouble) {
  ExpectGradientOfDouble(QwenOptions(), 23);
}

SmallModelOptions MoeOptions() {
  SmallModelOptions options = QwenOptions();
  options.num_experts = 6;
  options.layer_windows = {7, 7};
  return options;
}

TEST(GradientTest, IsTheDerivativeOfADecoderWithExpertsInDouble) {
  ExpectGradientOfDouble(MoeOptions(), 24);
  SmallModelOptions options = MoeOptions();
  options.normalise_expert_weights = false;
  ExpectGradientOfDouble(options, 25);
}

SmallModelOptions GemmaOptions() {
  SmallModelOptions options = QwenOptions();
  options.gemma = true;
  options.rope_scaling = {.kind = formats::RopeScaling::Kind::kLinear, .factor = 8};
  return options;
}

TEST(GradientTest, IsTheDerivativeOfAGemma3DecoderInDouble) {
  ExpectGradientOfDouble(GemmaOptions(), 26);
}

SmallModelOptions GptOssOptions() {
  SmallModelOptions options = QwenOptions();
  options.qk_norm = false;
  options.gpt_oss = true;
  options.biases = true;
  options.num_experts = 4;  // each is chosen, for nothing dominates the rows of a tied table
  options.layer_windows = {7, 0};
  options.rope_scaling.truncate = false;
  return options;
}

TEST(GradientTest, IsTheDerivativeOfAGptOssDecoderInDouble) {
  ExpectGradientOfDouble(GptOssOptions(), 27);
}

// Runs whole samples [begin, end) of a shard as one microbatch.
void RunMicrobatch(PlainTrainer& trainer, const PackedSamples& shard, size_t begin, size_t end,
                   GradientMemory& gradient) {
  PackedSamples part;
  part.samples.assign(shard.samples.begin() + static_cast<int64_t>(begin),
                      shard.samples.begin() + static_cast<int64_t>(end));
  int64_t first = 0, count = 0;
  for (size_t s = 0; s < end; ++s)
    (s < begin ? first : count) += static_cast<int64_t>(shard.samples[s].size());
  std::vector<kernels::RowRange> units;
  for (const kernels::RowRange& unit : UnitsOf(shard.lengths())) {
    if (unit.begin >= first && unit.begin < first + count)
      units.push_back({unit.begin - first, unit.end - first});
  }
  std::vector<int32_t> rows, targets;
  part.Targets(3, &rows, &targets);
  // A coefficient depends on its sample and place only.
  std::vector<float> coefficients;
  for (size_t s = 0; s < part.samples.size(); ++s) {
    Random random(1000 + begin + s);
    for (size_t i = 2; i + 1 < part.samples[s].size(); ++i) coefficients.push_back(random.Signed());
  }
  ASSERT_EQ(coefficients.size(), rows.size());
  trainer.Forward(part, rows, targets, 0.8f);
  trainer.Backward(coefficients, units, gradient.slot.data(), gradient.tied_embedding());
}

std::vector<float> ShardGradient(const LoadedModel& model, const PackedSamples& shard,
                                 const std::vector<size_t>& ends, int num_threads) {
  kernels::Pool pool(num_threads);
  PlainTrainer trainer(model, pool, 4096);
  GradientMemory gradient(model.table());
  size_t begin = 0;
  for (const size_t end : ends) {
    RunMicrobatch(trainer, shard, begin, end, gradient);
    begin = end;
  }
  gradient.CloseShard(pool);
  return gradient.slot;
}

TEST(GradientTest, MicrobatchesAndThreadsDoNotChangeItsBits) {
  for (const int kind : {0, 1, 2}) {
    const bool qwen = kind > 0, tied = qwen;
    SmallModelOptions options = kind == 2 ? MoeOptions() : qwen ? QwenOptions() : TinyOptions();
    options.hidden_size = 16;
    options.intermediate_size = 24;
    options.num_heads = 2;
    options.num_kv_heads = 1;
    options.head_dim = 4;
    options.num_layers = kind == 2 ? 2 : 1;
    if (qwen) options.layer_windows = std::vector<int32_t>(static_cast<size_t>(kind), 200);
    const LoadedModel model = MakeModel(options, 30);
    Random random(31);
    const PackedSamples shard =
        RandomSamples(random, {600, 500, 30, 1500, 200, 900, 2, 100}, options.vocab_size);
    // Units end with samples 1, 3 (1500 tokens are cut inside), 5 and the last.
    ASSERT_EQ(UnitsOf(shard.lengths()).size(), 5u);
    const std::vector<float> whole = ShardGradient(model, shard, {8}, 1);
    EXPECT_TRUE(SameBits(ShardGradient(model, shard, {2, 4, 6, 8}, 2), whole)) << "tied " << tied;
    EXPECT_TRUE(SameBits(ShardGradient(model, shard, {4, 8}, 3), whole)) << "tied " << tied;
    // Not vacuous: units in another order add up to other bits.
    PackedSamples reversed = shard;
    std::swap(reversed.samples[1], reversed.samples[5]);
    EXPECT_FALSE(SameBits(ShardGradient(model, reversed, {8}, 1), whole));
  }
}

TEST(GradientTest, InstructionSetsGiveTheSameBits) {
  const auto detected = kernels::DetectIsa();
  ASSERT_TRUE(detected.ok()) << detected.status();
  if (*detected == kernels::Isa::kAvx2) GTEST_SKIP() << "avx512 not run: this CPU lacks it";
  for (const int kind : {0, 1, 2}) {
    SmallModelOptions options;
    options.vocab_size = 1100;
    options.num_layers = kind == 2 ? 2 : 1;
    options.qk_norm = kind > 0;
    options.num_experts = kind == 2 ? 8 : 0;
    const LoadedModel model = MakeModel(options, 40);
    Random random(41);
    const PackedSamples shard = RandomSamples(random, {50, 70, 20}, options.vocab_size);
    ASSERT_TRUE(kernels::SetIsa(kernels::Isa::kAvx2).ok());
    const std::vector<float> avx2 = ShardGradient(model, shard, {3}, 2);
    ASSERT_TRUE(kernels::SetIsa("auto").ok());
    EXPECT_TRUE(SameBits(ShardGradient(model, shard, {3}, 2), avx2)) << "kind " << kind;
  }
}

// The order itself, as one number for each direction: the same on every machine. A change of it
// changes the contract and belongs into a commit of its own, with the reason.
TEST(GradientTest, HasTheBitsThatAreWrittenHere) {
  const struct {
    bool tied, qk_norm;
    const char *log_probs, *gradient;
  } cases[] = {{false, false, "dc7013b35bc5e6cd", "70fe784e625a066f"},
               {true, false, "9093c80229509803", "36602c87cd96fe7c"},
               {true, true, "93a0f0fd2f069955", "d9f7aab808255521"}};
  for (const auto& c : cases) {
    SmallModelOptions options;
    options.vocab_size = 1100;
    options.num_layers = 2;
    options.tie_embeddings = c.tied;
    options.biases = !c.tied;
    options.qk_norm = c.qk_norm;
    options.head_dim = c.qk_norm ? 128 : 64;
    const LoadedModel model = MakeModel(options, 45);
    Random random(46);
    const PackedSamples samples = RandomSamples(random, {50, 70, 20}, options.vocab_size);
    std::vector<int32_t> rows, targets;
    samples.Targets(3, &rows, &targets);
    kernels::Pool pool(2);
    PlainTrainer trainer(model, pool, 256);
    const std::vector<float> log_probs = trainer.Forward(samples, rows, targets, 0.8f);
    GradientMemory gradient(model.table());
    std::vector<float> coefficients(rows.size());
    for (float& c : coefficients) c = random.Signed();
    trainer.Backward(coefficients, UnitsOf(samples.lengths()), gradient.slot.data(),
                     gradient.tied_embedding());
    gradient.CloseShard(pool);
    EXPECT_EQ(ToHex(Hash64(log_probs.data(), log_probs.size() * sizeof(float))), c.log_probs);
    EXPECT_EQ(ToHex(Hash64(gradient.slot.data(), gradient.slot.size() * sizeof(float))),
              c.gradient);
  }
}

void ExpectTrainingLogProbsOfGeneration(SmallModelOptions options) {
  options.vocab_size = 1100;
  const LoadedModel model = MakeModel(options, 50);
  Random random(51);
  const PackedSamples samples = RandomSamples(random, {40, 7, 130, 64, 65}, options.vocab_size);
  std::vector<int32_t> rows, targets;
  samples.Targets(4, &rows, &targets);
  const float inverse_temperature = static_cast<float>(1 / 0.7);
  kernels::Pool pool(3);
  PlainTrainer trainer(model, pool, 400);
  std::vector<float> entropy;
  const std::vector<float> training =
      trainer.Forward(samples, rows, targets, inverse_temperature, &entropy);

  // Generation: token by token for the completion, after a prefill in two chunks.
  const auto workspace = ValueOrDie(model::Workspace::Create(
      *model.decoder, {.max_rows = 64, .max_head_rows = 64, .backward = false}));
  model::KvCache cache = ValueOrDie(model::KvCache::Create(model.decoder->config(), 64));
  const model::DecoderContext context = {*model.decoder, pool, *workspace};
  std::vector<PagedSequence> sequences(samples.samples.size());
  int32_t page = 0;
  for (size_t s = 0; s < sequences.size(); ++s) {
    sequences[s].tokens = samples.samples[s];
    sequences[s].pages = PagesFor(static_cast<int64_t>(sequences[s].tokens.size()), page);
    page += static_cast<int32_t>(sequences[s].pages.size());
  }
  bool open = true;
  while (open) {
    std::vector<int32_t> counts;
    open = false;
    for (const PagedSequence& s : sequences) {
      const int32_t left = static_cast<int32_t>(s.tokens.size()) - s.done;
      counts.push_back(std::min(left, s.done < 4 ? 2 : 1));
      open = open || left > 0;
    }
    if (open) RunChunks(context, model.weights, cache, sequences, counts);
  }
  const kernels::NumericThread numeric;
  size_t next = 0;
  for (const PagedSequence& s : sequences) {
    for (size_t i = 3; i + 1 < s.tokens.size(); ++i, ++next) {
      const float* logits = s.logits[i].data();
      const auto stats =
          kernels::ComputeLogSoftmax(logits, options.vocab_size, inverse_temperature);
      const float log_prob =
          kernels::LogProbOf(logits, s.tokens[i + 1], inverse_temperature, stats);
      ASSERT_EQ(std::bit_cast<uint32_t>(log_prob), std::bit_cast<uint32_t>(training[next])) << next;
    }
  }
  ASSERT_EQ(next, training.size());
}

TEST(GradientTest, TrainingLogProbsHaveTheBitsOfGeneration) {
  ExpectTrainingLogProbsOfGeneration(TinyOptions());
}

TEST(GradientTest, TrainingLogProbsOfQwen3HaveTheBitsOfGeneration) {
  ExpectTrainingLogProbsOfGeneration(QwenOptions());
  ExpectTrainingLogProbsOfGeneration(MoeOptions());
  ExpectTrainingLogProbsOfGeneration(GemmaOptions());
}

TEST(GradientTest, TrainingLogProbsOfGptOssHaveTheBitsOfGeneration) {
  ExpectTrainingLogProbsOfGeneration(GptOssOptions());
}

TEST(GradientTest, EntropyAgreesWithDouble) {
  const SmallModelOptions options = TinyOptions();
  const LoadedModel model = MakeModel(options, 60);
  const auto values = SmallModelWeights(model.table(), 60, options);
  DoubleWeights weights;
  for (int i = 0; i < model.table().size(); ++i) {
    const std::vector<float>& v = values[static_cast<size_t>(i)];
    weights[model.table().at(i).name] = std::vector<double>(v.begin(), v.end());
  }
  Random random(61);
  const PackedSamples samples = RandomSamples(random, {30}, options.vocab_size);
  std::vector<int32_t> rows, targets;
  samples.Targets(1, &rows, &targets);
  kernels::Pool pool(1);
  PlainTrainer trainer(model, pool, 32);
  std::vector<float> entropy;
  trainer.Forward(samples, rows, targets, 0.5f, &entropy);
  std::vector<double> expected;
  targets.push_back(0);
  DoubleDecoder(model.decoder->config(), weights)
      .LogProbs(samples.samples[0], targets, 2.0, &expected);
  for (size_t i = 0; i < entropy.size(); ++i) EXPECT_NEAR(entropy[i], expected[i], 2e-5) << i;
}

}  // namespace
}  // namespace titan::test
