// SPDX-License-Identifier: Apache-2.0
//
// Rotary position embedding of the first `rotary_dim` channels of every head (all of them, unless a
// family has a partial rotation). r = rotary_dim.
//
// Table: inv_freq_i = f32(1 / f32(theta^(2i / r))), i < r / 2, with our own double power, then the
//   scaling in double on that f32 value, rounded once:
//     linear  f / factor
//     llama3  wavelengths above original / low_freq_factor are divided by factor, those below
//             original / high_freq_factor kept, between them blended
//     yarn    c(b) = r ln(original / (2 pi b)) / (2 ln theta); low = c(beta_fast), high =
//             c(beta_slow), with `truncate` floor(low) and ceil(high); low = max(low, 0), high =
//             min(high, r - 1), + 0.001 if equal; ramp = clamp((i - low) / (high - low), 0, 1);
//             ramp f / factor + (1 - ramp) f
//   angle = double(position) * double(inv_freq); sine and cosine by our own double reduction and
//   series, times the attention factor (yarn; 1 elsewhere) in double, rounded once to f32 and
//   stored for the declared context. A request beyond it is refused by the caller
//   (max_positions()). The attention factor: as given; else, where mscale and mscale_all_dim are
//   both above 0, g(mscale) / g(mscale_all_dim); else g(1); g(q) = 0.1 q ln(factor) + 1.
// Rotation of the pair (x1, x2): y1 = fma(x1, cos, -(x2 * sin)); y2 = fma(x2, cos, x1 * sin)
// Backward: dx1 = fma(dy1, cos, dy2 * sin); dx2 = fma(dy2, cos, -(dy1 * sin))
//   kHalf         pairs (i, i + r / 2), in place
//   kInterleaved  pairs (2i, 2i + 1), written to i and i + r / 2 (DeepSeek V3: queries and keys
//                 alike, so that scores are those of a rotation in place)
#ifndef TITAN_CORE_KERNELS_ROPE_H_
#define TITAN_CORE_KERNELS_ROPE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/status.h"

namespace titan::kernels {

class Pool;

struct RopeScaling {
  enum class Kind { kNone, kLinear, kLlama3, kYarn };
  Kind kind = Kind::kNone;
  double factor = 1.0;                     // all
  double low_freq_factor = 1.0;            // llama3
  double high_freq_factor = 4.0;           // llama3
  double original_max_positions = 8192.0;  // llama3, yarn
  double beta_fast = 32.0;                 // yarn, as all below
  double beta_slow = 1.0;
  bool truncate = true;
  double attention_factor = 0.0;  // 0: by the rule above
  double mscale = 0.0;
  double mscale_all_dim = 0.0;
};

enum class RopePairs : uint8_t { kHalf, kInterleaved };

// Immutable after Create; any thread.
class RopeTable {
 public:
  // rotary_dim 0: head_dim. InvalidArgument: rotary_dim not even, < 2 or above head_dim, theta not
  // finite or <= 1, factors out of range, max_positions outside 1..2^24.
  static StatusOr<RopeTable> Create(int head_dim, double theta, const RopeScaling& scaling,
                                    int64_t max_positions, int rotary_dim = 0,
                                    RopePairs pairs = RopePairs::kHalf);

  int head_dim() const { return head_dim_; }
  int rotary_dim() const { return 2 * half_; }
  RopePairs pairs() const { return pairs_; }
  int64_t max_positions() const { return max_positions_; }
  std::span<const float> inv_freq() const { return inv_freq_; }
  double attention_factor() const { return attention_factor_; }
  // [rotary_dim / 2] values of one position. REQUIRES: 0 <= position < max_positions().
  const float* cosines(int64_t position) const { return cosines_.data() + position * half_; }
  const float* sines(int64_t position) const { return sines_.data() + position * half_; }

 private:
  RopeTable() = default;
  int head_dim_ = 0;
  int half_ = 0;
  RopePairs pairs_ = RopePairs::kHalf;
  double attention_factor_ = 1.0;
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

// The double functions of the table, exposed for their test. DPow: base > 0. DLogDouble: x normal
// and > 0. DSinCos: |angle| <=
// 2^24 (checked), which no position of a table exceeds since inv_freq <= 1.
double DLogDouble(double x);
double DPow(double base, double exponent);
void DSinCos(double angle, double* sine, double* cosine);

}  // namespace titan::kernels

#endif  // TITAN_CORE_KERNELS_ROPE_H_
