// SPDX-License-Identifier: Apache-2.0
#include "core/model/project.h"

#include <vector>

#include "core/kernels/gelu.h"
#include "core/kernels/linear.h"
#include "core/kernels/panels.h"
#include "core/kernels/swiglu.h"

namespace titan::model {

void Project(const DecoderContext& context, const float* x, int64_t rows,
             std::span<const Projection> projections) {
  kernels::LinearRows shared = {.x = x, .m = rows};
  std::vector<kernels::LinearMatrix> matrices;
  matrices.reserve(projections.size());
  for (const Projection& projection : projections) {
    const Parameter& p = context.decoder.table().at(projection.parameter);
    shared.ldx = shared.k = p.columns();
    shared.inputs = context.decoder.InputsOf(p);
    matrices.push_back({.panels = projection.panels,
                        .n = p.rows(),
                        .leaves = p.forward_leaves,
                        .bias = projection.bias,
                        .out = projection.out,
                        .ldo = p.rows(),
                        .addend = projection.addend});
  }
  kernels::Linear(context.pool, shared, matrices);
}

void ProjectWeightGradient(const DecoderContext& context, const float* x,
                           std::span<const kernels::RowRange> units,
                           std::span<const ProjectionGradient> gradients) {
  std::vector<kernels::LinearGradient> matrices(gradients.size());
  for (const kernels::RowRange& unit : units) {
    kernels::LinearRows rows = {.m = unit.end - unit.begin};
    for (size_t i = 0; i < gradients.size(); ++i) {
      const Parameter& p = context.decoder.table().at(gradients[i].parameter);
      rows.x = x + unit.begin * p.columns();
      rows.ldx = rows.k = p.columns();
      rows.inputs = context.decoder.InputsOf(p);
      matrices[i] = {.dy = gradients[i].dy + unit.begin * p.rows(),
                     .ldy = p.rows(),
                     .n = p.rows(),
                     .panels_accumulator = gradients[i].weight_gradient};
    }
    kernels::LinearWeightGradient(context.pool, rows, matrices);
    for (size_t i = 0; i < gradients.size(); ++i) {
      if (gradients[i].bias_gradient == nullptr) continue;
      kernels::LinearBiasGradient(context.pool, matrices[i].dy, matrices[i].ldy, rows.m,
                                  matrices[i].n, gradients[i].bias_gradient);
    }
  }
}

void ProjectInputGradient(const DecoderContext& context, int64_t rows,
                          std::span<const InputGradientTerm> terms, float* dx) {
  float* transposed = context.workspace.transposed;
  std::vector<kernels::LinearTerm> products;
  products.reserve(terms.size());
  int64_t width = 0;
  for (const InputGradientTerm& term : terms) {
    const Parameter& p = context.decoder.table().at(term.parameter);
    kernels::TransposePanels(context.pool, term.panels, p.rows(), p.columns(), transposed);
    products.push_back({.x = term.dy,
                        .ldx = p.rows(),
                        .k = p.rows(),
                        .panels = transposed,
                        .leaves = p.input_gradient_leaves});
    transposed += kernels::PanelFloats(p.columns(), p.rows());
    width = p.columns();
  }
  kernels::LinearSum(context.pool, rows, products, width, dx, width);
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
