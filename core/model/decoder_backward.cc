// SPDX-License-Identifier: Apache-2.0
//
// The hand-ordered backward (numerics.md section 7). Every sum of more than two gradients is
// written out here: a residual is (gradient of the output) + (gradient through the branch), q, k, v
// join as (q + k) + v, gate and up as gate + up.
#include <cstring>
#include <vector>

#include "core/base/check.h"
#include "core/kernels/embedding.h"
#include "core/kernels/gelu.h"
#include "core/kernels/head.h"
#include "core/kernels/isa.h"
#include "core/kernels/linear.h"
#include "core/kernels/norm.h"
#include "core/kernels/panels.h"
#include "core/kernels/swiglu.h"
#include "core/model/decoder.h"
#include "core/model/experts.h"
#include "core/model/project.h"
#include "core/model/tied_embedding.h"

namespace titan::model {
namespace {

// Queries and keys as attention read them, and their inverse rms, out of the projections kept:
// query_c, key_c and the inverse rms of the workspace. The operations of the forward.
void MakeHeads(const DecoderContext& context, const LayerWeights& w, int layer,
               const ForwardBatch& batch, const BlockActivations& saved) {
  const Decoder& decoder = context.decoder;
  const kernels::AttentionShape& shape = decoder.attention_shape();
  Workspace& workspace = context.workspace;
  const float eps = decoder.config().rms_norm_eps;
  const int64_t rows = batch.num_rows();
  kernels::RmsNorm(context.pool, saved.query, rows, shape.head_dim, w.q_norm, eps,
                   workspace.query_c, workspace.query_inverse_rms,
                   {.kind = decoder.norm_kind(), .heads = shape.num_heads});
  kernels::RmsNorm(context.pool, saved.key, rows, shape.head_dim, w.k_norm, eps, workspace.key_c,
                   workspace.key_inverse_rms,
                   {.kind = decoder.norm_kind(), .heads = shape.num_kv_heads});
  kernels::ApplyRope(context.pool, decoder.rope(layer), workspace.query_c, decoder.query_width(),
                     rows, shape.num_heads, batch.positions.data());
  kernels::ApplyRope(context.pool, decoder.rope(layer), workspace.key_c, decoder.kv_width(), rows,
                     shape.num_kv_heads, batch.positions.data());
}

// down(silu(gate(n)) * up(n)): dn [T][H] of dy [T][H], weight gradients added.
void MlpBackward(const DecoderContext& context, const LayerWeights& w, const LayerParameters& p,
                 std::span<const kernels::RowRange> units, const BlockActivations& saved,
                 const float* normed, const float* dy, float* dnormed, const LayerGradients& g) {
  kernels::Pool& pool = context.pool;
  Workspace& workspace = context.workspace;
  const int64_t rows = units.back().end, floats = rows * context.decoder.intermediate();
  float* dgate = workspace.gate;
  float* dup = workspace.up;
  GateForward(context.decoder, pool, floats, saved.gate, saved.up, workspace.activation);
  const ProjectionGradient down = {p.down, dy, g.down, g.down_bias};
  ProjectWeightGradient(context, workspace.activation, units, {&down, 1});
  const InputGradientTerm of_down = {p.down, w.down, dy};
  ProjectInputGradient(context, rows, {&of_down, 1}, dgate);
  GateBackward(context.decoder, pool, floats, saved.gate, saved.up, dgate, dgate, dup);
  const ProjectionGradient gradients[] = {{p.gate, dgate, g.gate, g.gate_bias},
                                          {p.up, dup, g.up, g.up_bias}};
  ProjectWeightGradient(context, normed, units, gradients);
  const InputGradientTerm terms[] = {{p.gate, w.gate, dgate}, {p.up, w.up, dup}};
  ProjectInputGradient(context, rows, terms, dnormed);
}

void CheckUnits(std::span<const kernels::RowRange> units, int64_t rows) {
  int64_t next = 0;
  for (const kernels::RowRange& unit : units) {
    TITAN_CHECK(unit.begin == next && unit.end > unit.begin);
    next = unit.end;
  }
  TITAN_CHECK(next == rows);
}

// dx times what an embedding was multiplied by: dx itself, or in the workspace.
const float* ScaledAsEmbedded(const DecoderContext& context, const ForwardBatch& batch,
                              const float* dx) {
  const float scale = context.decoder.embedding_scale();
  if (scale == 1) return dx;
  const int64_t floats = batch.num_rows() * context.decoder.hidden();
  float* scaled = context.workspace.hidden_a;
  std::memcpy(scaled, dx, static_cast<size_t>(floats) * sizeof(float));
  kernels::ScaleBy(context.pool, floats, scale, scaled);
  return scaled;
}

}  // namespace

void BlockBackward(const DecoderContext& context, const Weights& weights, int layer,
                   const ForwardBatch& batch, std::span<const kernels::RowRange> units, float* kv,
                   const BlockActivations& saved, float* dx, const Gradients& gradients) {
  const kernels::NumericThread numeric;
  const Decoder& decoder = context.decoder;
  Workspace& workspace = context.workspace;
  kernels::Pool& pool = context.pool;
  const int64_t rows = batch.num_rows();
  TITAN_CHECK(layer >= 0 && layer < decoder.num_layers());
  TITAN_CHECK(rows <= workspace.limits().max_rows && workspace.limits().backward);
  CheckUnits(units, rows);
  const LayerWeights& w = weights.layers[static_cast<size_t>(layer)];
  const LayerGradients& g = gradients.layers[static_cast<size_t>(layer)];
  const LayerParameters& p = decoder.table().layers()[static_cast<size_t>(layer)];
  const kernels::AttentionShape shape = decoder.attention_shape(layer, w.sinks);
  const int64_t hidden = decoder.hidden();
  const int64_t x_floats = rows * hidden;
  const float eps = decoder.config().rms_norm_eps;
  const kernels::NormShape norm = {.kind = decoder.norm_kind()};
  float* normed = workspace.hidden_a;
  float* dnormed = workspace.hidden_b;
  float* other = workspace.hidden_c;

  // output = middle + mlp(n), n = norm(middle)
  kernels::RmsNorm(pool, saved.middle, rows, hidden, w.post_norm, eps, normed, nullptr, norm);
  const float* dbranch = dx;
  if (w.mlp_norm != nullptr) {
    kernels::RmsNormBackward(pool, saved.mlp_branch, rows, hidden, w.mlp_norm,
                             saved.mlp_branch_inverse_rms, dx, workspace.branch, units, g.mlp_norm,
                             norm);
    dbranch = workspace.branch;
  }
  if (p.experts.empty()) {
    MlpBackward(context, w, p, units, saved, normed, dbranch, dnormed, g);
  } else {
    ExpertsBackward(context, w, p, units, saved, normed, rows, dbranch, dnormed, g);
  }
  kernels::RmsNormBackward(pool, saved.middle, rows, hidden, w.post_norm, saved.middle_inverse_rms,
                           dnormed, other, units, g.post_norm, norm);
  kernels::Add(pool, x_floats, dx, other, dx);

  // middle = input + o(attention(q, k, v)), q, k, v of norm(input)
  dbranch = dx;
  if (w.attention_norm != nullptr) {
    kernels::RmsNormBackward(pool, saved.attention_branch, rows, hidden, w.attention_norm,
                             saved.attention_branch_inverse_rms, dx, workspace.branch, units,
                             g.attention_norm, norm);
    dbranch = workspace.branch;
  }
  const ProjectionGradient o = {p.o, dbranch, g.o, g.o_bias};
  ProjectWeightGradient(context, saved.attention, units, {&o, 1});
  float* dattention = workspace.query_a;
  float* dquery = workspace.query_b;
  float* dkey = workspace.key_a;
  float* dvalue = workspace.value_a;
  const InputGradientTerm of_o = {p.o, w.o, dbranch};
  ProjectInputGradient(context, rows, {&of_o, 1}, dattention);
  const float* query = saved.query;
  const float* key = saved.key;
  const bool qk_norm = decoder.config().qk_norm;
  if (qk_norm) {
    MakeHeads(context, w, layer, batch, saved);
    query = workspace.query_c;
    key = workspace.key_c;
  }
  kernels::WriteKv(pool, shape, key, saved.value, batch.segments, kv);
  kernels::AttentionBackward(pool, shape, query, batch.segments, kv, saved.attention, dattention,
                             saved.row_max, saved.row_sum, dquery, dkey, dvalue);
  if (w.sinks != nullptr) {
    kernels::SinkGradient(pool, shape, saved.attention, dattention, saved.row_max, saved.row_sum,
                          units, g.sinks);
  }
  kernels::ApplyRopeBackward(pool, decoder.rope(layer), dquery, decoder.query_width(), rows,
                             shape.num_heads, batch.positions.data());
  kernels::ApplyRopeBackward(pool, decoder.rope(layer), dkey, decoder.kv_width(), rows,
                             shape.num_kv_heads, batch.positions.data());
  if (qk_norm) {
    kernels::RmsNormBackward(pool, saved.query, rows, shape.head_dim, w.q_norm,
                             workspace.query_inverse_rms, dquery, dquery, units, g.q_norm,
                             {.kind = decoder.norm_kind(), .heads = shape.num_heads});
    kernels::RmsNormBackward(pool, saved.key, rows, shape.head_dim, w.k_norm,
                             workspace.key_inverse_rms, dkey, dkey, units, g.k_norm,
                             {.kind = decoder.norm_kind(), .heads = shape.num_kv_heads});
  }
  kernels::RmsNorm(pool, saved.input, rows, hidden, w.input_norm, eps, normed, nullptr, norm);
  const ProjectionGradient heads[] = {
      {p.q, dquery, g.q, g.q_bias}, {p.k, dkey, g.k, g.k_bias}, {p.v, dvalue, g.v, g.v_bias}};
  ProjectWeightGradient(context, normed, units, heads);
  const InputGradientTerm terms[] = {{p.q, w.q, dquery}, {p.k, w.k, dkey}, {p.v, w.v, dvalue}};
  ProjectInputGradient(context, rows, terms, dnormed);
  kernels::RmsNormBackward(pool, saved.input, rows, hidden, w.input_norm, saved.input_inverse_rms,
                           dnormed, other, units, g.input_norm, norm);
  kernels::Add(pool, x_floats, dx, other, dx);
}

void EmbedBackward(const DecoderContext& context, const ForwardBatch& batch,
                   std::span<const kernels::RowRange> units, const float* dx,
                   float* embedding_gradient) {
  const kernels::NumericThread numeric;
  CheckUnits(units, batch.num_rows());
  const ParameterTable& table = context.decoder.table();
  const Slice held = table.at(table.embedding()).held;
  const kernels::RowRange rows = {held.begin, held.end};
  kernels::EmbeddingGradient(context.pool, kernels::TableLayout::kPanels32,
                             ScaledAsEmbedded(context, batch, dx), context.decoder.vocabulary(),
                             context.decoder.hidden(), batch.tokens.data(), units,
                             embedding_gradient, &rows);
}

void EmbedBackward(const DecoderContext& context, const ForwardBatch& batch,
                   std::span<const kernels::RowRange> units, const float* dx,
                   TiedEmbedding& embedding_gradient) {
  const kernels::NumericThread numeric;
  CheckUnits(units, batch.num_rows());
  embedding_gradient.Add(context.pool, batch.tokens, units, ScaledAsEmbedded(context, batch, dx));
}

void FinalNormBackward(const DecoderContext& context, const Weights& weights, const float* x,
                       int64_t num_rows, std::span<const int32_t> rows,
                       std::span<const kernels::RowRange> head_units, const float* inverse_rms,
                       const float* dhidden, float* dx, const Gradients& gradients) {
  const kernels::NumericThread numeric;
  const int64_t hidden = context.decoder.hidden();
  const int64_t num_head_rows = static_cast<int64_t>(rows.size());
  const size_t row_bytes = static_cast<size_t>(hidden) * sizeof(float);
  TITAN_CHECK(num_head_rows <= context.workspace.limits().max_head_rows);
  float* gathered = context.workspace.hidden_b;
  float* dgathered = context.workspace.hidden_c;
  for (int64_t i = 0; i < num_head_rows; ++i) {
    std::memcpy(gathered + i * hidden, x + rows[static_cast<size_t>(i)] * hidden, row_bytes);
  }
  kernels::RmsNormBackward(context.pool, gathered, num_head_rows, hidden, weights.final_norm,
                           inverse_rms, dhidden, dgathered, head_units, gradients.final_norm,
                           {.kind = context.decoder.norm_kind()});
  std::memset(dx, 0, static_cast<size_t>(num_rows) * row_bytes);
  int32_t last = -1;
  for (int64_t i = 0; i < num_head_rows; ++i) {
    const int32_t row = rows[static_cast<size_t>(i)];
    const float* from = dgathered + i * hidden;
    float* to = dx + row * hidden;
    TITAN_CHECK(row >= last);
    if (row > last) {
      std::memcpy(to, from, row_bytes);
    } else {
      for (int64_t d = 0; d < hidden; ++d) to[d] = to[d] + from[d];
    }
    last = row;
  }
}

void HeadLogProbBackward(const DecoderContext& context, const Weights& weights, const float* hidden,
                         std::span<const int32_t> targets, float inverse_temperature,
                         std::span<const kernels::RowRange> head_units, const float* dlog_probs,
                         const HeadState& state, float* dhidden, const Gradients& gradients) {
  const kernels::NumericThread numeric;
  const kernels::HeadShape shape = HeadShapeOf(context.decoder, inverse_temperature);
  std::vector<kernels::HeadUnit> units;
  units.reserve(head_units.size());
  for (const kernels::RowRange& unit : head_units) {
    units.push_back({.first = unit.begin, .count = unit.end - unit.begin});
  }
  const auto backward = [&](const kernels::HeadPart* part) {
    kernels::HeadLogProbBackward(context.pool, shape, hidden, shape.hidden,
                                 static_cast<int64_t>(targets.size()), weights.head, targets.data(),
                                 dlog_probs, state.max, state.log_sum, units, dhidden, shape.hidden,
                                 gradients.head, part);
  };
  if (context.tensor == nullptr) return backward(nullptr);
  HeadBackwardOfParts(context, static_cast<int64_t>(targets.size()), dhidden, backward);
}

}  // namespace titan::model
