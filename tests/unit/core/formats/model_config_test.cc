// SPDX-License-Identifier: Apache-2.0
// Goal: config.json is read exactly or refused by field; the canonical text reads back to the same
// value. Method: one good text, mutated one field at a time; seeds for the round trip of floats.
#include "core/formats/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>

#include <nlohmann/json.hpp>

#include "core/base/philox.h"
#include "core/formats/fused_experts.h"

namespace titan::formats {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

json GoodLlama() {
  return json::parse(R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 256, "rms_norm_eps": 1e-05,
    "max_position_embeddings": 512, "rope_theta": 1000.0, "tie_word_embeddings": true,
    "attention_bias": false, "bos_token_id": 1, "eos_token_id": [2, 5]})");
}

StatusOr<ModelConfig> Parse(const json& config) {
  return ParseHfConfig(config.dump(), "config.json");
}

TEST(ModelConfigTest, ReadsEveryField) {
  const auto config = Parse(GoodLlama());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->head_dim, 16);
  EXPECT_EQ(config->num_kv_heads, 2);
  EXPECT_EQ(config->rms_norm_eps, 1e-5f);
  EXPECT_EQ(config->rope_theta, 1000.0);
  EXPECT_TRUE(config->tie_embeddings);
  EXPECT_EQ(config->eos_token_ids, (std::vector<int32_t>{2, 5}));
}

TEST(ModelConfigTest, BothSpellingsOfRopeAgree) {
  const json scaling = {{"factor", 8.0},
                        {"low_freq_factor", 1.0},
                        {"high_freq_factor", 4.0},
                        {"original_max_position_embeddings", 64}};
  json older = GoodLlama();
  older["rope_scaling"] = scaling;
  older["rope_scaling"]["type"] = "llama3";
  json newer = GoodLlama();
  newer.erase("rope_theta");
  newer["rope_parameters"] = scaling;
  newer["rope_parameters"]["rope_type"] = "llama3";
  newer["rope_parameters"]["rope_theta"] = 1000.0;
  const auto a = Parse(older), b = Parse(newer);
  ASSERT_TRUE(a.ok()) << a.status();
  ASSERT_TRUE(b.ok()) << b.status();
  EXPECT_EQ(*a, *b);
  EXPECT_EQ(a->rope_scaling.kind, RopeScaling::Kind::kLlama3);
  EXPECT_EQ(a->rope_scaling.original_max_position_embeddings, 64);

  newer["rope_theta"] = 999.0;
  EXPECT_FALSE(Parse(newer).ok());
}

TEST(ModelConfigTest, RefusesByField) {
  const struct {
    const char* field;
    json value;  // null: erased
    StatusCode code;
  } cases[] = {
      {"model_type", "mamba", StatusCode::kUnimplemented},
      {"model_type", nullptr, StatusCode::kInvalidArgument},
      {"hidden_act", "gelu", StatusCode::kUnimplemented},
      {"architectures", {"LlamaForSequenceClassification"}, StatusCode::kUnimplemented},
      {"quantization_config", {{"bits", 4}}, StatusCode::kUnimplemented},
      {"sliding_window", 128, StatusCode::kUnimplemented},
      {"rope_scaling", {{"rope_type", "longrope"}, {"factor", 2.0}}, StatusCode::kUnimplemented},
      {"rope_scaling", {{"rope_type", "yarn"}, {"factor", 2.0}}, StatusCode::kInvalidArgument},
      {"rope_scaling",
       {{"rope_type", "yarn"},
        {"factor", 2.0},
        {"original_max_position_embeddings", 64},
        {"beta_fast", 1.0},
        {"beta_slow", 2.0}},
       StatusCode::kInvalidArgument},
      {"rope_scaling", {{"rope_type", "linear"}, {"factor", 0.5}}, StatusCode::kInvalidArgument},
      {"rope_scaling", {{"rope_type", "llama3"}}, StatusCode::kInvalidArgument},
      {"partial_rotary_factor", 0.5, StatusCode::kUnimplemented},
      {"attention_dropout", 0.1, StatusCode::kUnimplemented},
      {"hidden_size", nullptr, StatusCode::kInvalidArgument},
      {"hidden_size", 0, StatusCode::kInvalidArgument},
      {"hidden_size", "64", StatusCode::kInvalidArgument},
      {"hidden_size", 1e300, StatusCode::kInvalidArgument},
      {"num_hidden_layers", -1, StatusCode::kInvalidArgument},
      {"num_key_value_heads", 3, StatusCode::kInvalidArgument},
      {"head_dim", 15, StatusCode::kInvalidArgument},
      {"rms_norm_eps", 0.0, StatusCode::kInvalidArgument},
      {"rms_norm_eps", nullptr, StatusCode::kInvalidArgument},
      {"rope_theta", 0.5, StatusCode::kInvalidArgument},
      {"eos_token_id", {2, 256}, StatusCode::kInvalidArgument},
      {"eos_token_id", {2, 2}, StatusCode::kInvalidArgument},
      {"bos_token_id", 300, StatusCode::kInvalidArgument},
      {"tie_word_embeddings", 1, StatusCode::kInvalidArgument},
      {"vocab_size", 1ll << 40, StatusCode::kInvalidArgument},
  };
  for (const auto& c : cases) {
    json config = GoodLlama();
    config[c.field] = c.value;
    SCOPED_TRACE(config.dump());
    const auto parsed = Parse(config);
    ASSERT_FALSE(parsed.ok());
    EXPECT_EQ(parsed.status().code(), c.code) << parsed.status();
    EXPECT_THAT(MessageOf(parsed.status()), HasSubstr("config.json"));
    EXPECT_THAT(MessageOf(parsed.status()), HasSubstr(c.field));
  }
}

TEST(ModelConfigTest, RefusesTextThatIsNotStrictJson) {
  for (const std::string text : {"", "{", "[1]", "{\"a\": 1, \"a\": 2}", "\xff", "{} x"}) {
    EXPECT_FALSE(ParseHfConfig(text, "config.json").ok()) << text;
  }
  const auto deep = ParseHfConfig(std::string(100000, '['), "config.json");
  EXPECT_FALSE(deep.ok());
}

TEST(ModelConfigTest, CanonicalTextReadsBackEqual) {
  json qwen = GoodLlama();
  qwen["model_type"] = "qwen2";
  qwen["architectures"] = {"Qwen2ForCausalLM"};
  json scaled = GoodLlama();
  scaled["attention_bias"] = true;
  scaled["bos_token_id"] = nullptr;
  scaled["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", 8.0},
                            {"low_freq_factor", 1.0},
                            {"high_freq_factor", 4.0},
                            {"original_max_position_embeddings", 64}};
  json linear = GoodLlama();
  linear["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 4.0}};
  json yarn = qwen;
  yarn["rope_scaling"] = {
      {"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}};
  json full = yarn;
  full["rope_scaling"].update({{"beta_fast", 16.0},
                               {"beta_slow", 0.5},
                               {"truncate", false},
                               {"mscale", 0.707},
                               {"mscale_all_dim", 1.5},
                               {"attention_factor", 1.25}});
  for (const json& text : {GoodLlama(), qwen, scaled, linear, yarn, full}) {
    auto config = Parse(text);
    ASSERT_TRUE(config.ok()) << config.status();
    for (uint32_t i = 0; i < 200; ++i) {
      const uint32_t word = RandomWord(7, RandomDomain::kDataOrder, i, 0, 0);
      config->rms_norm_eps = std::bit_cast<float>(0x30000000u + word % 0x0f000000u);
      const std::string canonical = ToHfConfigJson(*config);
      const auto again = ParseHfConfig(canonical, "canonical");
      ASSERT_TRUE(again.ok()) << again.status();
      EXPECT_EQ(*again, *config);
      EXPECT_EQ(ToHfConfigJson(*again), canonical);
    }
  }
}

TEST(ModelConfigTest, Qwen3HasHeadNormsAndItsOwnHeadWidth) {
  json text = GoodLlama();
  text["model_type"] = "qwen3";
  text["architectures"] = {"Qwen3ForCausalLM"};
  text["sliding_window"] = 4096;  // without use_sliding_window: no effect
  text["max_window_layers"] = 28;
  text["num_attention_heads"] = 6;  // does not divide hidden_size
  text["num_key_value_heads"] = 2;
  text.erase("head_dim");
  const auto config = Parse(text);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->head_dim, 128);
  EXPECT_TRUE(config->qk_norm);
  EXPECT_FALSE(config->qkv_bias);
  const auto tensors = CanonicalTensors(*config);
  EXPECT_EQ(tensors.size(), 1u + 2 * 11 + 1);
  EXPECT_EQ(tensors[6], (TensorSpec{"model.layers.0.self_attn.q_norm.weight", {128}}));
  EXPECT_EQ(tensors[7], (TensorSpec{"model.layers.0.self_attn.k_norm.weight", {128}}));
  EXPECT_EQ(*ParseHfConfig(ToHfConfigJson(*config), "canonical"), *config);
  text["use_sliding_window"] = true;
  text["max_window_layers"] = 1;
  const auto windowed = Parse(text);
  ASSERT_TRUE(windowed.ok()) << windowed.status();
  EXPECT_EQ(windowed->layer_windows, (std::vector<int32_t>{0, 4096}));
  EXPECT_EQ(*ParseHfConfig(ToHfConfigJson(*windowed), "canonical"), *windowed);
  text["layer_types"] = {"sliding_attention", "full_attention"};  // above max_window_layers
  EXPECT_EQ(Parse(text)->layer_windows, (std::vector<int32_t>{4096, 0}));
  json contradiction = text;
  contradiction["use_sliding_window"] = false;
  EXPECT_THAT(MessageOf(Parse(contradiction).status()), HasSubstr("layer_types"));
  text["layer_types"] = {"full_attention"};
  EXPECT_THAT(MessageOf(Parse(text).status()), HasSubstr("layer_types"));
  text["layer_types"] = {"sliding_attention", "linear_attention"};
  EXPECT_EQ(Parse(text).status().code(), StatusCode::kUnimplemented);
  ModelConfig wrong = *config;
  wrong.qk_norm = false;
  EXPECT_THAT(MessageOf(ValidateModelConfig(wrong)), HasSubstr("qk_norm"));
}

TEST(ModelConfigTest, Gemma3HasTwoRotationsAndItsOwnScale) {
  json text = GoodLlama();
  text.update({{"model_type", "gemma3_text"},
               {"architectures", {"Gemma3ForCausalLM"}},
               {"hidden_activation", "gelu_pytorch_tanh"},
               {"query_pre_attn_scalar", 24},
               {"sliding_window", 16},
               {"layer_types", {"sliding_attention", "full_attention"}}});
  text.erase("hidden_act");
  json newer = text;
  newer.erase("rope_theta");
  newer["rope_parameters"] = {
      {"full_attention", {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 1000.0}}},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 500.0}}}};
  text["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8.0}};
  text["rope_local_base_freq"] = 500.0;
  const auto a = Parse(text), b = Parse(newer);
  ASSERT_TRUE(a.ok()) << a.status();
  ASSERT_TRUE(b.ok()) << b.status();
  EXPECT_EQ(*a, *b);
  EXPECT_EQ(a->layer_windows, (std::vector<int32_t>{16, 0}));
  EXPECT_EQ(a->local_rope_theta, 500);
  EXPECT_EQ(a->query_pre_attn_scalar, 24);
  EXPECT_EQ(a->head_dim, 256);
  EXPECT_EQ(*ParseHfConfig(ToHfConfigJson(*a), "canonical"), *a);
  const auto tensors = CanonicalTensors(*a);
  EXPECT_EQ(tensors.size(), 1u + 2 * 13 + 1);
  EXPECT_EQ(tensors[9].name, "model.layers.0.pre_feedforward_layernorm.weight");
  const std::pair<const char*, json> wrong[] = {
      {"final_logit_softcapping", 30.0},     {"attn_logit_softcapping", 50.0},
      {"use_bidirectional_attention", true}, {"hidden_activation", "gelu"},
      {"query_pre_attn_scalar", 0},          {"attention_bias", true},
      {"layer_types", {"full_attention"}}};
  for (const auto& [field, value] : wrong) {
    json changed = text;
    changed[field] = value;
    EXPECT_THAT(MessageOf(Parse(changed).status()), HasSubstr(field));
  }
}

TEST(ModelConfigTest, ExpertsOfQwen3Moe) {
  json text = GoodLlama();
  text.update({{"model_type", "qwen3_moe"},
               {"architectures", {"Qwen3MoeForCausalLM"}},
               {"num_local_experts", 4},
               {"num_experts_per_tok", 2},
               {"moe_intermediate_size", 24},
               {"mlp_only_layers", {0}}});
  const auto config = Parse(text);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->num_experts, 4);
  EXPECT_FALSE(config->normalise_expert_weights);
  EXPECT_EQ(config->dense_layers, std::vector<int32_t>{0});
  EXPECT_FALSE(config->is_sparse(0));
  EXPECT_TRUE(config->is_sparse(1));
  EXPECT_EQ(*ParseHfConfig(ToHfConfigJson(*config), "canonical"), *config);
  const auto tensors = CanonicalTensors(*config);
  EXPECT_EQ(tensors.size(), 1u + 11 + 8 + 1 + 3 * 4 + 1);
  EXPECT_EQ(tensors[20], (TensorSpec{"model.layers.1.mlp.gate.weight", {4, 64}}));
  EXPECT_EQ(tensors[23], (TensorSpec{"model.layers.1.mlp.experts.0.down_proj.weight", {64, 24}}));
  json stepped = text;
  stepped["num_hidden_layers"] = 5;
  stepped["decoder_sparse_step"] = 2;
  EXPECT_EQ(Parse(stepped)->dense_layers, (std::vector<int32_t>{0, 2, 4}));
  const std::pair<const char*, json> wrong[] = {
      {"num_experts_per_tok", 5},    {"num_experts_per_tok", nullptr}, {"num_experts", 0},
      {"moe_intermediate_size", -1}, {"mlp_only_layers", {2}},         {"decoder_sparse_step", 0}};
  for (const auto& [field, value] : wrong) {
    json changed = text;
    changed[field] = value;
    EXPECT_THAT(MessageOf(Parse(changed).status()), HasSubstr(field));
  }
  // Small numbers whose product is not.
  json many = text;
  many["num_hidden_layers"] = 4096;
  many["num_experts"] = 4096;
  EXPECT_THAT(MessageOf(Parse(many).status()), HasSubstr("num_experts * num_hidden_layers"));
  // All layers slide or none does; max_window_layers is not read.
  text["use_sliding_window"] = true;
  text["sliding_window"] = 32;
  EXPECT_EQ(Parse(text)->layer_windows, (std::vector<int32_t>{32, 32}));
  EXPECT_EQ(*ParseHfConfig(ToHfConfigJson(*Parse(text)), "canonical"), *Parse(text));
  ModelConfig dense = *Parse(GoodLlama());
  dense.num_experts = 2;
  EXPECT_THAT(MessageOf(ValidateModelConfig(dense)), HasSubstr("num_experts"));
}

TEST(ModelConfigTest, GptOssHasSinksAndExpertsWithBiasesInEveryLayer) {
  json text = GoodLlama();
  text.update({{"model_type", "gpt_oss"},
               {"architectures", {"GptOssForCausalLM"}},
               {"num_local_experts", 4},
               {"num_experts_per_tok", 2},
               {"intermediate_size", 24},
               {"swiglu_limit", 7.0},
               {"rope_scaling",
                {{"rope_type", "yarn"},
                 {"factor", 32.0},
                 {"truncate", false},
                 {"original_max_position_embeddings", 64}}}});
  text.erase("rope_theta");
  text.erase("head_dim");
  text.erase("attention_bias");
  const auto config = Parse(text);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->head_dim, 64);
  EXPECT_EQ(config->rope_theta, 150000);
  EXPECT_TRUE(config->qkv_bias && config->o_bias);
  EXPECT_EQ(config->layer_windows, (std::vector<int32_t>{128, 0}));  // the class's
  EXPECT_EQ(config->expert_intermediate_size, 24);
  EXPECT_TRUE(config->is_sparse(0) && config->is_sparse(1));
  EXPECT_EQ(*ParseHfConfig(ToHfConfigJson(*config), "canonical"), *config);
  const auto tensors = CanonicalTensors(*config);
  EXPECT_EQ(tensors.size(), 1u + 2 * (1 + 8 + 1 + 1 + 2 + 4 * 6) + 1);
  EXPECT_EQ(tensors[10], (TensorSpec{"model.layers.0.self_attn.sinks", {4}}));
  EXPECT_EQ(tensors[12], (TensorSpec{"model.layers.0.mlp.router.weight", {4, 64}}));
  EXPECT_EQ(tensors[14], (TensorSpec{"model.layers.0.mlp.experts.0.gate_proj.weight", {24, 64}}));
  EXPECT_EQ(tensors[17], (TensorSpec{"model.layers.0.mlp.experts.1.up_proj.weight", {24, 64}}));
  const auto stored = FileTensors(*config);
  EXPECT_EQ(stored.size(), 1u + 2 * (1 + 8 + 1 + 1 + 2 + 4) + 1);
  EXPECT_EQ(stored[14], (TensorSpec{"model.layers.0.mlp.experts.gate_up_proj", {4, 64, 48}}));
  EXPECT_EQ(stored[15], (TensorSpec{"model.layers.0.mlp.experts.gate_up_proj_bias", {4, 48}}));
  EXPECT_EQ(stored[16], (TensorSpec{"model.layers.0.mlp.experts.down_proj", {4, 24, 64}}));
  EXPECT_EQ(stored[17], (TensorSpec{"model.layers.0.mlp.experts.down_proj_bias", {4, 64}}));
  json first = text;  // the fields of the first files
  first.erase("num_experts_per_tok");
  first["experts_per_token"] = 2;
  first["layer_types"] = {"sliding_attention", "full_attention"};
  first["sliding_window"] = 128;
  EXPECT_EQ(*Parse(first), *config);
  first["rope_scaling"] = {{"rope_type", "default"}};  // without the field the class has yarn
  EXPECT_EQ(Parse(first)->rope_scaling, RopeScaling());
  EXPECT_EQ(*ParseHfConfig(ToHfConfigJson(*Parse(first)), "canonical"), *Parse(first));
  const std::pair<const char*, json> wrong[] = {
      {"num_local_experts", nullptr}, {"num_local_experts", 0},
      {"num_experts_per_tok", 5},     {"swiglu_limit", 6.0},
      {"swiglu_alpha", 1.0},          {"layer_types", {"full_attention"}},
      {"sliding_window", 0},          {"quantization_config", {{"quant_method", "mxfp4"}}},
      {"rope_scaling", nullptr},      {"hidden_act", "gelu"}};
  for (const auto& [field, value] : wrong) {
    json changed = text;
    changed[field] = value;
    EXPECT_THAT(MessageOf(Parse(changed).status()), HasSubstr(field));
  }
}

// Families whose blocks are not covered: a convolution, an output gate, a part of a head rotated.
TEST(ModelConfigTest, HybridFamiliesAreRefusedByTheirName) {
  for (const char* family : {"qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe_text"}) {
    json text = GoodLlama();
    text["model_type"] = family;
    const Status status = Parse(text).status();
    EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
    EXPECT_THAT(MessageOf(status), HasSubstr("model_type"));
    EXPECT_THAT(MessageOf(status), HasSubstr(family));
  }
}

TEST(ModelConfigTest, MistralSlidesInEveryLayer) {
  json text = GoodLlama();
  text["model_type"] = "mistral";
  text["architectures"] = {"MistralForCausalLM"};
  EXPECT_EQ(Parse(text)->layer_windows, (std::vector<int32_t>{4096, 4096}));  // the class's
  text["sliding_window"] = nullptr;
  EXPECT_TRUE(Parse(text)->layer_windows.empty());
  for (const json& window : {json(16), json()}) {
    text["sliding_window"] = window;
    const auto config = Parse(text);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(*ParseHfConfig(ToHfConfigJson(*config), "canonical"), *config);
  }
  text["sliding_window"] = 0;
  EXPECT_THAT(MessageOf(Parse(text).status()), HasSubstr("sliding_window"));
  text["sliding_window"] = 16;
  ModelConfig wrong = *Parse(text);
  wrong.layer_windows = {16, 0};
  EXPECT_EQ(ValidateModelConfig(wrong).code(), StatusCode::kInvalidArgument);
  wrong.layer_windows = {16};
  EXPECT_EQ(ValidateModelConfig(wrong).code(), StatusCode::kInvalidArgument);
}

TEST(ModelConfigTest, CanonicalTensorsFollowBiasesAndTying) {
  auto config = Parse(GoodLlama());
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(CanonicalTensors(*config).size(), 1u + 2 * 9 + 1);
  config->qkv_bias = config->o_bias = config->mlp_bias = true;
  config->tie_embeddings = false;
  const auto tensors = CanonicalTensors(*config);
  EXPECT_EQ(tensors.size(), 1u + 2 * 16 + 2);
  EXPECT_EQ(tensors[2], (TensorSpec{"model.layers.0.self_attn.q_proj.weight", {64, 64}}));
  EXPECT_EQ(tensors[5], (TensorSpec{"model.layers.0.self_attn.k_proj.bias", {32}}));
  EXPECT_EQ(tensors.back(), (TensorSpec{"lm_head.weight", {256, 64}}));
}

}  // namespace
}  // namespace titan::formats
