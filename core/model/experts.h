// SPDX-License-Identifier: Apache-2.0
//
// The mixture of experts in a layer's place of the MLP (numerics.md section 6), on the normed input
// n [T][H]: router in binary32, experts as linears on the rows that chose them, joined by their
// weights. For the files of this module.
#ifndef TITAN_CORE_MODEL_EXPERTS_H_
#define TITAN_CORE_MODEL_EXPERTS_H_

#include <cstdint>
#include <span>

#include "core/kernels/moe_router.h"
#include "core/model/decoder.h"

namespace titan::model {

kernels::RouterShape RouterOf(const formats::ModelConfig& config);

// The router's logits [rows][experts], the plan of the workspace, and gate and up of the places.
void ExpertsInputs(const DecoderContext& context, const LayerWeights& w, const LayerParameters& p,
                   const float* normed, int64_t rows, float* logits, float* gate, float* up);

// branch [rows][H] of what ExpertsInputs gave. REQUIRES: the workspace as that left it.
void ExpertsOutput(const DecoderContext& context, const LayerWeights& w, const LayerParameters& p,
                   const float* gate, const float* up, float* branch);

// dnormed [rows][H] = (the experts' part) + (the router's), of dy [rows][H]; weight gradients are
// added.
void ExpertsBackward(const DecoderContext& context, const LayerWeights& w, const LayerParameters& p,
                     std::span<const kernels::RowRange> units, const BlockActivations& saved,
                     const float* normed, int64_t rows, const float* dy, float* dnormed,
                     const LayerGradients& g);

}  // namespace titan::model

#endif  // TITAN_CORE_MODEL_EXPERTS_H_
