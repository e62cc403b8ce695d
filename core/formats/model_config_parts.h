// SPDX-License-Identifier: Apache-2.0
//
// Parts of model_config.cc: what of a configuration is of the rotation (model_config_rope.cc) and
// what differs between layers (model_config_layers.cc). Internal to the module.
#ifndef TITAN_CORE_FORMATS_MODEL_CONFIG_PARTS_H_
#define TITAN_CORE_FORMATS_MODEL_CONFIG_PARTS_H_

#include <cstdint>

#include "core/base/status.h"
#include "core/formats/json.h"
#include "core/formats/model_config.h"

namespace titan::formats::internal {

// Caps far above any model of this kind; products of two stay far inside 63 bits.
inline constexpr int64_t kMaxWidth = 1 << 20;
inline constexpr int64_t kMaxLayers = 4096;
inline constexpr int64_t kMaxVocab = 1 << 24;
inline constexpr int64_t kMaxPositions = 1 << 24;  // rotary angles are defined up to here
inline constexpr double kMaxTheta = 1e12;
inline constexpr double kMaxFactor = 1e6;

Status CheckRange(const char* field, int64_t value, int64_t low, int64_t high);

// rope_theta, rope_scaling, rope_parameters and the second rotation of Gemma.
Status ParseRopeOf(const JsonFields& fields, ModelConfig* config);
Status CheckRopeScaling(const RopeScaling& rope);
// The older spelling (rope_theta, rope_scaling) is read by every version of transformers.
Json RopeScalingJson(const RopeScaling& rope);

// Which layers slide, and by how much.
Status ParseWindows(const JsonFields& fields, ModelConfig* config);
Status CheckWindows(const ModelConfig& config);
void WriteWindows(const ModelConfig& config, Json* root);

// Which layers have experts, and how many.
Status ParseExperts(const JsonFields& fields, ModelConfig* config);
Status CheckExperts(const ModelConfig& config);

// query_pre_attn_scalar and rope_local_base_freq.
Status CheckGemma(const ModelConfig& config);

}  // namespace titan::formats::internal

#endif  // TITAN_CORE_FORMATS_MODEL_CONFIG_PARTS_H_
