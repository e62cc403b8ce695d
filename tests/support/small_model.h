// SPDX-License-Identifier: Apache-2.0
//
// A small Llama-form (or qwen3) model made by Philox, for tests that need a model without a
// download: its sizes exercise the order (leaves of hidden 512 and intermediate 1024, grouped
// queries, a vocabulary that is not a multiple of 1024), its tokens vary when sampled, and it ends
// some samples by itself.
//
// MakeSmallModel writes a Hugging Face folder: config.json, model.safetensors, and a tokenizer.json
// that is tests/golden/tokenizer/tiny_bpe.tokenizer.json with filler tokens up to the vocabulary,
// with a chat template in tokenizer_config.json. Same seed and options, same bytes. Add
// support/small_model.cc to the sources of the test. Test code, any thread.
#ifndef TITAN_TESTS_SUPPORT_SMALL_MODEL_H_
#define TITAN_TESTS_SUPPORT_SMALL_MODEL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/formats/model_config.h"
#include "core/kernels/pool.h"
#include "core/model/parameters.h"

namespace titan::test {

struct SmallModelOptions {
  int32_t hidden_size = 512;
  int32_t intermediate_size = 1024;
  int32_t vocab_size = 2560;  // MakeSmallModel: at least 600
  int32_t num_layers = 2;
  int32_t num_heads = 8;
  int32_t num_kv_heads = 2;
  int32_t head_dim = 64;
  int32_t max_position_embeddings = 2048;
  bool tie_embeddings = false;
  bool biases = false;   // of all linears
  bool qk_norm = false;  // family qwen3 instead of llama; no biases
  formats::RopeScaling rope_scaling;
  bool gemma = false;  // family gemma3_text; needs qk_norm and no biases
  // Above 0: family qwen3_moe, two chosen of so many, each a third of intermediate_size wide; the
  // first layer is dense. Needs qk_norm.
  int32_t num_experts = 0;
  bool normalise_expert_weights = true;
  // Family gpt_oss; needs num_experts (of intermediate_size, in every layer) and no qk_norm.
  bool gpt_oss = false;
  std::vector<int32_t> layer_windows;  // of qk_norm and gpt_oss models; family llama has none
  // Roughly what is added to the logits of <|eos|> and of each digit (untied models only).
  double eos_logit = 3.0;
  double digit_logit = 2.5;
  // Standard deviation of the other logits, roughly.
  double logit_scale = 1.5;
};

formats::ModelConfig SmallModelConfig(const SmallModelOptions& options);

// Row-major values of every parameter of the table.
std::vector<std::vector<float>> SmallModelWeights(const model::ParameterTable& table, uint64_t seed,
                                                  const SmallModelOptions& options);

// The same packed into a zeroed slot of the table's mode.
void FillSmallModelSlot(kernels::Pool& pool, const model::ParameterTable& table, uint64_t seed,
                        const SmallModelOptions& options, void* slot);

Status MakeSmallModel(const std::string& folder, uint64_t seed,
                      const SmallModelOptions& options = {});

}  // namespace titan::test

#endif  // TITAN_TESTS_SUPPORT_SMALL_MODEL_H_
