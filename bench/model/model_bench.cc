// SPDX-License-Identifier: Apache-2.0
//
// titan-bench-model MODEL [THREADS]: the decoder's speed on this machine, one JSON row a line:
// prefill of one 512-token prompt, decode at batch 1, 8, 32 and 64, the same in mode w16, one
// update of a demo-shaped step. Figures are tokens a second of the median of five runs.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "core/formats/model_source.h"
#include "core/kernels/isa.h"
#include "core/model/model_files.h"
#include "generator/engine.h"
#include "trainer/train_run.h"

namespace titan {
namespace {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <typename T>
T OrExit(StatusOr<T> value) {
  if (!value.ok()) {
    std::fprintf(stderr, "%s\n", value.status().ToString().c_str());
    std::exit(1);
  }
  return *std::move(value);
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void Row(const char* id, double tokens, const std::vector<double>& seconds) {
  std::printf("{\"id\": \"%s\", \"ours\": %.1f, \"unit\": \"tokens/s\"}\n", id,
              tokens / Median(seconds));
  std::fflush(stdout);
}

// Seconds of `steps` decode steps with `batch` sequences after a prompt of 32 tokens.
double Decode(const model::Decoder& decoder, kernels::Pool& pool, const void* slot, int batch,
              int steps) {
  generator::Engine::Limits limits;
  auto engine = OrExit(generator::Engine::Create(decoder, pool, limits));
  const generator::VersionKey version{"bench", 0, false};
  if (!engine->AddVersion(version, slot, [] { return true; }).ok()) std::exit(1);
  generator::GroupRequest request;
  request.version = version;
  for (int i = 0; i < 32; ++i) request.prompt.push_back(100 + i);
  for (int s = 0; s < batch; ++s) {
    request.samples.push_back({static_cast<uint32_t>(s), SampleId{static_cast<uint64_t>(s)}});
  }
  request.max_new_tokens = steps + 2;
  OrExit(engine->Submit(request));
  engine->Step();
  engine->Step();
  const double start = Now();
  for (int i = 0; i < steps; ++i) engine->Step();
  return Now() - start;
}

double Prefill(const model::Decoder& decoder, kernels::Pool& pool, const void* slot, int tokens) {
  generator::Engine::Limits limits;
  auto engine = OrExit(generator::Engine::Create(decoder, pool, limits));
  const generator::VersionKey version{"bench", 0, false};
  if (!engine->AddVersion(version, slot, [] { return true; }).ok()) std::exit(1);
  generator::GroupRequest request;
  request.version = version;
  for (int i = 0; i < tokens; ++i) request.prompt.push_back(100 + i);
  request.samples.push_back({0, SampleId{0}});
  request.max_new_tokens = 2;
  OrExit(engine->Submit(request));
  const double start = Now();
  engine->Step();
  return Now() - start;
}

int Main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: titan-bench-model MODEL [THREADS]\n");
    return 2;
  }
  kernels::Pool pool(argc > 2 ? std::atoi(argv[2]) : 2);
  const kernels::NumericThread numeric;
  const auto source = OrExit(formats::OpenModelSource(argv[1]));
  const auto decoder = OrExit(model::Decoder::Create(source->config()));
  trainer::TrainConfig config;
  config.optimizer.lr = 1e-5;
  auto run = OrExit(trainer::TrainRun::Create(*decoder, pool, config, Now));
  if (const Status s = model::LoadWeights(pool, *source, decoder->table(), run->master());
      !s.ok()) {
    std::fprintf(stderr, "%s\n", s.ToString().c_str());
    return 1;
  }
  const float* slot = run->master();
  const auto w16 =
      OrExit(model::Decoder::Create(source->config(), /*max_positions=*/0, model::Mode::kW16));
  const model::Floats rounded = OrExit(model::AllocateFloats(w16->table().slot_floats()));
  if (const Status s =
          model::RoundMaster(pool, decoder->master_table(), slot, w16->table(), rounded.get());
      !s.ok()) {
    std::fprintf(stderr, "%s\n", s.ToString().c_str());
    return 1;
  }
  // Both modes in turn, so that other load on the machine meets both.
  constexpr int kRuns = 5;
  std::vector<double> seconds, seconds_w16;
  for (int i = 0; i < kRuns; ++i) {
    seconds.push_back(Prefill(*decoder, pool, slot, 512));
    seconds_w16.push_back(Prefill(*w16, pool, rounded.get(), 512));
  }
  Row("prefill/512", 512, seconds);
  Row("prefill/512/w16", 512, seconds_w16);
  for (const int batch : {1, 8, 32, 64}) {
    seconds.clear();
    seconds_w16.clear();
    for (int i = 0; i < kRuns; ++i) {
      seconds.push_back(Decode(*decoder, pool, slot, batch, 8));
      seconds_w16.push_back(Decode(*w16, pool, rounded.get(), batch, 8));
    }
    Row(("decode/" + std::to_string(batch)).c_str(), 8.0 * batch, seconds);
    Row(("decode/" + std::to_string(batch) + "/w16").c_str(), 8.0 * batch, seconds_w16);
  }
  // 40 samples of 35 prompt and 15 reply tokens: a step of the demo.
  std::vector<trainer::TrainingSample> samples(40);
  for (size_t s = 0; s < samples.size(); ++s) {
    samples[s].group = MakeGroupId(0, static_cast<uint32_t>(s / 8), 0);
    samples[s].group_index = static_cast<uint32_t>(s / 8);
    samples[s].sample_index = static_cast<uint32_t>(s % 8);
    for (int i = 0; i < 35; ++i) samples[s].prompt.push_back(100 + i);
    for (int i = 0; i < 15; ++i) samples[s].reply.push_back(200 + i + static_cast<int>(s));
    samples[s].log_probs.assign(15, -3.0f);
    samples[s].advantage = s % 2 == 0 ? 1 : -1;
    samples[s].trained = true;
  }
  seconds.clear();
  std::vector<double> forward, backward, optimizer;
  for (int i = 0; i < kRuns; ++i) {
    const double start = Now();
    const auto update = OrExit(run->Update(samples, 5, false));
    seconds.push_back(Now() - start);
    forward.push_back(update.forward_seconds);
    backward.push_back(update.backward_seconds);
    optimizer.push_back(update.optimizer_seconds);
  }
  Row("train/demo", 40 * 50, seconds);
  Row("train/demo/forward", 40 * 50, forward);
  Row("train/demo/backward", 40 * 50, backward);
  Row("train/demo/optimizer", 40 * 50, optimizer);
  return 0;
}

}  // namespace
}  // namespace titan

int main(int argc, char** argv) { return titan::Main(argc, argv); }
