// SPDX-License-Identifier: Apache-2.0
//
// titan-bench-model MODEL|--shape NAME [--threads N] [--train|--no-train] [--quick]: the decoder's
// speed on this machine, one JSON row a line: prefill of one 512-token prompt, decode at batch 1,
// 8, 32 and 64, the same in modes w16 and bf16, how near decoding at batch 1 comes to the time of
// reading the weights once (decode/1/of_read: both in turns, for the memory of a virtual machine is
// faster at one time than at another), one update of a demo-shaped step (with --shape only
// after --train: it takes four times the weights). Figures are tokens a second of the median of
// five runs; --quick: of three, mode f32 and batches up to 32 alone. A shape is a model of that
// name's sizes with random weights; its rows end in /NAME.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "bench/kernels/machine.h"
#include "core/formats/model_source.h"
#include "core/kernels/isa.h"
#include "core/model/model_files.h"
#include "generator/engine.h"
#include "trainer/train_run.h"
#include "weightstore/slot_memory.h"

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

void Row(const std::string& id, double tokens, const std::vector<double>& seconds) {
  std::printf("{\"id\": \"%s\", \"ours\": %.1f, \"unit\": \"tokens/s\"}\n", id.c_str(),
              tokens / Median(seconds));
  std::fflush(stdout);
}

std::unique_ptr<weightstore::SlotMemory> NewSlot(const model::Decoder& decoder) {
  return OrExit(weightstore::SlotMemory::Create(
      0, static_cast<uint64_t>(decoder.table().slot_floats()) * sizeof(float),
      weightstore::SlotMemory::Writer::kDaemon));
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

struct Shape {
  const char* name;
  const char* family;
  int32_t hidden, layers, heads, kv_heads, head_dim, intermediate, vocabulary;
  double theta;
};
// Sizes as published; the context is cut to what the rows need.
constexpr Shape kShapes[] = {
    {"qwen3-0.6b", "qwen3", 1024, 28, 16, 8, 128, 3072, 151936, 1e6},
    {"llama-3.2-1b", "llama", 2048, 16, 32, 8, 64, 8192, 128256, 5e5},
    {"smollm2-135m", "llama", 576, 30, 9, 3, 64, 1536, 49152, 1e5},
};

formats::ModelConfig ConfigOf(const std::string& name) {
  for (const Shape& shape : kShapes) {
    if (name != shape.name) continue;
    formats::ModelConfig config;
    config.family = shape.family;
    config.hidden_size = shape.hidden;
    config.num_layers = shape.layers;
    config.num_heads = shape.heads;
    config.num_kv_heads = shape.kv_heads;
    config.head_dim = shape.head_dim;
    config.intermediate_size = shape.intermediate;
    config.vocab_size = shape.vocabulary;
    config.max_position_embeddings = 4096;
    config.rms_norm_eps = 1e-6f;
    config.rope_theta = shape.theta;
    config.qk_norm = config.family == "qwen3";
    config.tie_embeddings = true;
    return config;
  }
  std::fprintf(stderr, "--shape %s: there are", name.c_str());
  for (const Shape& shape : kShapes) std::fprintf(stderr, " %s", shape.name);
  std::fprintf(stderr, "\n");
  std::exit(2);
}

// Norm gains 1, matrices uniform with a variance of 1 / columns.
void FillRandom(kernels::Pool& pool, const model::ParameterTable& table, void* slot) {
  uint64_t state = 1;
  std::vector<float> values;
  for (const model::Parameter& p : table.parameters()) {
    values.assign(static_cast<size_t>(p.num_elements()), 1.0f);
    const float scale = p.is_matrix() ? std::sqrt(12.0f / static_cast<float>(p.columns())) : 0.0f;
    for (float& value : values) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      if (scale != 0) value = (static_cast<float>(state >> 40) * 0x1p-24f - 0.5f) * scale;
    }
    if (!model::StoreParameter(pool, p, values, slot).ok()) std::exit(1);
  }
}

struct BenchedMode {
  const char* name;  // what its rows end in
  const model::Decoder* decoder;
  const void* slot;
};

// Rows of all modes, run in turn.
template <typename Function>
void Measure(const std::string& id, const std::string& suffix, int tokens, int runs,
             const std::vector<BenchedMode>& modes, const Function& seconds_of) {
  std::vector<std::vector<double>> seconds(modes.size());
  for (int i = 0; i < runs; ++i) {
    for (size_t m = 0; m < modes.size(); ++m) seconds[m].push_back(seconds_of(modes[m]));
  }
  for (size_t m = 0; m < modes.size(); ++m) Row(id + modes[m].name + suffix, tokens, seconds[m]);
}

// Rows decode/1/of_read and read (of the slot): steps of batch 1, and passes over the slot's bytes
// right after them. The median of the turns' ratios, so that memory that changes its speed between
// turns changes nothing.
void MeasureOfRead(const std::string& suffix, const model::Decoder& decoder, kernels::Pool& pool,
                   const void* slot) {
  constexpr int kTurns = 15, kSteps = 8, kPasses = 4;
  const int64_t bytes = decoder.table().slot_floats() * static_cast<int64_t>(sizeof(float));
  std::vector<double> ratios, passes;
  for (int i = 0; i < kTurns; ++i) {
    const double step = Decode(decoder, pool, slot, 1, kSteps) / kSteps;
    const double start = Now();
    for (int pass = 0; pass < kPasses; ++pass) {
      kernels::ReadAll(pool, static_cast<const char*>(slot), bytes);
    }
    passes.push_back((Now() - start) / kPasses);
    ratios.push_back(passes.back() / step);
  }
  std::printf("{\"id\": \"decode/1/of_read%s\", \"ours\": %.3f, \"unit\": \"of read\"}\n",
              suffix.c_str(), Median(ratios));
  std::printf("{\"id\": \"read%s\", \"ours\": %.1f, \"unit\": \"GB/s\"}\n", suffix.c_str(),
              static_cast<double>(bytes) / Median(passes) * 1e-9);
  std::fflush(stdout);
}

struct Options {
  std::string path, shape;
  int threads = 2;
  bool train = false;
  bool quick = false;
};

Options Parse(int argc, char** argv) {
  Options options;
  int train = -1;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const bool has_value = i + 1 < argc;
    if (argument == "--shape" && has_value) {
      options.shape = argv[++i];
    } else if (argument == "--threads" && has_value) {
      options.threads = std::atoi(argv[++i]);
    } else if (argument == "--train" || argument == "--no-train") {
      train = argument == "--train";
    } else if (argument == "--quick") {
      options.quick = true;
    } else if (!argument.starts_with("-") && options.path.empty()) {
      options.path = argument;
    } else {
      options.threads = 0;
    }
  }
  if (options.threads < 1 || options.path.empty() == options.shape.empty()) {
    std::fprintf(stderr,
                 "usage: titan-bench-model MODEL|--shape NAME [--threads N] [--train|--no-train] "
                 "[--quick]\n");
    std::exit(2);
  }
  options.train = train < 0 ? options.shape.empty() : train == 1;
  return options;
}

void Train(const std::string& suffix, trainer::TrainRun& run) {
  constexpr int kRuns = 5;
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
  std::vector<double> seconds, forward, backward, optimizer;
  for (int i = 0; i < kRuns; ++i) {
    const double start = Now();
    const auto update = OrExit(run.Update(samples, 5, false));
    seconds.push_back(Now() - start);
    forward.push_back(update.forward_seconds);
    backward.push_back(update.backward_seconds);
    optimizer.push_back(update.optimizer_seconds);
  }
  Row("train/demo" + suffix, 40 * 50, seconds);
  Row("train/demo/forward" + suffix, 40 * 50, forward);
  Row("train/demo/backward" + suffix, 40 * 50, backward);
  Row("train/demo/optimizer" + suffix, 40 * 50, optimizer);
}

int Main(int argc, char** argv) {
  const Options options = Parse(argc, argv);
  kernels::Pool pool(options.threads);
  const kernels::NumericThread numeric;
  std::unique_ptr<formats::ModelSource> source;
  if (!options.path.empty()) source = OrExit(formats::OpenModelSource(options.path));
  const formats::ModelConfig config = source ? source->config() : ConfigOf(options.shape);
  const std::string suffix = source ? "" : "/" + options.shape;
  const auto decoder = OrExit(model::Decoder::Create(config));
  // Weights as a generator finds them: in a slot of the weight store.
  const auto memory = NewSlot(*decoder);
  auto* slot = reinterpret_cast<float*>(memory->writable_bytes().data());
  if (source == nullptr) {
    FillRandom(pool, decoder->table(), slot);
  } else if (const Status s = model::LoadWeights(pool, *source, decoder->table(), slot); !s.ok()) {
    std::fprintf(stderr, "%s\n", s.ToString().c_str());
    return 1;
  }
  std::unique_ptr<trainer::TrainRun> run;
  if (options.train) {
    trainer::TrainConfig train_config;
    train_config.optimizer.lr = 1e-5;
    run = OrExit(trainer::TrainRun::Create(*decoder, pool, train_config, Now));
    std::copy_n(slot, decoder->table().slot_floats(), run->master());
  }
  // All modes in turn, so that other load on the machine meets all.
  std::vector<BenchedMode> modes;
  modes.push_back({"", decoder.get(), slot});
  std::unique_ptr<const model::Decoder> w16, bf16;
  std::unique_ptr<weightstore::SlotMemory> rounded;
  if (!options.quick) {
    w16 = OrExit(model::Decoder::Create(config, /*max_positions=*/0, model::Mode::kW16));
    bf16 = OrExit(model::Decoder::Create(config, /*max_positions=*/0, model::Mode::kBf16));
    rounded = NewSlot(*w16);
    void* half = rounded->writable_bytes().data();
    if (const Status s =
            model::RoundMaster(pool, decoder->master_table(), slot, w16->table(), half);
        !s.ok()) {
      std::fprintf(stderr, "%s\n", s.ToString().c_str());
      return 1;
    }
    modes.push_back({"/w16", w16.get(), half});
    modes.push_back({"/bf16", bf16.get(), half});
  }
  const int runs = options.quick ? 3 : 5;
  Measure("prefill/512", suffix, 512, runs, modes,
          [&](const BenchedMode& m) { return Prefill(*m.decoder, pool, m.slot, 512); });
  MeasureOfRead(suffix, *decoder, pool, slot);
  constexpr int kSteps = 8;
  for (const int batch : {1, 8, 32, 64}) {
    if (options.quick && batch > 32) continue;
    Measure("decode/" + std::to_string(batch), suffix, kSteps * batch, runs, modes,
            [&](const BenchedMode& m) { return Decode(*m.decoder, pool, m.slot, batch, kSteps); });
  }
  if (options.train) Train(suffix, *run);
  return 0;
}

}  // namespace
}  // namespace titan

int main(int argc, char** argv) { return titan::Main(argc, argv); }
