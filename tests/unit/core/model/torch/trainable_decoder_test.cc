// SPDX-License-Identifier: Apache-2.0
//
// TrainableDecoder: autograd's nodes give the bits of the plain functions, forward and backward,
// over several microbatches; a forward that keeps nothing gives the same bits; misuse is refused by
// name.
#include "core/model/torch/trainable_decoder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>

#include "core/kernels/embedding.h"
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

LoadedModel MakeModel(const SmallModelOptions& options, uint64_t seed,
                      model::Mode mode = model::Mode::kF32) {
  LoadedModel loaded = ModelOf(SmallModelConfig(options), 0, mode);
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
    return {
        .tokens = tokens, .run_lengths = lengths, .rows = rows, .targets = targets, .units = units};
  }
};

constexpr model::TrainableDecoder::Limits kLimits = {
    .max_rows = 1400, .max_head_rows = 1400, .max_runs = 16, .backward = true};

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
          trainable->Backward(m.coefficients, {gradient.slot.data(), gradient.tied_rows()});
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

// As a whole table would be accumulated and added: with a vocabulary that fills no panel, tokens
// that come again in other units and microbatches, a shard after one that ended early, a part of
// the table alone.
TEST(TiedEmbeddingTest, HasTheBitsOfAWholeTable) {
  constexpr int32_t kVocabulary = 2083;
  SmallModelOptions options = Options(true);
  options.vocab_size = kVocabulary;
  kernels::Pool pool(2);
  for (const model::TensorShard shard : {model::TensorShard{0, 1}, {0, 2}, {1, 2}}) {
    const auto table =
        ValueOrDie(model::ParameterTable::Of(SmallModelConfig(options), model::Mode::kF32, shard));
    const model::Parameter& p = table.at(table.embedding());
    const kernels::RowRange held = {p.held.begin, p.held.end};
    ASSERT_GT(p.held.size(), 0);
    Random random(73);
    const auto tied = ValueOrDie(model::TiedEmbedding::Create(table));
    const int64_t width = p.columns();
    std::vector<float> head(static_cast<size_t>(p.num_floats())), expected;
    for (float& value : head) value = random.Signed();
    for (size_t i = 0; i < head.size(); i += 7) head[i] = -0.0f;
    expected = head;
    for (int round = 0; round < 3; ++round) {
      std::vector<float> whole(head.size());
      for (int microbatch = 0; microbatch < 3; ++microbatch) {
        std::vector<int32_t> tokens = RandomTokens(random, 90, kVocabulary);
        for (size_t i = 60; i < 90; ++i) tokens[i] = tokens[i - 60];
        std::vector<float> dx(tokens.size() * static_cast<size_t>(width));
        for (float& value : dx) value = random.Signed();
        const std::vector<kernels::RowRange> units = {{0, 50}, {50, 90}};
        tied->Add(pool, tokens, units, dx.data());
        kernels::EmbeddingGradient(pool, kernels::TableLayout::kPanels32, dx.data(), kVocabulary,
                                   width, tokens.data(), units, whole.data(), &held);
      }
      if (round == 1) {
        tied->Clear();
        continue;
      }
      tied->AddTo(pool, head.data());
      kernels::AddInto(pool, static_cast<int64_t>(whole.size()), expected.data(), whole.data());
      EXPECT_TRUE(SameBits(head, expected)) << shard.rank << " of " << shard.size;
    }
  }
}

// Two groups, each once as copies and once with its prompt shared: the runs are the replies, then
// the prompt.
struct GroupBatch {
  std::vector<int32_t> tokens, lengths, parents, rows, targets;
  std::vector<float> coefficients;

  model::TrainBatch batch(std::span<const kernels::RowRange> units) const {
    return {.tokens = tokens,
            .run_lengths = lengths,
            .run_parents = parents,
            .rows = rows,
            .targets = targets,
            .units = units};
  }
  void Run(std::span<const int32_t> run, int32_t parent) {
    tokens.insert(tokens.end(), run.begin(), run.end());
    lengths.push_back(static_cast<int32_t>(run.size()));
    parents.push_back(parent);
  }
  void Predict(int32_t row, int32_t target, float coefficient) {
    rows.push_back(row);
    targets.push_back(target);
    coefficients.push_back(coefficient);
  }
};

struct Group {
  std::vector<int32_t> prompt;
  std::vector<std::vector<int32_t>> replies;
  std::vector<std::vector<float>> coefficients;
};

void AddCopies(const Group& group, GroupBatch* to, std::vector<size_t>* order) {
  for (size_t s = 0; s < group.replies.size(); ++s) {
    const auto first = static_cast<int32_t>(to->tokens.size());
    std::vector<int32_t> sample = group.prompt;
    sample.insert(sample.end(), group.replies[s].begin(), group.replies[s].end());
    to->Run(sample, -1);
    for (size_t t = 0; t < group.replies[s].size(); ++t) {
      order->push_back(to->rows.size());
      to->Predict(first + static_cast<int32_t>(group.prompt.size() + t) - 1, group.replies[s][t],
                  group.coefficients[s][t]);
    }
  }
}

void AddShared(const Group& group, GroupBatch* to, std::vector<size_t>* order) {
  const auto parent = static_cast<int32_t>(to->lengths.size() + group.replies.size());
  std::vector<std::vector<size_t>> index(group.replies.size());
  for (size_t s = 0; s < group.replies.size(); ++s) {
    const auto first = static_cast<int32_t>(to->tokens.size());
    to->Run(group.replies[s], parent);
    index[s].push_back(0);
    for (size_t t = 1; t < group.replies[s].size(); ++t) {
      index[s].push_back(to->rows.size());
      to->Predict(first + static_cast<int32_t>(t) - 1, group.replies[s][t],
                  group.coefficients[s][t]);
    }
  }
  to->Run(group.prompt, -1);
  const auto branch = static_cast<int32_t>(to->tokens.size()) - 1;
  for (size_t s = 0; s < group.replies.size(); ++s) {
    index[s][0] = to->rows.size();
    to->Predict(branch, group.replies[s][0], group.coefficients[s][0]);
  }
  for (const auto& sample : index) order->insert(order->end(), sample.begin(), sample.end());
}

class SharedPrefixTest : public testing::Test {
 protected:
  std::vector<Group> Groups() {
    Random random(91);
    std::vector<Group> groups;
    for (const auto& [prompt, replies] :
         {std::pair<int32_t, std::vector<int32_t>>{37, {5, 1, 22}}, {16, {30, 3}}, {1, {4, 4}}}) {
      Group group;
      group.prompt = RandomTokens(random, prompt, 67);
      for (const int32_t length : replies) {
        group.replies.push_back(RandomTokens(random, length, 67));
        group.coefficients.emplace_back();
        for (int32_t i = 0; i < length; ++i) group.coefficients.back().push_back(random.Signed());
      }
      groups.push_back(group);
    }
    return groups;
  }

  struct Result {
    std::vector<float> log_probs;  // of the groups' replies, end to end
    std::vector<float> gradient;
  };
  Result Run(const LoadedModel& model, const GroupBatch& groups, const std::vector<size_t>& order) {
    kernels::Pool pool(2);
    const auto trainable =
        ValueOrDie(model::TrainableDecoder::Create(*model.decoder, pool, kLimits));
    const std::vector<kernels::RowRange> units = {{0, static_cast<int64_t>(groups.tokens.size())}};
    std::vector<float> log_probs(groups.rows.size());
    const Status forward =
        trainable->Forward(model.weights, groups.batch(units), 0.9f, true, log_probs, {});
    EXPECT_TRUE(forward.ok()) << forward;
    GradientMemory gradient(model.table());
    EXPECT_TRUE(
        trainable->Backward(groups.coefficients, {gradient.slot.data(), gradient.tied_rows()})
            .ok());
    gradient.CloseShard(pool);
    Result result;
    for (const size_t i : order) result.log_probs.push_back(log_probs[i]);
    result.gradient = gradient.slot;
    return result;
  }
};

TEST_F(SharedPrefixTest, HasTheLogProbsOfCopiesAndTheirGradient) {
  for (const bool tied : {false, true}) {
    const LoadedModel model = MakeModel(Options(tied), 70);
    GroupBatch copies, shared;
    std::vector<size_t> copies_order, shared_order;
    for (const Group& group : Groups()) {
      AddCopies(group, &copies, &copies_order);
      AddShared(group, &shared, &shared_order);
    }
    const Result expected = Run(model, copies, copies_order);
    const Result result = Run(model, shared, shared_order);
    EXPECT_TRUE(SameBits(result.log_probs, expected.log_probs));
    EXPECT_FALSE(SameBits(result.gradient, expected.gradient));  // another order
    double error = 0, norm = 0;
    for (size_t i = 0; i < expected.gradient.size(); ++i) {
      const double difference = double{result.gradient[i]} - expected.gradient[i];
      error += difference * difference;
      norm += double{expected.gradient[i]} * expected.gradient[i];
    }
    EXPECT_GT(norm, 0);
    EXPECT_LT(std::sqrt(error / norm), 2e-6) << "tied " << tied;
  }
}

TEST_F(SharedPrefixTest, RefusesAParentThatIsNone) {
  const LoadedModel model = MakeModel(Options(true), 70);
  kernels::Pool pool(1);
  const auto trainable = ValueOrDie(model::TrainableDecoder::Create(*model.decoder, pool, kLimits));
  GroupBatch good;
  std::vector<size_t> order;
  AddShared(Groups().front(), &good, &order);
  std::vector<float> log_probs(good.rows.size());
  for (const int32_t parent : {0, 9, -2}) {
    GroupBatch bad = good;
    bad.parents[1] = parent;
    const Status status = trainable->Forward(model.weights, bad.batch({}), 1, false, log_probs, {});
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
    EXPECT_NE(MessageOf(status).find("prefix of run 1"), std::string::npos) << status;
  }
  GroupBatch bad = good;
  bad.parents.pop_back();
  EXPECT_EQ(trainable->Forward(model.weights, bad.batch({}), 1, false, log_probs, {}).code(),
            StatusCode::kInvalidArgument);
}

TEST(TrainableDecoderTest, RefusesMisuseByName) {
  const LoadedModel model = MakeModel(Options(true), 80);
  kernels::Pool pool(1);
  const auto trainable = ValueOrDie(model::TrainableDecoder::Create(*model.decoder, pool, kLimits));
  GradientMemory gradient(model.table());
  const model::GradientBuffers buffers = {gradient.slot.data(), gradient.tied_rows()};
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
  bad.rows[2] = bad.rows[1] - 1;
  refused(bad, "rows[2]");
  bad = good;
  bad.units.back().end -= 1;
  refused(bad, "units");
  bad = good;
  bad.lengths[0] += 1;
  refused(bad, "run_lengths");
  bad = good;
  bad.lengths[0] = 0;
  refused(bad, "run of 0 tokens");

  log_probs.resize(good.rows.size());
  ASSERT_TRUE(trainable->Forward(model.weights, good.batch(), 1, true, log_probs, {}).ok());
  EXPECT_EQ(trainable->Backward(good.coefficients, {gradient.slot.data(), nullptr}).code(),
            StatusCode::kInvalidArgument);
  EXPECT_TRUE(trainable->Backward(good.coefficients, buffers).ok());
  EXPECT_EQ(trainable->Backward(good.coefficients, buffers).code(),
            StatusCode::kFailedPrecondition);
}

// The gradient.
std::vector<float> ExpectComputingAgainChangesNoBit(const SmallModelOptions& options,
                                                    model::Mode mode) {
  const LoadedModel model = MakeModel(options, 70, mode);
  Random random(72);
  const std::vector<Microbatch> microbatches = {Microbatch(random, {1300, 7}, 2, 67),
                                                Microbatch(random, {20, 1, 33, 5}, 4, 67)};
  kernels::Pool pool(2);
  std::vector<float> expected_log_probs, expected_gradient;
  int64_t last_memory = std::numeric_limits<int64_t>::max();
  for (const auto recompute :
       {model::Recompute::kNone, model::Recompute::kSelective, model::Recompute::kFull}) {
    model::TrainableDecoder::Limits limits = kLimits;
    limits.recompute = recompute;
    const int64_t memory = model::TrainableDecoder::MemoryNeeded(*model.decoder, limits);
    EXPECT_LT(memory, last_memory) << ModeName(mode);
    last_memory = memory;
    const auto trainable =
        ValueOrDie(model::TrainableDecoder::Create(*model.decoder, pool, limits));
    GradientMemory gradient(model.decoder->master_table());
    std::vector<float> log_probs;
    for (const Microbatch& m : microbatches) {
      std::vector<float> values(m.rows.size());
      EXPECT_TRUE(trainable->Forward(model.weights, m.batch(), 0.9f, true, values, {}).ok());
      EXPECT_TRUE(
          trainable->Backward(m.coefficients, {gradient.slot.data(), gradient.tied_rows()}).ok());
      log_probs.insert(log_probs.end(), values.begin(), values.end());
    }
    gradient.CloseShard(pool);
    if (recompute == model::Recompute::kNone) {
      expected_log_probs = log_probs;
      expected_gradient = gradient.slot;
    }
    EXPECT_TRUE(SameBits(log_probs, expected_log_probs)) << ModeName(mode);
    EXPECT_TRUE(SameBits(gradient.slot, expected_gradient)) << ModeName(mode);
  }
  return expected_gradient;
}

void ExpectComputingAgainChangesNoBit(const SmallModelOptions& options) {
  std::vector<std::vector<float>> gradients;
  for (const auto mode : {model::Mode::kF32, model::Mode::kW16, model::Mode::kBf16}) {
    gradients.push_back(ExpectComputingAgainChangesNoBit(options, mode));
  }
  EXPECT_FALSE(SameBits(gradients[0], gradients[1]));
  EXPECT_FALSE(SameBits(gradients[1], gradients[2]));
}

TEST(TrainableDecoderTest, ComputingAgainChangesNoBitAndTakesLessMemory) {
  ExpectComputingAgainChangesNoBit(Options(true));
  SmallModelOptions options = Options(true);
  options.qk_norm = true;
  options.layer_windows = {0, 40, 0};
  options.gemma = true;
  ExpectComputingAgainChangesNoBit(options);
  options.gemma = false;
  options.num_experts = 5;
  options.layer_windows = {40, 40, 40};
  ExpectComputingAgainChangesNoBit(options);
  options = Options(false);
  options.gpt_oss = true;
  options.num_experts = 5;
  options.layer_windows = {40, 0, 40};
  ExpectComputingAgainChangesNoBit(options);
}

int64_t ResidentBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmRSS:", 0) == 0) return std::stoll(line.substr(6)) * 1024;
  }
  return 0;
}

// A step takes what was said before it, with what kernels keep; the rest is what LibTorch and the
// C library hold for themselves.
TEST(TrainableDecoderTest, AStepTakesWhatWasPlanned) {
  SmallModelOptions options = Options(true);
  options.vocab_size = 2560;
  options.intermediate_size = 512;
  const LoadedModel model = MakeModel(options, 92);
  kernels::Pool pool(2);
  GradientMemory gradient(model.table());
  const auto step = [&](int32_t length, int32_t samples) {
    Random random(93);
    const Microbatch m(random, std::vector<int32_t>(static_cast<size_t>(samples), length), 1, 2560);
    const auto rows = static_cast<int64_t>(m.tokens.size());
    const model::TrainableDecoder::Limits limits = {
        .max_rows = rows, .max_head_rows = rows, .max_runs = samples, .backward = true};
    const auto trainable =
        ValueOrDie(model::TrainableDecoder::Create(*model.decoder, pool, limits));
    std::vector<float> log_probs(m.rows.size());
    EXPECT_TRUE(trainable->Forward(model.weights, m.batch(), 1, true, log_probs, {}).ok());
    EXPECT_TRUE(
        trainable->Backward(m.coefficients, {gradient.slot.data(), gradient.tied_rows()}).ok());
    return std::pair(ResidentBytes(),
                     model::TrainableDecoder::MemoryNeeded(*model.decoder, limits));
  };
  step(4, 2);  // LibTorch's own
  const int64_t before = ResidentBytes();
  const auto [after, planned] = step(2040, 3);
  std::printf("planned %.1f MiB, taken %.1f MiB\n", static_cast<double>(planned) / (1 << 20),
              static_cast<double>(after - before) / (1 << 20));
  EXPECT_LT(after - before, planned + (8 << 20));
  EXPECT_GT(after - before, planned * 3 / 4);
}

TEST(TrainableDecoderTest, SaysWhatMemoryItNeeds) {
  const LoadedModel model = MakeModel(Options(true), 90);
  model::TrainableDecoder::Limits limits = kLimits;
  const int64_t with = model::TrainableDecoder::MemoryNeeded(*model.decoder, limits);
  limits.backward = false;
  const int64_t without = model::TrainableDecoder::MemoryNeeded(*model.decoder, limits);
  const int64_t saved =
      3 * 4 * model::BlockActivations::FloatsNeeded(*model.decoder, 1400, model::Recompute::kNone);
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
