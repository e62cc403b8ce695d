// SPDX-License-Identifier: Apache-2.0
// Goal: GGUF files are read exactly, or refused by file and field before anything is sized by a bad
// number; q and k rows of architecture llama come out in Hugging Face order.
// Method: the field cases of tests/cases/gguf; every cut and every changed byte of a small good
// file.
#include "core/formats/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include <nlohmann/json.hpp>

#include "core/formats/gguf_model.h"
#include "core/formats/model_source.h"
#include "tests/support/test_files.h"

namespace titan::formats {
namespace {

using ::testing::HasSubstr;

TEST(GgufTest, HugeNumbersAreRefusedByField) {
  const struct {
    const char* file;
    std::vector<std::string> words;
  } cases[] = {
      {"pad_wrap.gguf", {"tensor blk.0.wrap", "size"}},
      {"count_huge.gguf", {"tensor count"}},
      {"key_length_huge.gguf", {"key length", "4611686018427387904"}},
  };
  for (const auto& c : cases) {
    const std::string path = CasePath(std::string("gguf/") + c.file);
    for (const Status& status : {GgufFile::Open(path).status(), OpenModelSource(path).status()}) {
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
      EXPECT_THAT(MessageOf(status), HasSubstr(c.file));
      for (const std::string& word : c.words) EXPECT_THAT(MessageOf(status), HasSubstr(word));
    }
  }
}

TEST(GgufTest, CutAndChangedFilesNeverCrash) {
  const TempFolder folder;
  const std::string good = ReadBytes(CasePath("gguf/qk_llama.gguf"));
  const size_t header = 2048;  // metadata and the table of tensors end before it
  for (size_t length = 0; length < header; length += 3) {
    const std::string path = WriteBytes(folder.path("cut.gguf"), good.substr(0, length));
    EXPECT_FALSE(OpenModelSource(path).ok()) << length;
  }
  for (size_t at = 0; at < header; ++at) {
    for (const uint8_t flip : {0x01, 0x80, 0xff}) {
      std::string bytes = good;
      bytes[at] = static_cast<char>(static_cast<uint8_t>(bytes[at]) ^ flip);
      const auto model = OpenModelSource(WriteBytes(folder.path("changed.gguf"), bytes));
      if (!model.ok()) continue;
      for (const TensorSpec& tensor : (*model)->tensors()) {
        std::vector<float> values(static_cast<size_t>(tensor.num_elements()));
        (void)(*model)->ReadTensorF32(tensor.name, values);
      }
    }
  }
}

TEST(GgufTest, RefusesOtherKindsOfFiles) {
  const TempFolder folder;
  EXPECT_EQ(GgufFile::Open(folder.path("none")).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(GgufFile::Open(folder.path()).status().code(), StatusCode::kInvalidArgument);
  EXPECT_FALSE(GgufFile::Open(WriteBytes(folder.path("empty"), "")).ok());
  std::string bytes = ReadBytes(CasePath("gguf/qk_llama.gguf"));
  bytes[4] = 1;
  const Status old = GgufFile::Open(WriteBytes(folder.path("old"), bytes)).status();
  EXPECT_EQ(old.code(), StatusCode::kUnimplemented);
  EXPECT_THAT(MessageOf(old), HasSubstr("version"));
}

TEST(GgufTest, TypesWithoutAConversionAreRefusedByTensorAndType) {
  const TempFolder folder;
  std::string bytes = ReadBytes(CasePath("gguf/qk_llama.gguf"));
  const size_t name = bytes.find("blk.0.ffn_up.weight");
  ASSERT_NE(name, std::string::npos);
  bytes[name + 19 + 4 + 16] = 20;  // after name, rank and two dimensions
  const Status status = OpenModelSource(WriteBytes(folder.path("iq4.gguf"), bytes)).status();
  EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
  EXPECT_THAT(MessageOf(status), HasSubstr("blk.0.ffn_up.weight"));
  EXPECT_THAT(MessageOf(status), HasSubstr("type IQ4_NL"));
}

// Llama 3's divisors of the rotary frequencies come as a tensor. The file is made with numbers that
// an independent program computed (head width 16, theta 500000, factor 32).
TEST(GgufTest, DivisorsOfRotaryFrequenciesAreRecognisedAsLlama3Scaling) {
  const std::string path = CasePath("gguf/llama3_rope.gguf");
  const auto model = OpenModelSource(path);
  ASSERT_TRUE(model.ok()) << model.status();
  RopeScaling want;
  want.kind = RopeScaling::Kind::kLlama3;
  want.factor = 32;
  want.low_freq_factor = 1;
  want.high_freq_factor = 4;
  want.original_max_position_embeddings = 8192;
  EXPECT_EQ((*model)->config().rope_scaling, want);
  EXPECT_EQ((*model)->config().rope_theta, 500000);
  // Another divisor is another rule.
  const auto file = GgufFile::Open(path);
  ASSERT_TRUE(file.ok());
  std::string bytes = ReadBytes(path);
  bytes[file->FindTensor("rope_freqs.weight")->offset + 2] ^= 0x20;
  const TempFolder folder;
  const Status status = OpenModelSource(WriteBytes(folder.path("other.gguf"), bytes)).status();
  EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
  EXPECT_THAT(MessageOf(status), HasSubstr("rope_freqs.weight: element 0"));
}

std::vector<float> FirstColumn(const ModelSource& model, const std::string& name, size_t width) {
  for (const TensorSpec& tensor : model.tensors()) {
    if (tensor.name != name) continue;
    std::vector<float> values(static_cast<size_t>(tensor.num_elements())), column;
    EXPECT_TRUE(model.ReadTensorF32(name, values).ok());
    for (size_t i = 0; i < values.size(); i += width) column.push_back(values[i]);
    return column;
  }
  ADD_FAILURE() << "no tensor " << name;
  return {};
}

TEST(GgufTest, QueryAndKeyRowsComeInHuggingFaceOrder) {
  const auto expect =
      nlohmann::json::parse(ReadBytes(CasePath("gguf/gguf-qk-order.json")))["expect"];
  for (const std::string arch : {"llama", "qwen2"}) {
    SCOPED_TRACE(arch);
    const std::string path = CasePath("gguf/qk_" + arch + ".gguf");
    const auto model = OpenModelSource(path);
    ASSERT_TRUE(model.ok()) << model.status();
    const std::string prefix = "model.layers.0.self_attn.";
    EXPECT_EQ(FirstColumn(**model, prefix + "q_proj.weight", 16),
              expect[arch]["hf_q_first_column"].get<std::vector<float>>());
    EXPECT_EQ(FirstColumn(**model, prefix + "k_proj.weight", 16),
              expect[arch]["hf_k_first_column"].get<std::vector<float>>());
    const auto file = GgufFile::Open(path);
    ASSERT_TRUE(file.ok());
    std::vector<float> stored(256), column;
    ASSERT_TRUE(file->ConvertTensor(*file->FindTensor("blk.0.attn_q.weight"), stored).ok());
    for (size_t i = 0; i < stored.size(); i += 16) column.push_back(stored[i]);
    EXPECT_EQ(column, expect[arch]["stored_q_first_column"].get<std::vector<float>>());
  }
}

// The file with one more float key. A second key fills up to 32 bytes, so that no data moves in its
// alignment.
std::string WithFloatKey(std::string bytes, const std::string& key, float value) {
  const auto number = [](auto n) {
    return std::string(reinterpret_cast<const char*>(&n), sizeof(n));
  };
  const auto text = [&](const std::string& s) { return number(uint64_t{s.size()}) + s; };
  constexpr size_t kKeyCount = 16, kFirstKey = 24;
  constexpr uint32_t kFloat = 6, kString = 8;
  std::string added =
      text(key) + number(kFloat) + number(value) + text("test.fill") + number(kString);
  added += text(std::string(64 - (added.size() + 8) % 32, 'x'));
  uint64_t keys = 0;
  std::memcpy(&keys, bytes.data() + kKeyCount, sizeof(keys));
  return bytes.replace(kKeyCount, sizeof(keys), number(keys + 2)).insert(kFirstKey, added);
}

TEST(GgufTest, KeysThatWouldChangeTheArithmeticAreRefusedUnlessNeutral) {
  const std::string good = ReadBytes(CasePath("gguf/qk_llama.gguf"));
  const TempFolder folder;
  struct Case {
    const char* key;
    float neutral;
    std::vector<float> other;
  };
  const Case cases[] = {{"llama.rope.scaling.yarn_ext_factor", 1, {0, 0.5f}},
                        {"llama.rope.scaling.yarn_beta_fast", 32, {0, 1, 16}},
                        {"llama.rope.scaling.yarn_beta_slow", 1, {0, 2}},
                        {"llama.rope.scaling.yarn_log_multiplier", 0, {1, 0.1f}},
                        {"llama.rope.scaling.attn_factor", 1, {0, 1.2f}},
                        {"llama.rope.scaling.yarn_attn_factor", 1, {0, 1.2f}},
                        {"llama.attention.scale", 0, {1, 0.125f}},
                        {"llama.attention.clamp_kqv", 0, {1, 8}},
                        {"llama.logit_scale", 1, {0.5f}},
                        {"llama.residual_scale", 0, {0.22f}}};
  for (const Case& c : cases) {
    const auto open = [&](float value) {
      return OpenModelSource(WriteBytes(folder.path("key.gguf"), WithFloatKey(good, c.key, value)))
          .status();
    };
    EXPECT_TRUE(open(c.neutral).ok()) << c.key << ": " << open(c.neutral);
    for (const float value : c.other) {
      EXPECT_EQ(open(value).code(), StatusCode::kUnimplemented) << c.key << " " << value;
      EXPECT_THAT(MessageOf(open(value)), HasSubstr(c.key));
    }
  }
}

TEST(GgufTest, ReadsTheConfigurationAndTheTokenizer) {
  const auto model = OpenModelSource(CasePath("gguf/qk_llama.gguf"));
  ASSERT_TRUE(model.ok()) << model.status();
  const ModelConfig& config = (*model)->config();
  EXPECT_EQ(config.family, "llama");
  EXPECT_EQ(config.hidden_size, 16);
  EXPECT_EQ(config.num_kv_heads, 2);
  EXPECT_EQ(config.head_dim, 4);
  EXPECT_EQ(config.vocab_size, 8);
  EXPECT_EQ(config.rms_norm_eps, 1e-5f);
  EXPECT_FALSE(config.tie_embeddings);
  EXPECT_EQ(config.eos_token_ids, std::vector<int32_t>{1});
  ASSERT_TRUE((*model)->tokenizer().gguf.has_value());
  EXPECT_EQ((*model)->tokenizer().gguf->tokens.size(), 8u);
  EXPECT_EQ((*model)->tokenizer().gguf->merges, std::vector<std::string>{"a b"});
}

TEST(GgufTest, ReadingChecksNameAndSpan) {
  const auto model = OpenModelSource(CasePath("gguf/qk_llama.gguf"));
  ASSERT_TRUE(model.ok());
  std::vector<float> values(15);
  EXPECT_EQ((*model)->ReadTensorF32("no.such", values).code(), StatusCode::kNotFound);
  EXPECT_EQ((*model)->ReadTensorF32("model.norm.weight", values).code(),
            StatusCode::kInvalidArgument);
}

TEST(GgufTest, BiasRowsAreReorderedToo) {
  EXPECT_TRUE(HasInterleavedRows("llama", "model.layers.3.self_attn.k_proj.bias"));
  EXPECT_FALSE(HasInterleavedRows("llama", "model.layers.3.self_attn.v_proj.bias"));
  EXPECT_FALSE(HasInterleavedRows("qwen2", "model.layers.3.self_attn.q_proj.weight"));
  EXPECT_EQ(InterleavedRowOf(0, 64), 0);
  EXPECT_EQ(InterleavedRowOf(1, 64), 2);
  EXPECT_EQ(InterleavedRowOf(32, 64), 1);
  EXPECT_EQ(InterleavedRowOf(64 + 63, 64), 64 + 63);
  EXPECT_EQ(GgufNameOf("model.layers.12.mlp.down_proj.bias"), "blk.12.ffn_down.bias");
  EXPECT_FALSE(HasInterleavedRows("qwen3", "model.layers.3.self_attn.q_proj.weight"));
  EXPECT_EQ(GgufNameOf("model.layers.2.self_attn.q_norm.weight"), "blk.2.attn_q_norm.weight");
  EXPECT_EQ(GgufNameOf("model.rotary.inv_freq"), "");
}

}  // namespace
}  // namespace titan::formats
