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

Status CheckRange(const char* field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return OkStatus();
  return InvalidArgument(fmt::format("{}: {} is outside [{}, {}]", field, value, low, high));
}

Status CheckRopeScaling(const RopeScaling& rope) {
  if (rope.kind == RopeScaling::Kind::kNone) {
    if (rope == RopeScaling{}) return OkStatus();
    return InvalidArgument("rope_scaling: parameters are given without a kind");
  }
  if (!(rope.factor >= 1 && rope.factor <= kMaxFactor)) {
    return InvalidArgument(fmt::format("rope_scaling.factor: {} is outside [1, 1e6]", rope.factor));
  }
  if (!(rope.low_freq_factor > 0 && rope.low_freq_factor <= kMaxFactor)) {
    return InvalidArgument(
        fmt::format("rope_scaling.low_freq_factor: {} is outside (0, 1e6]", rope.low_freq_factor));
  }
  if (!(rope.high_freq_factor > rope.low_freq_factor && rope.high_freq_factor <= kMaxFactor)) {
    return InvalidArgument(
        fmt::format("rope_scaling.high_freq_factor: {} must be above low_freq_factor {} and <= 1e6",
                    rope.high_freq_factor, rope.low_freq_factor));
  }
  return CheckRange("rope_scaling.original_max_position_embeddings",
                    rope.original_max_position_embeddings, 1, kMaxPositions);
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
  if (kind == "default") return out;
  if (kind != "llama3") {
    return rope.Refuse("rope_type", fmt::format("\"{}\" is not covered (default, llama3)", kind));
  }
  out.scaling.kind = RopeScaling::Kind::kLlama3;
  TITAN_ASSIGN_OR_RETURN(out.scaling.factor, rope.Number("factor", 1, kMaxFactor));
  TITAN_ASSIGN_OR_RETURN(out.scaling.low_freq_factor,
                         rope.Number("low_freq_factor", 0, kMaxFactor));
  TITAN_ASSIGN_OR_RETURN(out.scaling.high_freq_factor,
                         rope.Number("high_freq_factor", 0, kMaxFactor));
  TITAN_ASSIGN_OR_RETURN(int64_t original,
                         rope.Int("original_max_position_embeddings", 1, kMaxPositions));
  out.scaling.original_max_position_embeddings = static_cast<int32_t>(original);
  return out;
}

Status ParseRopeOf(const JsonFields& fields, ModelConfig* c) {
  const double kDefaultTheta = 10000;  // of the library's classes for llama and qwen2
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

// Features of the two families, or often met beside them, that change the arithmetic.
Status RefuseUncovered(const JsonFields& fields, const ModelConfig& c) {
  if (fields.Has("quantization_config")) {
    return fields.Refuse("quantization_config", "quantised checkpoints are not covered");
  }
  TITAN_ASSIGN_OR_RETURN(std::string act, fields.StringOr("hidden_act", "silu"));
  if (act != "silu") {
    return fields.Refuse("hidden_act", fmt::format("\"{}\" is not covered (silu)", act));
  }
  TITAN_ASSIGN_OR_RETURN(double dropout, fields.NumberOr("attention_dropout", 0, 1, 0));
  if (dropout != 0) return fields.Refuse("attention_dropout", "only 0 is covered");
  TITAN_ASSIGN_OR_RETURN(bool slides, fields.BoolOr("use_sliding_window", c.family != "qwen2"));
  if (slides && fields.Has("sliding_window")) {
    return fields.Refuse("sliding_window", "sliding windows are not covered");
  }
  if (fields.Has("layer_types")) {
    for (const Json& kind : fields.Value("layer_types")) {
      if (kind == "full_attention") continue;
      return fields.Refuse("layer_types", fmt::format("{} is not covered", kind.dump()));
    }
  }
  if (fields.Has("architectures")) {
    const std::string want = c.family == "llama" ? "LlamaForCausalLM" : "Qwen2ForCausalLM";
    const Json& names = fields.Value("architectures");
    if (!names.is_array() || std::find(names.begin(), names.end(), Json(want)) == names.end()) {
      return fields.Refuse("architectures",
                           fmt::format("{} is not covered ({})", names.dump(), want));
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
  if (!fields.Has("head_dim") && c->hidden_size % c->num_heads != 0) {
    return fields.Error("num_attention_heads",
                        fmt::format("{} does not divide hidden_size {}, and head_dim is missing",
                                    c->num_heads, c->hidden_size));
  }
  TITAN_ASSIGN_OR_RETURN(int64_t head_dim,
                         fields.IntOr("head_dim", 1, kMaxWidth, c->hidden_size / c->num_heads));
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

}  // namespace

int64_t TensorSpec::num_elements() const {
  int64_t count = 1;
  for (const int64_t n : shape) count *= n;
  return count;
}

Status ValidateModelConfig(const ModelConfig& c) {
  if (c.family != "llama" && c.family != "qwen2") {
    return Unimplemented(fmt::format("model_type: \"{}\" is not covered (llama, qwen2)", c.family));
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
  if (c.family == "llama" && c.qkv_bias != c.o_bias) {
    return InvalidArgument("attention_bias: family llama has biases on q, k, v and o, or on none");
  }
  if (c.family == "qwen2" && (!c.qkv_bias || c.o_bias || c.mlp_bias)) {
    return InvalidArgument("attention_bias: family qwen2 has biases on q, k and v only");
  }
  return CheckTokenIds(c);
}

StatusOr<ModelConfig> ParseHfConfig(std::string_view json_text, std::string_view where) {
  TITAN_ASSIGN_OR_RETURN(const Json root, ParseJson(json_text, where));
  if (!root.is_object()) return InvalidArgument(fmt::format("{}: must be an object", where));
  const JsonFields fields(root, std::string(where));
  ModelConfig c;
  TITAN_ASSIGN_OR_RETURN(c.family, fields.String("model_type"));
  if (c.family != "llama" && c.family != "qwen2") {
    return fields.Refuse("model_type",
                         fmt::format("\"{}\" is not covered (llama, qwen2)", c.family));
  }
  TITAN_RETURN_IF_ERROR(RefuseUncovered(fields, c));
  TITAN_RETURN_IF_ERROR(ParseSizes(fields, &c));
  TITAN_ASSIGN_OR_RETURN(double eps, fields.Number("rms_norm_eps", 0, 1));
  c.rms_norm_eps = static_cast<float>(eps);
  TITAN_RETURN_IF_ERROR(ParseRopeOf(fields, &c));
  TITAN_ASSIGN_OR_RETURN(c.tie_embeddings, fields.BoolOr("tie_word_embeddings", false));
  if (c.family == "llama") {
    TITAN_ASSIGN_OR_RETURN(c.qkv_bias, fields.BoolOr("attention_bias", false));
    c.o_bias = c.qkv_bias;
    TITAN_ASSIGN_OR_RETURN(c.mlp_bias, fields.BoolOr("mlp_bias", false));
  } else {
    c.qkv_bias = true;
  }
  TITAN_RETURN_IF_ERROR(ParseTokenIds(fields, &c));
  const Status valid = ValidateModelConfig(c);
  if (!valid.ok()) return Annotate(valid, where);
  return c;
}

std::string ToHfConfigJson(const ModelConfig& c) {
  TITAN_CHECK(ValidateModelConfig(c).ok());
  Json root = {
      {"model_type", c.family},
      {"architectures",
       Json::array({c.family == "llama" ? "LlamaForCausalLM" : "Qwen2ForCausalLM"})},
      {"torch_dtype", "float32"},
      {"hidden_act", "silu"},
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
  // The older spelling (rope_theta, rope_scaling) is read by every version of transformers.
  if (c.rope_scaling.kind == RopeScaling::Kind::kLlama3) {
    const RopeScaling& r = c.rope_scaling;
    root["rope_scaling"] = {
        {"rope_type", "llama3"},
        {"factor", r.factor},
        {"low_freq_factor", r.low_freq_factor},
        {"high_freq_factor", r.high_freq_factor},
        {"original_max_position_embeddings", r.original_max_position_embeddings},
    };
  }
  if (c.family == "llama") {
    root["attention_bias"] = c.qkv_bias;
    root["mlp_bias"] = c.mlp_bias;
  } else {
    root["use_sliding_window"] = false;
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
    out.push_back({prefix + "post_attention_layernorm.weight", {c.hidden_size}});
    linear("mlp.gate_proj", c.intermediate_size, c.hidden_size, c.mlp_bias);
    linear("mlp.up_proj", c.intermediate_size, c.hidden_size, c.mlp_bias);
    linear("mlp.down_proj", c.hidden_size, c.intermediate_size, c.mlp_bias);
  }
  out.push_back({"model.norm.weight", {c.hidden_size}});
  if (!c.tie_embeddings) out.push_back({"lm_head.weight", {c.vocab_size, c.hidden_size}});
  return out;
}

}  // namespace titan::formats
