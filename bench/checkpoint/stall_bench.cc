// SPDX-License-Identifier: Apache-2.0
//
// What a step waits for its checkpoint: AdamW steps on the state of a model of SmolLM2-135M's
// shape, every other one with a checkpoint that a running weight store writes to disk meanwhile.
//
//   titan-bench-checkpoint WEIGHTSTORE_ADDRESS [ROUNDS]
//
// Prints a line of JSON: bytes of the state; medians over the rounds, in milliseconds: `stall`
// (taking the snapshot and handing it over, and what the optimizer step after it takes longer than
// one without), `step` (of one without), `write` (beside it, until the checkpoint is durable).
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/formats/model_config.h"
#include "core/kernels/isa.h"
#include "core/kernels/pool.h"
#include "core/model/parameters.h"
#include "services/models/manifest_of.h"
#include "services/trainer/checkpoint.h"
#include "services/trainer/checkpointer.h"
#include "services/weightstore_client/standalone_leader.h"
#include "trainer/train_state.h"

namespace titan {
namespace {

formats::ModelConfig SmolLm2() {
  formats::ModelConfig config;
  config.family = "llama";
  config.rms_norm_eps = 1e-5f;
  config.rope_theta = 1e5;
  config.vocab_size = 49152;
  config.hidden_size = 576;
  config.intermediate_size = 1536;
  config.num_layers = 30;
  config.num_heads = 9;
  config.num_kv_heads = 3;
  config.head_dim = 64;
  config.max_position_embeddings = 8192;
  config.tie_embeddings = true;
  return config;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int Main(const std::string& address, int rounds) {
  const kernels::NumericThread numeric;
  const SystemClock clock;
  const auto now_ms = [&clock] { return Seconds(clock.Now()) * 1e3; };
  kernels::Pool pool(static_cast<int>(std::max(1u, std::thread::hardware_concurrency())));
  const formats::ModelConfig config = SmolLm2();
  auto table = model::ParameterTable::Of(config);
  TITAN_CHECK(table.ok());
  auto store = weightstore::StandaloneLeader::Create(address);
  TITAN_CHECK(store.ok());
  // The run that the checkpoints are of; its slots are of no interest here.
  weightstore::Manifest run;
  run.tensors.push_back({.name = "w", .shape = {16}, .num_bytes = 64});
  run.slot_bytes = 64;
  const std::string run_id = "bench-" + std::to_string(clock.UnixMs());
  const auto registered = (*store)->port().RegisterTrainer(run_id, run_id, run, 0, 1, "");
  if (!registered.ok()) {
    std::fprintf(stderr, "%s\n", MessageOf(registered.status()).c_str());
    return 1;
  }
  auto state = trainer::TrainState::Create(pool, table->slot_floats(), /*snapshots=*/true);
  TITAN_CHECK(state.ok());
  std::vector<float> gradient(static_cast<size_t>(table->slot_floats()));
  for (size_t i = 0; i < gradient.size(); ++i) {
    gradient[i] = static_cast<float>(i % 1021) * 1e-4f - 0.05f;
  }
  services::CheckpointerOptions options;
  options.run_id = run_id;
  options.epoch = registered->epoch;
  options.manifest = services::CheckpointManifest(services::ManifestOf(*table, config), *table);
  std::vector<double> writes;
  Status failure;
  options.on_done = [&](const services::CheckpointOutcome& outcome) {
    writes.push_back(outcome.seconds * 1e3);
    if (!outcome.status.ok()) failure = outcome.status;
  };
  const uint64_t bytes = options.manifest.slot_bytes;
  services::Checkpointer checkpointer((*store)->port(), clock, std::move(options));
  const auto step = [&] {
    const auto scalars = kernels::NextAdamWStep({.lr = 1e-4}, &(*state)->powers());
    const double start = now_ms();
    TITAN_CHECK(scalars.ok() && (*state)->Step(pool, *scalars, 1.0f, gradient.data()));
    return now_ms() - start;
  };
  for (int i = 0; i < 3; ++i) step();
  std::vector<double> plain, stalls;
  for (int round = 0; round < rounds; ++round) {
    const double without = step();
    plain.push_back(without);
    const double start = now_ms();
    auto snapshot = (*state)->TakeSnapshot();
    TITAN_CHECK(snapshot.ok());
    checkpointer.Save(*std::move(snapshot), static_cast<uint64_t>(round) + 1, {});
    const double handed_over = now_ms() - start;
    stalls.push_back(handed_over + step() - without);
    checkpointer.WaitUntilFree();
  }
  if (!failure.ok()) {
    std::fprintf(stderr, "%s\n", MessageOf(failure).c_str());
    return 1;
  }
  std::printf("{\"bytes\": %llu, \"stall\": %.3f, \"step\": %.3f, \"write\": %.1f}\n",
              static_cast<unsigned long long>(bytes), Median(stalls), Median(plain),
              Median(writes));
  return 0;
}

}  // namespace
}  // namespace titan

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    std::fprintf(stderr, "usage: titan-bench-checkpoint WEIGHTSTORE_ADDRESS [ROUNDS]\n");
    return 2;
  }
  return titan::Main(argv[1], argc == 3 ? std::max(1, std::atoi(argv[2])) : 5);
}
