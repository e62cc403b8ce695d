// SPDX-License-Identifier: Apache-2.0
// Goal: five updates by 1, 2, 3, 4 or 8 data ranks of 1, 2 or 4 tensor-parallel ranks each, in
// threads or in processes of their own, with random packs, kernel threads and recomputation, leave
// the same weights and the same figures, bit for bit. Method: the real TrainRun on samples of the
// real engine; one rank alone is the expectation; another number of shards, and one bit changed
// between ranks, must differ from it. A few layouts by default, TITAN_LAYOUTS=N for N rounds of all
// of them.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
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

using testing::SharedMemoryRanks;
using testing::SharedWindow;
using trainer::TrainConfig;
using trainer::TrainingSample;

constexpr int kSteps = 5;

// What every rank must end with.
struct Outcome {
  uint64_t weights = 0;
  double loss = 0.0;
  double ratio_max = 0.0;
  double gradient_norm = 0.0;
  uint64_t tokens_compared = 0;
  uint64_t tokens_differing = 0;

  bool operator==(const Outcome&) const = default;
};

struct Way {
  int data = 1;
  int tensor = 1;
  int shards = 8;
  // Of each data rank; those of its tensor group compute the same packs in the same way.
  std::vector<int64_t> pack_rows;
  std::vector<model::Recompute> recompute;
  std::vector<int> threads;  // of each rank
  bool change_a_bit = false;

  int ranks() const { return data * tensor; }
  std::string name() const {
    return std::to_string(data) + " data x " + std::to_string(tensor) + " tensor ranks";
  }
};

Way RandomWay(int data, int tensor, testing::TestRandom& random) {
  Way way;
  way.data = data;
  way.tensor = tensor;
  for (int rank = 0; rank < data; ++rank) {
    way.pack_rows.push_back(1151 + random.Below(3000));
    way.recompute.push_back(static_cast<model::Recompute>(random.Below(3)));
  }
  for (int rank = 0; rank < way.ranks(); ++rank) {
    way.threads.push_back(static_cast<int>(1 + random.Below(2)));
  }
  return way;
}

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
  explicit ChangedRanks(model::Ranks& ranks) : ranks_(ranks) {}
  int rank() const override { return ranks_.rank(); }
  int size() const override { return ranks_.size(); }
  Status AllGather(std::span<const std::span<std::byte>> parts) override {
    const Status status = ranks_.AllGather(parts);
    if (++count_ == 40) parts.back()[1] ^= std::byte{1};  // of a layer's forward
    return status;
  }

 private:
  model::Ranks& ranks_;
  int count_ = 0;
};

class LayoutFuzzTest : public ::testing::Test {
 protected:
  void SetUp() override {
    test::SmallModelOptions options;
    options.hidden_size = 96;
    options.intermediate_size = 192;
    options.vocab_size = 2100;
    options.num_heads = 4;
    options.num_kv_heads = 2;
    options.head_dim = 24;
    options.tie_embeddings = true;
    config_ = test::SmallModelConfig(options);
    kernels::Pool pool(1);
    model_.decoder = *model::Decoder::Create(config_, 256);
    const model::ParameterTable& table = model_.decoder->table();
    values_ = test::SmallModelWeights(table, 77, options);
    model_.slot = Store(pool, table);
    model_.master = Store(pool, model_.decoder->master_table());
    samples_ = testing::Rollout(model_, pool);
    const uint32_t num_groups = samples_.back().group_index + 1;
    const std::vector<TrainingSample> once = samples_;
    for (uint32_t i = 1; i < 3; ++i) {
      for (TrainingSample sample : once) {
        sample.group_index += i * num_groups;
        sample.id = SampleId{sample.id.value + i};
        samples_.push_back(std::move(sample));
      }
    }
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

  Outcome Train(const Way& way, int rank, Windows& windows) {
    const int data = rank / way.tensor, tensor = rank % way.tensor;
    SharedMemoryRanks data_ranks(*windows.data[static_cast<size_t>(tensor)], data);
    SharedMemoryRanks tensor_ranks(*windows.tensor[static_cast<size_t>(data)], tensor);
    ChangedRanks changed(tensor_ranks);
    kernels::Pool pool(way.threads[static_cast<size_t>(rank)]);
    TrainConfig config;
    config.num_shards = way.shards;
    config.max_pack_rows = way.pack_rows[static_cast<size_t>(data)];
    config.recompute = way.recompute[static_cast<size_t>(data)];
    const auto decoder =
        *model::Decoder::Create(config_, 256, model::Mode::kF32, {tensor, way.tensor});
    const model::Floats master = Store(pool, decoder->master_table());
    model::Ranks* group = way.change_a_bit ? static_cast<model::Ranks*>(&changed) : &tensor_ranks;
    auto run =
        testing::MakeRun(*decoder, master.get(), pool, config,
                         way.data == 1 ? nullptr : &data_ranks, way.tensor == 1 ? nullptr : group);
    Outcome outcome;
    for (int step = 0; step < kSteps; ++step) {
      const auto update = run->Update(samples_, samples_.back().group_index + 1, step == 0);
      if (!update.ok()) {
        ADD_FAILURE() << "rank " << rank << ": " << update.status();
        return {};
      }
      outcome.loss = update->loss;
      outcome.ratio_max = update->ratio_max;
      outcome.gradient_norm = update->gradient_norm;
      outcome.tokens_compared += update->parity.tokens_compared;
      outcome.tokens_differing += update->parity.tokens_differing;
    }
    // Under the first version's slot, whole on every rank, the samples are what they were.
    const auto parity = run->Compare(model_.slot.get(), samples_);
    EXPECT_TRUE(parity.ok()) << parity.status();
    outcome.tokens_compared += parity->tokens_compared;
    outcome.tokens_differing += parity->tokens_differing;
    std::vector<float> slot(static_cast<size_t>(decoder->whole_table().slot_floats()));
    EXPECT_TRUE(run->WriteSlot(slot.data()).ok());
    outcome.weights = Hash64(slot.data(), slot.size() * sizeof(float));
    return outcome;
  }

  std::vector<Outcome> InThreads(const Way& way) {
    Windows windows(way);
    std::vector<Outcome> outcomes(static_cast<size_t>(way.ranks()));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < way.ranks(); ++rank) {
      threads.emplace_back(
          [&, rank] { outcomes[static_cast<size_t>(rank)] = Train(way, rank, windows); });
    }
    for (std::thread& thread : threads) thread.join();
    return outcomes;
  }

  std::vector<Outcome> InProcesses(const Way& way) {
    Windows windows(way);
    SharedWindow results(1);
    auto* outcomes = reinterpret_cast<Outcome*>(results.bytes());
    std::vector<pid_t> children;
    for (int rank = 0; rank < way.ranks(); ++rank) {
      const pid_t child = fork();
      if (child == 0) {
        outcomes[rank] = Train(way, rank, windows);
        _exit(HasFailure() ? 1 : 0);
      }
      children.push_back(child);
    }
    for (const pid_t child : children) {
      int status = 0;
      EXPECT_EQ(waitpid(child, &status, 0), child);
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    return {outcomes, outcomes + way.ranks()};
  }

  formats::ModelConfig config_;
  std::vector<std::vector<float>> values_;
  testing::TinyModel model_;
  std::vector<TrainingSample> samples_;
};

TEST_F(LayoutFuzzTest, EveryLayoutOfRanksLeavesTheSameBits) {
  const char* wanted = std::getenv("TITAN_LAYOUTS");
  const int rounds = wanted == nullptr ? 0 : std::atoi(wanted);
  testing::TestRandom random(static_cast<uint64_t>(31 + rounds));
  const Outcome expected = InProcesses(RandomWay(1, 1, random)).front();
  EXPECT_NE(expected.weights, 0u);
  EXPECT_GT(expected.tokens_compared, 600u);
  EXPECT_EQ(expected.tokens_differing, 0u);
  const auto check = [&](int data, int tensor, bool processes) {
    const Way way = RandomWay(data, tensor, random);
    for (const Outcome& outcome : processes ? InProcesses(way) : InThreads(way)) {
      ASSERT_EQ(outcome, expected) << way.name() << (processes ? " in processes" : " in threads");
    }
  };
  if (rounds == 0) {
    check(3, 1, /*processes=*/true);
    check(2, 2, /*processes=*/true);
    check(8, 1, /*processes=*/false);
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
}

TEST_F(LayoutFuzzTest, AnotherOrderOrOneChangedBitIsSeen) {
  testing::TestRandom random(32);
  Way way = RandomWay(1, 2, random);
  const Outcome expected = InThreads(RandomWay(1, 1, random)).front();
  EXPECT_EQ(InThreads(way).front(), expected);
  way.shards = 4;  // another contract
  EXPECT_NE(InThreads(way).front().weights, expected.weights);
  way.shards = 8;
  way.change_a_bit = true;
  EXPECT_NE(InThreads(way).front().weights, expected.weights);
}

TEST_F(LayoutFuzzTest, ARankOfOtherSettingsIsRefusedByName) {
  const auto refused = [&](int data, int tensor, void (*change)(TrainConfig&)) {
    testing::TestRandom random(33);
    const Way way = RandomWay(data, tensor, random);
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
}

TEST_F(LayoutFuzzTest, MoreRanksThanShardsAreRefused) {
  SharedWindow window(4);
  SharedMemoryRanks ranks(window, 0);
  kernels::Pool pool(1);
  TrainConfig config;
  config.num_shards = 2;
  config.shared_group_tokens = 0;
  const auto run = trainer::TrainRun::Create(
      *model_.decoder, pool, config, [] { return 0.0; }, &ranks);
  ASSERT_EQ(run.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(MessageOf(run.status()).find("training.shards"), std::string::npos);
}

}  // namespace
}  // namespace titan
