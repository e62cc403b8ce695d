// SPDX-License-Identifier: Apache-2.0
#include "tests/support/small_model.h"

#include <cmath>
#include <fstream>
#include <string_view>

#include <nlohmann/json.hpp>

#include "core/base/check.h"
#include "core/base/philox.h"
#include "core/model/memory.h"
#include "core/model/model_files.h"

namespace titan::test {
namespace {

constexpr int32_t kEosToken = 1;  // of tiny_bpe.tokenizer.json
constexpr float kConstantChannel =
    6.0f;  // channel 0 of every embedding: carries a bias to the head
constexpr int kTokenizerSize = 600;

// Uniform in [-sqrt(3), sqrt(3)): mean 0, standard deviation 1.
float Draw(uint64_t seed, uint32_t parameter, uint64_t index) {
  const PhiloxCounter out = Philox4x32(
      {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), parameter, 0x5eed0000u},
      {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return static_cast<float>((UniformFromWord(out[0]) * 2 - 1) * 1.7320508075688772);
}

bool Contains(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

// Ids of the tokens "0".."9" in the tokenizer: '!' is 4 and ASCII follows in order.
bool IsDigitToken(int64_t token) { return token >= 4 + ('0' - '!') && token <= 4 + ('9' - '!'); }

}  // namespace

formats::ModelConfig SmallModelConfig(const SmallModelOptions& options) {
  formats::ModelConfig config;
  config.family = options.qk_norm ? "qwen3" : "llama";
  config.qk_norm = options.qk_norm;
  config.hidden_size = options.hidden_size;
  config.num_layers = options.num_layers;
  config.num_heads = options.num_heads;
  config.num_kv_heads = options.num_kv_heads;
  config.head_dim = options.head_dim;
  config.intermediate_size = options.intermediate_size;
  config.vocab_size = options.vocab_size;
  config.max_position_embeddings = options.max_position_embeddings;
  config.rms_norm_eps = 1e-5f;
  config.rope_theta = 10000;
  config.rope_scaling = options.rope_scaling;
  config.layer_windows = options.layer_windows;
  config.tie_embeddings = options.tie_embeddings;
  config.qkv_bias = options.biases;
  config.o_bias = options.biases;
  config.mlp_bias = options.biases;
  if (options.gemma) {
    config.family = "gemma3_text";
    config.query_pre_attn_scalar = options.head_dim + 3;
    config.local_rope_theta = 500;
  }
  if (options.gpt_oss) {
    config.family = "gpt_oss";
    config.mlp_bias = false;
    config.num_experts = options.num_experts;
    config.experts_per_token = 2;
    config.expert_intermediate_size = options.intermediate_size;
    config.normalise_expert_weights = true;
  } else if (options.num_experts > 0) {
    config.family = "qwen3_moe";
    config.num_experts = options.num_experts;
    config.experts_per_token = 2;
    config.expert_intermediate_size = options.intermediate_size / 3;
    config.normalise_expert_weights = options.normalise_expert_weights;
    config.dense_layers = {0};
  }
  config.bos_token_id = 0;
  config.eos_token_ids = {kEosToken};
  return config;
}

std::vector<std::vector<float>> SmallModelWeights(const model::ParameterTable& table, uint64_t seed,
                                                  const SmallModelOptions& options) {
  std::vector<std::vector<float>> weights;
  for (int i = 0; i < table.size(); ++i) {
    const model::Parameter& p = table.at(i);
    const bool is_embedding = i == table.embedding();
    const bool is_head = i == table.head();
    // The final norm makes hidden values of about 1, so logits have head_scale * sqrt(hidden).
    const float head_scale =
        static_cast<float>(options.logit_scale / std::sqrt(options.hidden_size));
    float scale = Contains(p.name, "sinks") ? 1.0f : 0.1f;  // sinks, biases
    float center = 0;
    if (is_head) {
      scale = head_scale;
    } else if (is_embedding) {
      scale = 1;
    } else if (p.is_matrix()) {
      scale = 1.0f / std::sqrt(static_cast<float>(p.columns()));
    } else if (Contains(p.name, "norm")) {
      center = options.gemma ? 0 : 1;
    }
    std::vector<float> values(static_cast<size_t>(p.num_elements()));
    for (size_t j = 0; j < values.size(); ++j) {
      values[j] = center + scale * Draw(seed, static_cast<uint32_t>(i), j);
    }
    if (is_embedding && !table.tied()) {
      for (int64_t row = 0; row < p.rows(); ++row) {
        values[static_cast<size_t>(row * p.columns())] = kConstantChannel;
      }
    }
    if (is_head && !table.tied()) {
      // Beside a channel of size c among unit ones, the norm leaves about c / sqrt(1 + c^2 /
      // hidden).
      const double c = kConstantChannel;
      const double seen = c / std::sqrt(2 + c * c / options.hidden_size);
      for (int64_t row = 0; row < p.rows(); ++row) {
        double bias = 0;
        if (row == kEosToken) bias = options.eos_logit;
        if (IsDigitToken(row)) bias = options.digit_logit;
        values[static_cast<size_t>(row * p.columns())] = static_cast<float>(bias / seen);
      }
    }
    weights.push_back(std::move(values));
  }
  return weights;
}

void FillSmallModelSlot(kernels::Pool& pool, const model::ParameterTable& table, uint64_t seed,
                        const SmallModelOptions& options, void* slot) {
  const std::vector<std::vector<float>> weights = SmallModelWeights(table, seed, options);
  for (int i = 0; i < table.size(); ++i) {
    const Status stored =
        model::StoreParameter(pool, table.at(i), weights[static_cast<size_t>(i)], slot);
    TITAN_CHECK(stored.ok());
  }
}

Status MakeSmallModel(const std::string& folder, uint64_t seed, const SmallModelOptions& options) {
  if (options.vocab_size < kTokenizerSize) {
    return InvalidArgument("small model: vocab_size is below the tokenizer's 600");
  }
  const formats::ModelConfig config = SmallModelConfig(options);
  TITAN_ASSIGN_OR_RETURN(const model::ParameterTable table, model::ParameterTable::Of(config));
  TITAN_ASSIGN_OR_RETURN(const model::Floats slot, model::AllocateFloats(table.slot_floats()));
  kernels::Pool pool(1);
  FillSmallModelSlot(pool, table, seed, options, slot.get());
  const std::string source =
      std::string(TITAN_SOURCE_DIR) + "/tests/golden/tokenizer/tiny_bpe.tokenizer.json";
  std::ifstream in(source);
  nlohmann::ordered_json tokenizer = nlohmann::ordered_json::parse(in, nullptr, false);
  if (tokenizer.is_discarded()) return Internal("cannot read " + source);
  for (int id = kTokenizerSize; id < options.vocab_size; ++id) {
    tokenizer["model"]["vocab"]["[filler" + std::to_string(id) + "]"] = id;
  }
  formats::ModelBundle bundle;
  bundle.config = config;
  bundle.tokenizer_json = tokenizer.dump();
  const nlohmann::ordered_json tokenizer_config = {
      {"tokenizer_class", "PreTrainedTokenizerFast"},
      {"bos_token", "<|bos|>"},
      {"eos_token", "<|eos|>"},
  };
  bundle.tokenizer_config_json = tokenizer_config.dump(1);
  bundle.chat_template =
      "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}"
      "{% if message['role'] == 'assistant' %}<|eos|>{% endif %}{% endfor %}"
      "{% if add_generation_prompt %}<|assistant|>{% endif %}";
  return model::ExportHfFolder(pool, table, slot.get(), bundle, folder);
}

}  // namespace titan::test
