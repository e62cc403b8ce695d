// SPDX-License-Identifier: Apache-2.0
//
// ModelConfig: what a model file says about the model, typed and checked, and the list of tensors
// that such a model has. Read from a Hugging Face config.json or from GGUF metadata; written as a
// canonical config.json that both this parser and transformers read.
//
// File level only: which families and sizes can be run is decided by core/model. Values, any
// thread.
#ifndef TITAN_CORE_FORMATS_MODEL_CONFIG_H_
#define TITAN_CORE_FORMATS_MODEL_CONFIG_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"

namespace titan::formats {

// Scaling of the rotary frequencies; core/kernels/rope.h says what each kind does. Fields that a
// kind does not read keep their defaults.
struct RopeScaling {
  enum class Kind { kNone, kLinear, kLlama3, kYarn };
  Kind kind = Kind::kNone;
  double factor = 1;                             // all kinds, >= 1
  double low_freq_factor = 1;                    // llama3
  double high_freq_factor = 1;                   // llama3
  int32_t original_max_position_embeddings = 0;  // llama3, yarn
  double beta_fast = 32;                         // yarn, as all below
  double beta_slow = 1;
  bool truncate = true;
  double attention_factor = 0;  // 0: derived from factor or the mscales
  double mscale = 0;            // 0: not given
  double mscale_all_dim = 0;    // 0: not given

  friend bool operator==(const RopeScaling&, const RopeScaling&) = default;
};

// A decoder of the Llama kind: pre-norm RMSNorm, rotary positions in the half-split form,
// grouped-query attention (qwen3: an RMSNorm of each query and key head before the rotation),
// SwiGLU. Every field is in range when the struct comes from a parser of this module.
struct ModelConfig {
  std::string family;  // "llama" | "mistral" | "qwen2" | "qwen3" | "qwen3_moe" |
                       // "gemma3_text" | "gpt_oss": HF model_type
  int32_t hidden_size = 0;
  int32_t num_layers = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;  // divides num_heads
  int32_t head_dim = 0;      // even; num_heads * head_dim need not be hidden_size
  int32_t intermediate_size = 0;
  int32_t vocab_size = 0;
  int32_t max_position_embeddings = 0;
  float rms_norm_eps = 0;  // > 0; a GGUF's f32 and a JSON's 1e-05 give the same value
  double rope_theta = 0;
  RopeScaling rope_scaling;
  bool tie_embeddings = false;  // the head is the embedding table; there is no lm_head.weight
  bool qkv_bias = false;        // biases of q_proj, k_proj, v_proj
  bool o_bias = false;          // bias of o_proj; but for family qwen2 equal to qkv_bias
  bool mlp_bias = false;        // biases of gate_proj, up_proj, down_proj
  bool qk_norm = false;         // q_norm, k_norm [head_dim]; families qwen3, qwen3_moe, gemma3_text
  // Keys that a row of each layer sees, itself counted, 0: all before it. Empty: 0 in every layer.
  // Family mistral: the same in every layer; llama: empty.
  std::vector<int32_t> layer_windows;
  // Family gemma3_text and no other: norms weigh by 1 + w, branches are normed again before they
  // are added, embeddings are scaled by sqrt(hidden_size), the gate is the tanh form of gelu,
  // scores are scaled by query_pre_attn_scalar^-1/2, and layers with a window have a rotation of
  // their own, without scaling.
  bool is_gemma() const { return family == "gemma3_text"; }
  double query_pre_attn_scalar = 0;  // 0: head_dim
  double local_rope_theta = 0;       // of layers with a window; 0: rope_theta and its scaling
  // Family gpt_oss and no other: a sink a head joins the softmax of attention, experts' gates are
  // bounded (by 7, with a slope of 1.702 in the sigmoid and up + 1), router and experts have
  // biases, and the weights of the chosen are a softmax over them alone.
  bool is_gpt_oss() const { return family == "gpt_oss"; }
  // Mixture of experts, families qwen3_moe and gpt_oss and no other: every layer but dense_layers
  // (ascending; gpt_oss: none) has num_experts gated experts in place of its MLP, of which a token
  // passes experts_per_token.
  int32_t num_experts = 0;
  int32_t experts_per_token = 0;
  int32_t expert_intermediate_size = 0;   // gpt_oss: intermediate_size
  bool normalise_expert_weights = false;  // norm_topk_prob: the chosen weights add up to 1
  std::vector<int32_t> dense_layers;
  int32_t bos_token_id = -1;           // -1: none
  std::vector<int32_t> eos_token_ids;  // in file order, no duplicates; may be empty

  bool is_sparse(int32_t layer) const;

  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

// One tensor of a model under its Hugging Face name. shape is row-major: a linear weight is
// [out features, in features].
struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;

  int64_t num_elements() const;
  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

// Every tensor of the model, in canonical order: model.embed_tokens.weight; per layer
// input_layernorm.weight, self_attn.{q,k,v,o}_proj.{weight,bias}, self_attn.{q,k}_norm.weight where
// there are such (gpt_oss: self_attn.sinks), post_attention_layernorm.weight; in a layer with
// experts mlp.gate.weight (the router) and mlp.experts.J.{gate,up,down}_proj.weight (gemma3_text:
// then pre_feedforward_layernorm.weight and post_feedforward_layernorm.weight), else
// mlp.{gate,up,down}_proj.{weight,bias} (each bias directly after its weight, where there is one);
// model.norm.weight; lm_head.weight unless the embeddings are tied. Of gpt_oss the router is
// mlp.router.{weight,bias}, and after it come, each of all experts, the weights of gate and up,
// their biases, the weights of down, its biases: the order of the file's tensors, which hold all
// experts of a layer (fused_experts.h).
std::vector<TensorSpec> CanonicalTensors(const ModelConfig& config);

// Checks ranges and relations of all fields. InvalidArgument names the field.
Status ValidateModelConfig(const ModelConfig& config);

// Parses the text of a Hugging Face config.json (with rope_theta/rope_scaling or rope_parameters).
// `where` stands first in messages, for example the path. InvalidArgument: not JSON, a field is
// missing, of the wrong type or out of range. Unimplemented: a family or feature that is not
// covered, by name.
StatusOr<ModelConfig> ParseHfConfig(std::string_view json_text, std::string_view where);

// Canonical config.json: fixed key order and number format, equal configs give equal text, and
// ParseHfConfig(ToHfConfigJson(c)) == c. REQUIRES: ValidateModelConfig(config).ok().
std::string ToHfConfigJson(const ModelConfig& config);

}  // namespace titan::formats

#endif  // TITAN_CORE_FORMATS_MODEL_CONFIG_H_
