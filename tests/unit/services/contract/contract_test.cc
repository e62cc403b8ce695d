// SPDX-License-Identifier: Apache-2.0
// Goal: a worker's contract names the items of every numerics mode, so that workers which would
// compute a mode differently are refused by item; a run's digest covers its own mode.
#include "services/contract/contract.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>

#include "core/formats/model_source.h"
#include "core/model/contract.h"

namespace titan::services {
namespace {

std::set<std::string> NamesOf(const type::v1::ContractDigest& contract) {
  std::set<std::string> names;
  for (const auto& item : contract.items()) names.insert(item.name());
  return names;
}

TEST(ContractTest, AWorkerNamesTheItemsOfEveryMode) {
  kernels::Pool pool(2);
  const auto generator = ProcessContract(pool, /*training=*/false);
  const auto trainer = ProcessContract(pool, /*training=*/true);
  const std::set<std::string> names = NamesOf(generator);
  for (const char* name :
       {"layout", "canned.linear", "layout_w16", "rounding_w16", "canned.linear_w16",
        "canned.head_w16", "canned.embedding_w16", "canned.linear_bf16", "canned.head_bf16"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
  EXPECT_FALSE(names.contains("canned.input_gradient_w16"));
  EXPECT_TRUE(NamesOf(trainer).contains("canned.input_gradient_w16"));
  EXPECT_EQ(generator.forward(), trainer.forward());
  EXPECT_TRUE(generator.training().empty());
  EXPECT_NE(trainer.training(), trainer.forward());
}

TEST(ContractTest, ARunsDigestCoversItsMode) {
  kernels::Pool pool(2);
  const auto source = formats::OpenModelSource(std::string(TITAN_SOURCE_DIR) +
                                               "/tests/golden/model/tiny/llama_llama3rope_tied");
  ASSERT_TRUE(source.ok()) << source.status();
  const auto f32 = RunForwardDigest(pool, (*source)->config(), model::Mode::kF32);
  const auto w16 = RunForwardDigest(pool, (*source)->config(), model::Mode::kW16);
  ASSERT_TRUE(f32.ok() && w16.ok()) << f32.status() << w16.status();
  EXPECT_NE(*f32, *w16);
  const auto bf16 = RunForwardDigest(pool, (*source)->config(), model::Mode::kBf16);
  ASSERT_TRUE(bf16.ok()) << bf16.status();
  EXPECT_NE(*bf16, *f32);
  EXPECT_NE(*bf16, *w16);
  EXPECT_EQ(*w16, *RunForwardDigest(pool, (*source)->config(), model::Mode::kW16));
}

TEST(ContractTest, ALongValueTravelsAsItsBeginningAndItsHash) {
  const std::string layers(30'000, 'a');
  const auto items = ToManifest({{"layers", layers + "b"}, {"leaves", "8"}});
  EXPECT_EQ(items[1].value, "8");
  EXPECT_LT(items[0].value.size(), 256u);
  EXPECT_NE(items[0].value.find("30001 bytes"), std::string::npos) << items[0].value;
  EXPECT_NE(items[0].value, ToManifest({{"layers", layers + "c"}})[0].value);
}

TEST(ContractTest, TheItemInWhichARunDiffersIsNamed) {
  kernels::Pool pool(2);
  const auto source = formats::OpenModelSource(std::string(TITAN_SOURCE_DIR) +
                                               "/tests/golden/model/tiny/llama_llama3rope_tied");
  ASSERT_TRUE(source.ok()) << source.status();
  const formats::ModelConfig& config = (*source)->config();
  const auto items = model::ForwardItems(pool, config, model::Mode::kF32);
  ASSERT_TRUE(items.ok()) << items.status();
  weightstore::Manifest manifest;
  manifest.contract_forward = kernels::DigestOf(*items);
  manifest.contract_items = ToManifest(*items);
  manifest.contract_items.push_back({"optimizer.beta1", "0.9"});  // a trainer has more of them
  EXPECT_TRUE(CheckRunContract(pool, config, model::Mode::kF32, manifest).ok());

  manifest.contract_forward = "another digest";
  const std::string name = manifest.contract_items[3].name;
  const std::string value = std::exchange(manifest.contract_items[3].value, "of another build");
  const Status refused = CheckRunContract(pool, config, model::Mode::kF32, manifest);
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(
      MessageOf(refused).find("item " + name + " is of another build there and " + value + " here"),
      std::string::npos)
      << refused;
  manifest.contract_items.clear();  // of a trainer that left none
  EXPECT_EQ(CheckRunContract(pool, config, model::Mode::kF32, manifest).code(),
            StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace titan::services
