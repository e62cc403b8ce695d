// SPDX-License-Identifier: Apache-2.0
//
// titan-bench-train MODEL BATCH.json [--key=value ...]: updates of the trainer on one batch, as
// JSON on stdout: the first update's loss and gradient norm, the seconds of every later one and of
// its parts, the memory planned and the peak of the process. Keys: threads, updates, mode (f32,
// w16, bf16), recompute (none, selective, full), max_pack_tokens, shared_group_tokens.
//
// BATCH.json: {"samples": [{"group", "prompt", "reply", "log_probs", "advantage"}]}, groups
// ascending from 0.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/formats/model_source.h"
#include "core/kernels/isa.h"
#include "core/model/model_files.h"
#include "trainer/train_run.h"

namespace titan {
namespace {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

[[noreturn]] void Fail(const std::string& message) {
  std::fprintf(stderr, "titan-bench-train: %s\n", message.c_str());
  std::exit(1);
}

template <typename T>
T OrExit(StatusOr<T> value) {
  if (!value.ok()) Fail(value.status().ToString());
  return *std::move(value);
}

std::map<std::string, std::string> Options(int argc, char** argv) {
  std::map<std::string, std::string> options = {{"threads", "2"},
                                                {"updates", "4"},
                                                {"mode", "f32"},
                                                {"recompute", "none"},
                                                {"max_pack_tokens", "2048"},
                                                {"shared_group_tokens", "1024"}};
  for (int i = 3; i < argc; ++i) {
    const std::string argument = argv[i];
    const size_t equals = argument.find('=');
    if (argument.rfind("--", 0) != 0 || equals == std::string::npos ||
        options.count(argument.substr(2, equals - 2)) == 0) {
      std::string valid;
      for (const auto& [key, value] : options) valid += " --" + key + "=" + value;
      Fail("'" + argument + "'; valid:" + valid);
    }
    options[argument.substr(2, equals - 2)] = argument.substr(equals + 1);
  }
  return options;
}

std::vector<trainer::TrainingSample> ReadBatch(const char* path) {
  std::ifstream file(path);
  const auto json = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded() || !json.contains("samples")) Fail(std::string(path) + " is no batch");
  std::vector<trainer::TrainingSample> samples;
  uint32_t in_group = 0;
  for (const auto& row : json["samples"]) {
    trainer::TrainingSample sample;
    sample.group_index = row["group"];
    in_group =
        !samples.empty() && samples.back().group_index == sample.group_index ? in_group + 1 : 0;
    sample.sample_index = in_group;
    sample.group = MakeGroupId(0, sample.group_index, 0);
    sample.id = MakeSampleId(sample.group, in_group);
    sample.prompt = row["prompt"].get<std::vector<TokenId>>();
    sample.reply = row["reply"].get<std::vector<TokenId>>();
    sample.log_probs = row["log_probs"].get<std::vector<float>>();
    sample.advantage = row["advantage"];
    sample.trained = true;
    samples.push_back(std::move(sample));
  }
  return samples;
}

int64_t PeakMebibytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmHWM:", 0) == 0) return std::atoll(line.c_str() + 6) / 1024;
  }
  return 0;
}

int Main(int argc, char** argv) {
  if (argc < 3) Fail("usage: titan-bench-train MODEL BATCH.json [--key=value ...]");
  const auto options = Options(argc, argv);
  const std::vector<trainer::TrainingSample> samples = ReadBatch(argv[2]);
  kernels::Pool pool(std::atoi(options.at("threads").c_str()));
  const kernels::NumericThread numeric;
  auto source = OrExit(formats::OpenModelSource(argv[1]));
  trainer::TrainConfig config;
  config.optimizer.lr = 1e-6;
  config.recompute = OrExit(model::RecomputeFromName(options.at("recompute")));
  config.max_pack_rows = std::atoll(options.at("max_pack_tokens").c_str());
  config.shared_group_tokens = std::atoll(options.at("shared_group_tokens").c_str());
  config.max_sequence_tokens = 1;
  for (const auto& sample : samples) {
    config.max_sequence_tokens = std::max(config.max_sequence_tokens, sample.length());
  }
  const auto decoder =
      OrExit(model::Decoder::Create(source->config(), config.max_sequence_tokens,
                                    OrExit(model::ModeFromName(options.at("mode")))));
  auto run = OrExit(trainer::TrainRun::Create(*decoder, pool, config, Now));
  const Status loaded = model::LoadWeights(pool, *source, decoder->master_table(), run->master());
  if (!loaded.ok()) Fail(loaded.ToString());
  source.reset();  // as the trainer does: the file's pages are not part of an update
  nlohmann::json out;
  const auto num_groups = static_cast<int64_t>(samples.back().group_index) + 1;
  const int updates = std::atoi(options.at("updates").c_str());
  for (int i = 0; i <= updates; ++i) {
    const double start = Now();
    const auto update = OrExit(run->Update(samples, num_groups, false));
    const double seconds = Now() - start;
    if (i == 0) {
      out["loss"] = update.loss;
      out["gradient_norm"] = update.gradient_norm;
      continue;
    }
    out["seconds"].push_back(seconds);
    out["forward_seconds"].push_back(update.forward_seconds);
    out["backward_seconds"].push_back(update.backward_seconds);
    out["optimizer_seconds"].push_back(update.optimizer_seconds);
  }
  out["planned_mib"] = trainer::TrainRun::MemoryNeeded(*decoder, config) >> 20;
  out["peak_mib"] = PeakMebibytes();
  std::printf("%s\n", out.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace titan

int main(int argc, char** argv) { return titan::Main(argc, argv); }
