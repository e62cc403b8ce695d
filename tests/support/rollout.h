// SPDX-License-Identifier: Apache-2.0
//
// Samples made by the real engine on a tiny model, and a training run on it: what parity tests hold
// against each other. Test code.
#ifndef TITAN_TESTS_SUPPORT_ROLLOUT_H_
#define TITAN_TESTS_SUPPORT_ROLLOUT_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "generator/engine.h"
#include "tests/support/kernel_data.h"
#include "tests/support/tiny_model.h"
#include "trainer/train_run.h"

namespace titan::testing {

inline constexpr char kRolloutModel[] = "llama_llama3rope_tied";

// Four groups of four; prompts share pages inside a group; at least 8 sequences run at once.
inline std::vector<trainer::TrainingSample> Rollout(const TinyModel& model, kernels::Pool& pool) {
  generator::Engine::Limits limits;
  limits.max_running = 12;
  limits.max_batch_rows = 40;
  auto engine = *generator::Engine::Create(*model.decoder, pool, limits);
  const generator::VersionKey version{"run", 0, false};
  EXPECT_TRUE(engine->AddVersion(version, model.slot.get(), [] { return true; }).ok());
  std::map<uint64_t, generator::GroupRequest> requests;
  for (uint32_t g = 0; g < 4; ++g) {
    generator::GroupRequest request;
    request.version = version;
    request.group = MakeGroupId(0, g, 0);
    request.seed = 5;
    for (uint32_t i = 0; i < 20 + 13 * g; ++i) {
      request.prompt.push_back(static_cast<TokenId>((i * 7 + g) % model.decoder->vocabulary()));
    }
    for (uint32_t s = 0; s < 4; ++s) request.samples.push_back({s, MakeSampleId(request.group, s)});
    request.max_new_tokens = 24;
    request.stop_tokens = {3};
    const auto id = engine->Submit(request);
    EXPECT_TRUE(id.ok());
    requests[*id] = request;
  }
  std::vector<trainer::TrainingSample> samples;
  while (engine->HasWork()) {
    for (const auto& result : engine->Step().finished) {
      const auto& request = requests.at(result.request);
      trainer::TrainingSample sample;
      sample.group = request.group;
      sample.group_index = SlotOf(request.group);
      sample.sample_index = result.sample_index;
      sample.id = MakeSampleId(request.group, result.sample_index);
      sample.prompt = request.prompt;
      sample.reply = result.tokens;
      sample.log_probs = result.log_probs;
      sample.advantage = result.sample_index % 2 == 0 ? 1.0 : -1.0;
      sample.trained = true;
      sample.compared = true;
      samples.push_back(std::move(sample));
    }
  }
  EXPECT_GE(engine->sequences_running_max(), 8);
  std::sort(samples.begin(), samples.end(), [](const auto& a, const auto& b) {
    return std::pair(a.group_index, a.sample_index) < std::pair(b.group_index, b.sample_index);
  });
  return samples;
}

// The samples again and again under new group indexes and ids, each with an advantage of its own
// and its reply cut somewhere, whose log-probs are what they were: many different samples of few.
inline std::vector<trainer::TrainingSample> Drawn(
    const std::vector<trainer::TrainingSample>& samples, uint32_t times) {
  TestRandom random(41);
  std::vector<trainer::TrainingSample> out;
  const uint32_t num_groups = samples.back().group_index + 1;
  for (uint32_t i = 0; i < times; ++i) {
    for (trainer::TrainingSample sample : samples) {
      sample.group_index += i * num_groups;
      sample.id = SampleId{sample.id.value + i};
      sample.advantage = random.Uniform();
      const auto length =
          static_cast<size_t>(1 + random.Below(static_cast<int64_t>(sample.reply.size())));
      sample.reply.resize(length);
      sample.log_probs.resize(length);
      out.push_back(std::move(sample));
    }
  }
  return out;
}

// How an update lays a shard into packs.
struct ShardPacks {
  size_t num_units = 0;
  std::vector<int64_t> samples_per_pack;

  auto operator<=>(const ShardPacks&) const = default;
};
// By the functions that the update uses itself, given the limits of each shard's rank.
inline std::vector<ShardPacks> PacksOf(const std::vector<trainer::TrainingSample>& samples,
                                       const std::vector<int64_t>& pack_rows,
                                       int64_t shared_group_tokens) {
  const auto num_shards = static_cast<int>(pack_rows.size());
  std::vector<std::vector<const trainer::TrainingSample*>> shards(pack_rows.size());
  const int64_t num_groups = samples.back().group_index + 1;
  for (const trainer::TrainingSample& sample : samples) {
    const int shard = kernels::ShardOfGroup(sample.group_index, num_groups, num_shards);
    shards[static_cast<size_t>(shard)].push_back(&sample);
  }
  std::vector<ShardPacks> out;
  for (size_t i = 0; i < shards.size(); ++i) {
    const auto items = trainer::ItemsOf(shards[i], shared_group_tokens);
    const auto packs = trainer::PackShard(items, pack_rows[i]);
    EXPECT_TRUE(packs.ok()) << packs.status();
    ShardPacks shard;
    for (const trainer::Pack& pack : *packs) {
      shard.num_units += pack.units.size();
      int64_t of_pack = 0;
      for (int64_t item = pack.first_item; item < pack.first_item + pack.num_items; ++item) {
        of_pack += items[static_cast<size_t>(item)].num_samples;
      }
      shard.samples_per_pack.push_back(of_pack);
    }
    out.push_back(std::move(shard));
  }
  return out;
}

// As ParityResult has it.
inline int64_t SamplesPerPackMin(const std::vector<ShardPacks>& shards) {
  int64_t smallest = std::numeric_limits<int64_t>::max();
  for (const ShardPacks& shard : shards) {
    for (const int64_t samples : shard.samples_per_pack) smallest = std::min(smallest, samples);
  }
  return smallest;
}

// A run of a decoder, which may be a part of a model, and its master weights.
inline std::unique_ptr<trainer::TrainRun> MakeRun(const model::Decoder& decoder,
                                                  const float* master, kernels::Pool& pool,
                                                  trainer::TrainConfig config,
                                                  trainer::Ranks* ranks = nullptr,
                                                  trainer::Ranks* tensor = nullptr) {
  config.optimizer.lr = 1e-3;
  config.max_sequence_tokens = 128;
  config.shared_group_tokens = std::min<int64_t>(config.shared_group_tokens, 128);
  auto run = trainer::TrainRun::Create(
      decoder, pool, config, [] { return 0.0; }, ranks, tensor);
  EXPECT_TRUE(run.ok()) << run.status();
  std::memcpy((*run)->master(), master, static_cast<size_t>(decoder.master_table().slot_bytes()));
  return *std::move(run);
}

// A run whose master weights are the model's.
inline std::unique_ptr<trainer::TrainRun> MakeRun(const TinyModel& model, kernels::Pool& pool,
                                                  const trainer::TrainConfig& config,
                                                  trainer::Ranks* ranks = nullptr) {
  return MakeRun(*model.decoder, model.master.get(), pool, config, ranks);
}

}  // namespace titan::testing

#endif  // TITAN_TESTS_SUPPORT_ROLLOUT_H_
