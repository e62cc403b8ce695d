// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "core/formats/model_config_parts.h"

namespace titan::formats::internal {
namespace {

constexpr int64_t kMaxExpertsPerToken = 64;  // of the kernels
bool IsQwen(std::string_view family) { return family.starts_with("qwen"); }

// Families whose layers all slide or none does.
bool SlidesAsAWhole(std::string_view family) {
  return family == "mistral" || family == "qwen3_moe";
}

constexpr int32_t kDefaultWindow = 4096;    // of the library's classes
constexpr int32_t kGptOssWindow = 128;      // of its class
constexpr int32_t kDefaultFullLayers = 28;  // max_window_layers

// Which layers slide: what layer_types says, else what `otherwise` says.
template <typename Otherwise>
StatusOr<std::vector<bool>> SlidingLayers(const JsonFields& fields, const ModelConfig& c,
                                          const Otherwise& otherwise) {
  std::vector<bool> sliding;
  for (int32_t layer = 0; layer < c.num_layers; ++layer) sliding.push_back(otherwise(layer));
  if (!fields.Has("layer_types")) return sliding;
  const Json& kinds = fields.Value("layer_types");
  if (!kinds.is_array() || kinds.size() != sliding.size()) {
    return fields.Error("layer_types", "must name every layer");
  }
  for (size_t layer = 0; layer < sliding.size(); ++layer) {
    sliding[layer] = kinds[layer] == "sliding_attention";
    if (!sliding[layer] && kinds[layer] != "full_attention") {
      return fields.Refuse("layer_types", fmt::format("{} is not covered (full_attention, "
                                                      "sliding_attention)",
                                                      kinds[layer].dump()));
    }
  }
  return sliding;
}

// The windows of qwen2 and qwen3: layer_types if given, else the flag and max_window_layers.
Status ParseQwenWindows(const JsonFields& fields, ModelConfig* c) {
  TITAN_ASSIGN_OR_RETURN(const bool slides, fields.BoolOr("use_sliding_window", false));
  TITAN_ASSIGN_OR_RETURN(const int64_t full,
                         fields.IntOr("max_window_layers", 0, kMaxLayers, kDefaultFullLayers));
  TITAN_ASSIGN_OR_RETURN(const std::vector<bool> sliding,
                         SlidingLayers(fields, *c, [&](int32_t layer) {
                           return slides && (layer >= full || SlidesAsAWhole(c->family));
                         }));
  if (std::find(sliding.begin(), sliding.end(), true) == sliding.end()) return OkStatus();
  if (!slides) {
    return fields.Error("layer_types", "names sliding layers, and use_sliding_window is not true");
  }
  TITAN_ASSIGN_OR_RETURN(const int64_t window,
                         fields.IntOr("sliding_window", 1, kMaxPositions, kDefaultWindow));
  for (const bool s : sliding) c->layer_windows.push_back(s ? static_cast<int32_t>(window) : 0);
  return OkStatus();
}

constexpr int64_t kGemmaPattern = 6;  // of 6 layers, the last is full

Status ParseGemmaWindows(const JsonFields& fields, ModelConfig* c) {
  TITAN_ASSIGN_OR_RETURN(const int64_t window,
                         fields.IntOr("sliding_window", 1, kMaxPositions, kDefaultWindow));
  const char* name =
      fields.Has("sliding_window_pattern") ? "sliding_window_pattern" : "_sliding_window_pattern";
  TITAN_ASSIGN_OR_RETURN(const int64_t pattern, fields.IntOr(name, 1, kMaxLayers, kGemmaPattern));
  TITAN_ASSIGN_OR_RETURN(
      const std::vector<bool> sliding,
      SlidingLayers(fields, *c, [&](int32_t layer) { return (layer + 1) % pattern != 0; }));
  if (std::find(sliding.begin(), sliding.end(), true) == sliding.end()) return OkStatus();
  for (const bool s : sliding) c->layer_windows.push_back(s ? static_cast<int32_t>(window) : 0);
  return OkStatus();
}

// gpt_oss: every other layer slides, the first among them, unless layer_types says otherwise.
Status ParseGptOssWindows(const JsonFields& fields, ModelConfig* c) {
  TITAN_ASSIGN_OR_RETURN(const int64_t window,
                         fields.IntOr("sliding_window", 1, kMaxPositions, kGptOssWindow));
  TITAN_ASSIGN_OR_RETURN(const std::vector<bool> sliding,
                         SlidingLayers(fields, *c, [](int32_t layer) { return layer % 2 == 0; }));
  if (std::find(sliding.begin(), sliding.end(), true) == sliding.end()) return OkStatus();
  for (const bool s : sliding) c->layer_windows.push_back(s ? static_cast<int32_t>(window) : 0);
  return OkStatus();
}

Status ParseGptOssExperts(const JsonFields& fields, ModelConfig* c) {
  // The name of the first files, and the newer one.
  const char* chosen =
      fields.Has("num_experts_per_tok") ? "num_experts_per_tok" : "experts_per_token";
  TITAN_ASSIGN_OR_RETURN(const int64_t count, fields.Int("num_local_experts", 1, kMaxWidth));
  TITAN_ASSIGN_OR_RETURN(const int64_t of_token, fields.Int(chosen, 1, kMaxWidth));
  c->num_experts = static_cast<int32_t>(count);
  c->experts_per_token = static_cast<int32_t>(of_token);
  c->expert_intermediate_size = c->intermediate_size;
  c->normalise_expert_weights = true;
  return OkStatus();
}

}  // namespace

Status CheckGemma(const ModelConfig& c) {
  if (!c.is_gemma()) {
    if (c.query_pre_attn_scalar == 0 && c.local_rope_theta == 0) return OkStatus();
    return InvalidArgument(
        fmt::format("query_pre_attn_scalar, rope_local_base_freq: family {} has none", c.family));
  }
  if (!(c.query_pre_attn_scalar >= 1 && c.query_pre_attn_scalar <= kMaxWidth &&
        std::floor(c.query_pre_attn_scalar) == c.query_pre_attn_scalar)) {
    return InvalidArgument(fmt::format("query_pre_attn_scalar: {} is no whole number in [1, 2^20]",
                                       c.query_pre_attn_scalar));
  }
  if (!(c.local_rope_theta >= 1 && c.local_rope_theta <= kMaxTheta)) {
    return InvalidArgument(
        fmt::format("rope_local_base_freq: {} is outside [1, 1e12]", c.local_rope_theta));
  }
  if (c.qkv_bias) return InvalidArgument("attention_bias: family gemma3_text has none");
  return OkStatus();
}

Status ParseWindows(const JsonFields& fields, ModelConfig* c) {
  if (c->is_gemma()) return ParseGemmaWindows(fields, c);
  if (c->is_gpt_oss()) return ParseGptOssWindows(fields, c);
  if (IsQwen(c->family)) return ParseQwenWindows(fields, c);
  if (fields.Has("layer_types")) {
    for (const Json& kind : fields.Value("layer_types")) {
      if (kind == "full_attention") continue;
      return fields.Refuse("layer_types", fmt::format("{} is not covered", kind.dump()));
    }
  }
  if (c->family == "llama") {
    if (!fields.Has("sliding_window")) return OkStatus();
    return fields.Refuse("sliding_window", "family llama has none");
  }
  // mistral: null is none, a missing field is the class's.
  if (fields.IsNull("sliding_window")) return OkStatus();
  TITAN_ASSIGN_OR_RETURN(const int64_t window,
                         fields.IntOr("sliding_window", 1, kMaxPositions, kDefaultWindow));
  c->layer_windows.assign(static_cast<size_t>(c->num_layers), static_cast<int32_t>(window));
  return OkStatus();
}

Status CheckWindows(const ModelConfig& c) {
  if (c.layer_windows.empty()) return OkStatus();
  if (c.family == "llama") return InvalidArgument("sliding_window: family llama has none");
  if (static_cast<int64_t>(c.layer_windows.size()) != c.num_layers) {
    return InvalidArgument(fmt::format("sliding_window: {} layers of {} have one",
                                       c.layer_windows.size(), c.num_layers));
  }
  const int32_t widest = *std::max_element(c.layer_windows.begin(), c.layer_windows.end());
  TITAN_RETURN_IF_ERROR(CheckRange("sliding_window", widest, 1, kMaxPositions));
  for (const int32_t window : c.layer_windows) {
    if (window == widest || (window == 0 && !SlidesAsAWhole(c.family))) continue;
    return InvalidArgument(
        fmt::format("sliding_window: {} beside {}, a model has one", window, widest));
  }
  return OkStatus();
}

// sliding_window, and the layers that slide in both of the library's spellings.
void WriteWindows(const ModelConfig& c, Json* root) {
  Json& out = *root;
  const int32_t window = c.layer_windows.empty()
                             ? 0
                             : *std::max_element(c.layer_windows.begin(), c.layer_windows.end());
  if (c.family == "mistral") out["sliding_window"] = window == 0 ? Json() : Json(window);
  if (c.is_gemma() || c.is_gpt_oss()) {
    out["sliding_window"] = window == 0 ? kDefaultWindow : window;
    out["layer_types"] = Json::array();
    for (int32_t layer = 0; layer < c.num_layers; ++layer) {
      const bool slides = window != 0 && c.layer_windows[static_cast<size_t>(layer)] != 0;
      out["layer_types"].push_back(slides ? "sliding_attention" : "full_attention");
    }
  }
  if (!IsQwen(c.family)) return;
  out["use_sliding_window"] = window != 0;
  if (window == 0) return;
  out["sliding_window"] = window;
  out["layer_types"] = Json::array();
  int full = 0;  // leading layers that are
  for (size_t layer = 0; layer < c.layer_windows.size(); ++layer) {
    const bool slides = c.layer_windows[layer] != 0;
    full += !slides && full == static_cast<int>(layer);
    out["layer_types"].push_back(slides ? "sliding_attention" : "full_attention");
  }
  out["max_window_layers"] = full;
}

Status ParseExperts(const JsonFields& fields, ModelConfig* c) {
  if (c->is_gpt_oss()) return ParseGptOssExperts(fields, c);
  if (c->family != "qwen3_moe") return OkStatus();
  // The name of older files, and the newer one.
  const char* count = fields.Has("num_experts") ? "num_experts" : "num_local_experts";
  for (const auto& [field, value] : {std::pair<const char*, int32_t*>{count, &c->num_experts},
                                     {"num_experts_per_tok", &c->experts_per_token},
                                     {"moe_intermediate_size", &c->expert_intermediate_size}}) {
    TITAN_ASSIGN_OR_RETURN(const int64_t number, fields.Int(field, 1, kMaxWidth));
    *value = static_cast<int32_t>(number);
  }
  TITAN_ASSIGN_OR_RETURN(c->normalise_expert_weights, fields.BoolOr("norm_topk_prob", false));
  TITAN_ASSIGN_OR_RETURN(const int64_t step, fields.IntOr("decoder_sparse_step", 1, kMaxLayers, 1));
  std::vector<bool> dense(static_cast<size_t>(c->num_layers), false);
  if (fields.Has("mlp_only_layers")) {
    const Json& layers = fields.Value("mlp_only_layers");
    if (!layers.is_array()) return fields.Error("mlp_only_layers", "must be a list of layers");
    for (const Json& layer : layers) {
      if (!layer.is_number_integer() || layer < 0 || layer >= c->num_layers) {
        return fields.Error("mlp_only_layers", "must name layers of the model");
      }
      dense[layer.get<size_t>()] = true;
    }
  }
  for (int32_t layer = 0; layer < c->num_layers; ++layer) {
    if (dense[static_cast<size_t>(layer)] || (layer + 1) % step != 0) {
      c->dense_layers.push_back(layer);
    }
  }
  return OkStatus();
}

Status CheckExperts(const ModelConfig& c) {
  if (c.family != "qwen3_moe" && !c.is_gpt_oss()) {
    if (c.num_experts == 0 && c.experts_per_token == 0 && c.expert_intermediate_size == 0 &&
        !c.normalise_expert_weights && c.dense_layers.empty()) {
      return OkStatus();
    }
    return InvalidArgument(fmt::format("num_experts: family {} has no experts", c.family));
  }
  constexpr int32_t kMaxExperts = 4096;
  TITAN_RETURN_IF_ERROR(CheckRange(c.is_gpt_oss() ? "num_local_experts" : "num_experts",
                                   c.num_experts, 1, kMaxExperts));
  // Each is three matrices: names and shapes are listed before any file of weights is looked at.
  constexpr int64_t kMaxExpertsOfAllLayers = 1 << 18;
  TITAN_RETURN_IF_ERROR(CheckRange("num_experts * num_hidden_layers",
                                   int64_t{c.num_experts} * c.num_layers, 1,
                                   kMaxExpertsOfAllLayers));
  TITAN_RETURN_IF_ERROR(CheckRange("num_experts_per_tok", c.experts_per_token, 1,
                                   std::min<int32_t>(c.num_experts, kMaxExpertsPerToken)));
  TITAN_RETURN_IF_ERROR(
      CheckRange("moe_intermediate_size", c.expert_intermediate_size, 1, kMaxWidth));
  if (c.is_gpt_oss() && (c.expert_intermediate_size != c.intermediate_size ||
                         !c.normalise_expert_weights || !c.dense_layers.empty())) {
    return InvalidArgument(
        "intermediate_size: family gpt_oss has experts of this width in every layer, whose weights "
        "add up to 1");
  }
  for (size_t i = 0; i < c.dense_layers.size(); ++i) {
    const int32_t layer = c.dense_layers[i];
    if (layer < 0 || layer >= c.num_layers || (i > 0 && layer <= c.dense_layers[i - 1])) {
      return InvalidArgument(fmt::format("mlp_only_layers: {} is out of place", layer));
    }
  }
  return OkStatus();
}

}  // namespace titan::formats::internal
