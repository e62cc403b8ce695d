// SPDX-License-Identifier: Apache-2.0
//
// One linear of the decoder by its parameter: forward, weight gradient, input gradient, with the
// leaves of the contract. For the files of this module.
#ifndef TITAN_CORE_MODEL_PROJECT_H_
#define TITAN_CORE_MODEL_PROJECT_H_

#include <cstdint>
#include <span>

#include "core/model/decoder.h"

namespace titan::model {

// x [rows][columns(weight)] -> out [rows][rows(weight)], with the parameter's bias if it has one.
void Project(const DecoderContext& context, int parameter, kernels::ConstPanels panels,
             const float* bias, const float* x, int64_t rows, float* out);

// Weight and bias gradient (null: none): one chain a unit, added in order.
void ProjectWeightGradient(const DecoderContext& context, int parameter,
                           std::span<const kernels::RowRange> units, const float* x,
                           const float* dy, float* weight_gradient, float* bias_gradient);

// dx [rows][in features] of dy [rows][out features], by way of the workspace's transposed panels.
void ProjectInputGradient(const DecoderContext& context, int parameter, kernels::ConstPanels panels,
                          const float* dy, int64_t rows, float* dx);

// The MLP's gate, silu or the tanh form of gelu as the family says; flat arrays of n elements.
void GateForward(const Decoder& decoder, kernels::Pool& pool, int64_t n, const float* gate,
                 const float* up, float* out);
void GateBackward(const Decoder& decoder, kernels::Pool& pool, int64_t n, const float* gate,
                  const float* up, const float* dout, float* dgate, float* dup);

}  // namespace titan::model

#endif  // TITAN_CORE_MODEL_PROJECT_H_
