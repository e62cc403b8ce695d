// SPDX-License-Identifier: Apache-2.0
//
// The gated delta rule in the chunk form of the numerics contract (section 5), forward and
// backward: one order for decode, prefill, chunked prefill and training. The recurrence it computes
// (model facts, Qwen3-Next and Qwen3.5): S <- e^g S; delta = beta (v - S^T k); S <- S + k delta^T;
// o = S^T q; queries and keys come normalised and scaled.
//
// Chunks of 64 tokens from position 0. For one value head (it uses key head h / (value_heads /
// key_heads)), S [key_dim][value_dim] the state at the chunk's start (+0 at position 0), t the
// token's place in its chunk:
//   G_t = G_(t-1) + g_t, G_0 = g_0; E_t = DExp(G_t); D_ti = DExp(G_t - G_i)
//   kk_ti, qk_ti = chains over d ascending from +0 of fma(k_t[d] or q_t[d], k_i[d], acc)
//   r_t[j]     = (chain over d from +0 of fma(k_t[d], S[d][j], acc)) * E_t,
//                then the chain over i < t
//                ascending of fma(kk_ti * D_ti, delta_i[j], .)
//   u_t[j]     = v_t[j] - r_t[j]; delta_t[j] = u_t[j] * beta_t
//   out_t[j]   = (chain over d from +0 of fma(q_t[d], S[d][j], acc)) * E_t, then the chain over
//                i < t of fma(qk_ti * D_ti, delta_i[j], .), then fma(qk_tt, delta_t[j], .)
//   after t = 63: S[d][j] = S[d][j] * E_63, then the chain over i ascending of
//                fma(k_i[d] * W_i, delta_i[j], .), W_i = DExp(G_63 - G_i)
//
// Backward of a chunk of n tokens, with N the gradient of the state after it (none after the last
// chunk; then every term with N or W is left out, chains begin at +0), tokens descending:
//   ddelta_t[j] = (chain over d from +0 of fma(k_t[d], N[d][j], acc)) * W_t,
//                 then the chain over s >= t
//                 ascending of fma(qk_st * D_st, dout_s[j], .) (D_tt = 1), then over s > t of
//                 fma(kk_st * D_st, dr_s[j], .)
//   dbeta_t = RowSumProduct(ddelta_t, u_t); dv_t[j] = ddelta_t[j] * beta_t; dr_t[j] = -dv_t[j]
// then, with P_ti and R_ti the chains over j from +0 of fma(dout_t[j] or dr_t[j], delta_i[j], acc),
// x_ti = P_ti * D_ti, y_ti = R_ti * D_ti, a_t, b_t [d] the chains over j from +0 of
// fma(dout_t[j] or dr_t[j], S[d][j], acc), c_t[d] the chain over j of fma(delta_t[j], N[d][j],
// acc):
//   dq_t[d] = a_t[d] * E_t, then over i <= t of fma(x_ti, k_i[d], .) (x_tt = P_tt)
//   dk_t[d] = b_t[d] * E_t, then over i < t of fma(y_ti, k_i[d], .),
//             over s > t of fma(y_st, k_s[d], .),
//             over s >= t of fma(x_st, q_s[d], .), then fma(W_t, c_t[d], .)
//   z_ti  = fma(qk_ti, x_ti, kk_ti * y_ti); f_t = RowSumProduct(k_t, c_t) * W_t
//   dG_t  = (RowSumProduct(a_t, q_t) + RowSumProduct(b_t, k_t)) * E_t, then + z_ti over i < t, then
//           - z_st over s > t; then for t < 63 - f_t, for t = 63 + RowSumProduct(N, S) * E_63, then
//           + f_i over i < 63
//   dg_t  = dG_t for the chunk's last token, else dg_(t+1) + dG_t
//   the gradient of S: N[d][j] * E_63, then per t ascending fma(q_t[d] * E_t, dout_t[j], .) and
//           fma(k_t[d] * E_t, dr_t[j], .)
// dq and dk of a key head: its value heads' are added ascending, ((h0 + h1) + h2) ...
//
// Shapes: q, k [T][key_heads * key_dim], v, out, u [T][value_heads * value_dim], g, beta
// [T][value_heads]. Tasks are a segment and a head. Outputs do not overlap inputs.
#ifndef TITAN_CORE_KERNELS_GATED_DELTA_H_
#define TITAN_CORE_KERNELS_GATED_DELTA_H_

#include <cstdint>
#include <span>

#include "core/base/status.h"

namespace titan::kernels {

class Pool;

inline constexpr int64_t kDeltaChunk = 64;

struct DeltaShape {
  int64_t key_heads = 0;
  int64_t value_heads = 0;  // a multiple of key_heads
  int64_t key_dim = 0;      // 1..256
  int64_t value_dim = 0;    // 1..256
};

// InvalidArgument, naming the field.
Status ValidateDeltaShape(const DeltaShape& shape);

// What a sequence keeps between calls: of each value head the state at the start of its open chunk,
// and the keys, deltas and summed decays of that chunk.
int64_t DeltaStateFloats(const DeltaShape& shape);

// Rows [first_row, + num_rows) of the batch are positions first_position, ... of one sequence,
// whose state holds all positions before; at position 0 it is set up, whatever it held.
struct DeltaSegment {
  int64_t first_row = 0;
  int64_t num_rows = 0;
  int64_t first_position = 0;
  float* state = nullptr;
};

// What the backward needs, segments from position 0: u [T][value_heads * value_dim], and the state
// at the start of every chunk, segments in order: [chunks][value_heads][key_dim][value_dim].
struct DeltaSaved {
  float* u = nullptr;
  float* starts = nullptr;
};
int64_t DeltaChunks(std::span<const DeltaSegment> segments);

// saved may be null (generation). REQUIRES: ValidateDeltaShape(shape).
void DeltaForward(Pool& pool, const DeltaShape& shape, std::span<const DeltaSegment> segments,
                  const float* q, const float* k, const float* v, const float* g, const float* beta,
                  float* out, const DeltaSaved* saved);

struct DeltaGradients {
  float* dq = nullptr;
  float* dk = nullptr;
  float* dv = nullptr;
  float* dg = nullptr;
  float* dbeta = nullptr;
};

// Written for the segments' rows. REQUIRES: every segment starts at position 0; states are not
// read.
void DeltaBackward(Pool& pool, const DeltaShape& shape, std::span<const DeltaSegment> segments,
                   const float* q, const float* k, const float* g, const float* beta,
                   const DeltaSaved& saved, const float* dout, const DeltaGradients& gradients);

}  // namespace titan::kernels

#endif  // TITAN_CORE_KERNELS_GATED_DELTA_H_
