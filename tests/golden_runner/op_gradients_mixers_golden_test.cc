// SPDX-License-Identifier: Apache-2.0
//
// Goal and bounds as in op_gradients_golden_test.cc, for the operations that mix tokens or choose
// experts: attention, latent attention, the gated delta rule, routers and layers of experts. The
// last tests do one thing wrong each and must land outside the bounds.
#include <gtest/gtest.h>

#include <numeric>

#include "core/kernels/attention.h"
#include "core/kernels/gated_delta.h"
#include "core/kernels/latent_attention.h"
#include "core/kernels/linear.h"
#include "core/kernels/moe_experts.h"
#include "core/kernels/moe_router.h"
#include "core/kernels/order.h"
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

// Segments of a call with their pages: sequences of the lengths, and the prefix that they all
// continue, if there is one, as the last segment.
struct Layout {
  Layout(const std::vector<int32_t>& lengths, int32_t prefix) {
    int32_t next = static_cast<int32_t>(NumPages(prefix)), row = 0;
    const int32_t full = prefix / static_cast<int32_t>(kPageTokens);
    const auto last = static_cast<int32_t>(lengths.size());
    for (const int32_t n : lengths) {
      std::vector<int32_t> own(static_cast<size_t>(NumPages(prefix + n)));
      std::iota(own.begin(), own.begin() + full, 0);
      std::iota(own.begin() + full, own.end(), next);
      next += static_cast<int32_t>(own.size()) - full;
      pages.push_back(own);
      segments.push_back({row, n, prefix, pages.back().data(), prefix > 0 ? last : -1});
      row += n;
    }
    if (prefix > 0) {
      pages.emplace_back(static_cast<size_t>(NumPages(prefix)));
      std::iota(pages.back().begin(), pages.back().end(), 0);
      segments.push_back({row, prefix, 0, pages.back().data()});
    }
    num_pages = next;
  }
  std::vector<std::vector<int32_t>> pages;
  std::vector<Segment> segments;
  int64_t num_pages = 0;
};

Tensors ComputeAttention(Pool& pool, const OpCase& c, int64_t window) {
  const Floats q = c.In("q"), k = c.In("k"), v = c.In("v"), dout = c.In("d_y"),
               sinks = c.Has("sinks") ? c.In("sinks") : Floats();
  const AttentionShape shape = {static_cast<int>(c.Int("heads")),
                                static_cast<int>(c.Int("kv_heads")),
                                static_cast<int>(c.Int("head_dim")),
                                c.Float("scale"),
                                window,
                                sinks.empty() ? nullptr : sinks.data()};
  const Layout layout(c.Ids("lengths"), static_cast<int32_t>(c.Int("prefix")));
  const int64_t rows = static_cast<int64_t>(q.size()) / (c.Int("heads") * c.Int("head_dim"));
  Floats cache(static_cast<size_t>(layout.num_pages * PageFloats(shape)), NAN);
  Floats y(q.size()), max = Zeros(rows * shape.num_heads), sum = max, dq(q.size()), dk(k.size()),
                      dv(v.size()), dsinks(sinks.size());
  WriteKv(pool, shape, k.data(), v.data(), layout.segments, cache.data());
  AttentionForward(pool, shape, q.data(), layout.segments, cache.data(), y.data(), max.data(),
                   sum.data());
  AttentionBackward(pool, shape, q.data(), layout.segments, cache.data(), y.data(), dout.data(),
                    max.data(), sum.data(), dq.data(), dk.data(), dv.data());
  Tensors out = {{"y", y}, {"dq", dq}, {"dk", dk}, {"dv", dv}};
  if (!sinks.empty()) {
    const RowRange units[] = {{0, rows / 2}, {rows / 2, rows}};
    SinkGradient(pool, shape, y.data(), dout.data(), max.data(), sum.data(), units, dsinks.data());
    out["dsinks"] = dsinks;
  }
  return out;
}

const OpBoundsTable kAttention = {{"attention", {1.1e-6, 3.3e-6}}};  // 7.7e-7, 2.2e-6

TEST(OpGradientsGolden, Attention) {
  CheckOps("op_gradients/attention.json", kAttention,
           [](Pool& pool, const OpCase& c) { return ComputeAttention(pool, c, c.Int("window")); });
}

Tensors ComputeDelta(Pool& pool, const OpCase& c) {
  const DeltaShape shape = {c.Int("key_heads"), c.Int("value_heads"), c.Int("key_dim"),
                            c.Int("value_dim")};
  const Floats q = c.In("q"), k = c.In("k"), v = c.In("v"), g = c.In("g"), beta = c.In("beta"),
               dout = c.In("d_y");
  std::vector<Floats> states;
  std::vector<DeltaSegment> segments;
  int64_t rows = 0;
  for (const int32_t length : c.Ids("lengths")) {
    states.emplace_back(static_cast<size_t>(DeltaStateFloats(shape)), NAN);
    segments.push_back({rows, length, 0, states.back().data()});
    rows += length;
  }
  Floats y(v.size()), u(v.size()),
      starts = Zeros(DeltaChunks(segments) * shape.value_heads * shape.key_dim * shape.value_dim);
  Floats dq(q.size()), dk(k.size()), dv(v.size()), dg(g.size()), dbeta(beta.size());
  const DeltaSaved saved = {u.data(), starts.data()};
  DeltaForward(pool, shape, segments, q.data(), k.data(), v.data(), g.data(), beta.data(), y.data(),
               &saved);
  DeltaBackward(pool, shape, segments, q.data(), k.data(), g.data(), beta.data(), saved,
                dout.data(), {dq.data(), dk.data(), dv.data(), dg.data(), dbeta.data()});
  return {{"y", y}, {"dq", dq}, {"dk", dk}, {"dv", dv}, {"dg", dg}, {"dbeta", dbeta}};
}

// Columns [begin, end) of x [rows][width].
Floats Columns(const Floats& x, int64_t width, int64_t begin, int64_t end) {
  Floats out;
  for (auto row = x.begin(); row != x.end(); row += width) {
    out.insert(out.end(), row + begin, row + end);
  }
  return out;
}

// Rows of a [.. ][left] and b [..][right] side by side.
Floats Beside(const Floats& a, int64_t left, const Floats& b, int64_t right) {
  Floats out;
  auto at = b.begin();
  for (auto row = a.begin(); row != a.end(); row += left, at += right) {
    out.insert(out.end(), row, row + left);
    out.insert(out.end(), at, at + right);
  }
  return out;
}

// The layer between its projections in the absorbed form: q [T][H][nope + rope], cache [T][latent +
// rope], kv_b [H][nope + value][latent]. In mode bf16 kv_b's two linears round their rows.
Tensors ComputeLatent(Pool& pool, const OpCase& c) {
  const int64_t rows = c.Int("rows"), heads = c.Int("heads"), nope = c.Int("nope"),
                rope = c.Int("rope"), latent = c.Int("latent"), value = c.Int("value"),
                of_head = nope + value;
  const LatentShape shape = {heads, latent, rope, c.Float("scale")};
  const Floats q = c.In("q"), cached = c.In("cache"), kv_b = c.In("kv_b"), dy = c.In("d_y");
  // Of each head W_k transposed [latent][nope] and W_v [value][latent].
  std::vector<Floats> absorbed, values;
  for (int64_t h = 0; h < heads; ++h) {
    const auto w = kv_b.begin() + h * of_head * latent;
    Floats transposed;
    for (int64_t r = 0; r < latent; ++r) {
      for (int64_t i = 0; i < nope; ++i) transposed.push_back(w[i * latent + r]);
    }
    absorbed.push_back(transposed);
    values.emplace_back(w + nope * latent, w + of_head * latent);
  }
  const std::string mode = c.Text("mode");
  const Inputs inputs = InputsOf(mode);
  const Weights wk(pool, absorbed, latent, nope, mode), wv(pool, values, value, latent, mode);
  const Floats q_nope = Columns(q, nope + rope, 0, nope);
  Floats q_latent = Zeros(rows * heads * latent), y = Zeros(rows * heads * value);
  PerHeadLinear(pool, q_nope.data(), rows, wk.panels(), latent, nope, LeafCount(nope, 0),
                q_latent.data(), inputs);
  const Floats query = Beside(q_latent, latent, Columns(q, nope + rope, nope, nope + rope), rope);
  const Layout layout({static_cast<int32_t>(rows)}, 0);
  Floats memory(static_cast<size_t>(layout.num_pages * LatentPageFloats(shape)), NAN);
  Floats out = Zeros(rows * heads * latent), dout = out, max = Zeros(rows * heads), sum = max,
         dquery(query.size()), dcache(cached.size()), dq_nope(q_nope.size());
  WriteLatent(pool, shape, cached.data(), layout.segments, memory.data());
  LatentAttentionForward(pool, shape, query.data(), layout.segments, memory.data(), out.data(),
                         max.data(), sum.data());
  PerHeadLinear(pool, out.data(), rows, wv.panels(), value, latent, LeafCount(latent, 0), y.data(),
                inputs);

  PerHeadLinear(pool, dy.data(), rows, wv.backward(), latent, value, LeafCount(value, 0),
                dout.data());
  LatentAttentionBackward(pool, shape, query.data(), layout.segments, memory.data(), out.data(),
                          dout.data(), max.data(), sum.data(), dquery.data(), dcache.data());
  const Floats dq_latent = Columns(dquery, latent + rope, 0, latent);
  PerHeadLinear(pool, dq_latent.data(), rows, wk.backward(), nope, latent, LeafCount(latent, 0),
                dq_nope.data());
  PerHeadWeightGradient(pool, c.Units(), out.data(), dy.data(), value, latent, wv.accumulators(),
                        inputs);
  PerHeadWeightGradient(pool, c.Units(), q_nope.data(), dq_latent.data(), latent, nope,
                        wk.accumulators(), inputs);
  const Floats dwk = wk.Gradients(pool), dwv = wv.Gradients(pool);
  Floats dkv_b;
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t i = 0; i < nope * latent; ++i) {
      dkv_b.push_back(dwk[static_cast<size_t>((h * latent + i % latent) * nope + i / latent)]);
    }
    dkv_b.insert(dkv_b.end(), dwv.begin() + h * value * latent,
                 dwv.begin() + (h + 1) * value * latent);
  }
  const Floats dq_rope = Columns(dquery, latent + rope, latent, latent + rope);
  return {
      {"y", y}, {"dq", Beside(dq_nope, nope, dq_rope, rope)}, {"dcache", dcache}, {"dkv_b", dkv_b}};
}

const OpBoundsTable kRecurrentLatent = {
    {"gated_delta", {8.5e-7, 2.6e-6}},  // 5.6e-7, 1.7e-6
    // Decays to e^-16 a token: sums of 64 logarithms reach hundreds, and their differences keep
    // binary32's absolute error there.
    {"gated_delta/strong_decay", {5.5e-6, 1.7e-5}},  // 3.7e-6, 1.1e-5
    {"latent_attention", {6.5e-7, 1.8e-6}},          // 4.3e-7, 1.2e-6
    {"latent_attention/wide", {2.9e-6, 9.6e-6}},     // 1.9e-6, 6.4e-6: chains of 576
};

TEST(OpGradientsGolden, GatedDeltaAndLatentAttention) {
  CheckOps("op_gradients/recurrent_latent.json", kRecurrentLatent, [](Pool& pool, const OpCase& c) {
    return c.op() == "gated_delta" ? ComputeDelta(pool, c) : ComputeLatent(pool, c);
  });
}

RouterScore ScoreOf(const std::string& name) {
  if (name == "softmax") return RouterScore::kSoftmax;
  return name == "sigmoid" ? RouterScore::kSigmoid : RouterScore::kSoftmaxOfChosen;
}

Tensors ComputeRouter(Pool& pool, const OpCase& c) {
  const int64_t rows = c.Int("rows");
  const RouterShape shape = {.score = ScoreOf(c.Text("score")),
                             .experts = c.Int("experts"),
                             .chosen = c.Int("chosen"),
                             .normalise = c.Flag("normalise"),
                             .normaliser_eps = c.Float("eps"),
                             .scaling = c.Float("scaling"),
                             .groups = c.Int("groups"),
                             .chosen_groups = c.Int("chosen_groups")};
  EXPECT_TRUE(ValidateRouter(shape).ok()) << ValidateRouter(shape);
  const Floats logits = c.In("logits"), dweights = c.In("d_weights"),
               bias = c.Has("bias") ? c.In("bias") : Floats();
  std::vector<int32_t> ids(static_cast<size_t>(rows * shape.chosen));
  Floats weights(ids.size()), dlogits(logits.size());
  ChooseExperts(pool, shape, logits.data(), bias.empty() ? nullptr : bias.data(), rows, ids.data(),
                weights.data());
  EXPECT_EQ(ids, c.Ids("ids"));
  ChooseExpertsBackward(pool, shape, logits.data(), ids.data(), dweights.data(), rows,
                        dlogits.data());
  return {{"weights", weights}, {"dlogits", dlogits}};
}

// A whole layer. swapped: the first two experts' matrices change places after the choice.
Tensors ComputeExperts(Pool& pool, const OpCase& c, bool swapped) {
  const int64_t rows = c.Int("rows"), h = c.Int("hidden"), f = c.Int("width"),
                experts = c.Int("experts"), chosen = c.Int("chosen");
  const std::string mode = c.Text("mode");
  const Inputs inputs = InputsOf(mode);
  const RouterShape shape = {
      .score = ScoreOf(c.Text("score")), .experts = experts, .chosen = chosen};
  const auto matrices = [&](const char* name, int64_t n, int64_t k) {
    std::vector<Floats> all;
    for (int64_t e = 0; e < experts; ++e) {
      all.push_back(c.Matrix(name, swapped && e < 2 ? 1 - e : e, n, k));
    }
    return all;
  };
  const Floats x = c.In("x"), dy = c.In("d_y"), router_rows = c.In("router"),
               shared = c.Has("shared") ? c.In("shared") : Floats();
  const Weights router(pool, {&router_rows, 1}, experts, h, "f32"),
      gate(pool, matrices("gate", f, h), f, h, mode), up(pool, matrices("up", f, h), f, h, mode),
      down(pool, matrices("down", h, f), h, f, mode);
  const std::vector<Floats> bias_rows = matrices("down_bias", h, 1);
  std::vector<Floats> dbias_rows(bias_rows.size(), Zeros(h));
  std::vector<const float*> bias;
  std::vector<float*> dbias;
  for (const Floats& b : bias_rows) bias.push_back(b.data());
  for (Floats& b : dbias_rows) dbias.push_back(b.data());

  Floats logits = Zeros(rows * experts), dlogits = logits, weights = Zeros(rows * chosen),
         dweights = weights;
  std::vector<int32_t> ids(weights.size());
  Linear(pool, {x.data(), h, rows, h},
         {router.panels()[0], experts, LeafCount(h, 0), nullptr, logits.data(), experts});
  ChooseExperts(pool, shape, logits.data(), nullptr, rows, ids.data(), weights.data());
  ExpertPlan plan;
  plan.Set(ids.data(), rows, chosen, experts);
  const int64_t places = plan.places();
  Floats in = Zeros(places * h), out = in, dout = in, dx_gate = in, dx_up = in,
         g = Zeros(places * f), u = g, a = g, dg = g, du = g, da = g, y = Zeros(rows * h), dx = y,
         dx_router = y;
  GatherPlaces(pool, plan, x.data(), h, in.data());
  ExpertLinear(pool, plan, in.data(), h, {gate.panels(), {}, f, LeafCount(h, 0), g.data()}, inputs);
  ExpertLinear(pool, plan, in.data(), h, {up.panels(), {}, f, LeafCount(h, 0), u.data()}, inputs);
  SwiGlu(pool, places * f, g.data(), u.data(), a.data());
  ExpertLinear(pool, plan, a.data(), f, {down.panels(), bias, h, LeafCount(f, 0), out.data()},
               inputs);
  CombinePlaces(pool, plan, weights.data(), out.data(), shared.empty() ? nullptr : shared.data(), h,
                y.data());

  CombinePlacesBackward(pool, plan, weights.data(), out.data(), dy.data(), h, dout.data(),
                        dweights.data());
  ChooseExpertsBackward(pool, shape, logits.data(), ids.data(), dweights.data(), rows,
                        dlogits.data());
  ExpertWeightGradient(pool, plan, c.Units(), a.data(), dout.data(), h, f, down.accumulators(),
                       dbias, inputs);
  ExpertLinear(pool, plan, dout.data(), h, {down.backward(), {}, f, LeafCount(h, 0), da.data()});
  SwiGluBackward(pool, places * f, g.data(), u.data(), da.data(), dg.data(), du.data());
  ExpertWeightGradient(pool, plan, c.Units(), in.data(), dg.data(), f, h, gate.accumulators(), {},
                       inputs);
  ExpertWeightGradient(pool, plan, c.Units(), in.data(), du.data(), f, h, up.accumulators(), {},
                       inputs);
  ExpertLinear(pool, plan, dg.data(), f, {gate.backward(), {}, h, LeafCount(f, 0), dx_gate.data()});
  ExpertLinear(pool, plan, du.data(), f, {up.backward(), {}, h, LeafCount(f, 0), dx_up.data()});
  Add(pool, places * h, dx_gate.data(), dx_up.data(), dx_gate.data());
  ScatterPlaces(pool, plan, dx_gate.data(), h, dx.data());
  Linear(pool, {dlogits.data(), experts, rows, experts},
         {router.backward()[0], h, LeafCount(experts, 0), nullptr, dx_router.data(), h});
  Add(pool, rows * h, dx.data(), dx_router.data(), dx.data());
  for (const RowRange& unit : c.Units()) {
    LinearWeightGradient(
        pool, {x.data() + unit.begin * h, h, unit.end - unit.begin, h},
        {dlogits.data() + unit.begin * experts, experts, experts, router.accumulators()[0]});
  }
  Floats all_dbias;
  for (const Floats& b : dbias_rows) all_dbias.insert(all_dbias.end(), b.begin(), b.end());
  Tensors result = {{"y", y},
                    {"dx", dx},
                    {"drouter", router.Gradients(pool)},
                    {"dgate", gate.Gradients(pool)},
                    {"dup", up.Gradients(pool)},
                    {"ddown", down.Gradients(pool)},
                    {"ddown_bias", all_dbias}};
  if (!shared.empty()) result["dshared"] = dy;
  return result;
}

const OpBoundsTable kExperts = {
    {"router", {1e-7, 1.8e-6}},            // 6.7e-8, 1.2e-6
    {"experts", {6.5e-7, 1.3e-6}},         // 4.2e-7, 8.3e-7
    {"experts/leaves", {2.1e-6, 2.7e-6}},  // 1.4e-6, 1.8e-6: chains of 256
};

TEST(OpGradientsGolden, RoutersAndExperts) {
  CheckOps("op_gradients/experts.json", kExperts, [](Pool& pool, const OpCase& c) {
    return c.op() == "router" ? ComputeRouter(pool, c) : ComputeExperts(pool, c, false);
  });
}

using Compute = std::function<Tensors(Pool&, const OpCase&)>;

// The same with one value of the configuration changed.
Compute With(const Compute& compute, const char* key, const nlohmann::json& value) {
  return [=](Pool& pool, const OpCase& c) {
    nlohmann::json other = c.json();
    other["config"][key] = value;
    return compute(pool, OpCase(other));
  };
}

TEST(OpGradientsGolden, MistakesOfAttentionAreSeen) {
  const std::string file = "op_gradients/attention.json";
  const auto window = [](int64_t off) {
    return [off](Pool& pool, const OpCase& c) {
      return ComputeAttention(pool, c, c.Int("window") + off);
    };
  };
  for (const char* tensor : {"y", "dq", "dk", "dv"}) {
    for (const int64_t off : {-1, 1}) {
      ExpectSeen(file, "attention/head_128_window_4", kAttention, tensor, window(off));
      ExpectSeen(file, "attention/head_80_ratio_4_window_sinks", kAttention, tensor, window(off));
      ExpectSeen(file, "attention/window_64_of_200", kAttention, tensor, window(off));
      ExpectSeen(file, "attention/shared_prefix_window_sinks", kAttention, tensor, window(off));
    }
  }
  const auto rescaled = [](Pool& pool, const OpCase& c) {
    return With([](Pool& p, const OpCase& o) { return ComputeAttention(p, o, o.Int("window")); },
                "scale", c.Float("scale") * 1.01f)(pool, c);
  };
  ExpectSeen(file, "attention/head_64_ratio_3", kAttention, "dk", rescaled);
}

TEST(OpGradientsGolden, MistakesOfRecurrencesAndLatentsAreSeen) {
  const std::string file = "op_gradients/recurrent_latent.json";
  // Sequences of 64, 65 and 128 tokens taken for others of the same sum: a state that is not set up
  // at a start.
  ExpectSeen(file, "gated_delta/edge_of_a_chunk", kRecurrentLatent, "dg",
             With(ComputeDelta, "lengths", {64, 64, 129}));
  ExpectSeen(file, "gated_delta/within_a_chunk", kRecurrentLatent, "dk",
             With(ComputeDelta, "lengths", {39, 1}));
  ExpectSeen(file, "latent_attention/blocks", kRecurrentLatent, "dkv_b",
             With(ComputeLatent, "scale", 0.251));
  // Rows that are not rounded, or wrongly rounded, and a unit's last row left out.
  for (const char* tensor : {"y", "dkv_b"}) {
    ExpectSeen(file, "latent_attention/bf16", kRecurrentLatent, tensor,
               With(ComputeLatent, "mode", "w16"));
    ExpectSeen(file, "latent_attention/w16", kRecurrentLatent, tensor,
               With(ComputeLatent, "mode", "bf16"));
  }
  ExpectSeen(file, "latent_attention/w16", kRecurrentLatent, "dkv_b",
             With(ComputeLatent, "units", {0, 7, 18}));
}

TEST(OpGradientsGolden, MistakesOfExpertsAreSeen) {
  const std::string file = "op_gradients/experts.json";
  const auto swapped = [](Pool& pool, const OpCase& c) { return ComputeExperts(pool, c, true); };
  for (const char* name : {"experts/two_of_six", "experts/shared_of_chosen", "experts/w16"}) {
    for (const char* tensor : {"y", "dx", "drouter", "dgate", "dup", "ddown"}) {
      ExpectSeen(file, name, kExperts, tensor, swapped);
    }
  }
  ExpectSeen(file, "router/softmax", kExperts, "dlogits", With(ComputeRouter, "normalise", false));
  ExpectSeen(file, "router/softmax_plain", kExperts, "dlogits",
             With(ComputeRouter, "normalise", true));
}

}  // namespace
}  // namespace titan::kernels
