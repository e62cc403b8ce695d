// SPDX-License-Identifier: Apache-2.0
//
// Goal: a manifest that reaches the store describes memory that exists, and its stored form reads
// back or is refused. Method: one broken field at a time; random damage to the stored bytes.
#include "weightstore/client/manifest.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>

namespace titan::weightstore {
namespace {

Manifest Good() {
  Manifest manifest;
  manifest.tensors = {
      {"model.embed_tokens.weight", {40, 8}, DType::kF32, Layout::kPanels32, 0, 64 * 8 * 4},
      {"model.norm.weight", {8}, DType::kBf16, Layout::kRows, 2048, 16},
      {"scale", {}, DType::kF16, Layout::kRows, 2112, 2},
      {"lm_head.weight", {33, 7}, DType::kBf16, Layout::kPanels32K2, 2176, 64 * 8 * 2},
  };
  manifest.slot_bytes = 3328;
  manifest.model_config_json = "{}";
  manifest.contract_forward = "ab";
  manifest.contract_training = "cd";
  manifest.numerics_mode = "w16";
  manifest.contract_items = {{"linear.leaves", "8"}, {"canned.norm", "0f"}};
  return manifest;
}

TEST(ManifestTest, RefusesWhatDoesNotDescribeASlot) {
  ASSERT_TRUE(Validate(Good()).ok()) << Validate(Good());
  const std::vector<std::pair<std::string, std::function<void(Manifest&)>>> cases = {
      {"tensors", [](Manifest& m) { m.tensors.clear(); }},
      {"twice", [](Manifest& m) { m.tensors[1].name = m.tensors[0].name; }},
      {"name", [](Manifest& m) { m.tensors[1].name.clear(); }},
      {"shape", [](Manifest& m) { m.tensors[1].shape = {-8}; }},
      {"shape", [](Manifest& m) { m.tensors[1].shape = {0}; }},
      {"shape",
       [](Manifest& m) {
         m.tensors[1].shape = {1ll << 40, 1ll << 40};
       }},
      {"shape", [](Manifest& m) { m.tensors[1].shape.assign(9, 1); }},
      {"num_bytes", [](Manifest& m) { m.tensors[0].num_bytes -= 4; }},
      {"num_bytes", [](Manifest& m) { m.tensors[0].num_bytes = 40 * 8 * 4; }},
      {"offset", [](Manifest& m) { m.tensors[1].offset = 2049; }},
      {"overlaps", [](Manifest& m) { m.tensors[1].offset = 64; }},
      {"outside", [](Manifest& m) { m.tensors[1].offset = ~63ull; }},
      {"outside", [](Manifest& m) { m.slot_bytes = 2112; }},
      {"slot_bytes", [](Manifest& m) { m.slot_bytes = 0; }},
      {"slot_bytes", [](Manifest& m) { m.slot_bytes = ~0ull; }},
      {"layout", [](Manifest& m) { m.tensors[1].layout = Layout::kPanels32; }},
      {"layout", [](Manifest& m) { m.tensors[1].layout = static_cast<Layout>(9); }},
      {"layout", [](Manifest& m) { m.tensors[0].layout = Layout::kPanels32K2; }},
      {"layout", [](Manifest& m) { m.tensors[3].layout = Layout::kPanels32; }},
      {"num_bytes", [](Manifest& m) { m.tensors[3].num_bytes = 64 * 7 * 2; }},
      {"numerics_mode", [](Manifest& m) { m.numerics_mode.clear(); }},
      {"numerics_mode", [](Manifest& m) { m.numerics_mode.assign(33, 'x'); }},
      {"contract_items", [](Manifest& m) { m.contract_items[0].name.clear(); }},
      {"contract_items", [](Manifest& m) { m.contract_items[1].value.assign(5000, 'x'); }},
      {"contract_items",
       [](Manifest& m) {
         m.contract_items.resize(5000, {"n", "v"});
       }},
      {"dtype", [](Manifest& m) { m.tensors[1].dtype = static_cast<DType>(9); }},
  };
  for (const auto& [word, damage] : cases) {
    Manifest manifest = Good();
    damage(manifest);
    const Status status = Validate(manifest);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << word;
    EXPECT_NE(MessageOf(status).find(word), std::string::npos) << status;
  }
}

TEST(ManifestTest, StoredFormReadsBackAndDamageIsNoticedOrHarmless) {
  const std::string bytes = EncodeManifest(Good());
  const auto back = DecodeManifest(bytes);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, Good());
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_EQ(DecodeManifest(bytes.substr(0, size)).status().code(), StatusCode::kDataLoss);
  }
  EXPECT_EQ(DecodeManifest(bytes + "x").status().code(), StatusCode::kDataLoss);
  std::mt19937 random(5);
  for (int i = 0; i < 20'000; ++i) {
    std::string damaged = bytes;
    damaged[random() % damaged.size()] = static_cast<char>(random());
    const auto decoded = DecodeManifest(damaged);
    if (decoded.ok()) {
      EXPECT_TRUE(Validate(*decoded).ok());
    }
  }
}

// What a store wrote before there were items, bundles, and modes.
TEST(ManifestTest, ReadsEarlierEncodingsAsF32WithoutABundleOrItems) {
  Manifest manifest = Good();
  manifest.numerics_mode = "f32";
  manifest.contract_items.clear();
  std::string bytes = EncodeManifest(manifest);
  bytes.resize(bytes.size() - 4);  // no items
  bytes[0] = 3;
  EXPECT_EQ(*DecodeManifest(bytes), manifest);
  const std::string mode = std::string("\3\0\0\0", 4) + "f32";
  const size_t at = bytes.find(mode);
  ASSERT_NE(at, std::string::npos);
  bytes.erase(at + mode.size(), 4);  // an empty bundle
  bytes[0] = 2;
  auto back = DecodeManifest(bytes);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, manifest);
  bytes.erase(at, mode.size());
  bytes[0] = 1;
  back = DecodeManifest(bytes);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, manifest);
  bytes[0] = 5;
  EXPECT_EQ(DecodeManifest(bytes).status().code(), StatusCode::kDataLoss);
}

TEST(ManifestTest, TheItemThatDiffersIsNamed) {
  const std::vector<ContractItem> items = {{"a", "1"}, {"b", "2"}};
  EXPECT_EQ(DifferingItem(items, items), "");
  EXPECT_EQ(DifferingItem(items, {}), "");
  EXPECT_EQ(DifferingItem(items, {{"c", "1"}, {"b", "3"}}), "item b is 2 there and 3 here");
  EXPECT_EQ(DifferingItem(items, {{"b", "2"}}), "item a (1) stands there only");
  EXPECT_EQ(DifferingItem(items, {{"c", "4"}, {"b", "2"}, {"a", "1"}}),
            "item c (4) stands here only");
}

TEST(ManifestTest, DTypeNames) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBf16}) {
    EXPECT_EQ(*DTypeFromName(NameOf(dtype)), dtype);
  }
  EXPECT_EQ(DTypeFromName("f64").status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace titan::weightstore
