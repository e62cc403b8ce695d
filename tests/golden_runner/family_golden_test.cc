// SPDX-License-Identifier: Apache-2.0
//
// Model vectors of one architecture each (families/NAME: config.json, model.safetensors,
// golden.json), float64 truth of transformers: last logits, log-probs, residual norms, the gradient
// of the mean loss over all sequences per tensor, greedy continuations. Tolerances are those that
// the vectors suggest for binary32.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "tests/support/golden.h"
#include "tests/support/golden_model.h"

namespace titan::test {
namespace {

using nlohmann::json;

std::vector<int32_t> Ids(const json& values) { return values.get<std::vector<int32_t>>(); }

double Largest(const std::vector<double>& values) {
  double largest = 0;
  for (const double v : values) largest = std::max(largest, std::fabs(v));
  return largest;
}

void CheckForward(const LoadedModel& model, kernels::Pool& pool, const json& sequence,
                  const json& bounds) {
  const std::vector<int32_t> ids = Ids(sequence["ids"]);
  Generation generation(model, pool, static_cast<int64_t>(ids.size()) + 17);
  const std::vector<float> last = generation.Append(ids).back();
  const std::vector<double> want = golden::GoldenNumbers(sequence["last_logits_f64"]);
  ASSERT_EQ(last.size(), want.size());
  const double near = golden::GoldenNumber(bounds["logits_rel"]) * Largest(want);
  for (size_t j = 0; j < want.size(); ++j) EXPECT_NEAR(last[j], want[j], near) << "logit " << j;
  const std::vector<double> norms =
      golden::GoldenNumbers(sequence["layer_output_l2_all_positions_f64"]);
  const std::vector<double> ours = LayerNorms(model, pool, ids);
  ASSERT_EQ(ours.size(), norms.size());
  for (size_t l = 0; l < norms.size(); ++l) EXPECT_NEAR(ours[l], norms[l], 5e-6 * norms[l]) << l;
  if (sequence.contains("greedy16_ids_f64")) {
    generation.ExpectGreedy(last, Ids(sequence["greedy16_ids_f64"]),
                            golden::GoldenNumbers(sequence["greedy16_gap_f64"]));
  }
}

// All sequences of more than one token as one pack; the loss is the mean over their next tokens.
void CheckGradient(const LoadedModel& model, kernels::Pool& pool, const json& c,
                   const json& bounds) {
  PackedSamples samples;
  std::vector<double> expected;
  for (const json& sequence : c["sequences"]) {
    if (sequence["ids"].size() < 2) continue;
    samples.samples.push_back(Ids(sequence["ids"]));
    for (const double lp : golden::GoldenNumbers(sequence["next_token_logprobs_f64"])) {
      expected.push_back(lp);
    }
  }
  std::vector<int32_t> rows, targets;
  samples.Targets(1, &rows, &targets);
  PlainTrainer trainer(model, pool, static_cast<int64_t>(samples.tokens().size()));
  const std::vector<float> log_probs = trainer.Forward(samples, rows, targets, 1.0f);
  ASSERT_EQ(log_probs.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(log_probs[i], expected[i], golden::GoldenNumber(bounds["logprob_abs"])) << i;
  }
  GradientMemory gradient(model.table());
  trainer.Backward(std::vector<float>(rows.size(), -1.0f / static_cast<float>(rows.size())),
                   UnitsOf(samples.lengths()), gradient.slot.data(), gradient.tied_embedding());
  gradient.CloseShard(pool);
  ASSERT_EQ(c["grad"].size(), static_cast<size_t>(model.table().size()));
  double largest = 0;
  for (const auto& [name, truth] : c["grad"].items()) {
    largest = std::max(largest, golden::GoldenNumber(truth["l2"]));
  }
  const double relative = golden::GoldenNumber(bounds["grad_l2_rel"]);
  for (const auto& [name, truth] : c["grad"].items()) {
    const double l2 = golden::GoldenNumber(truth["l2"]);
    if (l2 <= 1e-6 * largest) continue;
    const int index = model.table().Find(name);
    ASSERT_GE(index, 0) << name;
    const std::vector<float> values = gradient.Values(pool, index);
    EXPECT_NEAR(L2(values.data(), static_cast<int64_t>(values.size())), l2, relative * l2) << name;
    double dot = 0;
    for (size_t i = 0; i < values.size(); ++i)
      dot += values[i] * std::sin(static_cast<double>(i + 1));
    EXPECT_NEAR(dot, golden::GoldenNumber(truth["sin_dot"]), 4 * relative * l2) << name;
    const std::vector<double> first = golden::GoldenNumbers(truth["first"]);
    for (size_t i = 0; i < first.size(); ++i) {
      EXPECT_NEAR(values[i], first[i], 4 * relative * l2) << name << " " << i;
    }
  }
}

void CheckFamily(const std::string& name) {
  golden::GoldenFile file("families/" + name + "/golden.json");
  kernels::Pool pool(NumThreads());
  file.Run([&](const json& c) -> std::string {
    const LoadedModel model = LoadModel(file.Sibling(c["dir"].get<std::string>()).string());
    const json& bounds = c["tolerances"]["suggested"];
    for (const json& sequence : c["sequences"]) {
      SCOPED_TRACE("sequence of " + std::to_string(sequence["ids"].size()));
      CheckForward(model, pool, sequence, bounds);
    }
    CheckGradient(model, pool, c, bounds);
    return "";
  });
  file.ExpectSkipped(0);
}

TEST(FamilyGolden, Qwen2) { CheckFamily("qwen2"); }
TEST(FamilyGolden, Gemma3) { CheckFamily("gemma3"); }
TEST(FamilyGolden, Mistral) { CheckFamily("mistral"); }

}  // namespace
}  // namespace titan::test
