// SPDX-License-Identifier: Apache-2.0
#include "core/model/project.h"

#include <vector>

#include "core/base/check.h"
#include "core/kernels/gelu.h"
#include "core/kernels/linear.h"
#include "core/kernels/moe_experts.h"
#include "core/kernels/panels.h"
#include "core/kernels/swiglu.h"
#include "core/model/tensor_parallel.h"

namespace titan::model {

void GatherOutputs(const DecoderContext& context, const Parameter& p, int64_t rows, float* out) {
  if (p.owned_step == 0) return;
  context.tensor->GatherColumns([&p](TensorShard shard) { return OwnedRows(p, shard); }, rows,
                                p.rows(), out);
}

namespace {

void ProjectRows(const DecoderContext& context, kernels::LinearRows shared,
                 std::span<const Projection> projections) {
  std::vector<kernels::LinearMatrix> matrices;
  matrices.reserve(projections.size());
  for (const Projection& projection : projections) {
    const Parameter& p = context.decoder.table().at(projection.parameter);
    const int64_t first = p.held.begin;
    if (p.held.size() == 0) continue;
    shared.ldx = shared.k = p.columns();
    shared.inputs = context.decoder.InputsOf(p);
    matrices.push_back(
        {.panels = projection.panels,
         .n = p.held.size(),
         .leaves = p.forward_leaves,
         .bias = projection.bias == nullptr ? nullptr : projection.bias + first,
         .out = projection.out + first,
         .ldo = p.rows(),
         .addend = projection.addend == nullptr ? nullptr : projection.addend + first});
  }
  if (!matrices.empty()) kernels::Linear(context.pool, shared, matrices);
  for (const Projection& projection : projections) {
    GatherOutputs(context, context.decoder.table().at(projection.parameter), shared.m,
                  projection.out);
  }
}

}  // namespace

void Project(const DecoderContext& context, const float* x, int64_t rows,
             std::span<const Projection> projections) {
  ProjectRows(context, {.x = x, .m = rows}, projections);
}

void Project(const DecoderContext& context, const kernels::MadeRows& x, int64_t rows,
             std::span<const Projection> projections) {
  ProjectRows(context, {.m = rows, .made = &x}, projections);
}

void ProjectWeightGradient(const DecoderContext& context, const float* x,
                           std::span<const kernels::RowRange> units,
                           std::span<const ProjectionGradient> gradients) {
  for (const kernels::RowRange& unit : units) {
    kernels::LinearRows rows = {.m = unit.end - unit.begin};
    std::vector<kernels::LinearGradient> matrices;
    for (const ProjectionGradient& gradient : gradients) {
      const Parameter& p = context.decoder.table().at(gradient.parameter);
      const float* dy = gradient.dy + unit.begin * p.rows();
      if (gradient.bias_gradient != nullptr) {
        kernels::LinearBiasGradient(context.pool, dy, p.rows(), rows.m, p.rows(),
                                    gradient.bias_gradient);
      }
      if (p.held.size() == 0) continue;
      rows.x = x + unit.begin * p.columns();
      rows.ldx = rows.k = p.columns();
      rows.inputs = context.decoder.InputsOf(p);
      matrices.push_back({.dy = dy + p.held.begin,
                          .ldy = p.rows(),
                          .n = p.held.size(),
                          .panels_accumulator = gradient.weight_gradient});
    }
    if (!matrices.empty()) kernels::LinearWeightGradient(context.pool, rows, matrices);
  }
}

void ProjectInputGradient(const DecoderContext& context, int64_t rows,
                          std::span<const InputGradientTerm> terms, float* dx) {
  float* transposed = context.workspace.transposed;
  std::vector<kernels::LinearTerm> products;
  products.reserve(terms.size());
  // The terms share their input, so they are cut alike or not at all.
  const Parameter& first = context.decoder.table().at(terms.front().parameter);
  const bool cut = first.owned_step > 0;
  const auto columns_of = [&](TensorShard shard) {
    return cut ? OwnedColumns(first, shard) : Slice{0, first.columns()};
  };
  const Slice columns = columns_of(context.decoder.shard());
  for (const InputGradientTerm& term : terms) {
    const Parameter& p = context.decoder.table().at(term.parameter);
    TITAN_CHECK(p.columns() == first.columns() && (p.owned_step > 0) == cut);
    if (columns.size() == 0) break;
    kernels::TransposePanels(context.pool,
                             cut ? context.tensor->ColumnsOf(term.parameter) : term.panels,
                             p.rows(), columns.size(), transposed);
    products.push_back({.x = term.dy,
                        .ldx = p.rows(),
                        .k = p.rows(),
                        .panels = transposed,
                        .leaves = p.input_gradient_leaves});
    transposed += kernels::PanelFloats(columns.size(), p.rows());
  }
  if (!products.empty()) {
    kernels::LinearSum(context.pool, rows, products, columns.size(), dx + columns.begin,
                       first.columns());
  }
  if (cut) context.tensor->GatherColumns(columns_of, rows, first.columns(), dx);
}

kernels::HeadShape HeadShapeOf(const Decoder& decoder, float inverse_temperature) {
  const Parameter& head = decoder.table().at(decoder.table().head());
  return {.vocab = head.rows(),
          .hidden = head.columns(),
          .leaves = head.forward_leaves,
          .inv_temperature = inverse_temperature,
          .inputs = decoder.InputsOf(head)};
}

void EmbedOwnedTokens(const DecoderContext& context, const Weights& weights,
                      std::span<const int32_t> tokens, float* x) {
  const Parameter& table = context.decoder.table().at(context.decoder.table().embedding());
  const int64_t width = context.decoder.hidden();
  std::vector<int32_t> owner(tokens.size());
  for (int rank = 0; rank < context.decoder.shard().size; ++rank) {
    const Slice rows = OwnedRows(table, {rank, context.decoder.shard().size});
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i] >= rows.begin && tokens[i] < rows.end) owner[i] = rank;
    }
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (owner[i] != context.decoder.shard().rank) continue;
    kernels::GatherRow(weights.embedding, table.held.size(), width, tokens[i] - table.held.begin,
                       x + static_cast<int64_t>(i) * width);
  }
  context.tensor->GatherRows(owner, width, x);
}

void HeadLogProbOfParts(const DecoderContext& context, const Weights& weights,
                        const kernels::HeadShape& shape, const float* hidden,
                        std::span<const int32_t> targets, float* log_probs, const HeadState& state,
                        float* entropy) {
  TensorParallel& tensor = *context.tensor;
  const Parameter& head = context.decoder.table().at(context.decoder.table().head());
  const int64_t rows = static_cast<int64_t>(targets.size());
  const int64_t chunk_floats = kernels::kHeadStatistics * rows;
  float* statistics = tensor.statistics();
  float* target_logits = tensor.target_logits();
  const auto chunk_of = [](int64_t token) {
    return (token + kernels::kRowSumChunk - 1) / kernels::kRowSumChunk;
  };
  kernels::HeadChunks(context.pool, shape, hidden, shape.hidden, rows, weights.head,
                      head.held.begin, head.held.size(), targets.data(), entropy != nullptr,
                      statistics + chunk_of(head.held.begin) * chunk_floats, target_logits);
  std::vector<std::span<std::byte>> parts;
  std::vector<int32_t> owner(targets.size());
  for (int rank = 0; rank < context.decoder.shard().size; ++rank) {
    const Slice owned = OwnedRows(head, {rank, context.decoder.shard().size});
    const int64_t first = chunk_of(owned.begin), count = chunk_of(owned.end) - first;
    parts.push_back(std::as_writable_bytes(
        std::span(statistics + first * chunk_floats, static_cast<size_t>(count * chunk_floats))));
    for (size_t i = 0; i < targets.size(); ++i) {
      if (targets[i] >= owned.begin && targets[i] < owned.end) owner[i] = rank;
    }
  }
  tensor.Gather(parts);
  tensor.GatherRows(owner, 1, target_logits);
  kernels::HeadMerge(context.pool, shape, rows, statistics, target_logits, log_probs, state.max,
                     state.log_sum, entropy);
}

void HeadBackwardOfParts(const DecoderContext& context, int64_t rows, float* dhidden,
                         const std::function<void(const kernels::HeadPart*)>& backward) {
  TensorParallel& tensor = *context.tensor;
  const ParameterTable& table = context.decoder.table();
  const Parameter& head = table.at(table.head());
  const TensorShard shard = context.decoder.shard();
  const auto share = [&](int64_t first_column, std::span<float> dz) {
    int root = 0;
    while (OwnedRows(head, {root, shard.size}).end <= first_column) ++root;
    tensor.Share(root, std::as_writable_bytes(dz));
  };
  const Slice columns = OwnedColumns(head, shard);
  const kernels::HeadPart part = {{head.held.begin, head.held.end},
                                  {columns.begin, columns.end},
                                  tensor.ColumnsOf(table.head()),
                                  share};
  backward(&part);
  tensor.GatherColumns([&](TensorShard of) { return OwnedColumns(head, of); }, rows, head.columns(),
                       dhidden);
}

void GateForward(const Decoder& decoder, kernels::Pool& pool, int64_t n, const float* gate,
                 const float* up, float* out) {
  if (decoder.config().is_gemma()) return kernels::GeluGlu(pool, n, gate, up, out);
  if (decoder.config().is_gpt_oss()) {
    return kernels::BoundedGate(pool, kernels::GateBounds{}, n, gate, up, out);
  }
  kernels::SwiGlu(pool, n, gate, up, out);
}

void GateBackward(const Decoder& decoder, kernels::Pool& pool, int64_t n, const float* gate,
                  const float* up, const float* dout, float* dgate, float* dup) {
  if (decoder.config().is_gemma()) {
    return kernels::GeluGluBackward(pool, n, gate, up, dout, dgate, dup);
  }
  if (decoder.config().is_gpt_oss()) {
    return kernels::BoundedGateBackward(pool, kernels::GateBounds{}, n, gate, up, dout, dgate, dup);
  }
  kernels::SwiGluBackward(pool, n, gate, up, dout, dgate, dup);
}

}  // namespace titan::model
