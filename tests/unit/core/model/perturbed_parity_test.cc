// SPDX-License-Identifier: Apache-2.0
//
// The parity tests are not vacuous: this program is linked with a Linear whose chains run in
// another order when a call has more than 14 rows, so a prefill differs from the same tokens one by
// one.
#include <gtest/gtest.h>

#include "tests/support/model_fixture.h"
#include "tests/support/small_model.h"

namespace titan::test {
namespace {

TEST(PerturbedParityTest, AnotherOrderIsSeen) {
  SmallModelOptions options;
  options.vocab_size = 100;
  options.num_layers = 1;
  LoadedModel model = ModelOf(SmallModelConfig(options));
  kernels::Pool pool(1);
  FillSmallModelSlot(pool, model.table(), 1, options, model.slot.get());
  Random random(2);
  const std::vector<int32_t> tokens = RandomTokens(random, 40, options.vocab_size);
  const auto workspace = ValueOrDie(model::Workspace::Create(
      *model.decoder, {.max_rows = 40, .max_head_rows = 40, .backward = false}));
  const model::DecoderContext context = {*model.decoder, pool, *workspace};
  model::KvCache cache = ValueOrDie(model::KvCache::Create(model.decoder->config(), 8));
  std::vector<PagedSequence> sequences(2);
  for (int s = 0; s < 2; ++s) {
    sequences[static_cast<size_t>(s)].tokens = tokens;
    sequences[static_cast<size_t>(s)].pages = PagesFor(40, 4 * s);
  }
  RunChunks(context, model.weights, cache, sequences, {40, 0});
  for (int i = 0; i < 40; ++i) RunChunks(context, model.weights, cache, sequences, {0, 1});
  int differing = 0;
  for (size_t t = 0; t < 40; ++t)
    differing += !SameBits(sequences[0].logits[t], sequences[1].logits[t]);
  // Every row of the prefill ran the other chains; a few logits may round to the same bits.
  EXPECT_GT(differing, 30);
}

}  // namespace
}  // namespace titan::test
