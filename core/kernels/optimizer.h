// SPDX-License-Identifier: Apache-2.0
//
// Global gradient norm, clipping scale and the AdamW step (numerics.md section 7). Panels and rows
// give the same bits: the norm reads the logical row-major tensor; the step is elementwise (pad
// columns hold +0 and stay +0).
//
// Norm: per tensor, chunks of 1024 consecutive elements of the flat logical [n][k] tensor. Lane j
// of
//   64 sums f64(g)^2 of the chunk's elements j, j+64, ... ascending from +0 (the square of a float
//   is exact in f64); tree 32, ..., 1; chunks ascending to the tensor's total from +0; tensors in
//   the order given to the grand total from +0; IEEE square root.
// AdamW, with g' = g * grad_scale:
//   m = fma(beta1, m, (1 - beta1) * g')
//   v = fma(beta2, v, ((1 - beta2) * g') * g')
//   p = fma(-step_size, m / fma(sqrt(v), inv_sqrt_correction2, eps), p * decay)
//   The scalars are doubles rounded once to f32: 1 - beta, decay = 1 - lr * weight_decay,
//   step_size = lr / (1 - beta1^t), inv_sqrt_correction2 = 1 / sqrt(1 - beta2^t); the powers by
//   repeated multiplication in double.
#ifndef TITAN_CORE_KERNELS_OPTIMIZER_H_
#define TITAN_CORE_KERNELS_OPTIMIZER_H_

#include <cstdint>
#include <span>

#include "core/base/status.h"
#include "core/kernels/embedding.h"

namespace titan::kernels {

class Pool;

// A gradient of logical shape [n][k]; a vector is [1][k] in rows.
struct GradientTensor {
  const float* data = nullptr;
  TableLayout layout = TableLayout::kRows;
  int64_t n = 0;
  int64_t k = 0;
};

// The Euclidean norm; NaN or infinity in any gradient gives NaN or infinity, which ClipScale
// refuses.
double GradientNorm(Pool& pool, std::span<const GradientTensor> tensors);
// The squared norm of one tensor (the tensor's total above). `before`: the total of the rows before
// these, for a tensor whose rows lie on several ranks, cut at whole chunks.
double GradientSquareSum(Pool& pool, const GradientTensor& tensor, double before = 0.0);

// f32(min(1, max_norm / (norm + 1e-6))). InvalidArgument: max_norm not finite or < 1e-30.
// FailedPrecondition: norm NaN or infinite, or so large that the scale would not be a normal f32
// (the update would silently become zero).
StatusOr<float> ClipScale(double norm, double max_norm);

// Hyperparameters of one step and the powers that a checkpoint keeps.
struct AdamWConfig {
  double lr = 0.0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;
};

struct AdamWPowers {
  int64_t step = 0;  // steps taken
  double beta1_power = 1.0;
  double beta2_power = 1.0;
};

// The f32 scalars of one step.
struct AdamWScalars {
  float beta1 = 0.0f, one_minus_beta1 = 0.0f, beta2 = 0.0f, one_minus_beta2 = 0.0f;
  float eps = 0.0f, decay = 1.0f, step_size = 0.0f, inv_sqrt_correction2 = 0.0f;
};

// Advances the powers by one step and computes its scalars. InvalidArgument names the field out of
// range: lr finite >= 0, betas in [0, 1), eps finite with f32(eps) normal, weight_decay finite >=
// 0, lr * weight_decay <= 1.
StatusOr<AdamWScalars> NextAdamWStep(const AdamWConfig& config, AdamWPowers* powers);

// Parameters and moments of one tensor, of one layout.
struct AdamWState {
  float* p = nullptr;
  float* m = nullptr;
  float* v = nullptr;
};

// One tensor (any layout): `from` is read, `to` is written, which may be the same or must not
// overlap. Returns false when a new parameter or moment is NaN or infinite: the caller stops, the
// step is lost. Parallel over elements; the pool sets the numeric environment.
bool AdamWStep(Pool& pool, int64_t count, const AdamWScalars& scalars, float grad_scale,
               const float* g, const AdamWState& from, const AdamWState& to);
// In place.
inline bool AdamWStep(Pool& pool, int64_t count, const AdamWScalars& scalars, float grad_scale,
                      const float* g, float* p, float* m, float* v) {
  const AdamWState state = {p, m, v};
  return AdamWStep(pool, count, scalars, grad_scale, g, state, state);
}

}  // namespace titan::kernels

#endif  // TITAN_CORE_KERNELS_OPTIMIZER_H_
