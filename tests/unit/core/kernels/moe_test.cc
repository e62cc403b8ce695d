// SPDX-License-Identifier: Apache-2.0
//
// Mixture of experts: router and experts have the bits of their scalar twins on both instruction
// sets and any thread count, a row does not see its neighbours, and the layer put together from
// them is a mixture of experts in double, gradients too (central differences away from ties).
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "core/kernels/moe_experts.h"
#include "core/kernels/moe_router.h"
#include "core/kernels/order.h"
#include "core/kernels/pool.h"
#include "core/kernels/reference_linear.h"
#include "core/kernels/reference_moe.h"
#include "core/kernels/swiglu.h"
#include "tests/support/kernel_cases.h"

namespace titan::kernels {
namespace {

using tests::CountDifferentBits;
using tests::Guarded;

std::vector<RouterShape> Routers() {
  return {{.experts = 8, .chosen = 2},
          {.experts = 130, .chosen = 8, .normalise = false},
          {.score = RouterScore::kSoftmaxOfChosen, .experts = 32, .chosen = 4},
          {.score = RouterScore::kSigmoid,
           .experts = 64,
           .chosen = 6,
           .normaliser_eps = 1e-20f,
           .scaling = 2.5f,
           .groups = 8,
           .chosen_groups = 3},
          {.score = RouterScore::kSigmoid, .experts = 12, .chosen = 12, .normalise = false},
          {.experts = 1, .chosen = 1}};
}

void OnEveryIsa(const std::function<void(Pool&)>& body) {
  for (const Isa isa : tests::AllIsas()) {
    ASSERT_TRUE(SetIsa(isa).ok());
    for (const int threads : {1, 4}) {
      SCOPED_TRACE(testing::Message() << IsaName(isa) << " threads " << threads);
      Pool pool(threads);
      body(pool);
    }
  }
  ASSERT_TRUE(SetIsa("auto").ok());
}

std::vector<float> Uniform(int64_t n, uint64_t seed, float scale = 1.0f) {
  tests::Random random(seed);
  std::vector<float> out(static_cast<size_t>(n));
  for (float& x : out) x = random.Uniform() * scale;
  return out;
}

TEST(RouterTest, EqualsScalarTwin) {
  const NumericThread numeric;
  for (const RouterShape& shape : Routers()) {
    SCOPED_TRACE(testing::Message()
                 << "experts " << shape.experts << " score " << static_cast<int>(shape.score));
    constexpr int64_t kRows = 70;
    std::vector<float> logits = Uniform(kRows * shape.experts, 1, 4.0f);
    const std::vector<float> bias = Uniform(shape.experts, 2, 0.3f);
    // Ties: whole rows of one value, and of both zeros.
    for (int64_t j = 0; j < shape.experts; ++j) {
      logits[static_cast<size_t>(j)] = 0.5f;
      logits[static_cast<size_t>(shape.experts + j)] = j % 2 == 0 ? 0.0f : -0.0f;
    }
    const std::vector<float> dw = Uniform(kRows * shape.chosen, 3);
    std::vector<int32_t> ids(static_cast<size_t>(kRows * shape.chosen)), ids2 = ids;
    Guarded weights(kRows * shape.chosen, 1), dlogits(kRows * shape.experts, 2);
    const float* correction = shape.score == RouterScore::kSigmoid ? bias.data() : nullptr;
    reference::ChooseExperts(shape, logits.data(), correction, kRows, ids.data(), weights.data());
    reference::ChooseExpertsBackward(shape, logits.data(), ids.data(), dw.data(), kRows,
                                     dlogits.data());
    OnEveryIsa([&](Pool& pool) {
      Guarded weights2(weights.size(), 1), dlogits2(dlogits.size(), 2);
      ChooseExperts(pool, shape, logits.data(), correction, kRows, ids2.data(), weights2.data());
      EXPECT_EQ(ids, ids2);
      EXPECT_EQ(CountDifferentBits(weights.span(), weights2.span()), 0);
      ChooseExpertsBackward(pool, shape, logits.data(), ids2.data(), dw.data(), kRows,
                            dlogits2.data());
      EXPECT_EQ(CountDifferentBits(dlogits.span(), dlogits2.span()), 0);
    });
    // Of equals the lower index (without a bias or groups that say otherwise).
    if (correction == nullptr) {
      for (int64_t j = 0; j < shape.chosen; ++j) {
        EXPECT_EQ(ids[static_cast<size_t>(j)], j);
        EXPECT_EQ(ids[static_cast<size_t>(shape.chosen + j)], j);
      }
    }
    for (size_t i = 1; i < ids.size(); ++i) {
      if (static_cast<int64_t>(i) % shape.chosen != 0) {
        EXPECT_GT(ids[i], ids[i - 1]);
      }
    }
  }
}

// A sum of the chosen scores in another order, and a division left out of the order, are seen.
TEST(RouterTest, AWrongOrderDiffers) {
  const NumericThread numeric;
  const RouterShape shape = {.experts = 130, .chosen = 8};
  constexpr int64_t kRows = 300;
  const std::vector<float> logits = Uniform(kRows * shape.experts, 1, 4.0f);
  std::vector<int32_t> ids(static_cast<size_t>(kRows * shape.chosen));
  std::vector<float> weights(ids.size()), raw(ids.size());
  Pool pool(2);
  ChooseExperts(pool, shape, logits.data(), nullptr, kRows, ids.data(), weights.data());
  RouterShape without = shape;
  without.normalise = false;
  ChooseExperts(pool, without, logits.data(), nullptr, kRows, ids.data(), raw.data());
  int descending = 0, reciprocal = 0;
  for (size_t t = 0; t < kRows; ++t) {
    float down = 0.0f, up = 0.0f;
    for (size_t j = 0; j < 8; ++j) down = down + raw[t * 8 + 7 - j], up = up + raw[t * 8 + j];
    for (size_t j = 0; j < 8; ++j) {
      EXPECT_EQ(weights[t * 8 + j], raw[t * 8 + j] / up);
      descending += weights[t * 8 + j] != raw[t * 8 + j] / down;
      reciprocal += weights[t * 8 + j] != raw[t * 8 + j] * (1.0f / up);
    }
  }
  EXPECT_GT(descending, 0);
  EXPECT_GT(reciprocal, 0);
}

TEST(RouterTest, AgreesWithDoubleAndItsDerivative) {
  const NumericThread numeric;
  Pool pool(1);
  for (const RouterShape& shape : Routers()) {
    const size_t experts = static_cast<size_t>(shape.experts),
                 chosen = static_cast<size_t>(shape.chosen);
    const std::vector<float> logits = Uniform(shape.experts, 5, 3.0f);
    const std::vector<float> dw = Uniform(shape.chosen, 6);
    std::vector<int32_t> ids(chosen);
    std::vector<float> weights(chosen), dlogits(experts);
    ChooseExperts(pool, shape, logits.data(), nullptr, 1, ids.data(), weights.data());
    ChooseExpertsBackward(pool, shape, logits.data(), ids.data(), dw.data(), 1, dlogits.data());
    // The choice is held.
    const auto in_double = [&](const std::vector<double>& z) {
      std::vector<double> s(experts), w(chosen);
      double sum = 0;
      for (size_t j = 0; j < experts; ++j) {
        s[j] = shape.score == RouterScore::kSigmoid ? 1 / (1 + std::exp(-z[j])) : std::exp(z[j]);
        sum += s[j];
      }
      double total = 0;
      for (size_t j = 0; j < chosen; ++j) {
        w[j] = s[static_cast<size_t>(ids[j])];
        if (shape.score == RouterScore::kSoftmax) w[j] /= sum;
        total += w[j];
      }
      for (double& value : w) value *= shape.scaling / (shape.normalise ? total : 1);
      return w;
    };
    std::vector<double> z(logits.begin(), logits.end());
    const std::vector<double> want = in_double(z);
    for (size_t j = 0; j < chosen; ++j) EXPECT_NEAR(weights[j], want[j], 5e-7 * (1 + want[j]));
    for (size_t i = 0; i < experts; ++i) {
      const auto loss = [&](double step) {
        std::vector<double> moved = z;
        moved[i] += step;
        double value = 0;
        const std::vector<double> w = in_double(moved);
        for (size_t j = 0; j < chosen; ++j) value += w[j] * dw[j];
        return value;
      };
      EXPECT_NEAR(dlogits[i], (loss(1e-5) - loss(-1e-5)) / 2e-5, 1e-6) << i;
    }
  }
}

TEST(RouterTest, RefusesByField) {
  const RouterShape good = {
      .score = RouterScore::kSigmoid, .experts = 8, .chosen = 2, .groups = 4, .chosen_groups = 2};
  EXPECT_TRUE(ValidateRouter(good).ok());
  const auto refused = [&](const std::function<void(RouterShape&)>& change, const char* field) {
    RouterShape shape = good;
    change(shape);
    const Status status = ValidateRouter(shape);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.ToString().find(field), std::string::npos) << status;
  };
  refused([](RouterShape& s) { s.chosen = 9; }, "chosen");
  refused([](RouterShape& s) { s.groups = 3; }, "groups");
  refused([](RouterShape& s) { s.groups = 8; }, "groups of one");
  refused([](RouterShape& s) { s.chosen_groups = 1, s.chosen = 3; }, "chosen_groups");
  refused([](RouterShape& s) { s.score = RouterScore::kSoftmax, s.normaliser_eps = 1e-20f; },
          "normaliser_eps");
  refused([](RouterShape& s) { s.score = RouterScore::kSoftmaxOfChosen, s.normalise = false; },
          "normalise");
}

// One layer: router, gate and up, SwiGLU, down, combine with a shared branch; and its backward.
struct Layer {
  int64_t rows, hidden, width;
  RouterShape router;
  std::vector<std::vector<float>> gate, up, down, down_bias;  // row-major, by expert
  std::vector<float> router_weight;

  static Layer Make(int64_t rows, int64_t hidden, int64_t width, const RouterShape& router) {
    Layer layer = {rows, hidden, width, router, {}, {}, {}, {}, {}};
    const float in = 1.0f / std::sqrt(static_cast<float>(hidden));
    for (int64_t e = 0; e < router.experts; ++e) {
      const uint64_t seed = 100 + 10 * static_cast<uint64_t>(e);
      layer.gate.push_back(Uniform(width * hidden, seed, 2 * in));
      layer.up.push_back(Uniform(width * hidden, seed + 1, 2 * in));
      layer.down.push_back(Uniform(hidden * width, seed + 2, 0.3f));
      layer.down_bias.push_back(Uniform(hidden, seed + 3, 0.1f));
    }
    layer.router_weight = Uniform(router.experts * hidden, 99, 2 * in);
    return layer;
  }
};

struct Matrices {
  Matrices(Pool& pool, const std::vector<std::vector<float>>& rows, int64_t n, int64_t k) {
    for (const std::vector<float>& matrix : rows) {
      storage.emplace_back(static_cast<size_t>(PanelFloats(n, k)));
      PackPanels(pool, matrix.data(), n, k, storage.back().data());
      transposed.emplace_back(static_cast<size_t>(PanelFloats(k, n)));
      TransposePanels(pool, storage.back().data(), n, k, transposed.back().data());
      gradient.emplace_back(storage.back().size(), 0.0f);
    }
    for (size_t i = 0; i < storage.size(); ++i) {
      panels.push_back(storage[i].data());
      backward.push_back(transposed[i].data());
      accumulators.push_back(gradient[i].data());
    }
  }
  std::vector<std::vector<float>> storage, transposed, gradient;
  std::vector<ConstPanels> panels, backward;
  std::vector<float*> accumulators;
};

struct Result {
  std::vector<float> y, dx_experts, dlogits, weights;
  std::vector<int32_t> ids;
  std::vector<std::vector<float>> dgate, dup, ddown, dbias;  // panels32; biases plain
  bool operator==(const Result&) const = default;
};

Result Compute(Pool& pool, const Layer& layer, const std::vector<float>& x,
               const std::vector<float>& shared, const std::vector<float>& dy,
               std::span<const RowRange> units) {
  const int64_t rows = layer.rows, h = layer.hidden, f = layer.width, k = layer.router.chosen;
  Matrices gate(pool, layer.gate, f, h), up(pool, layer.up, f, h), down(pool, layer.down, h, f);
  std::vector<const float*> bias;
  for (const auto& b : layer.down_bias) bias.push_back(b.data());
  Result r;
  std::vector<float> logits(static_cast<size_t>(rows * layer.router.experts));
  reference::Linear(x.data(), h, rows, layer.router_weight.data(), layer.router.experts, h, 1,
                    nullptr, logits.data(), layer.router.experts);
  r.ids.resize(static_cast<size_t>(rows * k));
  r.weights.resize(r.ids.size());
  ChooseExperts(pool, layer.router, logits.data(), nullptr, rows, r.ids.data(), r.weights.data());
  ExpertPlan plan;
  plan.Set(r.ids.data(), rows, k, layer.router.experts);
  const auto floats = [&](int64_t width) {
    return std::vector<float>(static_cast<size_t>(plan.places() * width));
  };
  std::vector<float> gathered = floats(h), g = floats(f), u = floats(f), a = floats(f),
                     out = floats(h);
  GatherPlaces(pool, plan, x.data(), h, gathered.data());
  ExpertLinear(pool, plan, gathered.data(), h, {gate.panels, {}, f, LeafCount(h, 0), g.data()});
  ExpertLinear(pool, plan, gathered.data(), h, {up.panels, {}, f, LeafCount(h, 0), u.data()});
  SwiGlu(pool, static_cast<int64_t>(g.size()), g.data(), u.data(), a.data());
  ExpertLinear(pool, plan, a.data(), f, {down.panels, bias, h, LeafCount(f, 0), out.data()});
  r.y.resize(static_cast<size_t>(rows * h));
  CombinePlaces(pool, plan, r.weights.data(), out.data(), shared.data(), h, r.y.data());

  std::vector<float> dout = floats(h), da = floats(f), dg = floats(f), du = floats(f),
                     dx1 = floats(h), dx2 = floats(h), dweights(r.weights.size());
  CombinePlacesBackward(pool, plan, r.weights.data(), out.data(), dy.data(), h, dout.data(),
                        dweights.data());
  r.dlogits.resize(logits.size());
  ChooseExpertsBackward(pool, layer.router, logits.data(), r.ids.data(), dweights.data(), rows,
                        r.dlogits.data());
  std::vector<float*> dbias;
  r.dbias.assign(layer.down.size(), std::vector<float>(static_cast<size_t>(h), 0.0f));
  for (auto& b : r.dbias) dbias.push_back(b.data());
  ExpertWeightGradient(pool, plan, units, a.data(), dout.data(), h, f, down.accumulators, dbias);
  ExpertLinear(pool, plan, dout.data(), h, {down.backward, {}, f, LeafCount(h, 0), da.data()});
  SwiGluBackward(pool, static_cast<int64_t>(g.size()), g.data(), u.data(), da.data(), dg.data(),
                 du.data());
  ExpertWeightGradient(pool, plan, units, gathered.data(), dg.data(), f, h, gate.accumulators, {});
  ExpertWeightGradient(pool, plan, units, gathered.data(), du.data(), f, h, up.accumulators, {});
  ExpertLinear(pool, plan, dg.data(), f, {gate.backward, {}, h, LeafCount(f, 0), dx1.data()});
  ExpertLinear(pool, plan, du.data(), f, {up.backward, {}, h, LeafCount(f, 0), dx2.data()});
  Add(pool, static_cast<int64_t>(dx1.size()), dx1.data(), dx2.data(), dx1.data());
  r.dx_experts.resize(r.y.size());
  ScatterPlaces(pool, plan, dx1.data(), h, r.dx_experts.data());
  r.dgate = gate.gradient, r.dup = up.gradient, r.ddown = down.gradient;
  return r;
}

// Bits: of the twins, of both instruction sets and of any thread count.
TEST(ExpertsTest, EqualScalarTwin) {
  const NumericThread numeric;
  const Layer layer = Layer::Make(53, 512, 40, {.experts = 9, .chosen = 3});
  const int64_t rows = layer.rows, h = layer.hidden, f = layer.width, k = layer.router.chosen;
  const std::vector<float> x = Uniform(rows * h, 7, 2.0f), shared = Uniform(rows * h, 8),
                           dy = Uniform(rows * h, 9);
  const RowRange units[] = {{0, 20}, {20, 21}, {21, rows}};
  Pool one(1);
  const Result ours = Compute(one, layer, x, shared, dy, units);
  OnEveryIsa([&](Pool& pool) { EXPECT_TRUE(Compute(pool, layer, x, shared, dy, units) == ours); });

  const size_t places = static_cast<size_t>(rows * k);
  const auto floats = [&](int64_t width) {
    return std::vector<float>(places * static_cast<size_t>(width));
  };
  const auto linear = [&](bool per_choice, const std::vector<float>& in,
                          const std::vector<std::vector<float>>& w,
                          const std::vector<std::vector<float>>& b, int64_t n, int64_t depth) {
    std::vector<float> out = floats(n);
    reference::ExpertLinear(ours.ids.data(), rows, k, per_choice, in.data(), w, b, n, depth,
                            LeafCount(depth, 0), out.data());
    return out;
  };
  const std::vector<float> g = linear(false, x, layer.gate, {}, f, h),
                           u = linear(false, x, layer.up, {}, f, h);
  std::vector<float> a = floats(f), y(ours.y.size());
  SwiGlu(one, static_cast<int64_t>(a.size()), g.data(), u.data(), a.data());
  const std::vector<float> out = linear(true, a, layer.down, layer.down_bias, h, f);
  reference::CombinePlaces(rows, k, ours.weights.data(), out.data(), shared.data(), h, y.data());
  EXPECT_EQ(CountDifferentBits(y, ours.y), 0);

  std::vector<float> dout = floats(h), dweights(places), dx(y.size());
  reference::CombinePlacesBackward(rows, k, ours.weights.data(), out.data(), dy.data(), h,
                                   dout.data(), dweights.data());
  const auto transposed = [](const std::vector<std::vector<float>>& w, int64_t n, int64_t depth) {
    std::vector<std::vector<float>> back;
    for (const auto& m : w) {
      back.emplace_back(m.size());
      for (int64_t r = 0; r < n; ++r) {
        for (int64_t c = 0; c < depth; ++c) {
          back.back()[static_cast<size_t>(c * n + r)] = m[static_cast<size_t>(r * depth + c)];
        }
      }
    }
    return back;
  };
  const std::vector<float> da = linear(true, dout, transposed(layer.down, h, f), {}, f, h);
  std::vector<float> dg = floats(f), du = floats(f);
  SwiGluBackward(one, static_cast<int64_t>(da.size()), g.data(), u.data(), da.data(), dg.data(),
                 du.data());
  std::vector<float> dx1 = linear(true, dg, transposed(layer.gate, f, h), {}, h, f);
  const std::vector<float> dx2 = linear(true, du, transposed(layer.up, f, h), {}, h, f);
  for (size_t i = 0; i < dx1.size(); ++i) dx1[i] = dx1[i] + dx2[i];
  reference::ScatterPlaces(rows, k, dx1.data(), h, dx.data());
  EXPECT_EQ(CountDifferentBits(dx, ours.dx_experts), 0);

  // Weight gradients: a chain a unit over the rows that chose the expert.
  for (int64_t e = 0; e < layer.router.experts; ++e) {
    std::vector<float> want(static_cast<size_t>(h * f), 0.0f), bias(static_cast<size_t>(h), 0.0f);
    for (const RowRange& unit : units) {
      std::vector<float> in, grad;
      for (int64_t i = unit.begin * k; i < unit.end * k; ++i) {
        if (ours.ids[static_cast<size_t>(i)] != e) continue;
        in.insert(in.end(), a.begin() + i * f, a.begin() + (i + 1) * f);
        grad.insert(grad.end(), dout.begin() + i * h, dout.begin() + (i + 1) * h);
      }
      const int64_t m = static_cast<int64_t>(in.size()) / f;
      if (m == 0) continue;
      reference::LinearWeightGradient(in.data(), f, grad.data(), h, m, h, f, want.data());
      reference::LinearBiasGradient(grad.data(), h, m, h, bias.data());
    }
    std::vector<float> got(want.size());
    const size_t i = static_cast<size_t>(e);
    UnpackPanels(one, ours.ddown[i].data(), h, f, got.data());
    EXPECT_EQ(CountDifferentBits(want, got), 0) << "expert " << e;
    EXPECT_EQ(CountDifferentBits(bias, ours.dbias[i]), 0) << "expert " << e;
  }
}

// Rows in another company, and fewer of them: their outputs and gradients keep their bits.
TEST(ExpertsTest, ARowDoesNotSeeItsNeighbours) {
  const NumericThread numeric;
  Layer layer = Layer::Make(40, 64, 24, {.experts = 7, .chosen = 2});
  const std::vector<float> x = Uniform(40 * 64, 7, 2.0f), shared = Uniform(40 * 64, 8),
                           dy = Uniform(40 * 64, 9);
  Pool pool(2);
  const RowRange all = {0, 40}, part = {0, 11};
  const Result whole = Compute(pool, layer, x, shared, dy, {&all, 1});
  layer.rows = 11;
  const auto cut = [](const std::vector<float>& v) {
    return std::vector<float>(v.begin() + 17 * 64, v.begin() + 28 * 64);
  };
  const Result some = Compute(pool, layer, cut(x), cut(shared), cut(dy), {&part, 1});
  EXPECT_EQ(CountDifferentBits(some.y, cut(whole.y)), 0);
  EXPECT_EQ(CountDifferentBits(some.dx_experts, cut(whole.dx_experts)), 0);
}

// Experts added in another order give other bits.
TEST(ExpertsTest, AnotherOrderOfExpertsDiffers) {
  const NumericThread numeric;
  constexpr int64_t kRows = 50, kChosen = 4, kWidth = 32;
  const std::vector<float> weights = Uniform(kRows * kChosen, 1),
                           out = Uniform(kRows * kChosen * kWidth, 2);
  std::vector<float> back_weights, back_out, y(kRows * kWidth), reversed(y.size());
  for (int64_t t = 0; t < kRows; ++t) {
    for (int64_t j = kChosen - 1; j >= 0; --j) {
      const int64_t at = t * kChosen + j;
      back_weights.push_back(weights[static_cast<size_t>(at)]);
      back_out.insert(back_out.end(), out.begin() + at * kWidth, out.begin() + (at + 1) * kWidth);
    }
  }
  reference::CombinePlaces(kRows, kChosen, weights.data(), out.data(), nullptr, kWidth, y.data());
  reference::CombinePlaces(kRows, kChosen, back_weights.data(), back_out.data(), nullptr, kWidth,
                           reversed.data());
  EXPECT_GT(CountDifferentBits(y, reversed), kRows * kWidth / 4);
}

TEST(ExpertsTest, AgreeWithDoubleAndItsDerivative) {
  const NumericThread numeric;
  const Layer layer = Layer::Make(6, 16, 12, {.experts = 5, .chosen = 2});
  const int64_t rows = layer.rows, h = layer.hidden, f = layer.width, k = layer.router.chosen;
  const std::vector<float> x = Uniform(rows * h, 7, 2.0f), shared = Uniform(rows * h, 8),
                           dy = Uniform(rows * h, 9);
  Pool pool(1);
  const RowRange unit = {0, rows};
  const Result ours = Compute(pool, layer, x, shared, dy, {&unit, 1});
  using Doubles = std::vector<double>;
  Doubles xd(x.begin(), x.end());
  std::vector<Doubles> gate, up, down, bias;
  for (size_t e = 0; e < layer.gate.size(); ++e) {
    gate.emplace_back(layer.gate[e].begin(), layer.gate[e].end());
    up.emplace_back(layer.up[e].begin(), layer.up[e].end());
    down.emplace_back(layer.down[e].begin(), layer.down[e].end());
    bias.emplace_back(layer.down_bias[e].begin(), layer.down_bias[e].end());
  }
  // The routing weights and choices are held: dx_experts is the gradient through the experts.
  const auto forward = [&] {
    Doubles y(shared.begin(), shared.end());
    for (int64_t i = 0; i < rows * k; ++i) {
      const size_t e = static_cast<size_t>(ours.ids[static_cast<size_t>(i)]);
      const double* in = xd.data() + i / k * h;
      Doubles a(static_cast<size_t>(f));
      for (int64_t r = 0; r < f; ++r) {
        double g = 0, u = 0;
        for (int64_t c = 0; c < h; ++c) {
          g += in[c] * gate[e][static_cast<size_t>(r * h + c)];
          u += in[c] * up[e][static_cast<size_t>(r * h + c)];
        }
        a[static_cast<size_t>(r)] = g / (1 + std::exp(-g)) * u;
      }
      for (int64_t r = 0; r < h; ++r) {
        double o = bias[e][static_cast<size_t>(r)];
        for (int64_t c = 0; c < f; ++c) {
          o += a[static_cast<size_t>(c)] * down[e][static_cast<size_t>(r * f + c)];
        }
        y[static_cast<size_t>(i / k * h + r)] += ours.weights[static_cast<size_t>(i)] * o;
      }
    }
    return y;
  };
  const Doubles want = forward();
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(ours.y[i], want[i], 2e-6);
  const auto derivative = [&](double& at) {
    const double before = at;
    double sums[2] = {0, 0};
    for (const int side : {0, 1}) {
      at = before + (side == 0 ? 1e-5 : -1e-5);
      const Doubles y = forward();
      for (size_t i = 0; i < y.size(); ++i) sums[side] += y[i] * dy[i];
    }
    at = before;
    return (sums[0] - sums[1]) / 2e-5;
  };
  for (size_t i = 0; i < xd.size(); i += 5) {
    EXPECT_NEAR(ours.dx_experts[i], derivative(xd[i]), 4e-6) << i;
  }
  for (size_t e = 0; e < gate.size(); ++e) {
    for (int64_t j = 0; j < f * h; j += 17) {
      const int64_t r = j / h, c = j % h;
      EXPECT_NEAR(ours.dgate[e][static_cast<size_t>(PanelIndex(h, r, c))],
                  derivative(gate[e][static_cast<size_t>(j)]), 4e-6);
      EXPECT_NEAR(ours.dup[e][static_cast<size_t>(PanelIndex(h, r, c))],
                  derivative(up[e][static_cast<size_t>(j)]), 4e-6);
      const int64_t dr = j / f, dc = j % f;
      EXPECT_NEAR(ours.ddown[e][static_cast<size_t>(PanelIndex(f, dr, dc))],
                  derivative(down[e][static_cast<size_t>(j)]), 4e-6);
    }
    EXPECT_NEAR(ours.dbias[e][3], derivative(bias[e][3]), 4e-6);
  }
}

TEST(BoundedGateTest, EqualsScalarTwinAndDouble) {
  const NumericThread numeric;
  for (const GateBounds& bounds : {GateBounds{}, GateBounds{10.0f, 1.0f, 0.0f}}) {
    for (const int64_t n : {1, 37, 40001}) {
      Guarded gate(n, 1), up(n, 2), dout(n, 3), out(n, 4), dgate(n, 5), dup(n, 6);
      gate.FillWide(1, 3.0f), up.FillWide(2, 3.0f), dout.FillWide(3);
      reference::BoundedGate(bounds, n, gate.data(), up.data(), out.data());
      reference::BoundedGateBackward(bounds, n, gate.data(), up.data(), dout.data(), dgate.data(),
                                     dup.data());
      OnEveryIsa([&](Pool& pool) {
        Guarded out2(n, 4), dgate2(n, 5), dup2(n, 6);
        BoundedGate(pool, bounds, n, gate.data(), up.data(), out2.data());
        BoundedGateBackward(pool, bounds, n, gate.data(), up.data(), dout.data(), dgate2.data(),
                            dup2.data());
        EXPECT_EQ(CountDifferentBits(out.span(), out2.span()), 0);
        EXPECT_EQ(CountDifferentBits(dgate.span(), dgate2.span()), 0);
        EXPECT_EQ(CountDifferentBits(dup.span(), dup2.span()), 0);
      });
      int bounded = 0;
      for (int64_t i = 0; i < std::min<int64_t>(n, 3000); ++i) {
        const double limit = bounds.limit, alpha = bounds.alpha, offset = bounds.offset;
        const auto f = [&](double g, double u) {
          g = std::min(g, limit), u = std::clamp(u, -limit, limit);
          return (u + offset) * g / (1 + std::exp(-alpha * g));
        };
        const double g = gate.data()[i], u = up.data()[i], d = dout.data()[i];
        bounded += g > limit || std::abs(u) > limit;
        EXPECT_NEAR(out.data()[i], f(g, u), 4e-6 * (1 + std::abs(f(g, u))));
        if (std::abs(g - limit) < 1e-4 || std::abs(std::abs(u) - limit) < 1e-4) continue;
        const double dg = d * (f(g + 1e-5, u) - f(g - 1e-5, u)) / 2e-5;
        const double du = d * (f(g, u + 1e-5) - f(g, u - 1e-5)) / 2e-5;
        EXPECT_NEAR(dgate.data()[i], dg, 4e-6 * (1 + std::abs(dg)));
        EXPECT_NEAR(dup.data()[i], du, 4e-6 * (1 + std::abs(du)));
      }
      if (n > 1000) {
        EXPECT_GT(bounded, 0);
      }
    }
  }
}

}  // namespace
}  // namespace titan::kernels
