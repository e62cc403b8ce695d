// SPDX-License-Identifier: Apache-2.0
//
// Goal: the kernels compute what the textbook says, forward and backward. Every operation, in the
// three modes, runs on every instruction set of this machine and is held against float64 autograd
// of its plain definition (tests/golden/op_gradients). Bounds stand beside what was measured, which
// is the same on every machine, since the bits are. The operations that mix tokens are in
// op_gradients_mixers_golden_test.cc.
#include <gtest/gtest.h>

#include "core/kernels/embedding.h"
#include "core/kernels/gelu.h"
#include "core/kernels/head.h"
#include "core/kernels/linear.h"
#include "core/kernels/moe_experts.h"
#include "core/kernels/norm.h"
#include "core/kernels/order.h"
#include "core/kernels/rope.h"
#include "core/kernels/softplus.h"
#include "core/kernels/swiglu.h"
#include "tests/support/op_gradients.h"

namespace titan::kernels {
namespace {

using tests::CheckOps;
using tests::ExpectSeen;
using tests::Floats;
using tests::InputsOf;
using tests::OpBoundsTable;
using tests::OpCase;
using tests::Tensors;
using tests::Weights;
using tests::Zeros;

Tensors ComputeLinear(Pool& pool, const OpCase& c) {
  const int64_t rows = c.Int("rows"), n = c.Int("n"), k = c.Int("k");
  const Inputs inputs = InputsOf(c.Text("mode"));
  const Floats x = c.In("x"), dy = c.In("d_y"), w = c.In("w"),
               bias = c.Has("b") ? c.In("b") : Floats();
  const Weights weights(pool, {&w, 1}, n, k, c.Text("mode"));
  Floats y = Zeros(rows * n), dx = Zeros(rows * k), db = Zeros(n);
  Linear(
      pool, {x.data(), k, rows, k, inputs},
      {weights.panels()[0], n, LeafCount(k, 0), bias.empty() ? nullptr : bias.data(), y.data(), n});
  Linear(pool, {dy.data(), n, rows, n},
         {weights.backward()[0], k, LeafCount(n, 0), nullptr, dx.data(), k});
  for (const RowRange& unit : c.Units()) {
    const int64_t count = unit.end - unit.begin;
    LinearWeightGradient(pool, {x.data() + unit.begin * k, k, count, k, inputs},
                         {dy.data() + unit.begin * n, n, n, weights.accumulators()[0]});
    LinearBiasGradient(pool, dy.data() + unit.begin * n, n, count, n, db.data());
  }
  Tensors out = {{"y", y}, {"dx", dx}, {"dw", weights.Gradients(pool)}};
  if (!bias.empty()) out["db"] = db;
  return out;
}

Tensors ComputeHead(Pool& pool, const OpCase& c) {
  const int64_t rows = c.Int("rows"), vocab = c.Int("vocab"), hidden = c.Int("hidden");
  const HeadShape shape = {vocab, hidden, LeafCount(hidden, 0), c.Float("inverse_temperature"),
                           InputsOf(c.Text("mode"))};
  const Floats x = c.In("hidden"), w = c.In("w"), dlp = c.In("d_log_prob");
  const std::vector<int32_t> targets = c.Ids("targets");
  const Weights weights(pool, {&w, 1}, vocab, hidden, c.Text("mode"));
  Floats log_prob = Zeros(rows), max = log_prob, log_sum = log_prob, entropy = log_prob,
         dhidden = Zeros(rows * hidden);
  HeadLogProb(pool, shape, x.data(), hidden, rows, weights.panels()[0], targets.data(),
              log_prob.data(), max.data(), log_sum.data(), entropy.data());
  std::vector<HeadUnit> units;
  for (const RowRange& unit : c.Units()) units.push_back({unit.begin, unit.end - unit.begin});
  HeadLogProbBackward(pool, shape, x.data(), hidden, rows, weights.panels()[0], targets.data(),
                      dlp.data(), max.data(), log_sum.data(), units, dhidden.data(), hidden,
                      weights.accumulators()[0]);
  return {{"log_prob", log_prob},
          {"entropy", entropy},
          {"dhidden", dhidden},
          {"dw", weights.Gradients(pool)}};
}

Tensors ComputeEmbedding(Pool& pool, const OpCase& c) {
  const int64_t vocab = c.Int("vocab"), hidden = c.Int("hidden");
  const std::vector<int32_t> tokens = c.Ids("tokens");
  const int64_t rows = static_cast<int64_t>(tokens.size());
  const Floats table = c.In("table"), dy = c.In("d_y");
  Weights weights(pool, {&table, 1}, vocab, hidden, "f32");
  Floats y = Zeros(rows * hidden);
  EmbeddingGather(pool, weights.panels()[0], vocab, hidden, tokens.data(), rows, y.data());
  EmbeddingGradient(pool, TableLayout::kPanels32, dy.data(), vocab, hidden, tokens.data(),
                    c.Units(), weights.accumulators()[0]);
  return {{"y", y}, {"dtable", weights.Gradients(pool)}};
}

// Measured: forward, gradient.
const OpBoundsTable kLinear = {
    {"linear", {1.1e-6, 7e-7}},           // 7.4e-7, 4.6e-7
    {"head", {1.5e-7, 1.5e-6}},           // 1.0e-7, 9.7e-7
    {"head/two_leaves", {2.5e-6, 5e-6}},  // 1.6e-6, 3.0e-6: chains of 256, logits up to 25
    {"embedding", {1e-10, 4.5e-10}},      // 6.9e-11 (a copy: the file has ten digits), 2.9e-10
};

TEST(OpGradientsGolden, LinearHeadEmbedding) {
  CheckOps("op_gradients/linear.json", kLinear, [](Pool& pool, const OpCase& c) {
    if (c.op() == "linear") return ComputeLinear(pool, c);
    return c.op() == "head" ? ComputeHead(pool, c) : ComputeEmbedding(pool, c);
  });
}

NormKind KindOf(const std::string& name) {
  if (name == "gain") return NormKind::kGain;
  if (name == "centred_gain") return NormKind::kCentredGain;
  return name == "plain" ? NormKind::kPlain : NormKind::kGainFirst;
}

Tensors ComputeNorm(Pool& pool, const OpCase& c, NormKind kind) {
  const int64_t rows = c.Int("rows"), heads = c.Int("heads"), width = c.Int("width");
  const NormShape shape = {kind, heads};
  const Floats x = c.In("x"), dy = c.In("d_y"), gain = c.Has("w") ? c.In("w") : Floats();
  const float* gains = gain.empty() ? nullptr : gain.data();
  Floats y(x.size()), dx(x.size()), inv_rms = Zeros(rows * heads), dgain = Zeros(width);
  RmsNorm(pool, x.data(), rows, width, gains, c.Float("eps"), y.data(), inv_rms.data(), shape);
  RmsNormBackward(pool, x.data(), rows, width, gains, inv_rms.data(), dy.data(), dx.data(),
                  c.Units(), gains == nullptr ? nullptr : dgain.data(), shape);
  Tensors out = {{"y", y}, {"dx", dx}};
  if (gains != nullptr) out["dw"] = dgain;
  return out;
}

RopeScaling ScalingOf(const nlohmann::json& config) {
  RopeScaling scaling;
  if (config.is_null()) return scaling;
  scaling.factor = config["factor"];
  scaling.original_max_positions =
      config.value("original_max_positions", scaling.original_max_positions);
  if (config["kind"] == "linear") scaling.kind = RopeScaling::Kind::kLinear;
  if (config["kind"] == "llama3") {
    scaling.kind = RopeScaling::Kind::kLlama3;
    scaling.low_freq_factor = config["low_freq_factor"];
    scaling.high_freq_factor = config["high_freq_factor"];
  }
  if (config["kind"] == "yarn") {
    scaling.kind = RopeScaling::Kind::kYarn;
    scaling.beta_fast = config["beta_fast"];
    scaling.beta_slow = config["beta_slow"];
  }
  return scaling;
}

Tensors ComputeRope(Pool& pool, const OpCase& c, const RopeScaling& scaling) {
  const int heads = static_cast<int>(c.Int("heads")), dim = static_cast<int>(c.Int("head_dim"));
  const auto table = RopeTable::Create(
      dim, c.config()["theta"], scaling, 128, static_cast<int>(c.Int("rotary_dim")),
      c.Text("pairs") == "half" ? RopePairs::kHalf : RopePairs::kInterleaved);
  if (!table.ok()) {
    ADD_FAILURE() << table.status();
    return {};
  }
  const std::vector<int32_t> positions = c.Ids("positions");
  const int64_t rows = static_cast<int64_t>(positions.size());
  Floats y = c.In("x"), dx = c.In("d_y");
  ApplyRope(pool, *table, y.data(), heads * dim, rows, heads, positions.data());
  ApplyRopeBackward(pool, *table, dx.data(), heads * dim, rows, heads, positions.data());
  return {{"y", y}, {"dx", dx}};
}

Tensors ComputeGate(Pool& pool, const OpCase& c) {
  const int64_t n = c.Int("n");
  const Floats gate = c.In("gate"), up = c.In("up"), dout = c.In("d_y");
  Floats y = Zeros(n), dgate = y, dup = y;
  if (c.Text("act") == "silu") {
    SwiGlu(pool, n, gate.data(), up.data(), y.data());
    SwiGluBackward(pool, n, gate.data(), up.data(), dout.data(), dgate.data(), dup.data());
  } else if (c.Text("act") == "gelu_tanh") {
    GeluGlu(pool, n, gate.data(), up.data(), y.data());
    GeluGluBackward(pool, n, gate.data(), up.data(), dout.data(), dgate.data(), dup.data());
  } else {
    const GateBounds bounds = {c.Float("limit"), c.Float("alpha"), c.Float("offset")};
    BoundedGate(pool, bounds, n, gate.data(), up.data(), y.data());
    BoundedGateBackward(pool, bounds, n, gate.data(), up.data(), dout.data(), dgate.data(),
                        dup.data());
  }
  return {{"y", y}, {"dgate", dgate}, {"dup", dup}};
}

Tensors ComputeSoftplus(Pool& pool, const OpCase& c) {
  const int64_t n = c.Int("n");
  const Floats x = c.In("x"), dout = c.In("d_y");
  Floats y = Zeros(n), dx = y;
  Softplus(pool, n, x.data(), y.data());
  SoftplusBackward(pool, n, x.data(), dout.data(), dx.data());
  return {{"y", y}, {"dx", dx}};
}

Tensors ComputeElementwise(Pool& pool, const OpCase& c) {
  if (c.op() == "norm") return ComputeNorm(pool, c, KindOf(c.Text("kind")));
  if (c.op() == "rope") return ComputeRope(pool, c, ScalingOf(c.config()["scaling"]));
  return c.op() == "softplus" ? ComputeSoftplus(pool, c) : ComputeGate(pool, c);
}

const OpBoundsTable kElementwise = {
    {"norm", {1.4e-7, 2.9e-7}},    // 8.9e-8, 1.9e-7
    {"rope", {6e-7, 1.4e-6}},      // 4.0e-7, 9.2e-7: frequencies are binary32, times positions
    {"gate", {1.1e-7, 1.3e-6}},    // 6.9e-8, 8.5e-7
    {"softplus", {4.5e-8, 9e-8}},  // 2.9e-8, 5.8e-8
};

TEST(OpGradientsGolden, NormsRotationsGates) {
  CheckOps("op_gradients/elementwise.json", kElementwise, ComputeElementwise);
}

TEST(OpGradientsGolden, MistakesOfLinearsAreSeen) {
  const std::string file = "op_gradients/linear.json";
  for (const char* mode : {"w16", "bf16"}) {
    // Rows that are not rounded, or wrongly rounded, where the mode says otherwise.
    ExpectSeen(file, std::string("linear/") + mode, kLinear, "dw",
               [&](Pool& pool, const OpCase& c) {
                 nlohmann::json other = c.json();
                 other["config"]["mode"] = std::string(mode) == "w16" ? "bf16" : "w16";
                 return ComputeLinear(pool, OpCase(other));
               });
  }
  // A unit's last row left out, a target off by one, tokens of one unit only.
  const auto last_cut_off_by_one = [](const OpCase& c) {
    nlohmann::json other = c.json();
    other["config"]["units"].back() = other["config"]["units"].back().get<int>() - 1;
    return other;
  };
  ExpectSeen(file, "linear/many_rows", kLinear, "dw", [&](Pool& pool, const OpCase& c) {
    const nlohmann::json other = last_cut_off_by_one(c);
    return ComputeLinear(pool, OpCase(other));
  });
  ExpectSeen(file, "embedding/repeated", kLinear, "dtable", [&](Pool& pool, const OpCase& c) {
    const nlohmann::json other = last_cut_off_by_one(c);
    return ComputeEmbedding(pool, OpCase(other));
  });
  ExpectSeen(file, "head/chunks_units_temperature", kLinear, "dhidden",
             [](Pool& pool, const OpCase& c) {
               nlohmann::json other = c.json();
               other["config"]["targets"][3] = other["config"]["targets"][3].get<int>() + 1;
               return ComputeHead(pool, OpCase(other));
             });
  ExpectSeen(file, "head/chunks_units_temperature", kLinear, "dw", [](Pool& pool, const OpCase& c) {
    nlohmann::json other = c.json();
    other["config"]["inverse_temperature"] = 1.0;
    return ComputeHead(pool, OpCase(other));
  });
}

TEST(OpGradientsGolden, MistakesOfElementwiseOperationsAreSeen) {
  const std::string file = "op_gradients/elementwise.json";
  const auto norm_as = [](NormKind kind) {
    return [kind](Pool& pool, const OpCase& c) { return ComputeNorm(pool, c, kind); };
  };
  ExpectSeen(file, "norm/gain_rows", kElementwise, "dx", norm_as(NormKind::kCentredGain));
  ExpectSeen(file, "norm/centred_gain_heads", kElementwise, "dx", norm_as(NormKind::kGainFirst));
  ExpectSeen(file, "norm/gain_first_rows", kElementwise, "dw", norm_as(NormKind::kCentredGain));
  const auto rope_without = [](const char* key) {
    return [key](Pool& pool, const OpCase& c) {
      RopeScaling scaling = ScalingOf(c.config()["scaling"]);
      if (std::string(key) == "factor") scaling.attention_factor = 1.0;
      if (std::string(key) == "all") scaling = {};
      return ComputeRope(pool, c, scaling);
    };
  };
  ExpectSeen(file, "rope/yarn", kElementwise, "dx", rope_without("factor"));
  ExpectSeen(file, "rope/llama3", kElementwise, "dx", rope_without("all"));
  ExpectSeen(file, "rope/linear", kElementwise, "dx", rope_without("all"));
  const auto turned_again = [](Pool& pool, const OpCase& c) {
    Tensors out = ComputeElementwise(pool, c);
    std::swap(out["dx"], out["y"]);
    return out;
  };
  ExpectSeen(file, "rope/interleaved", kElementwise, "dx", turned_again);
  const auto gate_as = [](const char* act) {
    return [act](Pool& pool, const OpCase& c) {
      nlohmann::json other = c.json();
      other["config"]["act"] = act;
      return ComputeGate(pool, OpCase(other));
    };
  };
  ExpectSeen(file, "gate/swiglu_long", kElementwise, "dgate", gate_as("gelu_tanh"));
  ExpectSeen(file, "gate/gelu_long", kElementwise, "dgate", gate_as("silu"));
  ExpectSeen(file, "gate/bounded_gpt_oss", kElementwise, "dup", [](Pool& pool, const OpCase& c) {
    nlohmann::json other = c.json();
    other["config"]["limit"] = 7.1;
    return ComputeGate(pool, OpCase(other));
  });
  ExpectSeen(file, "softplus/around_zero", kElementwise, "dx", [](Pool& pool, const OpCase& c) {
    Tensors out = ComputeSoftplus(pool, c);
    out["dx"] = out["y"];
    return out;
  });
  // One element of a tensor that is stored in samples only.
  ExpectSeen(file, "gate/gelu_long", kElementwise, "dup", [](Pool& pool, const OpCase& c) {
    Tensors out = ComputeGate(pool, c);
    out["dup"][1] = -out["dup"][1];
    return out;
  });
}

}  // namespace
}  // namespace titan::kernels
