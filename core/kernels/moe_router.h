// SPDX-License-Identifier: Apache-2.0
//
// Choice of experts from router logits, forward and backward. Logits are those of a Linear in F32,
// in every mode (its bias, where a family has one, is in them).
//
// Order for one row, z its E logits:
//   scores  kSoftmax          m = max z, e_j = DExp(z_j - m), s_j = e_j / RowSum(e)
//           kSigmoid          s_j = 1 / (1 + DExp(-z_j))
//           kSoftmaxOfChosen  the choice first; m = max of the chosen z, s_j = DExp(z_j - m)
//   choice  c_j = s_j, with a correction bias s_j + bias_j, of kSoftmaxOfChosen z_j. With groups
//   the
//           E experts are `groups` equal runs; a group's value is its best c plus its second best;
//           only the `chosen_groups` best groups remain. The `chosen` best c remain. Comparisons
//           are by IEEE totalOrder with -0 as +0; of equals the lower index is better. The ids are
//           then listed ascending.
//   weights normalise: w_j = s_j / (P + normaliser_eps), P = chain over the chosen ascending from
//   +0
//           of acc + s_j; else w_j = s_j; then w_j * scaling.
// Backward, dw_j of the chosen (the bias has no gradient, the choice none either):
//   normalise: D = chain over the chosen ascending from +0 of fma(w_j, dw_j, acc),
//              ds_j = (scaling * dw_j - D) / (P + normaliser_eps); else ds_j = scaling * dw_j
//   kSigmoid: dz_j = ds_j * (s_j * (1 - s_j)); kSoftmaxOfChosen, and kSoftmax normalised:
//   dz_j = s_j * ds_j (what goes through the sum over all cancels); other dz are +0.
//   kSoftmax not normalised: D' = chain over the chosen of fma(s_j, ds_j, acc); every
//   dz_i = s_i * (ds_i - D'), ds_i = +0 where not chosen.
//
// Families (model facts): kSoftmax Qwen3-MoE, Qwen3-Next, Qwen3.5; kSoftmaxOfChosen gpt-oss;
// kSigmoid with groups DeepSeek V3, Kimi. Parallel over rows; a row's bits are its own.
#ifndef TITAN_CORE_KERNELS_MOE_ROUTER_H_
#define TITAN_CORE_KERNELS_MOE_ROUTER_H_

#include <cstdint>

#include "core/base/status.h"

namespace titan::kernels {

class Pool;

enum class RouterScore : uint8_t { kSoftmax, kSoftmaxOfChosen, kSigmoid };

struct RouterShape {
  RouterScore score = RouterScore::kSoftmax;
  int64_t experts = 0;
  int64_t chosen = 0;
  bool normalise = true;        // always, for kSoftmaxOfChosen
  float normaliser_eps = 0.0f;  // of kSigmoid; 0 for the others
  float scaling = 1.0f;
  int64_t groups = 1;
  int64_t chosen_groups = 1;
};

// InvalidArgument, naming the field: what no family has (more chosen than experts, groups that do
// not divide the experts or have fewer than two, too few experts in the chosen groups, an eps with
// a softmax).
Status ValidateRouter(const RouterShape& shape);

// logits [rows][experts], correction_bias [experts] or null -> ids [rows][chosen] ascending,
// weights [rows][chosen]. REQUIRES: ValidateRouter(shape).
void ChooseExperts(Pool& pool, const RouterShape& shape, const float* logits,
                   const float* correction_bias, int64_t rows, int32_t* ids, float* weights);

// dweights [rows][chosen] -> dlogits [rows][experts], written; ids as ChooseExperts gave them.
void ChooseExpertsBackward(Pool& pool, const RouterShape& shape, const float* logits,
                           const int32_t* ids, const float* dweights, int64_t rows, float* dlogits);

}  // namespace titan::kernels

#endif  // TITAN_CORE_KERNELS_MOE_ROUTER_H_
