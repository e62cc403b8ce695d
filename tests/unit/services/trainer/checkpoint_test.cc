// SPDX-License-Identifier: Apache-2.0
//
// Goal: a checkpoint's manifest is valid and names what differs from another run's, its bytes are
// those of the arrays, its facts come back bit for bit. Method: a small model's table; the digest
// of the bytes as they are sent is compared with that of the arrays.
#include "services/trainer/checkpoint.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <vector>

#include "services/models/manifest_of.h"
#include "tests/support/small_model.h"
#include "weightstore/client/weights_digest.h"

namespace titan::services {
namespace {

struct SmallRun {
  SmallRun() {
    test::SmallModelOptions options;
    options.hidden_size = 48;
    options.intermediate_size = 80;
    options.vocab_size = 600;
    options.num_heads = 2;
    options.num_kv_heads = 1;
    options.head_dim = 16;
    config = test::SmallModelConfig(options);
    table = std::make_unique<model::ParameterTable>(
        *model::ParameterTable::Of(config, model::Mode::kF32));
    manifest = ManifestOf(*table, config);
    manifest.contract_forward = "f";
    manifest.contract_training = "t";
    manifest.contract_items = {{"optimizer.learning_rate", "0.1"}};
    manifest.bundle = std::string(32, 'a');
    checkpoint = CheckpointManifest(manifest, *table);
    for (size_t array = 0; array < kCheckpointArrays; ++array) {
      bytes[array].resize(static_cast<size_t>(table->slot_bytes()));
      for (size_t i = 0; i < bytes[array].size(); ++i) {
        bytes[array][i] = static_cast<std::byte>(i * (array + 3) % 251);
      }
      arrays[array] = bytes[array].data();
    }
  }
  formats::ModelConfig config;
  std::unique_ptr<model::ParameterTable> table;
  weightstore::Manifest manifest, checkpoint;
  std::array<std::vector<std::byte>, kCheckpointArrays> bytes;
  CheckpointArrays arrays;
};

TEST(CheckpointTest, ItsBytesAreThoseOfTheArrays) {
  const SmallRun run;
  EXPECT_TRUE(weightstore::Validate(run.checkpoint).ok()) << weightstore::Validate(run.checkpoint);
  EXPECT_EQ(run.checkpoint.tensors.size(), 3 * run.manifest.tensors.size());
  EXPECT_EQ(run.checkpoint.bundle, "");
  CheckpointBytes stream(run.checkpoint, run.arrays);
  std::string all;
  for (std::string part = stream.Next(); !part.empty(); part = stream.Next()) {
    EXPECT_LE(part.size(), size_t{1} << 20);
    all += part;
  }
  Hash128 sum;
  size_t at = 0;
  std::map<std::string, const std::byte*> of_name;
  for (const auto& tensor : run.checkpoint.tensors) {
    const auto* data = reinterpret_cast<const std::byte*>(all.data()) + at;
    of_name[tensor.name] = data;
    sum += weightstore::TensorDigest(tensor, data);
    at += tensor.num_bytes;
  }
  EXPECT_EQ(at, all.size());
  EXPECT_EQ(sum, CheckpointDigest(run.checkpoint, run.arrays));
  const auto& first = run.manifest.tensors[1];
  EXPECT_EQ(std::memcmp(of_name.at("second_moment/" + first.name), run.arrays[2] + first.offset,
                        first.num_bytes),
            0);
}

TEST(CheckpointTest, AnotherRunIsRefusedNamingWhatDiffers) {
  const SmallRun run;
  EXPECT_TRUE(CheckSameRun(run.checkpoint, run.checkpoint).ok());
  const auto refusal = [&](void (*change)(weightstore::Manifest&)) {
    weightstore::Manifest other = run.checkpoint;
    change(other);
    const Status status = CheckSameRun(other, run.checkpoint);
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
    return MessageOf(status);
  };
  EXPECT_NE(refusal([](auto& m) {
              m.contract_training = "u";
              m.contract_items[0].value = "0.2";
            }).find("optimizer.learning_rate is 0.2 there and 0.1 here"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& m) { m.numerics_mode = "w16"; }).find("numerics_mode"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& m) { m.model_config_json += " "; }).find("model_config_json"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& m) { m.tensors[4].shape[0] += 1; }).find("tensor "),
            std::string::npos);
  EXPECT_NE(refusal([](auto& m) { m.tensors.pop_back(); }).find("number or size"),
            std::string::npos);
}

TEST(CheckpointTest, FactsComeBackBitForBit) {
  const CheckpointFacts facts = {{0x0123456789abcdef, 42}, {7, 0.9 * 0.9 * 0.9, 1e-300}};
  const auto back = DecodeFacts(EncodeFacts(facts));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->weights_digest, facts.weights_digest);
  EXPECT_EQ(back->powers.step, 7);
  EXPECT_EQ(std::memcmp(&back->powers.beta1_power, &facts.powers.beta1_power, sizeof(double)), 0);
  EXPECT_EQ(std::memcmp(&back->powers.beta2_power, &facts.powers.beta2_power, sizeof(double)), 0);
  EXPECT_EQ(DecodeFacts("").status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(DecodeFacts("\xff\xff").status().code(), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace titan::services
