// SPDX-License-Identifier: Apache-2.0
//
// The Philox-made model folder is what end-to-end tests need: its tokenizer and template work, its
// samples vary, some end by themselves, some contain digits, and some do not.
#include "tests/support/small_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "core/kernels/sampling.h"
#include "core/text/chat_template.h"
#include "core/text/tokenizer.h"
#include "tests/support/model_fixture.h"

namespace titan::test {
namespace {

constexpr int kNumSamples = 48;
constexpr int kMaxNewTokens = 40;

TEST(SmallModelTest, TokenizesChatsAndGivesSamplesThatVary) {
  std::string folder = (std::filesystem::temp_directory_path() / "titan_small_XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const Status made = MakeSmallModel(folder, 1);
  ASSERT_TRUE(made.ok()) << made;
  const auto source = ValueOrDie(formats::OpenModelSource(folder));
  const LoadedModel model = LoadModel(folder);
  const auto tokenizer = ValueOrDie(text::Tokenizer::FromMaterial(source->tokenizer(), folder));
  const auto chat_template = ValueOrDie(text::ChatTemplate::Parse(source->chat_template()));
  std::filesystem::remove_all(folder);
  EXPECT_EQ(tokenizer->vocab_size(), 2560);
  EXPECT_EQ(tokenizer->eos_id(), 1);
  EXPECT_EQ(source->config().eos_token_ids, std::vector<int32_t>{1});

  text::ChatInput chat;
  chat.messages = text::Json::parse(R"([{"role": "user", "content": "What is 3 + 4?"}])");
  chat.add_generation_prompt = true;
  const std::string rendered = ValueOrDie(chat_template.Render(chat));
  EXPECT_EQ(rendered, "<|user|>What is 3 + 4?<|assistant|>");
  const std::vector<titan::TokenId> prompt = ValueOrDie(tokenizer->Encode(rendered));
  EXPECT_EQ(prompt.front(), 2);
  EXPECT_EQ(prompt.back(), 3);

  kernels::Pool pool(2);
  const int64_t length = static_cast<int64_t>(prompt.size()) + kMaxNewTokens;
  const auto workspace = ValueOrDie(model::Workspace::Create(
      *model.decoder, {.max_rows = 1024, .max_head_rows = 1024, .backward = false}));
  const int64_t pages = kernels::NumPages(length);
  model::KvCache cache =
      ValueOrDie(model::KvCache::Create(model.decoder->config(), pages * kNumSamples));
  const model::DecoderContext context = {*model.decoder, pool, *workspace};
  std::vector<PagedSequence> sequences(kNumSamples);
  std::vector<int32_t> counts(kNumSamples, static_cast<int32_t>(prompt.size()));
  for (int s = 0; s < kNumSamples; ++s) {
    sequences[static_cast<size_t>(s)].tokens.assign(prompt.begin(), prompt.end());
    sequences[static_cast<size_t>(s)].pages = PagesFor(length, static_cast<int32_t>(pages) * s);
  }
  for (int step = 0; step < kMaxNewTokens; ++step) {
    RunChunks(context, model.weights, cache, sequences, counts);
    std::fill(counts.begin(), counts.end(), 0);
    for (size_t s = 0; s < sequences.size(); ++s) {
      PagedSequence& sequence = sequences[s];
      if (sequence.tokens.back() == 1) continue;
      const auto sampled =
          ValueOrDie(kernels::SampleToken(sequence.logits.back().data(), 2560,
                                          {.temperature = 1,
                                           .seed = 7,
                                           .sample_id = s,
                                           .position = static_cast<uint32_t>(sequence.done)}));
      sequence.tokens.push_back(sampled.token);
      counts[s] = sampled.token == 1 ? 0 : 1;
    }
  }
  std::set<std::string> texts;
  int ended = 0, with_digits = 0;
  for (const PagedSequence& sequence : sequences) {
    const std::vector<titan::TokenId> completion(
        sequence.tokens.begin() + static_cast<int64_t>(prompt.size()), sequence.tokens.end());
    const std::string completed = tokenizer->Decode(completion, /*skip_special=*/true);
    texts.insert(completed);
    ended += completion.back() == 1;
    with_digits += std::any_of(completion.begin(), completion.end(), [&](titan::TokenId id) {
      const std::string_view bytes = tokenizer->TokenBytes(id);
      return bytes.size() == 1 && bytes[0] >= '0' && bytes[0] <= '9';
    });
  }
  std::printf("ended by themselves: %d of %d, with digit tokens: %d\n", ended, kNumSamples,
              with_digits);
  EXPECT_GT(texts.size(), kNumSamples * 0.8);
  EXPECT_GE(ended, kNumSamples / 8);
  EXPECT_LE(ended, kNumSamples * 7 / 8);
  EXPECT_GE(with_digits, kNumSamples / 8);
  EXPECT_LE(with_digits, kNumSamples * 7 / 8);
}

TEST(SmallModelTest, SameSeedSameBytesOtherSeedOthers) {
  const SmallModelOptions options;
  const model::ParameterTable table =
      ValueOrDie(model::ParameterTable::Of(SmallModelConfig(options)));
  const auto a = SmallModelWeights(table, 1, options);
  EXPECT_EQ(a, SmallModelWeights(table, 1, options));
  EXPECT_NE(a, SmallModelWeights(table, 2, options));
}

}  // namespace
}  // namespace titan::test
