// SPDX-License-Identifier: Apache-2.0
// Goal: five updates by 1, 2, 3, 4 or 8 data ranks of 1, 2 or 4 tensor-parallel ranks each, in
// threads or in processes of their own, in every mode, with random packs, kernel threads and
// recomputation, have the same log-probs and gradients in every step and leave the same weights,
// bit for bit. Method: the real TrainRun on samples of the real engine, several units and packs a
// shard; the expectation of a mode is one rank alone, its packs, threads and recomputation as
// random as all others'. Another number of shards, and one bit changed between ranks, must differ
// from it. A few layouts by default, TITAN_LAYOUTS=N for N rounds of all of them.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <ostream>
#include <set>
#include <string>
#include <thread>

#include "core/base/hash.h"
#include "tests/support/kernel_data.h"
#include "tests/support/rollout.h"
#include "tests/support/shared_memory_ranks.h"
#include "tests/support/small_model.h"
#include "trainer/train_run.h"

namespace titan {
namespace {

using testing::ShardPacks;
using testing::SharedMemoryRanks;
using testing::SharedWindow;
using trainer::TrainConfig;
using trainer::TrainingSample;

constexpr int kSteps = 5;
constexpr int64_t kSharedGroupTokens = 100;  // of the groups some share their prompt, some do not

// What every rank must end with.
struct Outcome {
  struct Step {
    double loss = 0.0;
    double ratio_max = 0.0;
    double gradient_norm = 0.0;
    uint64_t log_probs = 0;
    Hash128 gradient;

    bool operator==(const Step&) const = default;
  };
  std::array<Step, kSteps> steps;
  uint64_t weights = 0;
  uint64_t tokens_compared = 0;
  uint64_t tokens_differing = 0;

  bool operator==(const Outcome&) const = default;
};

void PrintTo(const Outcome& outcome, std::ostream* out) {
  for (const Outcome::Step& step : outcome.steps) {
    *out << "\n  log-probs " << ToHex(step.log_probs) << ", loss " << step.loss << ", gradient "
         << ToHex(step.gradient) << " of norm " << step.gradient_norm;
  }
  *out << "\n  weights " << ToHex(outcome.weights) << ", " << outcome.tokens_differing << " of "
       << outcome.tokens_compared << " tokens differ from the rollout";
}

struct RankResult {
  Outcome outcome;
  uint32_t samples_per_pack_min = 0;  // of the first update, all ranks' packs
};

struct Way {
  int data = 1;
  int tensor = 1;
  model::Mode mode = model::Mode::kF32;
  int shards = 0;
  int steps = kSteps;
  // Of each data rank; those of its tensor group compute the same packs in the same way.
  std::vector<int64_t> pack_rows;
  std::vector<model::Recompute> recompute;
  std::vector<int> threads;  // of each rank
  int changed_exchange = 0;  // of a tensor group, counted from 1; 0: none

  int ranks() const { return data * tensor; }
  std::string name() const {
    return std::to_string(data) + " data x " + std::to_string(tensor) + " tensor ranks in " +
           std::string(ModeName(mode));
  }
};

// The windows of a layout: rank r is data rank r / tensor and tensor rank r % tensor.
struct Windows {
  explicit Windows(const Way& way) {
    for (int t = 0; t < way.tensor; ++t) data.push_back(std::make_unique<SharedWindow>(way.data));
    for (int d = 0; d < way.data; ++d) {
      tensor.push_back(std::make_unique<SharedWindow>(way.tensor));
    }
  }
  std::vector<std::unique_ptr<SharedWindow>> data, tensor;
};

// One bit of one exchange, the same for every rank that receives it.
class ChangedRanks final : public model::Ranks {
 public:
  ChangedRanks(model::Ranks& ranks, int exchange) : ranks_(ranks), left_(exchange) {}
  int rank() const override { return ranks_.rank(); }
  int size() const override { return ranks_.size(); }
  Status AllGather(std::span<const std::span<std::byte>> parts) override {
    const Status status = ranks_.AllGather(parts);
    if (--left_ == 0) parts.back()[1] ^= std::byte{1};
    return status;
  }

 private:
  model::Ranks& ranks_;
  int left_;
};

class LayoutFuzzTest : public ::testing::Test {
 protected:
  // What the layouts of a mode start from.
  struct Start {
    testing::TinyModel model;
    std::vector<TrainingSample> samples;
  };

  void SetUp() override {
    options_.hidden_size = 96;
    options_.intermediate_size = 192;
    options_.vocab_size = 2100;
    options_.num_heads = 4;
    options_.num_kv_heads = 2;
    options_.head_dim = 24;
    options_.tie_embeddings = true;
    config_ = test::SmallModelConfig(options_);
  }

  Way RandomWay(int data, int tensor, model::Mode mode, testing::TestRandom& random) const {
    Way way;
    way.data = data;
    way.tensor = tensor;
    way.mode = mode;
    way.shards = num_shards_;
    for (int rank = 0; rank < data; ++rank) {
      way.pack_rows.push_back(1151 + random.Below(1500));
      way.recompute.push_back(static_cast<model::Recompute>(random.Below(3)));
    }
    for (int rank = 0; rank < way.ranks(); ++rank) {
      way.threads.push_back(static_cast<int>(1 + random.Below(2)));
    }
    return way;
  }

  // Made before any rank runs.
  const Start& StartOf(model::Mode mode) {
    const auto [it, fresh] = starts_.try_emplace(mode);
    Start& start = it->second;
    if (!fresh) return start;
    kernels::Pool pool(1);
    start.model.decoder = *model::Decoder::Create(config_, 256, mode);
    const model::ParameterTable& table = start.model.decoder->table();
    values_ = test::SmallModelWeights(table, 77, options_);
    start.model.slot = Store(pool, table);
    start.model.master = Store(pool, start.model.decoder->master_table());
    start.samples =
        testing::Drawn(testing::Rollout(start.model, pool), static_cast<uint32_t>(6 * num_shards_));
    return start;
  }

  // The weights, or a rank's part of them.
  model::Floats Store(kernels::Pool& pool, const model::ParameterTable& table) const {
    model::Floats slot = *model::AllocateFloats(table.slot_floats());
    for (int i = 0; i < table.size(); ++i) {
      EXPECT_TRUE(
          model::StoreParameter(pool, table.at(i), values_[static_cast<size_t>(i)], slot.get())
              .ok());
    }
    return slot;
  }

  RankResult Train(const Way& way, int rank, const Start& start, Windows& windows) {
    const int data = rank / way.tensor, tensor = rank % way.tensor;
    SharedMemoryRanks data_ranks(*windows.data[static_cast<size_t>(tensor)], data);
    SharedMemoryRanks tensor_ranks(*windows.tensor[static_cast<size_t>(data)], tensor);
    ChangedRanks changed(tensor_ranks, way.changed_exchange);
    kernels::Pool pool(way.threads[static_cast<size_t>(rank)]);
    TrainConfig config;
    config.num_shards = way.shards;
    config.shared_group_tokens = kSharedGroupTokens;
    config.max_pack_rows = way.pack_rows[static_cast<size_t>(data)];
    config.recompute = way.recompute[static_cast<size_t>(data)];
    config.digest_gradient = true;
    const auto decoder = *model::Decoder::Create(config_, 256, way.mode, {tensor, way.tensor});
    const model::Floats master = Store(pool, decoder->master_table());
    auto run = testing::MakeRun(*decoder, master.get(), pool, config,
                                way.data == 1 ? nullptr : &data_ranks,
                                way.tensor == 1 ? nullptr : &changed);
    const int64_t num_groups = start.samples.back().group_index + 1;
    RankResult result;
    Outcome& outcome = result.outcome;
    for (int step = 0; step < way.steps; ++step) {
      const auto update = run->Update(start.samples, num_groups, step == 0);
      if (!update.ok()) {
        ADD_FAILURE() << "rank " << rank << ": " << update.status();
        return {};
      }
      outcome.steps[static_cast<size_t>(step)] = {update->loss, update->ratio_max,
                                                  update->gradient_norm, update->log_prob_digest,
                                                  update->gradient_digest};
      outcome.tokens_compared += update->parity.tokens_compared;
      outcome.tokens_differing += update->parity.tokens_differing;
      if (step == 0) result.samples_per_pack_min = update->parity.samples_per_pack_min;
    }
    // Under the first version's slot, whole on every rank, the samples are what they were.
    const auto parity =
        run->Compare(start.model.slot.get(), std::span(start.samples).first(kCompared));
    EXPECT_TRUE(parity.ok()) << parity.status();
    outcome.tokens_compared += parity->tokens_compared;
    outcome.tokens_differing += parity->tokens_differing;
    std::vector<float> slot(static_cast<size_t>(decoder->whole_table().slot_floats()));
    EXPECT_TRUE(run->WriteSlot(slot.data()).ok());
    outcome.weights = Hash64(slot.data(), slot.size() * sizeof(float));
    return result;
  }

  std::vector<RankResult> InThreads(const Way& way) {
    const Start& start = StartOf(way.mode);
    Windows windows(way);
    std::vector<RankResult> results(static_cast<size_t>(way.ranks()));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < way.ranks(); ++rank) {
      threads.emplace_back(
          [&, rank] { results[static_cast<size_t>(rank)] = Train(way, rank, start, windows); });
    }
    for (std::thread& thread : threads) thread.join();
    return results;
  }

  std::vector<RankResult> InProcesses(const Way& way) {
    const Start& start = StartOf(way.mode);
    Windows windows(way);
    SharedWindow memory(1);
    auto* results = reinterpret_cast<RankResult*>(memory.bytes());
    std::vector<pid_t> children;
    for (int rank = 0; rank < way.ranks(); ++rank) {
      const pid_t child = fork();
      if (child == 0) {
        results[rank] = Train(way, rank, start, windows);
        _exit(HasFailure() ? 1 : 0);
      }
      children.push_back(child);
    }
    for (const pid_t child : children) {
      int status = 0;
      EXPECT_EQ(waitpid(child, &status, 0), child);
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    return {results, results + way.ranks()};
  }

  std::vector<ShardPacks> Packs(const Way& way) {
    std::vector<int64_t> pack_rows(static_cast<size_t>(way.shards));
    for (int rank = 0; rank < way.data; ++rank) {
      for (const trainer::Subtree& own : trainer::SubtreesOf(way.shards, way.data, rank)) {
        std::fill_n(pack_rows.begin() + own.first, own.size,
                    way.pack_rows[static_cast<size_t>(rank)]);
      }
    }
    return testing::PacksOf(StartOf(way.mode).samples, pack_rows, kSharedGroupTokens);
  }

  static constexpr size_t kCompared = 64;
  int num_shards_ = 4;
  test::SmallModelOptions options_;
  formats::ModelConfig config_;
  std::vector<std::vector<float>> values_;
  std::map<model::Mode, Start> starts_;
};

TEST_F(LayoutFuzzTest, EveryLayoutOfRanksLeavesTheSameBits) {
  const char* wanted = std::getenv("TITAN_LAYOUTS");
  const int rounds = wanted == nullptr ? 0 : std::atoi(wanted);
  num_shards_ = rounds == 0 ? 4 : 8;  // what eight data ranks need
  testing::TestRandom random(static_cast<uint64_t>(43 + rounds));
  std::map<model::Mode, Outcome> expected;
  std::set<std::vector<ShardPacks>> compositions;
  int layouts = 0;
  const auto check = [&](int data, int tensor, bool processes) {
    if (HasFailure()) return;
    const auto mode = static_cast<model::Mode>(random.Below(3));
    const auto [it, fresh] = expected.try_emplace(mode);
    if (fresh) {
      it->second = InProcesses(RandomWay(1, 1, mode, random)).front().outcome;
      EXPECT_NE(it->second.weights, 0u);
      EXPECT_GT(it->second.tokens_compared, 4000u);
      EXPECT_EQ(it->second.tokens_differing, 0u);
    }
    const Way way = RandomWay(data, tensor, mode, random);
    const std::vector<ShardPacks> packs = Packs(way);
    for (const ShardPacks& shard : packs) {
      ASSERT_GE(shard.num_units, 3u);
      ASSERT_GE(shard.samples_per_pack.size(), 2u);
    }
    compositions.insert(packs);
    ++layouts;
    for (const RankResult& result : processes ? InProcesses(way) : InThreads(way)) {
      ASSERT_EQ(result.outcome, it->second)
          << way.name() << (processes ? " in processes" : " in threads");
      ASSERT_EQ(result.samples_per_pack_min, testing::SamplesPerPackMin(packs));
    }
  };
  if (rounds == 0) {
    check(3, 1, /*processes=*/true);
    check(2, 2, /*processes=*/true);
    check(1, 4, /*processes=*/false);
    check(3, 2, /*processes=*/false);
    check(4, 2, /*processes=*/false);
  }
  for (int round = 0; round < rounds; ++round) {
    for (const int data : {1, 2, 3, 4, 8}) {
      for (const int tensor : {1, 2, 4}) {
        check(data, tensor, /*processes=*/true);
        check(data, tensor, /*processes=*/false);
      }
    }
  }
  if (HasFailure()) return;
  EXPECT_EQ(expected.size(), 3u);  // every mode was drawn
  EXPECT_NE(expected[model::Mode::kF32].steps[0].gradient,
            expected[model::Mode::kW16].steps[0].gradient);
  EXPECT_NE(expected[model::Mode::kW16].steps[0].gradient,
            expected[model::Mode::kBf16].steps[0].gradient);
  std::printf("%d layouts, %zu compositions of packs\n", layouts, compositions.size());
  EXPECT_GE(compositions.size(), static_cast<size_t>(layouts) / 2);
}

TEST_F(LayoutFuzzTest, AnotherOrderOrOneChangedBitIsSeen) {
  testing::TestRandom random(32);
  const auto first = [&](Way way) {
    way.steps = 1;
    return InThreads(way).front().outcome.steps[0];
  };
  Way way = RandomWay(1, 2, model::Mode::kF32, random);
  const Outcome::Step expected = first(RandomWay(1, 1, model::Mode::kF32, random));
  EXPECT_EQ(first(way), expected);
  way.shards = num_shards_ / 2;  // another contract: another order of the gradient's sums alone
  Outcome::Step other = first(way);
  EXPECT_EQ(other.log_probs, expected.log_probs);
  EXPECT_NE(other.gradient, expected.gradient);
  way.shards = num_shards_;
  way.changed_exchange = 20;  // of the first forward
  other = first(way);
  EXPECT_NE(other.log_probs, expected.log_probs);
  EXPECT_NE(other.gradient, expected.gradient);
  way.changed_exchange = 40;  // of the first backward
  other = first(way);
  EXPECT_EQ(other.log_probs, expected.log_probs);
  EXPECT_NE(other.gradient, expected.gradient);
}

TEST_F(LayoutFuzzTest, ARankOfOtherSettingsIsRefusedByName) {
  const auto refused = [&](int data, int tensor, void (*change)(TrainConfig&)) {
    testing::TestRandom random(33);
    const Way way = RandomWay(data, tensor, model::Mode::kF32, random);
    Windows windows(way);
    std::vector<Status> statuses(2);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        SharedMemoryRanks data_ranks(*windows.data[0], rank),
            tensor_ranks(*windows.tensor[0], rank);
        kernels::Pool pool(1);
        TrainConfig config;
        config.num_shards = 2;
        if (rank == 1) change(config);
        const auto decoder =
            *model::Decoder::Create(config_, 256, model::Mode::kF32, {rank % tensor, tensor});
        statuses[static_cast<size_t>(rank)] =
            trainer::TrainRun::Create(
                *decoder, pool, config, [] { return 0.0; }, data == 1 ? nullptr : &data_ranks,
                tensor == 1 ? nullptr : &tensor_ranks)
                .status();
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(statuses[0].code(), StatusCode::kFailedPrecondition);
    EXPECT_EQ(statuses[0], statuses[1]);
    return MessageOf(statuses[0]);
  };
  EXPECT_NE(refused(2, 1, [](TrainConfig& c) { c.loss.clip_low = 0.1; }).find("'loss.clip_low'"),
            std::string::npos);
  EXPECT_NE(
      refused(1, 2, [](TrainConfig& c) { c.optimizer.lr = 0.5; }).find("'optimizer.learning_rate'"),
      std::string::npos);
  // No part of the contract, but of what a tensor group exchanges.
  EXPECT_NE(refused(1, 2, [](TrainConfig& c) { c.max_pack_rows = 4096; }).find("'max_pack_tokens'"),
            std::string::npos);
  EXPECT_NE(
      refused(1, 2, [](TrainConfig& c) { c.digest_gradient = true; }).find("'digest_gradient'"),
      std::string::npos);
}

TEST_F(LayoutFuzzTest, MoreRanksThanShardsAreRefused) {
  SharedWindow window(4);
  SharedMemoryRanks ranks(window, 0);
  kernels::Pool pool(1);
  TrainConfig config;
  config.num_shards = 2;
  config.shared_group_tokens = 0;
  const auto decoder = *model::Decoder::Create(config_, 256);
  const auto run = trainer::TrainRun::Create(
      *decoder, pool, config, [] { return 0.0; }, &ranks);
  ASSERT_EQ(run.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(MessageOf(run.status()).find("training.shards"), std::string::npos);
}

}  // namespace
}  // namespace titan
