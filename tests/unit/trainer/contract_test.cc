// SPDX-License-Identifier: Apache-2.0
// Goal: the training contract names every setting that a weight's bits depend on and none that they
// do not, and a rank with another one is refused by item. Method: each setting changed alone.
#include "trainer/contract.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <set>
#include <string>
#include <thread>

#include "core/formats/model_config.h"
#include "tests/support/shared_memory_ranks.h"

namespace titan::trainer {
namespace {

using kernels::ContractItem;
using testing::SharedMemoryRanks;
using testing::SharedWindow;

formats::ModelConfig Config() {
  formats::ModelConfig config;
  config.family = "llama";
  config.hidden_size = 64;
  config.intermediate_size = 96;
  config.num_layers = 1;
  config.num_heads = 2;
  config.num_kv_heads = 1;
  config.head_dim = 32;
  config.vocab_size = 300;
  config.max_position_embeddings = 128;
  config.rms_norm_eps = 1e-5f;
  config.rope_theta = 10000;
  return config;
}

class TrainingContractTest : public ::testing::Test {
 protected:
  std::vector<ContractItem> Items(const TrainConfig& config,
                                  const formats::ModelConfig& model = Config(),
                                  model::Mode mode = model::Mode::kF32) {
    const auto decoder = model::Decoder::Create(model, 0, mode);
    EXPECT_TRUE(decoder.ok()) << decoder.status();
    auto items = TrainingContract(pool_, **decoder, config);
    EXPECT_TRUE(items.ok()) << items.status();
    return *std::move(items);
  }
  // Names of the items that differ.
  static std::set<std::string> Difference(const std::vector<ContractItem>& a,
                                          const std::vector<ContractItem>& b) {
    std::set<std::string> names;
    EXPECT_EQ(a.size(), b.size());
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
      EXPECT_EQ(a[i].name, b[i].name);
      if (a[i].value != b[i].value) names.insert(a[i].name);
    }
    EXPECT_EQ(names.empty(), kernels::DigestOf(a) == kernels::DigestOf(b));
    return names;
  }

  kernels::Pool pool_{2};
};

TEST_F(TrainingContractTest, EverySettingHasItsItem) {
  const std::vector<ContractItem> items = Items({});
  const struct {
    std::function<void(TrainConfig&)> change;
    std::set<std::string> names;
  } cases[] = {
      {[](auto& c) { c.num_shards = 4; }, {"training.shards"}},
      {[](auto& c) { c.shared_group_tokens = 0; }, {"training.shared_group_tokens"}},
      {[](auto& c) { c.temperature = 0.9; }, {"training.temperature"}},
      {[](auto& c) { c.loss.clip_low = 0.1; }, {"loss.clip_low", "canned.policy_loss"}},
      {[](auto& c) { c.loss.clip_high = 0.3; }, {"loss.clip_high", "canned.policy_loss"}},
      {[](auto& c) { c.loss.dual_clip = 1.1; }, {"loss.dual_clip", "canned.policy_loss"}},
      {[](auto& c) { c.loss.log_ratio_clamp.reset(); }, {"loss.log_ratio_clamp"}},
      {[](auto& c) { c.loss.kl = {.kind = KlKind::kK3, .coefficient = 0.1}; }, {"loss.kl"}},
      {[](auto& c) { c.aggregation = Aggregation::kSequenceMeanTokenMean; },
       {"loss.aggregation", "canned.policy_loss"}},
      {[](auto& c) { c.optimizer.lr = 1e-5; }, {"optimizer.learning_rate"}},
      {[](auto& c) { c.optimizer.beta1 = 0.8; }, {"optimizer.beta1"}},
      {[](auto& c) { c.optimizer.beta2 = 0.95; }, {"optimizer.beta2"}},
      {[](auto& c) { c.optimizer.eps = 1e-9; }, {"optimizer.epsilon"}},
      {[](auto& c) { c.optimizer.weight_decay = 0.01; }, {"optimizer.weight_decay"}},
      {[](auto& c) { c.max_gradient_norm = 0.5; }, {"optimizer.max_gradient_norm"}},
  };
  for (const auto& one : cases) {
    TrainConfig config;
    one.change(config);
    EXPECT_EQ(Difference(items, Items(config)), one.names);
  }
  // The smallest change of a number is seen.
  TrainConfig config;
  config.optimizer.beta2 = std::nextafter(config.optimizer.beta2, 1.0);
  EXPECT_EQ(Difference(items, Items(config)), (std::set<std::string>{"optimizer.beta2"}));
}

TEST_F(TrainingContractTest, CoversTheModelAndItsModeButNoLimits) {
  const std::vector<ContractItem> items = Items({});
  std::set<std::string> names;
  for (const ContractItem& item : items) EXPECT_TRUE(names.insert(item.name).second) << item.name;
  for (const char* name : {"units.scan", "canned.linear", "canned.linear_gradient",
                           "canned.optimizer", "model.leaves", "order.constants"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
  formats::ModelConfig model = Config();
  model.rms_norm_eps = 1e-6f;
  EXPECT_EQ(Difference(items, Items({}, model)), (std::set<std::string>{"model.config"}));
  const auto w16 = Items({}, Config(), model::Mode::kW16);
  EXPECT_NE(kernels::DigestOf(items), kernels::DigestOf(w16));
  EXPECT_NE(kernels::DigestOf(Items({}, Config(), model::Mode::kBf16)), kernels::DigestOf(w16));

  TrainConfig limits;
  limits.max_pack_rows = 9000;
  limits.max_sequence_tokens = 64;
  limits.recompute = model::Recompute::kFull;
  EXPECT_TRUE(Difference(items, Items(limits)).empty());
}

TEST_F(TrainingContractTest, ARankWithAnotherOneIsRefusedByItem) {
  SharedWindow window(3);
  TrainConfig config, other;
  other.loss.clip_low = 0.25;
  const std::vector<ContractItem> items = Items(config), different = Items(other);
  const auto agree = [&](const std::vector<ContractItem>& of_rank_2) {
    std::vector<Status> statuses(3);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        SharedMemoryRanks ranks(window, rank);
        statuses[static_cast<size_t>(rank)] = AgreeOnContract(ranks, rank == 2 ? of_rank_2 : items);
      });
    }
    for (std::thread& thread : threads) thread.join();
    return statuses;
  };
  for (const Status& status : agree(items)) EXPECT_TRUE(status.ok()) << status;
  const std::vector<Status> refused = agree(different);
  for (const Status& status : refused) {
    ASSERT_EQ(status.code(), StatusCode::kFailedPrecondition);
    EXPECT_EQ(MessageOf(status),
              "trainer ranks: 'loss.clip_low' is '0.2' on rank 0 and '0.25' on rank 2; the ranks "
              "of a run need one training contract");
  }
  std::vector<ContractItem> longer = items;
  longer.push_back({"another", "rule"});
  const std::vector<Status> unknown = agree(longer);
  EXPECT_NE(MessageOf(unknown[0]).find("'another' is none on rank 0 and 'rule' on rank 2"),
            std::string::npos)
      << unknown[0];
}

}  // namespace
}  // namespace titan::trainer
