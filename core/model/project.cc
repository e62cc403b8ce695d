// SPDX-License-Identifier: Apache-2.0
#include "core/model/project.h"

#include "core/kernels/gelu.h"
#include "core/kernels/linear.h"
#include "core/kernels/panels.h"
#include "core/kernels/swiglu.h"

namespace titan::model {

void Project(const DecoderContext& context, int parameter, kernels::ConstPanels panels,
             const float* bias, const float* x, int64_t rows, float* out) {
  const Parameter& p = context.decoder.table().at(parameter);
  kernels::Linear(context.pool, x, p.columns(), rows, panels, p.rows(), p.columns(),
                  p.forward_leaves, bias, out, p.rows(), context.decoder.InputsOf(p));
}

void ProjectWeightGradient(const DecoderContext& context, int parameter,
                           std::span<const kernels::RowRange> units, const float* x,
                           const float* dy, float* weight_gradient, float* bias_gradient) {
  const Parameter& p = context.decoder.table().at(parameter);
  for (const kernels::RowRange& unit : units) {
    const int64_t rows = unit.end - unit.begin;
    const float* unit_dy = dy + unit.begin * p.rows();
    kernels::LinearWeightGradient(context.pool, x + unit.begin * p.columns(), p.columns(), unit_dy,
                                  p.rows(), rows, p.rows(), p.columns(), weight_gradient,
                                  context.decoder.InputsOf(p));
    if (bias_gradient != nullptr) {
      kernels::LinearBiasGradient(context.pool, unit_dy, p.rows(), rows, p.rows(), bias_gradient);
    }
  }
}

void ProjectInputGradient(const DecoderContext& context, int parameter, kernels::ConstPanels panels,
                          const float* dy, int64_t rows, float* dx) {
  const Parameter& p = context.decoder.table().at(parameter);
  float* transposed = context.workspace.transposed;
  kernels::TransposePanels(context.pool, panels, p.rows(), p.columns(), transposed);
  kernels::Linear(context.pool, dy, p.rows(), rows, transposed, p.columns(), p.rows(),
                  p.input_gradient_leaves, nullptr, dx, p.columns());
}

void GateForward(const Decoder& decoder, kernels::Pool& pool, int64_t n, const float* gate,
                 const float* up, float* out) {
  if (decoder.config().is_gemma()) return kernels::GeluGlu(pool, n, gate, up, out);
  kernels::SwiGlu(pool, n, gate, up, out);
}

void GateBackward(const Decoder& decoder, kernels::Pool& pool, int64_t n, const float* gate,
                  const float* up, const float* dout, float* dgate, float* dup) {
  if (decoder.config().is_gemma()) {
    return kernels::GeluGluBackward(pool, n, gate, up, dout, dgate, dup);
  }
  kernels::SwiGluBackward(pool, n, gate, up, dout, dgate, dup);
}

}  // namespace titan::model
