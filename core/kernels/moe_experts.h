// SPDX-License-Identifier: Apache-2.0
//
// Rows through their experts and back (numerics contract, section 6). A *place* is one choice of
// one row; places lie expert after expert, inside an expert by row. Which rows share a call changes
// no bit: an expert is a Linear on gathered rows, and a row's sums run over its own places.
//
// Order:
//   combine    y_i = chain over the row's places, experts ascending, from +0 of
//              fma(w, out_i, acc); then + shared_i where there is a shared expert
//   backward   dout_i = w * dy_i; dw = RowSumProduct(dy, out)
//   scatter    dx_i = chain over the row's places, experts ascending, from +0 of acc + dplace_i
//   weights    of an expert, per unit: LinearWeightGradient of the unit's rows that chose it,
//              ascending; a unit without such rows changes nothing
// The bounded gate of gpt-oss (alpha 1.702, offset 1) and DeepSeek V4 (alpha 1, offset 0):
//   g = min(gate, limit), u = min(max(up, -limit), limit), t = 1 + DExp(-(alpha * g)),
//   out = (u + offset) * (g / t)
//   s = 1 / t; dup = |up| <= limit ? dout * (g / t) : +0;
//   dgate = gate <= limit ? (dout * (u + offset)) * (s * fma(alpha * g, 1 - s, 1)) : +0
//
// Threads: an ExpertPlan is the caller's, one thread at a time; functions are parallel over
// experts' outputs or rows. Outputs do not overlap inputs.
#ifndef TITAN_CORE_KERNELS_MOE_EXPERTS_H_
#define TITAN_CORE_KERNELS_MOE_EXPERTS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "core/kernels/panels.h"
#include "core/kernels/units.h"

namespace titan::kernels {

class Pool;

class ExpertPlan {
 public:
  // ids [rows][chosen]: experts of each row, ascending and distinct (checked).
  void Set(const int32_t* ids, int64_t rows, int64_t chosen, int64_t experts);

  int64_t rows() const { return rows_; }
  int64_t chosen() const { return chosen_; }
  int64_t experts() const { return static_cast<int64_t>(first_.size()) - 1; }
  int64_t places() const { return static_cast<int64_t>(row_of_.size()); }
  // Places [first, last) of an expert.
  int64_t first(int64_t expert) const { return first_[static_cast<size_t>(expert)]; }
  int64_t last(int64_t expert) const { return first_[static_cast<size_t>(expert) + 1]; }
  int32_t row_of(int64_t place) const { return row_of_[static_cast<size_t>(place)]; }
  // Of the j-th choice of a row.
  int64_t place_of(int64_t row, int64_t j) const {
    return place_of_[static_cast<size_t>(row * chosen_ + j)];
  }

 private:
  int64_t rows_ = 0, chosen_ = 0;
  std::vector<int64_t> first_, place_of_;
  std::vector<int32_t> row_of_;
};

// x [rows][width] -> out [places][width].
void GatherPlaces(Pool& pool, const ExpertPlan& plan, const float* x, int64_t width, float* out);

// One matrix of every expert, [n][k], and where the products of all places go.
struct ExpertMatrix {
  std::span<const ConstPanels> panels;
  std::span<const float* const> bias;  // empty: none; null: that expert has none
  int64_t n = 0;
  int leaves = 1;
  float* out = nullptr;  // [places][n] (stride ldo, 0: n)
  int64_t ldo = 0;
};
// x [places][k] -> each matrix's products, by each place's expert; the threads meet once for all
// experts and matrices (LinearGroups).
void ExpertLinear(Pool& pool, const ExpertPlan& plan, const float* x, int64_t k,
                  std::span<const ExpertMatrix> matrices, Inputs inputs = Inputs::kF32);
inline void ExpertLinear(Pool& pool, const ExpertPlan& plan, const float* x, int64_t k,
                         const ExpertMatrix& matrix, Inputs inputs = Inputs::kF32) {
  ExpertLinear(pool, plan, x, k, std::span(&matrix, 1), inputs);
}

// Adds to accumulators (one an expert, panels32 of [n][k]) and bias accumulators ([n], empty:
// none). dy has stride ldy, 0: n. units: ranges of rows, ascending.
void ExpertWeightGradient(Pool& pool, const ExpertPlan& plan, std::span<const RowRange> units,
                          const float* x, const float* dy, int64_t n, int64_t k,
                          std::span<float* const> accumulators,
                          std::span<float* const> bias_accumulators, Inputs inputs = Inputs::kF32,
                          int64_t ldy = 0);
// The biases alone, for a rank that holds all of them and a part of the matrices.
void ExpertBiasGradient(Pool& pool, const ExpertPlan& plan, std::span<const RowRange> units,
                        const float* dy, int64_t n, std::span<float* const> bias_accumulators,
                        int64_t ldy = 0);

// out [places][width], weights [rows][chosen], shared [rows][width] or null -> y [rows][width].
void CombinePlaces(Pool& pool, const ExpertPlan& plan, const float* weights, const float* out,
                   const float* shared, int64_t width, float* y);
void CombinePlacesBackward(Pool& pool, const ExpertPlan& plan, const float* weights,
                           const float* out, const float* dy, int64_t width, float* dout,
                           float* dweights);

// dplaces [places][width] -> dx [rows][width], written.
void ScatterPlaces(Pool& pool, const ExpertPlan& plan, const float* dplaces, int64_t width,
                   float* dx);

struct GateBounds {
  float limit = 7.0f;
  float alpha = 1.702f;
  float offset = 1.0f;
};
// Flat arrays of n elements; out may be gate or up, dgate and dup may be gate, up or dout.
void BoundedGate(Pool& pool, const GateBounds& bounds, int64_t n, const float* gate,
                 const float* up, float* out);
void BoundedGateBackward(Pool& pool, const GateBounds& bounds, int64_t n, const float* gate,
                         const float* up, const float* dout, float* dgate, float* dup);

}  // namespace titan::kernels

#endif  // TITAN_CORE_KERNELS_MOE_EXPERTS_H_
