// SPDX-License-Identifier: Apache-2.0
#include "core/formats/model_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cfloat>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "core/base/check.h"
#include "core/formats/json.h"

namespace titan::formats {
namespace {

// Caps far above any model of this kind; products of two stay far inside 63 bits.
constexpr int64_t kMaxWidth = 1 << 20;
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxVocab = 1 << 24;
constexpr int64_t kMaxPositions = 1 << 24;  // rotary angles are defined up to here
constexpr double kMaxTheta = 1e12;
constexpr double kMaxFactor = 1e6;

// The families that are covered, with what Hugging Face calls their causal model.
struct Family {
  std::string_view name;
  std::string_view architecture;
};
constexpr Family kFamilies[] = {
    {"llama", "LlamaForCausalLM"},        {"mistral", "MistralForCausalLM"},
    {"qwen2", "Qwen2ForCausalLM"},        {"qwen3", "Qwen3ForCausalLM"},
    {"qwen3_moe", "Qwen3MoeForCausalLM"}, {"gemma3_text", "Gemma3ForCausalLM"}};
constexpr int64_t kMaxExpertsPerToken = 64;  // of the kernels
constexpr int32_t kQwen3HeadDim = 128;       // of a config without head_dim

bool IsQwen(std::string_view family) { return family.starts_with("qwen"); }

// Null: not covered.
const Family* FindFamily(std::string_view name) {
  for (const Family& family : kFamilies) {
    if (family.name == name) return &family;
  }
  return nullptr;
}

std::string FamilyNames() {
  std::string names;
  for (const Family& family : kFamilies) {
    names += names.empty() ? "" : ", ";
    names += family.name;
  }
  return names;
}

Status CheckRange(const char* field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return OkStatus();
  return InvalidArgument(fmt::format("{}: {} is outside [{}, {}]", field, value, low, high));
}

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

Status CheckTokenIds(const ModelConfig& c) {
  if (c.bos_token_id < -1 || c.bos_token_id >= c.vocab_size) {
    return InvalidArgument(
        fmt::format("bos_token_id: {} is not below vocab_size {}", c.bos_token_id, c.vocab_size));
  }
  for (size_t i = 0; i < c.eos_token_ids.size(); ++i) {
    const int32_t id = c.eos_token_ids[i];
    if (id < 0 || id >= c.vocab_size) {
      return InvalidArgument(
          fmt::format("eos_token_id: {} is outside [0, vocab_size {})", id, c.vocab_size));
    }
    const auto end = c.eos_token_ids.begin() + static_cast<ptrdiff_t>(i);
    if (std::find(c.eos_token_ids.begin(), end, id) != end) {
      return InvalidArgument(fmt::format("eos_token_id: {} stands twice", id));
    }
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

Status ParseGemmaRope(const JsonFields& fields, ModelConfig* c);

Status ParseRopeOf(const JsonFields& fields, ModelConfig* c) {
  if (c->is_gemma()) return ParseGemmaRope(fields, c);
  const double kDefaultTheta = 10000;  // of the library's classes for these families
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

Status ParseTokenIds(const JsonFields& fields, ModelConfig* c) {
  TITAN_ASSIGN_OR_RETURN(int64_t bos, fields.IntOr("bos_token_id", 0, kMaxVocab, -1));
  c->bos_token_id = static_cast<int32_t>(bos);
  if (!fields.Value("eos_token_id").is_array()) {
    TITAN_ASSIGN_OR_RETURN(int64_t eos, fields.IntOr("eos_token_id", 0, kMaxVocab, -1));
    if (eos >= 0) c->eos_token_ids.push_back(static_cast<int32_t>(eos));
    return OkStatus();
  }
  for (const Json& id : fields.Value("eos_token_id")) {
    if (!id.is_number_integer() || id < 0 || id > kMaxVocab) {
      return fields.Error("eos_token_id", "must be an id or a list of ids");
    }
    c->eos_token_ids.push_back(id.get<int32_t>());
  }
  return OkStatus();
}

// Features of the families, or often met beside them, that change the arithmetic.
Status RefuseUncovered(const JsonFields& fields, const ModelConfig& c) {
  if (fields.Has("quantization_config")) {
    return fields.Refuse("quantization_config", "quantised checkpoints are not covered");
  }
  const std::string gate = c.is_gemma() ? "gelu_pytorch_tanh" : "silu";
  for (const char* field : {"hidden_act", "hidden_activation"}) {
    TITAN_ASSIGN_OR_RETURN(std::string act, fields.StringOr(field, gate));
    if (act != gate) {
      return fields.Refuse(field, fmt::format("\"{}\" is not covered ({})", act, gate));
    }
  }
  for (const char* field : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    if (fields.Has(field)) return fields.Refuse(field, "only null is covered");
  }
  TITAN_ASSIGN_OR_RETURN(const bool both_ways, fields.BoolOr("use_bidirectional_attention", false));
  if (both_ways) return fields.Refuse("use_bidirectional_attention", "only false is covered");
  TITAN_ASSIGN_OR_RETURN(double dropout, fields.NumberOr("attention_dropout", 0, 1, 0));
  if (dropout != 0) return fields.Refuse("attention_dropout", "only 0 is covered");
  if (fields.Has("architectures")) {
    const std::string want(FindFamily(c.family)->architecture);
    const Json& names = fields.Value("architectures");
    if (!names.is_array() || std::find(names.begin(), names.end(), Json(want)) == names.end()) {
      return fields.Refuse("architectures",
                           fmt::format("{} is not covered ({})", names.dump(), want));
    }
  }
  return OkStatus();
}

constexpr int32_t kDefaultWindow = 4096;    // of the library's classes
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
  TITAN_ASSIGN_OR_RETURN(
      const std::vector<bool> sliding,
      SlidingLayers(fields, *c, [&](int32_t layer) { return slides && layer >= full; }));
  if (std::find(sliding.begin(), sliding.end(), true) == sliding.end()) return OkStatus();
  if (!fields.Has("sliding_window") && fields.Has("layer_types")) {
    return fields.Error("sliding_window", "is missing, and layer_types names sliding layers");
  }
  TITAN_ASSIGN_OR_RETURN(const int64_t window,
                         fields.IntOr("sliding_window", 1, kMaxPositions, kDefaultWindow));
  for (const bool s : sliding) c->layer_windows.push_back(s ? static_cast<int32_t>(window) : 0);
  return OkStatus();
}

constexpr int64_t kGemmaPattern = 6;        // of 6 layers, the last is full
constexpr int32_t kGemmaHeadDim = 256;      // of a config without head_dim
constexpr double kGemmaScalar = 256;        // of one without query_pre_attn_scalar
constexpr double kGemmaTheta = 1e6;         // of its full layers
constexpr double kGemmaLocalTheta = 10000;  // of its sliding layers

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

// rope_parameters by kind of layer, or the older fields.
Status ParseGemmaRope(const JsonFields& fields, ModelConfig* c) {
  TITAN_ASSIGN_OR_RETURN(c->rope_theta, fields.NumberOr("rope_theta", 1, kMaxTheta, kGemmaTheta));
  TITAN_ASSIGN_OR_RETURN(c->local_rope_theta,
                         fields.NumberOr("rope_local_base_freq", 1, kMaxTheta, kGemmaLocalTheta));
  if (fields.Has("rope_scaling")) {
    TITAN_ASSIGN_OR_RETURN(const RopeFields rope,
                           ParseRope(fields.Value("rope_scaling"), fields, "rope_scaling"));
    c->rope_scaling = rope.scaling;
  }
  if (!fields.Has("rope_parameters")) return OkStatus();
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

Status CheckGemma(const ModelConfig& c) {
  if (!c.is_gemma()) {
    if (c.query_pre_attn_scalar == 0 && c.local_rope_theta == 0) return OkStatus();
    return InvalidArgument(
        fmt::format("query_pre_attn_scalar, rope_local_base_freq: family {} has none", c.family));
  }
  if (!(c.query_pre_attn_scalar >= 1 && c.query_pre_attn_scalar <= kMaxWidth)) {
    return InvalidArgument(
        fmt::format("query_pre_attn_scalar: {} is outside [1, 2^20]", c.query_pre_attn_scalar));
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
    if (window == widest || (window == 0 && c.family != "mistral")) continue;
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
  if (c.is_gemma()) {
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

bool HasHeadNorms(std::string_view family) {
  return family.starts_with("qwen3") || family == "gemma3_text";
}

Status ParseExperts(const JsonFields& fields, ModelConfig* c) {
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
  if (c.family != "qwen3_moe") {
    if (c.num_experts == 0 && c.experts_per_token == 0 && c.expert_intermediate_size == 0 &&
        !c.normalise_expert_weights && c.dense_layers.empty()) {
      return OkStatus();
    }
    return InvalidArgument(fmt::format("num_experts: family {} has no experts", c.family));
  }
  constexpr int32_t kMaxExperts = 4096;
  TITAN_RETURN_IF_ERROR(CheckRange("num_experts", c.num_experts, 1, kMaxExperts));
  TITAN_RETURN_IF_ERROR(CheckRange("num_experts_per_tok", c.experts_per_token, 1,
                                   std::min<int32_t>(c.num_experts, kMaxExpertsPerToken)));
  TITAN_RETURN_IF_ERROR(
      CheckRange("moe_intermediate_size", c.expert_intermediate_size, 1, kMaxWidth));
  for (size_t i = 0; i < c.dense_layers.size(); ++i) {
    const int32_t layer = c.dense_layers[i];
    if (layer < 0 || layer >= c.num_layers || (i > 0 && layer <= c.dense_layers[i - 1])) {
      return InvalidArgument(fmt::format("mlp_only_layers: {} is out of place", layer));
    }
  }
  return OkStatus();
}

Status ParseSizes(const JsonFields& fields, ModelConfig* c) {
  struct Size {
    const char* field;
    int64_t high;
    int32_t* value;
  };
  for (const Size& size : {
           Size{"hidden_size", kMaxWidth, &c->hidden_size},
           Size{"num_hidden_layers", kMaxLayers, &c->num_layers},
           Size{"num_attention_heads", kMaxWidth, &c->num_heads},
           Size{"intermediate_size", kMaxWidth, &c->intermediate_size},
           Size{"vocab_size", kMaxVocab, &c->vocab_size},
           Size{"max_position_embeddings", kMaxPositions, &c->max_position_embeddings},
       }) {
    TITAN_ASSIGN_OR_RETURN(int64_t value, fields.Int(size.field, 1, size.high));
    *size.value = static_cast<int32_t>(value);
  }
  TITAN_ASSIGN_OR_RETURN(int64_t num_kv_heads,
                         fields.IntOr("num_key_value_heads", 1, kMaxWidth, c->num_heads));
  c->num_kv_heads = static_cast<int32_t>(num_kv_heads);
  const bool fixed = c->family == "qwen3" || c->is_gemma();
  if (!fixed && !fields.Has("head_dim") && c->hidden_size % c->num_heads != 0) {
    return fields.Error("num_attention_heads",
                        fmt::format("{} does not divide hidden_size {}, and head_dim is missing",
                                    c->num_heads, c->hidden_size));
  }
  const int32_t derived =
      fixed ? (c->is_gemma() ? kGemmaHeadDim : kQwen3HeadDim) : c->hidden_size / c->num_heads;
  TITAN_ASSIGN_OR_RETURN(int64_t head_dim, fields.IntOr("head_dim", 1, kMaxWidth, derived));
  c->head_dim = static_cast<int32_t>(head_dim);
  return OkStatus();
}

// The double whose shortest decimal is the float's shortest decimal: 1e-05f becomes 1e-05.
double ShortestDecimal(float value) {
  char text[64];
  const auto end = std::to_chars(text, text + sizeof(text) - 1, value);
  *end.ptr = '\0';
  return std::strtod(text, nullptr);
}

// The older spelling (rope_theta, rope_scaling) is read by every version of transformers.
Json RopeScalingJson(const RopeScaling& r) {
  Json out = {{"rope_type", ""}, {"factor", r.factor}};
  for (const auto& [name, kind] : kRopeKinds) {
    if (kind == r.kind) out["rope_type"] = name;
  }
  if (r.kind == RopeScaling::Kind::kLinear) return out;
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

}  // namespace

int64_t TensorSpec::num_elements() const {
  int64_t count = 1;
  for (const int64_t n : shape) count *= n;
  return count;
}

bool ModelConfig::is_sparse(int32_t layer) const {
  return num_experts > 0 && !std::binary_search(dense_layers.begin(), dense_layers.end(), layer);
}

Status ValidateModelConfig(const ModelConfig& c) {
  if (FindFamily(c.family) == nullptr) {
    return Unimplemented(
        fmt::format("model_type: \"{}\" is not covered ({})", c.family, FamilyNames()));
  }
  TITAN_RETURN_IF_ERROR(CheckRange("hidden_size", c.hidden_size, 1, kMaxWidth));
  TITAN_RETURN_IF_ERROR(CheckRange("num_hidden_layers", c.num_layers, 1, kMaxLayers));
  TITAN_RETURN_IF_ERROR(CheckRange("num_attention_heads", c.num_heads, 1, kMaxWidth));
  TITAN_RETURN_IF_ERROR(CheckRange("num_key_value_heads", c.num_kv_heads, 1, c.num_heads));
  if (c.num_heads % c.num_kv_heads != 0) {
    return InvalidArgument(
        fmt::format("num_key_value_heads: {} does not divide num_attention_heads {}",
                    c.num_kv_heads, c.num_heads));
  }
  TITAN_RETURN_IF_ERROR(CheckRange("head_dim", c.head_dim, 2, kMaxWidth));
  if (c.head_dim % 2 != 0) {
    return InvalidArgument(
        fmt::format("head_dim: {} is odd, rotary pairs need it even", c.head_dim));
  }
  TITAN_RETURN_IF_ERROR(CheckRange("num_attention_heads * head_dim",
                                   int64_t{c.num_heads} * c.head_dim, 2, kMaxWidth));
  TITAN_RETURN_IF_ERROR(CheckRange("intermediate_size", c.intermediate_size, 1, kMaxWidth));
  TITAN_RETURN_IF_ERROR(CheckRange("vocab_size", c.vocab_size, 1, kMaxVocab));
  TITAN_RETURN_IF_ERROR(
      CheckRange("max_position_embeddings", c.max_position_embeddings, 1, kMaxPositions));
  if (!(c.rms_norm_eps >= FLT_MIN && c.rms_norm_eps < 1)) {
    return InvalidArgument(fmt::format("rms_norm_eps: {} is outside (0, 1)", c.rms_norm_eps));
  }
  if (!(c.rope_theta >= 1 && c.rope_theta <= kMaxTheta)) {
    return InvalidArgument(fmt::format("rope_theta: {} is outside [1, 1e12]", c.rope_theta));
  }
  TITAN_RETURN_IF_ERROR(CheckRopeScaling(c.rope_scaling));
  if (c.family != "qwen2" && c.qkv_bias != c.o_bias) {
    return InvalidArgument(
        fmt::format("attention_bias: family {} has biases on q, k, v and o, or on none", c.family));
  }
  if (c.family == "qwen2" && (!c.qkv_bias || c.o_bias)) {
    return InvalidArgument("attention_bias: family qwen2 has biases on q, k and v only");
  }
  if (c.family != "llama" && c.mlp_bias) {
    return InvalidArgument(fmt::format("mlp_bias: family {} has none", c.family));
  }
  if (c.family == "mistral" && c.qkv_bias) {
    return InvalidArgument("attention_bias: family mistral has none");
  }
  TITAN_RETURN_IF_ERROR(CheckWindows(c));
  if (c.qk_norm != HasHeadNorms(c.family)) {
    return InvalidArgument(fmt::format("qk_norm: family {} has {} norms of queries and keys",
                                       c.family, c.qk_norm ? "no" : "always"));
  }
  TITAN_RETURN_IF_ERROR(CheckExperts(c));
  TITAN_RETURN_IF_ERROR(CheckGemma(c));
  return CheckTokenIds(c);
}

StatusOr<ModelConfig> ParseHfConfig(std::string_view json_text, std::string_view where) {
  TITAN_ASSIGN_OR_RETURN(const Json root, ParseJson(json_text, where));
  if (!root.is_object()) return InvalidArgument(fmt::format("{}: must be an object", where));
  const JsonFields fields(root, std::string(where));
  ModelConfig c;
  TITAN_ASSIGN_OR_RETURN(c.family, fields.String("model_type"));
  if (FindFamily(c.family) == nullptr) {
    return fields.Refuse("model_type",
                         fmt::format("\"{}\" is not covered ({})", c.family, FamilyNames()));
  }
  TITAN_RETURN_IF_ERROR(RefuseUncovered(fields, c));
  TITAN_RETURN_IF_ERROR(ParseSizes(fields, &c));
  TITAN_ASSIGN_OR_RETURN(double eps, fields.Number("rms_norm_eps", 0, 1));
  c.rms_norm_eps = static_cast<float>(eps);
  TITAN_RETURN_IF_ERROR(ParseRopeOf(fields, &c));
  TITAN_ASSIGN_OR_RETURN(c.tie_embeddings, fields.BoolOr("tie_word_embeddings", c.is_gemma()));
  if (c.family == "qwen2") {
    c.qkv_bias = true;
  } else if (c.family != "mistral") {
    TITAN_ASSIGN_OR_RETURN(c.qkv_bias, fields.BoolOr("attention_bias", false));
    c.o_bias = c.qkv_bias;
  }
  if (c.family == "llama") {
    TITAN_ASSIGN_OR_RETURN(c.mlp_bias, fields.BoolOr("mlp_bias", false));
  }
  c.qk_norm = HasHeadNorms(c.family);
  if (c.is_gemma()) {
    TITAN_ASSIGN_OR_RETURN(c.query_pre_attn_scalar,
                           fields.NumberOr("query_pre_attn_scalar", 1, kMaxWidth, kGemmaScalar));
  }
  TITAN_RETURN_IF_ERROR(ParseExperts(fields, &c));
  TITAN_RETURN_IF_ERROR(ParseWindows(fields, &c));
  TITAN_RETURN_IF_ERROR(ParseTokenIds(fields, &c));
  const Status valid = ValidateModelConfig(c);
  if (!valid.ok()) return Annotate(valid, where);
  return c;
}

std::string ToHfConfigJson(const ModelConfig& c) {
  TITAN_CHECK(ValidateModelConfig(c).ok());
  Json root = {
      {"model_type", c.family},
      {"architectures", Json::array({std::string(FindFamily(c.family)->architecture)})},
      {"torch_dtype", "float32"},
      {c.is_gemma() ? "hidden_activation" : "hidden_act",
       c.is_gemma() ? "gelu_pytorch_tanh" : "silu"},
      {"hidden_size", c.hidden_size},
      {"num_hidden_layers", c.num_layers},
      {"num_attention_heads", c.num_heads},
      {"num_key_value_heads", c.num_kv_heads},
      {"head_dim", c.head_dim},
      {"intermediate_size", c.intermediate_size},
      {"vocab_size", c.vocab_size},
      {"max_position_embeddings", c.max_position_embeddings},
      {"rms_norm_eps", ShortestDecimal(c.rms_norm_eps)},
      {"rope_theta", c.rope_theta},
      {"tie_word_embeddings", c.tie_embeddings},
      {"bos_token_id", nullptr},
      {"eos_token_id", nullptr},
  };
  if (c.rope_scaling.kind != RopeScaling::Kind::kNone) {
    root["rope_scaling"] = RopeScalingJson(c.rope_scaling);
  }
  if (c.family != "qwen2" && c.family != "mistral") root["attention_bias"] = c.qkv_bias;
  if (c.family == "llama") root["mlp_bias"] = c.mlp_bias;
  WriteWindows(c, &root);
  if (c.is_gemma()) {
    root["query_pre_attn_scalar"] = c.query_pre_attn_scalar;
    root["rope_local_base_freq"] = c.local_rope_theta;
  }
  if (c.num_experts > 0) {
    root["num_experts"] = c.num_experts;
    root["num_experts_per_tok"] = c.experts_per_token;
    root["moe_intermediate_size"] = c.expert_intermediate_size;
    root["norm_topk_prob"] = c.normalise_expert_weights;
    root["decoder_sparse_step"] = 1;
    root["mlp_only_layers"] = c.dense_layers;
  }
  if (c.bos_token_id >= 0) root["bos_token_id"] = c.bos_token_id;
  if (c.eos_token_ids.size() == 1) root["eos_token_id"] = c.eos_token_ids[0];
  if (c.eos_token_ids.size() > 1) root["eos_token_id"] = c.eos_token_ids;
  return root.dump(2) + "\n";
}

std::vector<TensorSpec> CanonicalTensors(const ModelConfig& c) {
  const int64_t q_out = int64_t{c.num_heads} * c.head_dim;
  const int64_t kv_out = int64_t{c.num_kv_heads} * c.head_dim;
  std::vector<TensorSpec> out;
  out.push_back({"model.embed_tokens.weight", {c.vocab_size, c.hidden_size}});
  for (int32_t layer = 0; layer < c.num_layers; ++layer) {
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    const auto linear = [&](const char* name, int64_t rows, int64_t columns, bool bias) {
      out.push_back({fmt::format("{}{}.weight", prefix, name), {rows, columns}});
      if (bias) out.push_back({fmt::format("{}{}.bias", prefix, name), {rows}});
    };
    out.push_back({prefix + "input_layernorm.weight", {c.hidden_size}});
    linear("self_attn.q_proj", q_out, c.hidden_size, c.qkv_bias);
    linear("self_attn.k_proj", kv_out, c.hidden_size, c.qkv_bias);
    linear("self_attn.v_proj", kv_out, c.hidden_size, c.qkv_bias);
    linear("self_attn.o_proj", c.hidden_size, q_out, c.o_bias);
    if (c.qk_norm) {
      out.push_back({prefix + "self_attn.q_norm.weight", {c.head_dim}});
      out.push_back({prefix + "self_attn.k_norm.weight", {c.head_dim}});
    }
    out.push_back({prefix + "post_attention_layernorm.weight", {c.hidden_size}});
    if (c.is_gemma()) {
      out.push_back({prefix + "pre_feedforward_layernorm.weight", {c.hidden_size}});
      out.push_back({prefix + "post_feedforward_layernorm.weight", {c.hidden_size}});
    }
    if (c.is_sparse(layer)) {
      linear("mlp.gate", c.num_experts, c.hidden_size, false);
      for (int32_t e = 0; e < c.num_experts; ++e) {
        const std::string expert = fmt::format("mlp.experts.{}.", e);
        const auto part = [&](const char* name, int64_t rows, int64_t columns) {
          linear((expert + name).c_str(), rows, columns, false);
        };
        part("gate_proj", c.expert_intermediate_size, c.hidden_size);
        part("up_proj", c.expert_intermediate_size, c.hidden_size);
        part("down_proj", c.hidden_size, c.expert_intermediate_size);
      }
      continue;
    }
    linear("mlp.gate_proj", c.intermediate_size, c.hidden_size, c.mlp_bias);
    linear("mlp.up_proj", c.intermediate_size, c.hidden_size, c.mlp_bias);
    linear("mlp.down_proj", c.hidden_size, c.intermediate_size, c.mlp_bias);
  }
  out.push_back({"model.norm.weight", {c.hidden_size}});
  if (!c.tie_embeddings) out.push_back({"lm_head.weight", {c.vocab_size, c.hidden_size}});
  return out;
}

}  // namespace titan::formats
