// SPDX-License-Identifier: Apache-2.0
//
// Rotary position embedding, HALF convention: pairs (i, i + head_dim / 2) of every head.
//
// Table: inv_freq_i = f32(1 / f32(theta^(2i / head_dim))) with our own double power, then the
// scaling
//   in double on that f32 value, rounded once. angle = double(position) * double(inv_freq); sine
//   and cosine by our own double reduction and series, rounded to f32 and stored for the declared
//   context. A request beyond it is refused by the caller (max_positions()).
// Rotation: y1 = fma(x1, cos, -(x2 * sin)); y2 = fma(x2, cos, x1 * sin)
// Backward: dx1 = fma(dy1, cos, dy2 * sin); dx2 = fma(dy2, cos, -(dy1 * sin))
#ifndef TITAN_CORE_KERNELS_ROPE_H_
#define TITAN_CORE_KERNELS_ROPE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/status.h"

namespace titan::kernels {

class Pool;

struct RopeScaling {
  enum class Kind { kNone, kLinear, kLlama3 };
  Kind kind = Kind::kNone;
  double factor = 1.0;                     // linear, llama3
  double low_freq_factor = 1.0;            // llama3
  double high_freq_factor = 4.0;           // llama3
  double original_max_positions = 8192.0;  // llama3
};

// Immutable after Create; any thread.
class RopeTable {
 public:
  // InvalidArgument: head_dim not even or < 2, theta not finite or <= 1, factors out of range,
  // max_positions outside 1..2^24.
  static StatusOr<RopeTable> Create(int head_dim, double theta, const RopeScaling& scaling,
                                    int64_t max_positions);

  int head_dim() const { return 2 * half_; }
  int64_t max_positions() const { return max_positions_; }
  std::span<const float> inv_freq() const { return inv_freq_; }
  // [head_dim / 2] values of one position. REQUIRES: 0 <= position < max_positions().
  const float* cosines(int64_t position) const { return cosines_.data() + position * half_; }
  const float* sines(int64_t position) const { return sines_.data() + position * half_; }

 private:
  RopeTable() = default;
  int half_ = 0;
  int64_t max_positions_ = 0;
  std::vector<float> inv_freq_, cosines_, sines_;
};

// Rotates x [rows][num_heads * head_dim] in place (row stride ldx >= that width); positions [rows].
// Parallel over rows. REQUIRES: positions inside the table (checked).
void ApplyRope(Pool& pool, const RopeTable& table, float* x, int64_t ldx, int64_t rows,
               int num_heads, const int32_t* positions);
// The transposed rotation, for gradients, in place.
void ApplyRopeBackward(Pool& pool, const RopeTable& table, float* dx, int64_t ldx, int64_t rows,
                       int num_heads, const int32_t* positions);

// The double functions of the table, exposed for their test. DPow: base > 0. DSinCos: |angle| <=
// 2^24 (checked), which no position of a table exceeds since inv_freq <= 1.
double DPow(double base, double exponent);
void DSinCos(double angle, double* sine, double* cosine);

}  // namespace titan::kernels

#endif  // TITAN_CORE_KERNELS_ROPE_H_
