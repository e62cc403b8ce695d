// SPDX-License-Identifier: Apache-2.0
//
// Weights through files: what is exported loads again to the same slot bytes, also the Philox-made
// model folder with its tokenizer; failures name the path.
#include "core/model/model_files.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/model_fixture.h"
#include "tests/support/small_model.h"

namespace titan::test {
namespace {

// A folder of this test's own, removed at its end.
class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "titan_model_XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  std::string operator/(const char* leaf) const { return path_ + "/" + leaf; }

 private:
  std::string path_;
};

SmallModelOptions SomeOptions(bool tied, bool biases) {
  SmallModelOptions options;
  options.hidden_size = 40;
  options.intermediate_size = 72;
  options.num_heads = 4;
  options.head_dim = 10;
  options.vocab_size = 611;
  options.tie_embeddings = tied;
  options.biases = biases;
  return options;
}

TEST(ModelFilesTest, WhatIsExportedLoadsToTheSameBytes) {
  for (const bool tied : {false, true}) {
    for (const bool biases : {false, true}) {
      const TempFolder folder;
      const SmallModelOptions options = SomeOptions(tied, biases);
      const Status made = MakeSmallModel(folder / "m", 3, options);
      ASSERT_TRUE(made.ok()) << made;
      const LoadedModel loaded = LoadModel(folder / "m");
      EXPECT_EQ(loaded.decoder->config(), SmallModelConfig(options));
      kernels::Pool pool(2);
      const Status exported = model::ExportSafetensors(
          pool, loaded.table(), loaded.decoder->config(), loaded.slot.get(), folder / "again");
      ASSERT_TRUE(exported.ok()) << exported;
      const LoadedModel again = LoadModel(folder / "again");
      EXPECT_EQ(again.decoder->config(), loaded.decoder->config());
      const size_t bytes = static_cast<size_t>(loaded.table().slot_bytes());
      EXPECT_EQ(std::memcmp(again.slot.get(), loaded.slot.get(), bytes), 0);
      // The values are those that were made.
      const auto weights = SmallModelWeights(loaded.table(), 3, options);
      for (int i = 0; i < loaded.table().size(); ++i) {
        std::vector<float> values(weights[static_cast<size_t>(i)].size());
        model::ReadParameter(pool, loaded.table().at(i), loaded.slot.get(), values);
        EXPECT_TRUE(SameBits(values, weights[static_cast<size_t>(i)])) << loaded.table().at(i).name;
      }
    }
  }
}

TEST(ModelFilesTest, ExportNamesAFolderThatCannotBeMade) {
  const TempFolder folder;
  const SmallModelOptions options = SomeOptions(true, false);
  ASSERT_TRUE(MakeSmallModel(folder / "m", 3, options).ok());
  const Status status = MakeSmallModel(folder / "m/config.json/below", 3, options);
  EXPECT_FALSE(status.ok());
  EXPECT_NE(MessageOf(status).find("config.json"), std::string::npos) << status;
}

}  // namespace
}  // namespace titan::test
