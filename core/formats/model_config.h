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

// Scaling of the rotary frequencies. kLlama3: wavelengths above original_max_position_embeddings /
// low_freq_factor are divided by factor, those below .../high_freq_factor kept, between them
// blended.
struct RopeScaling {
  enum class Kind { kNone, kLlama3 };
  Kind kind = Kind::kNone;
  double factor = 1;
  double low_freq_factor = 1;
  double high_freq_factor = 1;
  int32_t original_max_position_embeddings = 0;

  friend bool operator==(const RopeScaling&, const RopeScaling&) = default;
};

// A decoder of the Llama kind: pre-norm RMSNorm, rotary positions in the half-split form,
// grouped-query attention, SwiGLU. Every field is in range when the struct comes from a parser of
// this module.
struct ModelConfig {
  std::string family;  // "llama" | "qwen2": HF model_type
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
  bool o_bias = false;          // bias of o_proj; family llama: equal to qkv_bias
  bool mlp_bias = false;        // biases of gate_proj, up_proj, down_proj
  int32_t bos_token_id = -1;    // -1: none
  std::vector<int32_t> eos_token_ids;  // in file order, no duplicates; may be empty

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
// input_layernorm.weight, self_attn.{q,k,v,o}_proj.{weight,bias}, post_attention_layernorm.weight,
// mlp.{gate,up,down}_proj.{weight,bias} (each bias directly after its weight, where there is one);
// model.norm.weight; lm_head.weight unless the embeddings are tied.
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
