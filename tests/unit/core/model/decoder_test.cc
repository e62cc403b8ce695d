// SPDX-License-Identifier: Apache-2.0
//
// Invariant I3 on the forward: a position's logits have the same bits whether it was computed in
// one prefill, in chunks, token by token, in a mixed batch, in permuted pages, with any thread
// count, or on either instruction set; and they agree with a decoder in double. The models are big
// enough to have several leaves and more than one key segment.
#include "core/model/decoder.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/kernels/isa.h"
#include "tests/support/double_decoder.h"
#include "tests/support/model_fixture.h"
#include "tests/support/small_model.h"

namespace titan::test {
namespace {

SmallModelOptions LeafyOptions() {
  SmallModelOptions options;
  options.num_layers = 2;
  options.vocab_size = 1100;  // two chunks of the log-softmax
  return options;
}

SmallModelOptions TinyOptions() {
  SmallModelOptions options;
  options.hidden_size = 48;
  options.intermediate_size = 80;
  options.vocab_size = 67;
  options.num_heads = 4;
  options.num_kv_heads = 2;
  options.head_dim = 12;
  options.biases = true;
  options.max_position_embeddings = 256;
  return options;
}

LoadedModel MakeModel(const SmallModelOptions& options, uint64_t seed) {
  LoadedModel loaded = ModelOf(SmallModelConfig(options));
  kernels::Pool pool(1);
  FillSmallModelSlot(pool, loaded.table(), seed, options, loaded.slot.get());
  return loaded;
}

// Logits of every position of `tokens` in one prefill, pages in order, one thread.
std::vector<std::vector<float>> Prefill(const LoadedModel& model,
                                        const std::vector<int32_t>& tokens) {
  kernels::Pool pool(1);
  const int64_t rows = static_cast<int64_t>(tokens.size());
  const auto workspace = ValueOrDie(model::Workspace::Create(
      *model.decoder, {.max_rows = rows, .max_head_rows = rows, .backward = false}));
  model::KvCache cache = ValueOrDie(model::KvCache::Create(model.decoder->config(), rows / 16 + 1));
  std::vector<PagedSequence> sequences(1);
  sequences[0].tokens = tokens;
  sequences[0].pages = PagesFor(rows);
  RunChunks({*model.decoder, pool, *workspace}, model.weights, cache, sequences,
            {static_cast<int32_t>(rows)});
  return sequences[0].logits;
}

// Runs the sequences to their ends by random chunks (many of one token), in random batches.
void RunMixed(const LoadedModel& model, int num_threads, uint64_t seed,
              std::vector<PagedSequence>& sequences) {
  Random random(seed);
  kernels::Pool pool(num_threads);
  int64_t num_pages = 0;
  for (const PagedSequence& s : sequences)
    num_pages += kernels::NumPages(static_cast<int64_t>(s.tokens.size()));
  std::vector<int32_t> ids(static_cast<size_t>(num_pages) + 5);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
  for (size_t i = ids.size() - 1; i > 0; --i) {
    std::swap(ids[i], ids[static_cast<size_t>(random.Below(static_cast<int32_t>(i + 1)))]);
  }
  for (PagedSequence& s : sequences) {
    const size_t count =
        static_cast<size_t>(kernels::NumPages(static_cast<int64_t>(s.tokens.size())));
    s.pages.assign(ids.end() - static_cast<int64_t>(count), ids.end());
    ids.resize(ids.size() - count);
  }
  model::KvCache cache = ValueOrDie(model::KvCache::Create(model.decoder->config(), num_pages + 5));
  // Whatever lay in the pages before must not matter.
  for (int layer = 0; layer < model.decoder->num_layers(); ++layer) {
    std::fill_n(cache.layer(layer),
                (num_pages + 5) * kernels::PageFloats(model.decoder->attention_shape()), NAN);
  }
  const auto workspace = ValueOrDie(model::Workspace::Create(
      *model.decoder, {.max_rows = 700, .max_head_rows = 700, .backward = false}));
  const model::DecoderContext context = {*model.decoder, pool, *workspace};
  while (true) {
    std::vector<int32_t> counts;
    int32_t total = 0;
    bool open = false;
    for (const PagedSequence& s : sequences) {
      const int32_t left = static_cast<int32_t>(s.tokens.size()) - s.done;
      open = open || left > 0;
      const int32_t kind = random.Below(4);
      int32_t count = kind == 0 ? 0 : kind == 1 ? 1 : random.Below(180);
      count = std::min({count, left, 700 - total});
      total += count;
      counts.push_back(count);
    }
    if (!open) return;
    if (total > 0) RunChunks(context, model.weights, cache, sequences, counts);
  }
}

void ExpectSameLogits(const std::vector<std::vector<float>>& a,
                      const std::vector<std::vector<float>>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t t = 0; t < a.size(); ++t) {
    ASSERT_TRUE(SameBits(a[t], b[t])) << "position " << t << " differs";
  }
}

void ExpectInvariant(const LoadedModel& model, const std::vector<int32_t>& lengths, int num_threads,
                     uint64_t seed) {
  Random random(seed);
  std::vector<PagedSequence> sequences(lengths.size());
  std::vector<std::vector<std::vector<float>>> expected;
  for (size_t s = 0; s < lengths.size(); ++s) {
    sequences[s].tokens = RandomTokens(random, lengths[s], model.decoder->vocabulary());
    expected.push_back(Prefill(model, sequences[s].tokens));
  }
  RunMixed(model, num_threads, seed, sequences);
  for (size_t s = 0; s < lengths.size(); ++s) ExpectSameLogits(sequences[s].logits, expected[s]);
}

TEST(DecoderTest, AnyChunkingBatchPagesAndThreadsGiveThePrefillsBits) {
  const LoadedModel tiny = MakeModel(TinyOptions(), 1);
  for (int threads = 1; threads <= 3; ++threads) {
    ExpectInvariant(tiny, {1, 16, 17, 70, 129, 33, 5}, threads,
                    100 + static_cast<uint64_t>(threads));
  }
}

TEST(DecoderTest, ManyLeavesAndKeySegmentsGiveThePrefillsBits) {
  const LoadedModel leafy = MakeModel(LeafyOptions(), 2);
  const model::LayerParameters& layer = leafy.table().layers()[0];
  ASSERT_EQ(leafy.table().at(layer.down).forward_leaves, 4);
  ASSERT_EQ(leafy.table().at(layer.q).forward_leaves, 2);
  ExpectInvariant(leafy, {580, 40, 3}, 2, 7);
}

// Norms of queries and keys, heads wider than hidden_size / heads.
TEST(DecoderTest, Qwen3GivesThePrefillsBits) {
  SmallModelOptions options = LeafyOptions();
  options.qk_norm = true;
  options.head_dim = 128;
  options.layer_windows = {70, 0};
  const LoadedModel model = MakeModel(options, 12);
  ASSERT_NE(model.table().layers()[1].k_norm, -1);
  ExpectInvariant(model, {150, 40, 3, 64}, 2, 17);
}

TEST(DecoderTest, ExpertsGiveThePrefillsBits) {
  SmallModelOptions options = TinyOptions();
  options.biases = false;
  options.qk_norm = true;
  options.num_experts = 7;
  const LoadedModel model = MakeModel(options, 13);
  ASSERT_EQ(model.table().layers()[1].experts.size(), 7u);
  ASSERT_TRUE(model.table().layers()[0].experts.empty());
  options.num_experts = 0;
  options.gemma = true;
  options.layer_windows = {20, 0};
  ExpectInvariant(MakeModel(options, 14), {1, 16, 70, 129, 33}, 2, 60);
  for (int threads = 1; threads <= 3; ++threads) {
    ExpectInvariant(model, {1, 16, 70, 129, 33}, threads, 40 + static_cast<uint64_t>(threads));
  }
}

TEST(DecoderTest, GptOssGivesThePrefillsBits) {
  SmallModelOptions options = TinyOptions();
  options.gpt_oss = true;
  options.biases = true;
  options.num_experts = 5;
  options.layer_windows = {20, 0};
  const LoadedModel model = MakeModel(options, 15);
  ASSERT_GE(model.table().layers()[0].sinks, 0);
  for (int threads = 1; threads <= 3; ++threads) {
    ExpectInvariant(model, {1, 16, 70, 129, 33}, threads, 70 + static_cast<uint64_t>(threads));
  }
}

TEST(DecoderTest, InstructionSetsGiveTheSameBits) {
  const auto detected = kernels::DetectIsa();
  ASSERT_TRUE(detected.ok()) << detected.status();
  if (*detected == kernels::Isa::kAvx2) GTEST_SKIP() << "avx512 not run: this CPU lacks it";
  const LoadedModel model = MakeModel(LeafyOptions(), 3);
  Random random(4);
  const std::vector<int32_t> tokens = RandomTokens(random, 90, model.decoder->vocabulary());
  ASSERT_TRUE(kernels::SetIsa(kernels::Isa::kAvx2).ok());
  const auto avx2 = Prefill(model, tokens);
  ASSERT_TRUE(kernels::SetIsa("auto").ok());
  ExpectSameLogits(Prefill(model, tokens), avx2);
}

TEST(DecoderTest, SharedPrefixPagesGiveTheSameBits) {
  const LoadedModel model = MakeModel(TinyOptions(), 5);
  Random random(6);
  kernels::Pool pool(2);
  const std::vector<int32_t> prefix = RandomTokens(random, 32, model.decoder->vocabulary());
  std::vector<PagedSequence> sequences(3);
  for (size_t s = 0; s < sequences.size(); ++s) {
    sequences[s].tokens = prefix;
    const std::vector<int32_t> own = RandomTokens(random, 20, model.decoder->vocabulary());
    sequences[s].tokens.insert(sequences[s].tokens.end(), own.begin(), own.end());
    const int32_t first = 2 + 2 * static_cast<int32_t>(s);
    sequences[s].pages = {0, 1, first, first + 1};
  }
  const auto workspace = ValueOrDie(model::Workspace::Create(
      *model.decoder, {.max_rows = 96, .max_head_rows = 96, .backward = false}));
  model::KvCache cache = ValueOrDie(model::KvCache::Create(model.decoder->config(), 8));
  const model::DecoderContext context = {*model.decoder, pool, *workspace};
  RunChunks(context, model.weights, cache, sequences, {32, 0, 0});
  for (size_t s = 1; s < sequences.size(); ++s) {
    sequences[s].done = 32;
    sequences[s].logits = sequences[0].logits;
  }
  RunChunks(context, model.weights, cache, sequences, {20, 20, 20});
  for (const PagedSequence& s : sequences) ExpectSameLogits(s.logits, Prefill(model, s.tokens));
}

TEST(DecoderTest, AgreesWithADecoderInDouble) {
  using Rope = formats::RopeScaling;
  for (const int kind : {0, 1, 2, 3, 4, 5, 6}) {
    SmallModelOptions options = TinyOptions();
    options.tie_embeddings = kind > 0;
    options.qk_norm = kind == 2 || kind >= 5;
    options.gemma = kind == 6;
    if (options.gemma) options.layer_windows = {9, 0};
    options.num_experts = kind == 5 ? 5 : 0;
    // Of 6 frequencies, the ramp of yarn covers some.
    if (kind == 3 || kind == 4) options.rope_scaling = {.kind = Rope::Kind::kLinear, .factor = 3};
    if (kind == 4) {
      options.rope_scaling.kind = Rope::Kind::kYarn;
      options.rope_scaling.original_max_position_embeddings = 40;
    }
    options.biases = !options.qk_norm;
    LoadedModel model = MakeModel(options, 8);
    const auto values = SmallModelWeights(model.table(), 8, options);
    DoubleWeights weights;
    for (int i = 0; i < model.table().size(); ++i) {
      const std::vector<float>& v = values[static_cast<size_t>(i)];
      weights[model.table().at(i).name] = std::vector<double>(v.begin(), v.end());
    }
    Random random(9);
    const std::vector<int32_t> tokens = RandomTokens(random, 75, model.decoder->vocabulary());
    const std::vector<int32_t> targets = RandomTokens(random, 75, model.decoder->vocabulary());
    const std::vector<double> expected =
        DoubleDecoder(model.decoder->config(), weights).LogProbs(tokens, targets, 1.0);
    const std::vector<std::vector<float>> logits = Prefill(model, tokens);
    for (size_t t = 0; t < tokens.size(); ++t) {
      double sum = 0;
      for (const float z : logits[t]) sum += std::exp(static_cast<double>(z));
      EXPECT_NEAR(logits[t][static_cast<size_t>(targets[t])] - std::log(sum), expected[t], 2e-5);
    }
  }
}

TEST(DecoderTest, ValidateBatchNamesWhatIsWrong) {
  const LoadedModel model = MakeModel(TinyOptions(), 10);
  kernels::Pool pool(1);
  const auto workspace = ValueOrDie(model::Workspace::Create(
      *model.decoder, {.max_rows = 8, .max_head_rows = 8, .backward = false}));
  const model::DecoderContext context = {*model.decoder, pool, *workspace};
  const std::vector<int32_t> pages = {0};
  const auto check = [&](std::vector<int32_t> tokens, std::vector<int32_t> positions,
                         std::vector<kernels::Segment> segments) {
    return model::ValidateBatch(context,
                                {.tokens = tokens, .positions = positions, .segments = segments});
  };
  const kernels::Segment good = {
      .first_row = 0, .num_rows = 2, .first_position = 0, .pages = pages.data()};
  kernels::Segment far = good, gap = good;
  far.first_position = 255;
  gap.first_row = 1;
  EXPECT_TRUE(check({1, 2}, {0, 1}, {good}).ok());
  for (const Status& status :
       {check({1, 67}, {0, 1}, {good}), check({-1, 2}, {0, 1}, {good}),
        check({1, 2}, {0, 2}, {good}), check({1, 2}, {255, 256}, {far}),
        check({1, 2}, {0, 1}, {gap}), check({1, 2, 3}, {0, 1, 2}, {good}), check({}, {}, {}),
        check({1, 2}, {0}, {good}),
        check(std::vector<int32_t>(9, 1), std::vector<int32_t>(9, 0), {good})}) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
  }
}

TEST(DecoderTest, CreateRefusesAContextBeyondTheModels) {
  formats::ModelConfig config = SmallModelConfig(TinyOptions());
  EXPECT_EQ(model::Decoder::Create(config, 257).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(ValueOrDie(model::Decoder::Create(config, 100))->max_positions(), 100);
  // Refused before anything is allocated.
  config.head_dim = 64;
  config.max_position_embeddings = 1 << 24;
  const auto large = model::Decoder::Create(config);
  EXPECT_EQ(large.status().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(large.status().ToString().find("max_position_embeddings"), std::string::npos);
}

}  // namespace
}  // namespace titan::test
