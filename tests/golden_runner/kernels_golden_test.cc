// SPDX-License-Identifier: Apache-2.0
//
// Golden vectors of the optimizer, of clipping, of log-prob and entropy, and of greedy choice, run
// through the F32 kernels. Tolerances are those that tests/golden documents for f32; where an input
// or the expected value is itself not an f32, the rounding of it is added.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "core/kernels/elementary.h"
#include "core/kernels/isa.h"
#include "core/kernels/optimizer.h"
#include "core/kernels/pool.h"
#include "core/kernels/rope.h"
#include "core/kernels/sampling.h"
#include "tests/support/golden.h"

namespace titan::kernels {
namespace {

using golden::GoldenFile;
using golden::GoldenNumber;
using nlohmann::json;

// All numbers of a nested array, in order.
void Flatten(const json& value, std::vector<double>* out) {
  if (value.is_array()) {
    for (const json& entry : value) Flatten(entry, out);
  } else {
    out->push_back(GoldenNumber(value));
  }
}

std::vector<double> Flat(const json& value) {
  std::vector<double> out;
  Flatten(value, &out);
  return out;
}

std::vector<float> FlatF32(const json& value) {
  const std::vector<double> numbers = Flat(value);
  return {numbers.begin(), numbers.end()};
}

TEST(OptimizerGolden, AdamW) {
  GoldenFile file("optim/adamw.json");
  file.Run([](const json& c) -> std::string {
    const json& config = c["config"];
    if (c["optimizer"] != "adamw") return "only adamw is covered here";
    if (config.value("amsgrad", false)) return "amsgrad is not covered";
    Pool pool(2);
    const NumericThread numeric;
    std::vector<float> p = FlatF32(c["initial_f32"]);
    std::vector<float> m(p.size(), 0.0f), v(p.size(), 0.0f);
    AdamWPowers powers;
    for (size_t step = 0; step < c["grads_f32"].size(); ++step) {
      const json& rates = c["lr_per_step"];
      const AdamWConfig hyper{
          rates.is_array() ? rates[step].get<double>() : config["lr"].get<double>(),
          config["betas"][0], config["betas"][1], config["eps"], config["weight_decay"]};
      const StatusOr<AdamWScalars> scalars = NextAdamWStep(hyper, &powers);
      if (!scalars.ok()) {
        ADD_FAILURE() << MessageOf(scalars.status());
        return "";
      }
      const std::vector<float> g = FlatF32(c["grads_f32"][step]);
      EXPECT_EQ(g.size(), p.size());
      EXPECT_TRUE(AdamWStep(pool, static_cast<int64_t>(p.size()), *scalars, 1.0f, g.data(),
                            p.data(), m.data(), v.data()));
      const std::vector<double> want = Flat(c["params_after_step_f64"][step]);
      for (size_t i = 0; i < want.size(); ++i)
        EXPECT_NEAR(p[i], want[i], 3e-7) << "step " << step << " entry " << i;
    }
    double largest = 0.0;
    for (const double g : Flat(c["grads_f32"])) largest = std::max(largest, std::abs(g));
    const std::vector<double> want_m = Flat(c["final_state_f64"]["exp_avg"]);
    const std::vector<double> want_v = Flat(c["final_state_f64"]["exp_avg_sq"]);
    for (size_t i = 0; i < want_m.size(); ++i) {
      EXPECT_NEAR(m[i], want_m[i], 1e-6 * std::abs(want_m[i]) + 5e-8 * largest);
      EXPECT_NEAR(v[i], want_v[i], 1e-6 * want_v[i] + 1e-37);
    }
    return "";
  });
  file.ExpectSkipped(1);
}

TEST(OptimizerGolden, ClipGradNorm) {
  GoldenFile file("optim/clip_grad_norm.json");
  file.Run([](const json& c) -> std::string {
    if (!c["norm_type"].is_number() || c["norm_type"] != 2.0)
      return "only the Euclidean norm is covered";
    Pool pool(2);
    const NumericThread numeric;
    std::vector<std::vector<float>> tensors;
    for (const json& tensor : c["grads_f32"]) tensors.push_back(FlatF32(tensor));
    std::vector<GradientTensor> views;
    for (const std::vector<float>& t : tensors) {
      views.push_back({t.data(), TableLayout::kRows, 1, static_cast<int64_t>(t.size())});
    }
    const double norm = GradientNorm(pool, views);
    const double want_norm = GoldenNumber(c["total_norm_f64"]);
    const StatusOr<float> scale = ClipScale(norm, c["max_norm"].get<double>());
    if (!std::isfinite(want_norm)) {
      // A gradient with NaN or infinity: the step is refused instead of spreading it.
      EXPECT_FALSE(std::isfinite(norm));
      EXPECT_EQ(scale.status().code(), StatusCode::kFailedPrecondition);
      return "";
    }
    EXPECT_NEAR(norm, want_norm, 1e-14 * want_norm);
    if (!scale.ok()) {
      ADD_FAILURE() << MessageOf(scale.status());
      return "";
    }
    const std::vector<double> want = Flat(c["clipped_f64"]);
    size_t i = 0;
    for (const std::vector<float>& t : tensors) {
      for (const float g : t) {
        EXPECT_NEAR(g * *scale, want.at(i), 1e-6 * std::abs(want[i])) << "entry " << i;
        ++i;
      }
    }
    EXPECT_EQ(i, want.size());
    return "";
  });
  file.ExpectSkipped(1);
}

// Checks one row; `rounding` is what making the logits f32 moved them by at most, after the
// temperature.
void CheckRow(const json& c, size_t row, const std::vector<double>& exact, float inverse) {
  const int64_t vocab = static_cast<int64_t>(exact.size());
  const std::vector<float> logits(exact.begin(), exact.end());
  double rounding = 0.0, largest = 0.0;
  for (size_t j = 0; j < exact.size(); ++j) {
    if (!std::isfinite(exact[j])) continue;
    rounding = std::max(rounding, std::abs(exact[j] - logits[j]) * inverse);
    largest = std::max(largest, std::abs(exact[j]) * inverse);
  }
  const double close = 2e-6 + 2.0 * rounding + 0x1p-23 * largest;
  const NumericThread numeric;
  const LogSoftmaxStats stats = ComputeLogSoftmax(logits.data(), vocab, inverse);
  const int64_t target = c["targets"][row];
  const double want_lp = GoldenNumber(c["logprobs"][row]);
  EXPECT_NEAR(LogProbOf(logits.data(), target, inverse, stats), want_lp,
              close + 0x1p-23 * std::abs(want_lp));
  EXPECT_NEAR(double{stats.max} + stats.log_sum, GoldenNumber(c["logsumexp"][row]), close);
  const double want_entropy = GoldenNumber(c["entropy"][row]);
  const double entropy = EntropyOf(logits.data(), vocab, inverse);
  // dH = sum p (lp + H) dz: bounded by the spread of lp under p times the rounding.
  const double spread = 1.0 + std::log(static_cast<double>(vocab));
  EXPECT_NEAR(entropy, want_entropy, close * spread);
  const std::vector<double> want_dlp = golden::GoldenNumbers(c["grad_sum_logprob"][row]);
  const std::vector<double> want_dh = golden::GoldenNumbers(c["grad_sum_entropy"][row]);
  for (int64_t j = 0; j < vocab; ++j) {
    const double lp = LogProbOf(logits.data(), j, inverse, stats);
    const double p = DExp(static_cast<float>(lp));
    EXPECT_NEAR(((j == target ? 1.0 : 0.0) - p) * inverse, want_dlp.at(j), close * inverse);
    const double dh = p == 0.0 ? 0.0 : -inverse * p * (lp + entropy);
    EXPECT_NEAR(dh, want_dh.at(j), 2.0 * close * spread * inverse);
  }
}

TEST(LossGolden, LogProbAndEntropy) {
  GoldenFile file("loss/logprob_entropy.json");
  file.Run([](const json& c) -> std::string {
    const NumericThread numeric;
    const StatusOr<float> inverse = InverseTemperature(c["temperature"].get<double>());
    if (!inverse.ok()) {
      ADD_FAILURE() << MessageOf(inverse.status());
      return "";
    }
    for (size_t row = 0; row < c["logits"].size(); ++row) {
      SCOPED_TRACE(testing::Message() << "row " << row);
      CheckRow(c, row, golden::GoldenNumbers(c["logits"][row]), *inverse);
    }
    return "";
  });
  file.ExpectSkipped(0);
}

// The frequencies that the library computes in binary32; its power differs by a unit in the last
// place here and there.
TEST(RopeGolden, Frequencies) {
  struct Rotation {
    const char* model;
    int head_dim, rotary_dim;
    double theta;
    RopeScaling scaling;
  };
  RopeScaling llama3{RopeScaling::Kind::kLlama3, 8.0, 1.0, 4.0, 64.0};
  RopeScaling yarn{RopeScaling::Kind::kYarn, 32.0};
  yarn.original_max_positions = 64.0;
  yarn.truncate = false;
  const Rotation rotations[] = {
      {"llama_gqa_untied", 16, 16, 1e4, {}}, {"llama_llama3rope_tied", 16, 16, 5e5, llama3},
      {"llama_mha_bias", 16, 16, 1e3, {}},   {"qwen3_headdim32_tied", 32, 32, 1e6, {}},
      {"gpt_oss", 32, 32, 150000, yarn},     {"qwen3_5_hybrid", 32, 8, 1e4, {}}};
  GoldenFile file("model/tiny.json");
  file.Run([&](const json& c) -> std::string {
    for (const Rotation& r : rotations) {
      if (c["name"] != r.model) continue;
      const auto table = RopeTable::Create(r.head_dim, r.theta, r.scaling, 1, r.rotary_dim);
      EXPECT_TRUE(table.ok()) << table.status();
      const std::vector<double> want = Flat(c["inv_freq_f32_values"]);
      EXPECT_EQ(table->inv_freq().size(), want.size());
      for (size_t i = 0; i < want.size(); ++i) {
        EXPECT_NEAR(table->inv_freq()[i], want[i], 2.5e-7 * want[i]) << r.model << " " << i;
      }
      EXPECT_NEAR(table->attention_factor(), GoldenNumber(c["rope_attention_scaling"]), 1e-15);
      return "";
    }
    return "another model's rotation";
  });
  file.ExpectSkipped(3);
}

TEST(SamplingGolden, Greedy) {
  GoldenFile file("sampling/greedy.json");
  file.Run([](const json& c) -> std::string {
    const std::vector<float> logits = FlatF32(c["logits"]);
    const int32_t want = c["argmax"];
    EXPECT_EQ(ArgMax(logits.data(), static_cast<int64_t>(logits.size())), want);
    const StatusOr<SampledToken> sampled =
        SampleToken(logits.data(), static_cast<int64_t>(logits.size()), {0.0, 1, 2, 3});
    if (!sampled.ok()) {
      ADD_FAILURE() << MessageOf(sampled.status());
      return "";
    }
    EXPECT_EQ(sampled->token, want);
    return "";
  });
  file.ExpectSkipped(0);
}

}  // namespace
}  // namespace titan::kernels
