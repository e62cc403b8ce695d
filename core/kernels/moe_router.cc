// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/moe_router.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "core/base/check.h"
#include "core/kernels/pool.h"
#include "core/kernels/row_sum.h"

namespace titan::kernels {
namespace {

constexpr int64_t kRowsPerTask = 16;

// Integers in totalOrder, -0 as +0.
int32_t OrderKey(float value) {
  const int32_t bits = std::bit_cast<int32_t>(value == 0.0f ? 0.0f : value);
  return bits < 0 ? bits ^ 0x7fffffff : bits;
}

// The `count` best of candidates `among` (ascending ids) by value, ties to the lower id; ascending.
std::vector<int32_t> Best(const float* values, std::vector<int32_t> among, int64_t count) {
  const auto end = among.begin() + static_cast<ptrdiff_t>(count);
  std::partial_sort(among.begin(), end, among.end(), [&](int32_t a, int32_t b) {
    const int32_t x = OrderKey(values[a]), y = OrderKey(values[b]);
    return x != y ? x > y : a < b;
  });
  among.erase(end, among.end());
  std::sort(among.begin(), among.end());
  return among;
}

std::vector<int32_t> AscendingTo(int64_t count) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
  return ids;
}

std::vector<int32_t> Choose(const RouterShape& shape, const float* choice) {
  std::vector<int32_t> among = AscendingTo(shape.experts);
  if (shape.groups > 1) {
    const int64_t width = shape.experts / shape.groups;
    std::vector<float> values;
    for (int64_t g = 0; g < shape.groups; ++g) {
      const float* group = choice + g * width;
      const std::vector<int32_t> first = Best(group, AscendingTo(width), 1);
      std::vector<int32_t> rest = AscendingTo(width);
      rest.erase(rest.begin() + first[0]);
      values.push_back(group[first[0]] + group[Best(group, rest, 1)[0]]);
    }
    among.clear();
    for (const int32_t g : Best(values.data(), AscendingTo(shape.groups), shape.chosen_groups)) {
      for (int64_t j = 0; j < width; ++j) among.push_back(static_cast<int32_t>(g * width + j));
    }
  }
  return Best(choice, std::move(among), shape.chosen);
}

// s of the header for all experts; of kSoftmaxOfChosen only where an id says so.
void Scores(const RouterShape& shape, const float* logits, const int32_t* ids, float* scores) {
  const int64_t experts = shape.experts;
  if (shape.score == RouterScore::kSigmoid) {
    for (int64_t j = 0; j < experts; ++j) scores[j] = -logits[j];
    ExpOf(scores, experts, scores);
    for (int64_t j = 0; j < experts; ++j) scores[j] = 1.0f / (1.0f + scores[j]);
    return;
  }
  float max = -std::numeric_limits<float>::infinity();
  if (shape.score == RouterScore::kSoftmax) {
    for (int64_t j = 0; j < experts; ++j) max = std::max(max, logits[j]);
  } else {
    for (int64_t j = 0; j < shape.chosen; ++j) max = std::max(max, logits[ids[j]]);
  }
  for (int64_t j = 0; j < experts; ++j) scores[j] = logits[j] - max;
  ExpOf(scores, experts, scores);
  if (shape.score == RouterScore::kSoftmax) {
    const float sum = RowSum(scores, experts);
    for (int64_t j = 0; j < experts; ++j) scores[j] = scores[j] / sum;
  }
}

float Denominator(const RouterShape& shape, const float* scores, const int32_t* ids) {
  float sum = 0.0f;
  for (int64_t j = 0; j < shape.chosen; ++j) sum = sum + scores[ids[j]];
  return sum + shape.normaliser_eps;
}

void ChooseRow(const RouterShape& shape, const float* logits, const float* bias, float* scores,
               float* choice, int32_t* ids, float* weights) {
  const bool after = shape.score == RouterScore::kSoftmaxOfChosen;
  if (!after) Scores(shape, logits, nullptr, scores);
  for (int64_t j = 0; j < shape.experts; ++j) {
    choice[j] = after ? logits[j] : scores[j];
    if (bias != nullptr) choice[j] = choice[j] + bias[j];
  }
  const std::vector<int32_t> best = Choose(shape, choice);
  std::copy(best.begin(), best.end(), ids);
  if (after) Scores(shape, logits, ids, scores);
  const float denominator = shape.normalise ? Denominator(shape, scores, ids) : 1.0f;
  for (int64_t j = 0; j < shape.chosen; ++j) {
    const float s = scores[ids[j]];
    weights[j] = (shape.normalise ? s / denominator : s) * shape.scaling;
  }
}

void BackwardRow(const RouterShape& shape, const float* logits, const int32_t* ids,
                 const float* dweights, float* scores, float* dscores, float* dlogits) {
  Scores(shape, logits, ids, scores);
  if (shape.normalise) {
    const float denominator = Denominator(shape, scores, ids);
    float dot = 0.0f;
    for (int64_t j = 0; j < shape.chosen; ++j) {
      const float weight = (scores[ids[j]] / denominator) * shape.scaling;
      dot = std::fma(weight, dweights[j], dot);
    }
    for (int64_t j = 0; j < shape.chosen; ++j) {
      dscores[j] = (shape.scaling * dweights[j] - dot) / denominator;
    }
  } else {
    for (int64_t j = 0; j < shape.chosen; ++j) dscores[j] = shape.scaling * dweights[j];
  }
  std::fill(dlogits, dlogits + shape.experts, 0.0f);
  if (shape.score == RouterScore::kSoftmax && !shape.normalise) {
    float dot = 0.0f;
    for (int64_t j = 0; j < shape.chosen; ++j) {
      dot = std::fma(scores[ids[j]], dscores[j], dot);
      dlogits[ids[j]] = dscores[j];
    }
    for (int64_t i = 0; i < shape.experts; ++i) dlogits[i] = scores[i] * (dlogits[i] - dot);
    return;
  }
  for (int64_t j = 0; j < shape.chosen; ++j) {
    const float s = scores[ids[j]];
    dlogits[ids[j]] =
        shape.score == RouterScore::kSigmoid ? dscores[j] * (s * (1.0f - s)) : s * dscores[j];
  }
}

// body(row, scratch of 2 * experts floats) for each row.
template <typename Body>
void OverRows(Pool& pool, const RouterShape& shape, int64_t rows, const Body& body) {
  TITAN_CHECK(ValidateRouter(shape).ok());
  pool.Run(static_cast<int>((rows + kRowsPerTask - 1) / kRowsPerTask), [&](int task) {
    std::vector<float> scratch(static_cast<size_t>(2 * shape.experts));
    const int64_t end = std::min(rows, (task + 1) * kRowsPerTask);
    for (int64_t t = task * kRowsPerTask; t < end; ++t) body(t, scratch.data());
  });
}

}  // namespace

Status ValidateRouter(const RouterShape& shape) {
  const auto refuse = [](const std::string& text) { return InvalidArgument("router: " + text); };
  if (shape.experts < 1 || shape.chosen < 1 || shape.chosen > shape.experts) {
    return refuse("chosen " + std::to_string(shape.chosen) + " of experts " +
                  std::to_string(shape.experts));
  }
  if (shape.groups < 1 || shape.experts % shape.groups != 0) {
    return refuse("groups " + std::to_string(shape.groups) + " do not divide experts " +
                  std::to_string(shape.experts));
  }
  if (shape.groups > 1 && shape.experts / shape.groups < 2) {
    return refuse("groups of one expert: their value is the sum of two");
  }
  if (shape.chosen_groups < 1 || shape.chosen_groups > shape.groups ||
      shape.chosen > shape.experts / shape.groups * shape.chosen_groups) {
    return refuse("chosen_groups " + std::to_string(shape.chosen_groups) + " of groups " +
                  std::to_string(shape.groups) + " hold too few experts");
  }
  if (shape.score != RouterScore::kSigmoid && shape.normaliser_eps != 0.0f) {
    return refuse("normaliser_eps is of sigmoid scores only");
  }
  if (shape.score == RouterScore::kSoftmaxOfChosen && !shape.normalise) {
    return refuse("normalise: a softmax of the chosen is normalised");
  }
  return OkStatus();
}

void ChooseExperts(Pool& pool, const RouterShape& shape, const float* logits,
                   const float* correction_bias, int64_t rows, int32_t* ids, float* weights) {
  OverRows(pool, shape, rows, [&](int64_t t, float* scratch) {
    ChooseRow(shape, logits + t * shape.experts, correction_bias, scratch, scratch + shape.experts,
              ids + t * shape.chosen, weights + t * shape.chosen);
  });
}

void ChooseExpertsBackward(Pool& pool, const RouterShape& shape, const float* logits,
                           const int32_t* ids, const float* dweights, int64_t rows,
                           float* dlogits) {
  OverRows(pool, shape, rows, [&](int64_t t, float* scratch) {
    BackwardRow(shape, logits + t * shape.experts, ids + t * shape.chosen,
                dweights + t * shape.chosen, scratch, scratch + shape.experts,
                dlogits + t * shape.experts);
  });
}

}  // namespace titan::kernels
