// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/moe_experts.h"

#include <algorithm>
#include <cstring>

#include "core/base/check.h"
#include "core/kernels/isa.h"
#include "core/kernels/linear.h"
#include "core/kernels/pool.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/moe_experts.cc"
#include "core/kernels/targets.h"
// clang-format off: foreach_target comes before highway.h
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include "core/kernels/elementary-inl.h"

#if TITAN_KERNEL_TARGET
HWY_BEFORE_NAMESPACE();
namespace titan::kernels::HWY_NAMESPACE {

void CombineRow(const float* const* outs, const float* weights, int64_t count, const float* shared,
                int64_t width, float* y) {
  for (int64_t i = 0; i < width; i += kLanes) {
    const int64_t left = width - i;
    FloatVec sum = hn::Zero(FloatTag());
    for (int64_t j = 0; j < count; ++j) {
      sum = hn::MulAdd(Broadcast(weights[j]), LoadPart(outs[j] + i, left), sum);
    }
    if (shared != nullptr) sum = hn::Add(sum, LoadPart(shared + i, left));
    StorePart(sum, y + i, left);
  }
}

float CombineBackwardRow(float weight, const float* out, const float* dy, int64_t width,
                         float* dout) {
  for (int64_t i = 0; i < width; i += kLanes) {
    const int64_t left = width - i;
    StorePart(hn::Mul(Broadcast(weight), LoadPart(dy + i, left)), dout + i, left);
  }
  return RowSumProductVector(dy, out, width);
}

void ScatterRow(const float* const* places, int64_t count, int64_t width, float* dx) {
  for (int64_t i = 0; i < width; i += kLanes) {
    const int64_t left = width - i;
    FloatVec sum = hn::Zero(FloatTag());
    for (int64_t j = 0; j < count; ++j) sum = hn::Add(sum, LoadPart(places[j] + i, left));
    StorePart(sum, dx + i, left);
  }
}

HWY_INLINE FloatVec Bounded(FloatVec up, float limit) {
  return hn::Min(hn::Max(up, Broadcast(-limit)), Broadcast(limit));
}

void BoundedGateRange(const GateBounds& bounds, int64_t n, const float* gate, const float* up,
                      float* out) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t left = n - i;
    const FloatVec g = hn::Min(LoadPart(gate + i, left), Broadcast(bounds.limit));
    const FloatVec u = Bounded(LoadPart(up + i, left), bounds.limit);
    const FloatVec t = VSigmoidDenominator(hn::Mul(Broadcast(bounds.alpha), g));
    StorePart(hn::Mul(hn::Add(u, Broadcast(bounds.offset)), hn::Div(g, t)), out + i, left);
  }
}

void BoundedGateBackwardRange(const GateBounds& bounds, int64_t n, const float* gate,
                              const float* up, const float* dout, float* dgate, float* dup) {
  const FloatVec one = Broadcast(1.0f), limit = Broadcast(bounds.limit),
                 zero = hn::Zero(FloatTag());
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t left = n - i;
    const FloatVec gate_in = LoadPart(gate + i, left), up_in = LoadPart(up + i, left);
    const FloatVec d = LoadPart(dout + i, left);
    const FloatVec g = hn::Min(gate_in, limit);
    const FloatVec u = Bounded(up_in, bounds.limit);
    const FloatVec scaled = hn::Mul(Broadcast(bounds.alpha), g);
    const FloatVec t = VSigmoidDenominator(scaled);
    const FloatVec s = hn::Div(one, t);
    const FloatVec slope = hn::Mul(s, hn::MulAdd(scaled, hn::Sub(one, s), one));
    const FloatVec through_up = hn::Mul(d, hn::Div(g, t));
    const FloatVec through_gate = hn::Mul(hn::Mul(d, hn::Add(u, Broadcast(bounds.offset))), slope);
    StorePart(hn::IfThenElse(hn::Le(hn::Abs(up_in), limit), through_up, zero), dup + i, left);
    StorePart(hn::IfThenElse(hn::Le(gate_in, limit), through_gate, zero), dgate + i, left);
  }
}

}  // namespace titan::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // TITAN_KERNEL_TARGET

#if HWY_ONCE
namespace titan::kernels {
namespace {

constexpr int64_t kFloatsPerTask = 16384;
constexpr int64_t kMaxChosen = 64;

// body(i) for i in [0, count), each of so many floats.
template <typename Body>
void Over(Pool& pool, int64_t count, int64_t width, const Body& body) {
  const int64_t group = std::max<int64_t>(1, kFloatsPerTask / std::max<int64_t>(1, width));
  pool.Run(static_cast<int>((count + group - 1) / group), [&](int task) {
    const int64_t end = std::min(count, (task + 1) * group);
    for (int64_t i = task * group; i < end; ++i) body(i);
  });
}

// Pointers to the vectors of a row's places.
struct PlacesOfRow {
  PlacesOfRow(const ExpertPlan& plan, const float* data, int64_t row, int64_t width) {
    for (int64_t j = 0; j < plan.chosen(); ++j) at[j] = data + plan.place_of(row, j) * width;
  }
  const float* at[kMaxChosen];
};

// body(expert, first, count): the places of each expert and unit that has some.
template <typename Body>
void OverUnits(const ExpertPlan& plan, std::span<const RowRange> units, const Body& body) {
  for (int64_t e = 0; e < plan.experts(); ++e) {
    int64_t place = plan.first(e);
    for (const RowRange& unit : units) {
      while (place < plan.last(e) && plan.row_of(place) < unit.begin) ++place;
      const int64_t begin = place;
      while (place < plan.last(e) && plan.row_of(place) < unit.end) ++place;
      if (place > begin) body(static_cast<size_t>(e), begin, place - begin);
    }
  }
}

}  // namespace

void ExpertPlan::Set(const int32_t* ids, int64_t rows, int64_t chosen, int64_t experts) {
  TITAN_CHECK(rows >= 0 && chosen >= 1 && chosen <= kMaxChosen && experts >= chosen);
  rows_ = rows;
  chosen_ = chosen;
  first_.assign(static_cast<size_t>(experts) + 1, 0);
  for (int64_t i = 0; i < rows * chosen; ++i) {
    TITAN_CHECK(ids[i] >= 0 && ids[i] < experts && (i % chosen == 0 || ids[i] > ids[i - 1]));
    ++first_[static_cast<size_t>(ids[i]) + 1];
  }
  for (size_t e = 1; e < first_.size(); ++e) first_[e] += first_[e - 1];
  std::vector<int64_t> next(first_.begin(), first_.end() - 1);
  row_of_.resize(static_cast<size_t>(rows * chosen));
  place_of_.resize(row_of_.size());
  for (int64_t i = 0; i < rows * chosen; ++i) {
    const int64_t place = next[static_cast<size_t>(ids[i])]++;
    row_of_[static_cast<size_t>(place)] = static_cast<int32_t>(i / chosen);
    place_of_[static_cast<size_t>(i)] = place;
  }
}

void GatherPlaces(Pool& pool, const ExpertPlan& plan, const float* x, int64_t width, float* out) {
  Over(pool, plan.places(), width, [&](int64_t place) {
    std::memcpy(out + place * width, x + plan.row_of(place) * width,
                static_cast<size_t>(width) * sizeof(float));
  });
}

void ExpertLinear(Pool& pool, const ExpertPlan& plan, const float* x, int64_t k,
                  std::span<const ExpertMatrix> matrices, Inputs inputs) {
  const size_t experts = static_cast<size_t>(plan.experts());
  for (const ExpertMatrix& matrix : matrices) {
    TITAN_CHECK(matrix.panels.size() == experts);
    TITAN_CHECK(matrix.bias.empty() || matrix.bias.size() == experts);
  }
  std::vector<LinearMatrix> products;
  products.reserve(experts * matrices.size());  // groups refer to them
  std::vector<LinearGroup> groups;
  groups.reserve(experts);
  for (size_t e = 0; e < experts; ++e) {
    const int64_t first = plan.first(static_cast<int64_t>(e));
    const int64_t count = plan.last(static_cast<int64_t>(e)) - first;
    if (count == 0) continue;
    const size_t at = products.size();
    for (const ExpertMatrix& matrix : matrices) {
      const int64_t ldo = matrix.ldo == 0 ? matrix.n : matrix.ldo;
      products.push_back({matrix.panels[e], matrix.n, matrix.leaves,
                          matrix.bias.empty() ? nullptr : matrix.bias[e], matrix.out + first * ldo,
                          ldo});
    }
    groups.push_back({{x + first * k, k, count, k, inputs}, std::span(products).subspan(at)});
  }
  LinearGroups(pool, groups);
}

void ExpertWeightGradient(Pool& pool, const ExpertPlan& plan, std::span<const RowRange> units,
                          const float* x, const float* dy, int64_t n, int64_t k,
                          std::span<float* const> accumulators,
                          std::span<float* const> bias_accumulators, Inputs inputs, int64_t ldy) {
  if (ldy == 0) ldy = n;
  TITAN_CHECK(static_cast<int64_t>(accumulators.size()) == plan.experts());
  OverUnits(plan, units, [&](size_t expert, int64_t first, int64_t count) {
    LinearWeightGradient(pool, {x + first * k, k, count, k, inputs},
                         {dy + first * ldy, ldy, n, accumulators[expert]});
  });
  if (bias_accumulators.empty()) return;
  ExpertBiasGradient(pool, plan, units, dy, n, bias_accumulators, ldy);
}

void ExpertBiasGradient(Pool& pool, const ExpertPlan& plan, std::span<const RowRange> units,
                        const float* dy, int64_t n, std::span<float* const> bias_accumulators,
                        int64_t ldy) {
  if (ldy == 0) ldy = n;
  TITAN_CHECK(static_cast<int64_t>(bias_accumulators.size()) == plan.experts());
  OverUnits(plan, units, [&](size_t expert, int64_t first, int64_t count) {
    LinearBiasGradient(pool, dy + first * ldy, ldy, count, n, bias_accumulators[expert]);
  });
}

void CombinePlaces(Pool& pool, const ExpertPlan& plan, const float* weights, const float* out,
                   const float* shared, int64_t width, float* y) {
  Over(pool, plan.rows(), plan.chosen() * width, [&](int64_t row) {
    const PlacesOfRow places(plan, out, row, width);
    TITAN_DISPATCH(CombineRow)
    (places.at, weights + row * plan.chosen(), plan.chosen(),
     shared == nullptr ? nullptr : shared + row * width, width, y + row * width);
  });
}

void CombinePlacesBackward(Pool& pool, const ExpertPlan& plan, const float* weights,
                           const float* out, const float* dy, int64_t width, float* dout,
                           float* dweights) {
  Over(pool, plan.rows(), plan.chosen() * width, [&](int64_t row) {
    for (int64_t j = 0; j < plan.chosen(); ++j) {
      const int64_t place = plan.place_of(row, j), i = row * plan.chosen() + j;
      dweights[i] = TITAN_DISPATCH(CombineBackwardRow)(
          weights[i], out + place * width, dy + row * width, width, dout + place * width);
    }
  });
}

void ScatterPlaces(Pool& pool, const ExpertPlan& plan, const float* dplaces, int64_t width,
                   float* dx) {
  Over(pool, plan.rows(), plan.chosen() * width, [&](int64_t row) {
    const PlacesOfRow places(plan, dplaces, row, width);
    TITAN_DISPATCH(ScatterRow)(places.at, plan.chosen(), width, dx + row * width);
  });
}

void BoundedGate(Pool& pool, const GateBounds& bounds, int64_t n, const float* gate,
                 const float* up, float* out) {
  Over(pool, (n + kFloatsPerTask - 1) / kFloatsPerTask, kFloatsPerTask, [&](int64_t block) {
    const int64_t at = block * kFloatsPerTask;
    TITAN_DISPATCH(BoundedGateRange)
    (bounds, std::min(kFloatsPerTask, n - at), gate + at, up + at, out + at);
  });
}

void BoundedGateBackward(Pool& pool, const GateBounds& bounds, int64_t n, const float* gate,
                         const float* up, const float* dout, float* dgate, float* dup) {
  Over(pool, (n + kFloatsPerTask - 1) / kFloatsPerTask, kFloatsPerTask, [&](int64_t block) {
    const int64_t at = block * kFloatsPerTask;
    TITAN_DISPATCH(BoundedGateBackwardRange)
    (bounds, std::min(kFloatsPerTask, n - at), gate + at, up + at, dout + at, dgate + at, dup + at);
  });
}

}  // namespace titan::kernels
#endif  // HWY_ONCE
