// SPDX-License-Identifier: Apache-2.0
// Goal: parts of a model on 2, 3 and 4 tensor-parallel ranks give the log-probs, entropies and
// gradients of the whole model, bit for bit, in every mode and family form, and hold no more than
// their part. Method: the real TrainableDecoder, ranks in threads; a sum of parts of a reduction,
// which is what another route would exchange, must differ, and so must one changed bit of an
// exchange.
#include "core/model/tensor_parallel.h"

#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "core/kernels/linear.h"
#include "core/model/torch/trainable_decoder.h"
#include "tests/support/plain_trainer.h"
#include "tests/support/shared_memory_ranks.h"
#include "tests/support/small_model.h"

namespace titan::test {
namespace {

using testing::SharedMemoryRanks;
using testing::SharedWindow;

constexpr int64_t kRows = 160;
constexpr model::Workspace::Limits kScratch = {kRows, kRows, true};

// Several panels of every matrix, three chunks of the vocabulary, whose leaves end inside them, and
// leaves of the MLP's input gradient.
SmallModelOptions Options() {
  SmallModelOptions options;
  options.hidden_size = 96;
  options.intermediate_size = 1056;
  options.vocab_size = 2600;
  options.num_layers = 2;
  options.num_heads = 6;
  options.num_kv_heads = 3;
  options.head_dim = 32;
  return options;
}

struct Samples {
  PackedSamples packed;
  std::vector<int32_t> lengths, tokens, rows, targets;
  std::vector<kernels::RowRange> units;
  std::vector<float> coefficients;

  explicit Samples(int64_t vocabulary) {
    Random random(91);
    for (const int32_t length : {40, 3, 61, 17}) {
      packed.samples.push_back(RandomTokens(random, length, vocabulary));
    }
    lengths = packed.lengths();
    tokens = packed.tokens();
    packed.Targets(2, &rows, &targets);
    // Two units: gradients have sums of chains.
    units = {{0, 43}, {43, static_cast<int64_t>(tokens.size())}};
    for (size_t i = 0; i < rows.size(); ++i) coefficients.push_back(random.Signed());
  }
};

struct Result {
  model::TensorShard shard;
  std::vector<float> log_probs, entropy, gradient, tied;
  Status status;
};

// Forward and backward of one part, or of the whole model.
Result Train(const SmallModelOptions& options, model::Mode mode, model::Recompute recompute,
             model::TensorShard shard, model::Ranks* ranks) {
  Result result;
  result.shard = shard;
  kernels::Pool pool(1 + shard.rank % 2);
  const auto decoder =
      ValueOrDie(model::Decoder::Create(SmallModelConfig(options), 0, mode, shard));
  const auto slot = ValueOrDie(model::AllocateFloats(decoder->table().slot_floats()));
  FillSmallModelSlot(pool, decoder->table(), 90, options, slot.get());
  std::unique_ptr<model::TensorParallel> tensor;
  if (ranks != nullptr) {
    tensor = ValueOrDie(model::TensorParallel::Create(*decoder, *ranks, kScratch));
    tensor->RefreshColumns(slot.get());
  }
  const auto trainable = ValueOrDie(model::TrainableDecoder::Create(
      *decoder, pool,
      {.max_rows = kRows, .max_head_rows = kRows, .max_runs = 8, .recompute = recompute},
      tensor.get()));
  const Samples samples(options.vocab_size);
  const model::TrainBatch batch = {.tokens = samples.tokens,
                                   .run_lengths = samples.lengths,
                                   .rows = samples.rows,
                                   .targets = samples.targets,
                                   .units = samples.units};
  result.log_probs.resize(samples.rows.size());
  result.entropy.resize(samples.rows.size());
  const model::Weights weights = model::WeightsOf(decoder->table(), slot.get());
  result.status = trainable->Forward(weights, batch, 0.9f, true, result.log_probs, result.entropy);
  if (!result.status.ok()) return result;
  const model::ParameterTable& table = decoder->master_table();
  result.gradient.resize(static_cast<size_t>(table.slot_floats()));
  result.tied.resize(static_cast<size_t>(table.at(0).num_floats() + 1));
  const auto tied = table.tied() ? ValueOrDie(model::TiedEmbedding::Create(table)) : nullptr;
  result.status = trainable->Backward(samples.coefficients, {result.gradient.data(), tied.get()});
  if (tied != nullptr) tied->AddTo(pool, result.tied.data());
  return result;
}

std::vector<Result> InThreads(const SmallModelOptions& options, model::Mode mode,
                              model::Recompute recompute, int size) {
  SharedWindow window(size);
  std::vector<Result> results(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      SharedMemoryRanks ranks(window, rank);
      results[static_cast<size_t>(rank)] = Train(options, mode, recompute, {rank, size}, &ranks);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

// What the part has of the whole's gradient, bit for bit; every matrix of the whole is on some
// part.
void ExpectParts(const SmallModelOptions& options, const Result& whole,
                 const std::vector<Result>& parts) {
  const auto table = ValueOrDie(model::ParameterTable::Of(SmallModelConfig(options)));
  std::vector<int64_t> rows(static_cast<size_t>(table.size()));
  for (const Result& part : parts) {
    ASSERT_TRUE(part.status.ok()) << part.status;
    EXPECT_TRUE(SameBits(part.log_probs, whole.log_probs));
    EXPECT_TRUE(SameBits(part.entropy, whole.entropy));
    const auto own = ValueOrDie(
        model::ParameterTable::Of(SmallModelConfig(options), model::Mode::kF32, part.shard));
    for (int i = 0; i < own.size(); ++i) {
      const model::Parameter& p = own.at(i);
      rows[static_cast<size_t>(i)] += p.held.size();
      const float* expected = whole.gradient.data() + table.at(i).offset / 4;
      if (p.is_matrix()) expected += p.held.begin * p.columns();
      EXPECT_EQ(
          std::memcmp(part.gradient.data() + p.offset / 4, expected, static_cast<size_t>(p.bytes)),
          0)
          << p.name << " of rank " << part.shard.rank << " of " << part.shard.size;
    }
    if (own.tied()) {
      EXPECT_EQ(std::memcmp(part.tied.data(),
                            whole.tied.data() + own.at(0).held.begin * own.at(0).columns(),
                            static_cast<size_t>(own.at(0).bytes)),
                0);
    }
  }
  for (int i = 0; i < table.size(); ++i) {
    // Whole everywhere.
    const bool is_router = table.at(i).name.ends_with(".mlp.gate.weight") ||
                           table.at(i).name.ends_with(".mlp.router.weight");
    if (table.at(i).is_matrix() && !is_router) {
      EXPECT_EQ(rows[static_cast<size_t>(i)], table.at(i).rows()) << table.at(i).name;
    }
  }
}

void CheckSizes(const SmallModelOptions& options, model::Mode mode, model::Recompute recompute) {
  const Result whole = Train(options, mode, recompute, {}, nullptr);
  ASSERT_TRUE(whole.status.ok()) << whole.status;
  for (const int size : {2, 3, 4}) {
    ExpectParts(options, whole, InThreads(options, mode, recompute, size));
  }
}

TEST(TensorParallelTest, PartsGiveTheBitsOfTheWhole) {
  SmallModelOptions options = Options();
  options.biases = true;
  CheckSizes(options, model::Mode::kF32, model::Recompute::kNone);
  options.biases = false;
  options.tie_embeddings = true;
  CheckSizes(options, model::Mode::kW16, model::Recompute::kFull);
  options.tie_embeddings = false;
  CheckSizes(options, model::Mode::kBf16, model::Recompute::kSelective);
}

TEST(TensorParallelTest, FamiliesAndOddSizesToo) {
  SmallModelOptions options = Options();
  options.qk_norm = true;
  options.tie_embeddings = true;
  CheckSizes(options, model::Mode::kF32, model::Recompute::kSelective);
  options.gemma = true;
  CheckSizes(options, model::Mode::kF32, model::Recompute::kNone);
  options.gemma = false;
  options.num_experts = 4;
  CheckSizes(options, model::Mode::kF32, model::Recompute::kFull);
  CheckSizes(options, model::Mode::kBf16, model::Recompute::kNone);
  options = Options();
  options.intermediate_size = 100;
  options.gpt_oss = true;
  options.biases = true;
  options.num_experts = 4;
  options.layer_windows = {20, 0};
  CheckSizes(options, model::Mode::kF32, model::Recompute::kSelective);
  CheckSizes(options, model::Mode::kBf16, model::Recompute::kFull);
  // A row is not whole chunks of 32; the last panels are short; one chunk of the vocabulary, so
  // that only one rank has rows of the head.
  options = Options();
  options.hidden_size = 84;
  options.intermediate_size = 100;
  options.head_dim = 12;
  options.vocab_size = 700;
  CheckSizes(options, model::Mode::kF32, model::Recompute::kFull);
}

TEST(TensorParallelTest, ARankHoldsItsPartAndTheSecondShard) {
  const SmallModelOptions options = Options();
  const auto whole = ValueOrDie(model::Decoder::Create(SmallModelConfig(options)));
  int64_t held = 0;
  for (int rank = 0; rank < 3; ++rank) {
    const auto part = ValueOrDie(
        model::Decoder::Create(SmallModelConfig(options), 0, model::Mode::kF32, {rank, 3}));
    EXPECT_LT(part->table().slot_bytes(), whole->table().slot_bytes() * 2 / 5);
    EXPECT_EQ(part->whole_table().slot_bytes(), whole->table().slot_bytes());
    held += part->table().slot_bytes();
    const int64_t with = model::TensorParallel::MemoryNeeded(*part, kScratch);
    const int64_t without = model::TensorParallel::MemoryNeeded(*part, {kRows, kRows, false});
    EXPECT_LT(with - without, whole->table().slot_bytes() * 2 / 5);
    EXPECT_GT(with - without, 0);
  }
  EXPECT_LT(held, whole->table().slot_bytes() * 21 / 20);  // vectors are on every rank
}

// Changes one bit of one float of one exchange.
class FlippingRanks final : public model::Ranks {
 public:
  FlippingRanks(model::Ranks& ranks, int exchange) : ranks_(ranks), exchange_(exchange) {}
  int rank() const override { return ranks_.rank(); }
  int size() const override { return ranks_.size(); }
  Status AllGather(std::span<const std::span<std::byte>> parts) override {
    const Status status = ranks_.AllGather(parts);
    for (size_t r = 0; r < parts.size() && count_ == exchange_; ++r) {
      if (static_cast<int>(r) == rank() || parts[r].empty()) continue;
      parts[r][1] ^= std::byte{1};
      break;
    }
    ++count_;
    return status;
  }

 private:
  model::Ranks& ranks_;
  const int exchange_;
  int count_ = 0;
};

TEST(TensorParallelTest, OneChangedBitOfAnExchangeIsSeen) {
  const SmallModelOptions options = Options();
  const Result whole = Train(options, model::Mode::kF32, model::Recompute::kNone, {}, nullptr);
  SharedWindow window(2);
  std::vector<Result> results(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      SharedMemoryRanks ranks(window, rank);
      FlippingRanks flipping(ranks, 20);  // of the first layer
      results[static_cast<size_t>(rank)] =
          Train(options, model::Mode::kF32, model::Recompute::kNone, {rank, 2}, &flipping);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Result& part : results) {
    ASSERT_TRUE(part.status.ok()) << part.status;
    EXPECT_FALSE(SameBits(part.log_probs, whole.log_probs));
  }
}

// What a row-parallel linear would exchange: each rank's chain over its own k, added in rank order.
TEST(TensorParallelTest, SumsOfPartsOfAReductionWouldDiffer) {
  constexpr int64_t kOut = 64, kDepth = 1024;
  kernels::Pool pool(1);
  Random random(92);
  std::vector<float> x(static_cast<size_t>(kRows * kDepth)), w(kOut * kDepth);
  for (float& value : x) value = random.Signed();
  for (float& value : w) value = random.Signed();
  const auto linear = [&](int64_t begin, int64_t depth, int leaves) {
    std::vector<float> rows;
    for (int64_t n = 0; n < kOut; ++n) {
      rows.insert(rows.end(), w.begin() + n * kDepth + begin,
                  w.begin() + n * kDepth + begin + depth);
    }
    std::vector<float> panels(static_cast<size_t>(kernels::PanelFloats(kOut, depth)));
    kernels::PackPanels(pool, rows.data(), kOut, depth, panels.data());
    std::vector<float> out(static_cast<size_t>(kRows * kOut));
    kernels::Linear(
        pool, {.x = x.data() + begin, .ldx = kDepth, .m = kRows, .k = depth},
        {.panels = panels.data(), .n = kOut, .leaves = leaves, .out = out.data(), .ldo = kOut});
    return out;
  };
  const std::vector<float> whole = linear(0, kDepth, kernels::LeafCount(kDepth, 0));
  std::vector<float> sum = linear(0, kDepth / 4, 1);
  for (int rank = 1; rank < 4; ++rank) {
    const std::vector<float> part = linear(rank * kDepth / 4, kDepth / 4, 1);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] = sum[i] + part[i];
  }
  int64_t differing = 0;
  for (size_t i = 0; i < sum.size(); ++i) {
    differing += sum[i] != whole[i] ? 1 : 0;
    EXPECT_NEAR(sum[i], whole[i], 1e-3);
  }
  EXPECT_GT(differing, kRows * kOut / 10);
}

// A group whose exchange fails.
class FailingRanks final : public model::Ranks {
 public:
  int rank() const override { return 0; }
  int size() const override { return 2; }
  Status AllGather(std::span<const std::span<std::byte>>) override {
    ++calls;
    return Unavailable("rank 1 is gone");
  }
  int calls = 0;
};

TEST(TensorParallelTest, AFailedExchangeEndsTheForward) {
  FailingRanks ranks;
  const Result result =
      Train(Options(), model::Mode::kF32, model::Recompute::kNone, {0, 2}, &ranks);
  EXPECT_EQ(result.status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(ranks.calls, 1);
}

TEST(TensorParallelTest, RefusesWhatIsNoPart) {
  const auto part =
      ValueOrDie(model::Decoder::Create(SmallModelConfig(Options()), 0, model::Mode::kF32, {1, 2}));
  FailingRanks ranks;
  const auto tensor = model::TensorParallel::Create(*part, ranks, kScratch);
  ASSERT_EQ(tensor.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(MessageOf(tensor.status()).find("part 1 of 2"), std::string::npos);
}

}  // namespace
}  // namespace titan::test
