// SPDX-License-Identifier: Apache-2.0
#include "core/formats/model_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cfloat>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <initializer_list>
#include <utility>

#include "core/base/check.h"
#include "core/formats/json.h"
#include "core/formats/model_config_parts.h"

namespace titan::formats {

Status internal::CheckRange(const char* field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return OkStatus();
  return InvalidArgument(fmt::format("{}: {} is outside [{}, {}]", field, value, low, high));
}

namespace {

using internal::CheckRange;
using internal::kMaxLayers;
using internal::kMaxPositions;
using internal::kMaxTheta;
using internal::kMaxVocab;
using internal::kMaxWidth;

// The families that are covered, with what Hugging Face calls their causal model.
struct Family {
  std::string_view name;
  std::string_view architecture;
};
constexpr Family kFamilies[] = {
    {"llama", "LlamaForCausalLM"},        {"mistral", "MistralForCausalLM"},
    {"qwen2", "Qwen2ForCausalLM"},        {"qwen3", "Qwen3ForCausalLM"},
    {"qwen3_moe", "Qwen3MoeForCausalLM"}, {"gemma3_text", "Gemma3ForCausalLM"},
    {"gpt_oss", "GptOssForCausalLM"}};

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

constexpr int32_t kQwen3HeadDim = 128;  // of a config without head_dim
constexpr int32_t kGemmaHeadDim = 256;  // of a config without head_dim
constexpr int32_t kGptOssHeadDim = 64;  // of a config without head_dim
constexpr int32_t kGemmaScalar = 256;   // of one without query_pre_attn_scalar

// What the class takes for a head's width where the config does not say; 0: it follows from
// hidden_size.
int32_t HeadDimOf(const ModelConfig& c) {
  if (c.is_gemma()) return kGemmaHeadDim;
  if (c.is_gpt_oss()) return kGptOssHeadDim;
  return c.family == "qwen3" ? kQwen3HeadDim : 0;
}

bool HasHeadNorms(std::string_view family) {
  return family.starts_with("qwen3") || family == "gemma3_text";
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
    return fields.Refuse("quantization_config",
                         "quantised checkpoints (MXFP4 among them) are not covered; save the "
                         "weights dequantised, as BF16");
  }
  if (c.is_gpt_oss()) {
    for (const auto& [field, covered] : {std::pair{"swiglu_limit", 7.0}, {"swiglu_alpha", 1.702}}) {
      TITAN_ASSIGN_OR_RETURN(const double value, fields.NumberOr(field, 0, 1e6, covered));
      if (value != covered) return fields.Refuse(field, fmt::format("only {} is covered", covered));
    }
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
  int32_t derived = HeadDimOf(*c);
  if (derived == 0 && !fields.Has("head_dim") && c->hidden_size % c->num_heads != 0) {
    return fields.Error("num_attention_heads",
                        fmt::format("{} does not divide hidden_size {}, and head_dim is missing",
                                    c->num_heads, c->hidden_size));
  }
  if (derived == 0) derived = c->hidden_size / c->num_heads;
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
  TITAN_RETURN_IF_ERROR(internal::CheckRopeScaling(c.rope_scaling));
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
  TITAN_RETURN_IF_ERROR(internal::CheckWindows(c));
  if (c.qk_norm != HasHeadNorms(c.family)) {
    return InvalidArgument(fmt::format("qk_norm: family {} has {} norms of queries and keys",
                                       c.family, c.qk_norm ? "no" : "always"));
  }
  TITAN_RETURN_IF_ERROR(internal::CheckExperts(c));
  TITAN_RETURN_IF_ERROR(internal::CheckGemma(c));
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
  TITAN_RETURN_IF_ERROR(internal::ParseRopeOf(fields, &c));
  TITAN_ASSIGN_OR_RETURN(c.tie_embeddings, fields.BoolOr("tie_word_embeddings", c.is_gemma()));
  if (c.family == "qwen2") {
    c.qkv_bias = true;
  } else if (c.family != "mistral") {
    TITAN_ASSIGN_OR_RETURN(c.qkv_bias, fields.BoolOr("attention_bias", c.is_gpt_oss()));
    c.o_bias = c.qkv_bias;
  }
  if (c.family == "llama") {
    TITAN_ASSIGN_OR_RETURN(c.mlp_bias, fields.BoolOr("mlp_bias", false));
  }
  c.qk_norm = HasHeadNorms(c.family);
  if (c.is_gemma()) {
    TITAN_ASSIGN_OR_RETURN(const int64_t scalar,
                           fields.IntOr("query_pre_attn_scalar", 1, kMaxWidth, kGemmaScalar));
    c.query_pre_attn_scalar = static_cast<double>(scalar);
  }
  TITAN_RETURN_IF_ERROR(internal::ParseExperts(fields, &c));
  TITAN_RETURN_IF_ERROR(internal::ParseWindows(fields, &c));
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
  // Without the field gpt_oss has one, not none.
  if (c.rope_scaling.kind != RopeScaling::Kind::kNone || c.is_gpt_oss()) {
    root["rope_scaling"] = internal::RopeScalingJson(c.rope_scaling);
  }
  if (c.family != "qwen2" && c.family != "mistral") root["attention_bias"] = c.qkv_bias;
  if (c.family == "llama") root["mlp_bias"] = c.mlp_bias;
  internal::WriteWindows(c, &root);
  if (c.is_gemma()) {
    root["query_pre_attn_scalar"] = static_cast<int64_t>(c.query_pre_attn_scalar);  // whole
    root["rope_local_base_freq"] = c.local_rope_theta;
  }
  if (c.is_gpt_oss()) {
    root["num_local_experts"] = c.num_experts;
    root["num_experts_per_tok"] = c.experts_per_token;
  } else if (c.num_experts > 0) {
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
    if (c.is_gpt_oss()) out.push_back({prefix + "self_attn.sinks", {c.num_heads}});
    out.push_back({prefix + "post_attention_layernorm.weight", {c.hidden_size}});
    if (c.is_gemma()) {
      out.push_back({prefix + "pre_feedforward_layernorm.weight", {c.hidden_size}});
      out.push_back({prefix + "post_feedforward_layernorm.weight", {c.hidden_size}});
    }
    if (c.is_gpt_oss()) {
      linear("mlp.router", c.num_experts, c.hidden_size, true);
      const int64_t width = c.expert_intermediate_size, hidden = c.hidden_size;
      const auto experts = [&](std::initializer_list<TensorSpec> parts) {
        for (int32_t e = 0; e < c.num_experts; ++e) {
          for (const TensorSpec& part : parts) {
            out.push_back({fmt::format("{}mlp.experts.{}.{}", prefix, e, part.name), part.shape});
          }
        }
      };
      experts({{"gate_proj.weight", {width, hidden}}, {"up_proj.weight", {width, hidden}}});
      experts({{"gate_proj.bias", {width}}, {"up_proj.bias", {width}}});
      experts({{"down_proj.weight", {hidden, width}}});
      experts({{"down_proj.bias", {hidden}}});
      continue;
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
