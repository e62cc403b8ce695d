// SPDX-License-Identifier: Apache-2.0
//
// Linears of the decoder that share their rows, by their parameters: forward, weight gradients,
// input gradient, with the leaves of the contract; and the head. On a tensor-parallel rank arrays
// are whole, weights and their gradients are what the rank owns. For the files of this module.
#ifndef TITAN_CORE_MODEL_PROJECT_H_
#define TITAN_CORE_MODEL_PROJECT_H_

#include <cstdint>
#include <functional>
#include <span>

#include "core/kernels/head.h"
#include "core/kernels/linear.h"
#include "core/model/decoder.h"

namespace titan::model {

// A parameter that rows are multiplied with, and where the product goes.
struct Projection {
  int parameter = 0;
  kernels::ConstPanels panels;
  const float* bias = nullptr;    // null: none
  float* out = nullptr;           // [rows][rows(weight)]
  const float* addend = nullptr;  // likewise, or null; out = addend + (product + bias)
};

// x [rows][columns(weight)] times all the projections, which share it.
void Project(const DecoderContext& context, const float* x, int64_t rows,
             std::span<const Projection> projections);
void Project(const DecoderContext& context, const kernels::MadeRows& x, int64_t rows,
             std::span<const Projection> projections);

// The columns of out [rows][rows(weight)] that each tensor-parallel rank computed, to all of them;
// nothing where the parameter is whole.
void GatherOutputs(const DecoderContext& context, const Parameter& p, int64_t rows, float* out);

// A parameter's output gradient and its own gradients.
struct ProjectionGradient {
  int parameter = 0;
  const float* dy = nullptr;  // [rows][rows(weight)]
  float* weight_gradient = nullptr;
  float* bias_gradient = nullptr;  // null: none
};

// Weight and bias gradients of projections that share x: one chain a unit, added in order.
void ProjectWeightGradient(const DecoderContext& context, const float* x,
                           std::span<const kernels::RowRange> units,
                           std::span<const ProjectionGradient> gradients);

// A parameter and its output gradient.
struct InputGradientTerm {
  int parameter = 0;
  kernels::ConstPanels panels;
  const float* dy = nullptr;  // [rows][rows(weight)]
};

// dx [rows][columns(weight)] = (term 0 + term 1) + ... of projections that share x, by way of the
// workspace's transposed panels.
void ProjectInputGradient(const DecoderContext& context, int64_t rows,
                          std::span<const InputGradientTerm> terms, float* dx);

kernels::HeadShape HeadShapeOf(const Decoder& decoder, float inverse_temperature);

// Of tensor-parallel ranks: x [T][H] of each token by the owner of its row; the log-probs from the
// statistics of all ranks' chunks; and backward(part), which writes this rank's columns of dhidden
// [R][H], with the exchanges around it.
void EmbedOwnedTokens(const DecoderContext& context, const Weights& weights,
                      std::span<const int32_t> tokens, float* x);
void HeadLogProbOfParts(const DecoderContext& context, const Weights& weights,
                        const kernels::HeadShape& shape, const float* hidden,
                        std::span<const int32_t> targets, float* log_probs, const HeadState& state,
                        float* entropy);
void HeadBackwardOfParts(const DecoderContext& context, int64_t rows, float* dhidden,
                         const std::function<void(const kernels::HeadPart*)>& backward);

// The gate of the MLP or of experts, silu, the tanh form of gelu or the bounded one as the family
// says; flat arrays of n elements.
void GateForward(const Decoder& decoder, kernels::Pool& pool, int64_t n, const float* gate,
                 const float* up, float* out);
void GateBackward(const Decoder& decoder, kernels::Pool& pool, int64_t n, const float* gate,
                  const float* up, const float* dout, float* dgate, float* dup);

}  // namespace titan::model

#endif  // TITAN_CORE_MODEL_PROJECT_H_
