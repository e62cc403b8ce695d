// SPDX-License-Identifier: Apache-2.0
//
// What the golden tests of models share: one sequence run as a generator runs it, and the numbers
// that the vectors list. Test code.
#ifndef TITAN_TESTS_SUPPORT_GOLDEN_MODEL_H_
#define TITAN_TESTS_SUPPORT_GOLDEN_MODEL_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "core/kernels/sampling.h"
#include "tests/support/model_fixture.h"
#include "tests/support/plain_trainer.h"

namespace titan::test {

inline int NumThreads() {
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 4);
}

// One sequence over a paged cache: a prompt, then tokens one by one.
class Generation {
 public:
  Generation(const LoadedModel& model, kernels::Pool& pool, int64_t max_tokens)
      : model_(model),
        pool_(pool),
        workspace_(ValueOrDie(model::Workspace::Create(
            *model.decoder,
            {.max_rows = max_tokens, .max_head_rows = max_tokens, .backward = false}))),
        cache_(ValueOrDie(
            model::KvCache::Create(model.decoder->config(), kernels::NumPages(max_tokens)))),
        pages_(PagesFor(max_tokens)) {}

  // Appends tokens and returns the logits of each.
  std::vector<std::vector<float>> Append(const std::vector<int32_t>& tokens) {
    std::vector<PagedSequence> sequence(1);
    sequence[0].tokens.resize(static_cast<size_t>(done_));
    sequence[0].tokens.insert(sequence[0].tokens.end(), tokens.begin(), tokens.end());
    sequence[0].pages = pages_;
    sequence[0].done = done_;
    RunChunks({*model_.decoder, pool_, *workspace_}, model_.weights, cache_, sequence,
              {static_cast<int32_t>(tokens.size())});
    done_ = sequence[0].done;
    return sequence[0].logits;
  }

  // Expects these greedy continuations of `last` while the gap to the second choice is above 1e-3.
  void ExpectGreedy(std::vector<float> last, const std::vector<int32_t>& ids,
                    const std::vector<double>& gaps) {
    for (size_t i = 0; i < ids.size() && gaps[i] > 1e-3; ++i) {
      const int32_t token = kernels::ArgMax(last.data(), static_cast<int64_t>(last.size()));
      ASSERT_EQ(token, ids[i]) << "greedy token " << i;
      last = Append({token}).back();
    }
  }

 private:
  const LoadedModel& model_;
  kernels::Pool& pool_;
  std::unique_ptr<model::Workspace> workspace_;
  model::KvCache cache_;
  std::vector<int32_t> pages_;
  int32_t done_ = 0;
};

inline double LogSumExp(const std::vector<float>& logits) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float z : logits) sum += std::exp(z - max);
  return max + std::log(sum);
}

inline double L2(const float* values, int64_t count) {
  double squares = 0;
  for (int64_t i = 0; i < count; ++i) squares += static_cast<double>(values[i]) * values[i];
  return std::sqrt(squares);
}

// Norm over all positions of the residual stream after each layer.
inline std::vector<double> LayerNorms(const LoadedModel& model, kernels::Pool& pool,
                                      const std::vector<int32_t>& ids) {
  const int64_t rows = static_cast<int64_t>(ids.size());
  const auto workspace = ValueOrDie(model::Workspace::Create(
      *model.decoder, {.max_rows = rows, .max_head_rows = rows, .backward = false}));
  model::KvCache cache =
      ValueOrDie(model::KvCache::Create(model.decoder->config(), kernels::NumPages(rows)));
  model::PackedBatch packed(rows, 1);
  const std::vector<int32_t> lengths = {static_cast<int32_t>(rows)};
  EXPECT_TRUE(packed.Set(lengths).ok());
  const model::DecoderContext context = {*model.decoder, pool, *workspace};
  std::vector<float> x(static_cast<size_t>(rows * model.decoder->hidden()));
  model::EmbedTokens(context, model.weights, packed.Batch(ids), x.data());
  std::vector<double> norms;
  for (int layer = 0; layer < model.decoder->num_layers(); ++layer) {
    model::BlockForward(context, model.weights, layer, packed.Batch(ids), cache.layer(layer),
                        x.data(), nullptr);
    norms.push_back(L2(x.data(), static_cast<int64_t>(x.size())));
  }
  return norms;
}

}  // namespace titan::test

#endif  // TITAN_TESTS_SUPPORT_GOLDEN_MODEL_H_
