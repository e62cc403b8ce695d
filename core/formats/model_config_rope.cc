// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "core/formats/model_config_parts.h"

namespace titan::formats::internal {
namespace {

// The fields that a kind does not read, at their defaults.
bool OnlyItsFields(RopeScaling rope) {
  const RopeScaling none;
  rope.factor = none.factor;
  if (rope.kind == RopeScaling::Kind::kLlama3) {
    rope.low_freq_factor = none.low_freq_factor;
    rope.high_freq_factor = none.high_freq_factor;
    rope.original_max_position_embeddings = none.original_max_position_embeddings;
  } else if (rope.kind == RopeScaling::Kind::kYarn) {
    rope.beta_fast = none.beta_fast;
    rope.beta_slow = none.beta_slow;
    rope.truncate = none.truncate;
    rope.attention_factor = none.attention_factor;
    rope.mscale = none.mscale;
    rope.mscale_all_dim = none.mscale_all_dim;
    rope.original_max_position_embeddings = none.original_max_position_embeddings;
  }
  rope.kind = none.kind;
  return rope == none;
}

Status CheckYarn(const RopeScaling& rope) {
  if (!(rope.beta_slow > 0 && rope.beta_fast > rope.beta_slow && rope.beta_fast <= kMaxFactor)) {
    return InvalidArgument(
        fmt::format("rope_scaling.beta_fast: {} and beta_slow {} must be 0 < slow < fast <= 1e6",
                    rope.beta_fast, rope.beta_slow));
  }
  const std::pair<const char*, double> factors[] = {{"attention_factor", rope.attention_factor},
                                                    {"mscale", rope.mscale},
                                                    {"mscale_all_dim", rope.mscale_all_dim}};
  for (const auto& [field, value] : factors) {
    if (value >= 0 && value <= kMaxFactor) continue;
    return InvalidArgument(fmt::format("rope_scaling.{}: {} is outside [0, 1e6]", field, value));
  }
  return OkStatus();
}

// The rotary settings of one object: rope_parameters, or rope_scaling of older files.
struct RopeFields {
  RopeScaling scaling;
  double theta = 0;  // 0: not given here
};

constexpr std::pair<const char*, RopeScaling::Kind> kRopeKinds[] = {
    {"default", RopeScaling::Kind::kNone},
    {"linear", RopeScaling::Kind::kLinear},
    {"llama3", RopeScaling::Kind::kLlama3},
    {"yarn", RopeScaling::Kind::kYarn}};

Status ParseYarn(const JsonFields& rope, RopeScaling* out) {
  TITAN_ASSIGN_OR_RETURN(out->beta_fast, rope.NumberOr("beta_fast", 0, kMaxFactor, 32));
  TITAN_ASSIGN_OR_RETURN(out->beta_slow, rope.NumberOr("beta_slow", 0, kMaxFactor, 1));
  TITAN_ASSIGN_OR_RETURN(out->truncate, rope.BoolOr("truncate", true));
  TITAN_ASSIGN_OR_RETURN(out->attention_factor,
                         rope.NumberOr("attention_factor", 0, kMaxFactor, 0));
  if (rope.Has("attention_factor") && out->attention_factor == 0) {
    return rope.Error("attention_factor", "must be above 0");
  }
  TITAN_ASSIGN_OR_RETURN(out->mscale, rope.NumberOr("mscale", 0, kMaxFactor, 0));
  TITAN_ASSIGN_OR_RETURN(out->mscale_all_dim, rope.NumberOr("mscale_all_dim", 0, kMaxFactor, 0));
  return OkStatus();
}

StatusOr<RopeFields> ParseRope(const Json& value, const JsonFields& parent, const char* field) {
  if (!value.is_object()) return parent.Error(field, "must be an object");
  for (const auto& [key, entry] : value.items()) {
    if (entry.is_object()) return parent.Refuse(field, fmt::format("per-layer kind \"{}\"", key));
  }
  const JsonFields rope(value, fmt::format("{}: {}", parent.where(), field));
  RopeFields out;
  TITAN_ASSIGN_OR_RETURN(std::string older_kind, rope.StringOr("type", "default"));
  TITAN_ASSIGN_OR_RETURN(std::string kind, rope.StringOr("rope_type", older_kind));
  TITAN_ASSIGN_OR_RETURN(out.theta, rope.NumberOr("rope_theta", 1, kMaxTheta, 0));
  TITAN_ASSIGN_OR_RETURN(double partial, rope.NumberOr("partial_rotary_factor", 0, 1, 1));
  if (partial != 1) return rope.Refuse("partial_rotary_factor", "only 1 is covered");
  const auto* known = std::find_if(std::begin(kRopeKinds), std::end(kRopeKinds),
                                   [&](const auto& k) { return kind == k.first; });
  if (known == std::end(kRopeKinds)) {
    return rope.Refuse("rope_type", fmt::format("\"{}\" is not covered (default, linear, llama3, "
                                                "yarn)",
                                                kind));
  }
  RopeScaling& scaling = out.scaling;
  scaling.kind = known->second;
  if (scaling.kind == RopeScaling::Kind::kNone) return out;
  TITAN_ASSIGN_OR_RETURN(scaling.factor, rope.Number("factor", 1, kMaxFactor));
  if (scaling.kind == RopeScaling::Kind::kLinear) return out;
  TITAN_ASSIGN_OR_RETURN(int64_t original,
                         rope.Int("original_max_position_embeddings", 1, kMaxPositions));
  scaling.original_max_position_embeddings = static_cast<int32_t>(original);
  if (scaling.kind == RopeScaling::Kind::kYarn) {
    TITAN_RETURN_IF_ERROR(ParseYarn(rope, &scaling));
    return out;
  }
  TITAN_ASSIGN_OR_RETURN(scaling.low_freq_factor, rope.Number("low_freq_factor", 0, kMaxFactor));
  TITAN_ASSIGN_OR_RETURN(scaling.high_freq_factor, rope.Number("high_freq_factor", 0, kMaxFactor));
  return out;
}

constexpr double kGemmaTheta = 1e6;         // of its full layers
constexpr double kGemmaLocalTheta = 10000;  // of its sliding layers

// rope_parameters by kind of layer, or the older fields.
Status ParseGemmaRope(const JsonFields& fields, ModelConfig* c) {
  TITAN_ASSIGN_OR_RETURN(c->rope_theta, fields.NumberOr("rope_theta", 1, kMaxTheta, kGemmaTheta));
  TITAN_ASSIGN_OR_RETURN(c->local_rope_theta,
                         fields.NumberOr("rope_local_base_freq", 1, kMaxTheta, kGemmaLocalTheta));
  if (fields.Has("rope_scaling")) {
    TITAN_ASSIGN_OR_RETURN(const RopeFields rope,
                           ParseRope(fields.Value("rope_scaling"), fields, "rope_scaling"));
    c->rope_scaling = rope.scaling;
    if (rope.theta != 0) c->rope_theta = rope.theta;
  }
  if (!fields.Has("rope_parameters")) return OkStatus();
  if (fields.Has("rope_scaling")) {
    return fields.Error("rope_parameters", "stands beside rope_scaling; keep one of them");
  }
  if (!fields.Value("rope_parameters").is_object()) {
    return fields.Error("rope_parameters", "must be an object");
  }
  const JsonFields kinds(fields.Value("rope_parameters"),
                         fmt::format("{}: rope_parameters", fields.where()));
  if (!kinds.Has("full_attention") || !kinds.Has("sliding_attention")) {
    return fields.Error("rope_parameters", "must have full_attention and sliding_attention");
  }
  TITAN_ASSIGN_OR_RETURN(const RopeFields full,
                         ParseRope(kinds.Value("full_attention"), kinds, "full_attention"));
  TITAN_ASSIGN_OR_RETURN(const RopeFields local,
                         ParseRope(kinds.Value("sliding_attention"), kinds, "sliding_attention"));
  if (local.scaling.kind != RopeScaling::Kind::kNone) {
    return kinds.Refuse("sliding_attention", "only rope_type \"default\" is covered");
  }
  c->rope_scaling = full.scaling;
  if (full.theta != 0) c->rope_theta = full.theta;
  if (local.theta != 0) c->local_rope_theta = local.theta;
  return OkStatus();
}

}  // namespace

Status CheckRopeScaling(const RopeScaling& rope) {
  if (!OnlyItsFields(rope) || (rope.kind == RopeScaling::Kind::kNone && rope.factor != 1)) {
    return InvalidArgument("rope_scaling: parameters are given that its kind does not have");
  }
  if (rope.kind == RopeScaling::Kind::kNone) return OkStatus();
  if (!(rope.factor >= 1 && rope.factor <= kMaxFactor)) {
    return InvalidArgument(fmt::format("rope_scaling.factor: {} is outside [1, 1e6]", rope.factor));
  }
  if (rope.kind == RopeScaling::Kind::kLinear) return OkStatus();
  TITAN_RETURN_IF_ERROR(CheckRange("rope_scaling.original_max_position_embeddings",
                                   rope.original_max_position_embeddings, 1, kMaxPositions));
  if (rope.kind == RopeScaling::Kind::kYarn) return CheckYarn(rope);
  if (!(rope.low_freq_factor > 0 && rope.low_freq_factor <= kMaxFactor)) {
    return InvalidArgument(
        fmt::format("rope_scaling.low_freq_factor: {} is outside (0, 1e6]", rope.low_freq_factor));
  }
  if (!(rope.high_freq_factor > rope.low_freq_factor && rope.high_freq_factor <= kMaxFactor)) {
    return InvalidArgument(
        fmt::format("rope_scaling.high_freq_factor: {} must be above low_freq_factor {} and <= 1e6",
                    rope.high_freq_factor, rope.low_freq_factor));
  }
  return OkStatus();
}
Status ParseRopeOf(const JsonFields& fields, ModelConfig* c) {
  if (c->is_gemma()) return ParseGemmaRope(fields, c);
  if (c->is_gpt_oss() && !fields.Has("rope_scaling") && !fields.Has("rope_parameters")) {
    return fields.Error("rope_parameters",
                        "is missing, and so is rope_scaling; family gpt_oss has one");
  }
  const double kDefaultTheta = c->is_gpt_oss() ? 150000 : 10000;  // of the library's classes
  TITAN_ASSIGN_OR_RETURN(c->rope_theta, fields.NumberOr("rope_theta", 1, kMaxTheta, kDefaultTheta));
  TITAN_ASSIGN_OR_RETURN(double partial, fields.NumberOr("partial_rotary_factor", 0, 1, 1));
  if (partial != 1) return fields.Refuse("partial_rotary_factor", "only 1 is covered");
  const bool has_scaling = fields.Has("rope_scaling");
  const bool has_parameters = fields.Has("rope_parameters");
  RopeFields scaling, parameters;
  if (has_scaling) {
    TITAN_ASSIGN_OR_RETURN(scaling,
                           ParseRope(fields.Value("rope_scaling"), fields, "rope_scaling"));
    c->rope_scaling = scaling.scaling;
    if (scaling.theta != 0) c->rope_theta = scaling.theta;
  }
  if (has_parameters) {
    TITAN_ASSIGN_OR_RETURN(parameters,
                           ParseRope(fields.Value("rope_parameters"), fields, "rope_parameters"));
    if (has_scaling && parameters.scaling != scaling.scaling) {
      return fields.Error("rope_parameters", "contradicts rope_scaling");
    }
    if (parameters.theta != 0 && (fields.Has("rope_theta") || scaling.theta != 0) &&
        parameters.theta != c->rope_theta) {
      return fields.Error("rope_parameters", "rope_theta contradicts the one outside");
    }
    c->rope_scaling = parameters.scaling;
    if (parameters.theta != 0) c->rope_theta = parameters.theta;
  }
  return OkStatus();
}
Json RopeScalingJson(const RopeScaling& r) {
  Json out = {{"rope_type", ""}, {"factor", r.factor}};
  for (const auto& [name, kind] : kRopeKinds) {
    if (kind == r.kind) out["rope_type"] = name;
  }
  if (r.kind == RopeScaling::Kind::kNone || r.kind == RopeScaling::Kind::kLinear) return out;
  if (r.kind == RopeScaling::Kind::kLlama3) {
    out["low_freq_factor"] = r.low_freq_factor;
    out["high_freq_factor"] = r.high_freq_factor;
  }
  out["original_max_position_embeddings"] = r.original_max_position_embeddings;
  if (r.kind == RopeScaling::Kind::kYarn) {
    out["beta_fast"] = r.beta_fast;
    out["beta_slow"] = r.beta_slow;
    out["truncate"] = r.truncate;
    if (r.attention_factor != 0) out["attention_factor"] = r.attention_factor;
    if (r.mscale != 0) out["mscale"] = r.mscale;
    if (r.mscale_all_dim != 0) out["mscale_all_dim"] = r.mscale_all_dim;
  }
  return out;
}

}  // namespace titan::formats::internal
