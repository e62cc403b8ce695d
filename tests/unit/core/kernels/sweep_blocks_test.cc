// SPDX-License-Identifier: Apache-2.0
//
// The sweep (tests/support/kernel_sweep.h) of the other operations: routers and experts in every
// mode, the gated delta rule, latent attention, rotations, embeddings, gates and the optimizer,
// forward and backward, one after the other.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "core/kernels/embedding.h"
#include "core/kernels/gated_delta.h"
#include "core/kernels/gelu.h"
#include "core/kernels/latent_attention.h"
#include "core/kernels/linear.h"
#include "core/kernels/moe_experts.h"
#include "core/kernels/moe_router.h"
#include "core/kernels/optimizer.h"
#include "core/kernels/reference_gated_delta.h"
#include "core/kernels/reference_latent_attention.h"
#include "core/kernels/reference_linear.h"
#include "core/kernels/reference_moe.h"
#include "core/kernels/reference_ops.h"
#include "core/kernels/rope.h"
#include "core/kernels/softplus.h"
#include "core/kernels/swiglu.h"
#include "tests/support/kernel_sweep.h"

namespace titan::kernels {
namespace {

using tests::Backwards;
using tests::Floats;
using tests::Rounded;
using tests::SweepMatrix;
using tests::SweepTest;
using titan::testing::UniformFloats;
using titan::testing::WideFloats;

// Arrays of one length each, end to end: what a twin and a kernel write.
class Arrays {
 public:
  explicit Arrays(std::initializer_list<int64_t> lengths) : lengths_(lengths) {}
  Floats Make() const {
    int64_t all = 0;
    for (const int64_t length : lengths_) all += length;
    return Floats(static_cast<size_t>(all), 0.0f);
  }
  // Calls body(pointer to each array).
  template <typename Body>
  void In(Floats& all, const Body& body) const {
    std::vector<float*> at;
    float* next = all.data();
    for (const int64_t length : lengths_) at.push_back(next), next += length;
    body(at);
  }

 private:
  std::vector<int64_t> lengths_;
};

class BlocksSweepTest : public SweepTest {
 protected:
  void NextOperation();
  void Router();
  void Experts();
  void Delta();
  void Latent();
  void Rotations();
  void Embeddings();
  void Gates();
  void Optimizer();
};

// A score of each kind, groups and a correction bias too.
void BlocksSweepTest::Router() {
  const int64_t rows = Between(1, 300), form = round_ / 8 % 5;
  RouterShape router;
  if (form == 1) router.normalise = false;
  if (form == 2) router.score = RouterScore::kSoftmaxOfChosen;
  if (form >= 3) {
    router.score = RouterScore::kSigmoid;
    router.normaliser_eps = 1e-20f;
    router.scaling = 2.5f;
  }
  if (form == 4) router.groups = Between(2, 8), router.chosen_groups = Between(1, router.groups);
  router.experts = router.groups * Between(2, 130 / router.groups);
  const int64_t candidates = router.experts / router.groups * router.chosen_groups;
  router.chosen = Between(1, std::min<int64_t>(candidates, 8));
  const Status valid = ValidateRouter(router);
  ASSERT_TRUE(valid.ok()) << valid;
  Floats logits = UniformFloats(rows * router.experts, Seed(), 4);
  for (size_t i = random_.Below(20); i < logits.size(); i += 20) logits[i] = 0.5f;  // ties
  const Floats bias = UniformFloats(router.experts, Seed(), 0.2f);
  const float* correction = router.score == RouterScore::kSigmoid ? bias.data() : nullptr;
  const Floats dweights = UniformFloats(rows * router.chosen, Seed());
  // ids as floats, weights, dlogits.
  const Arrays all({rows * router.chosen, rows * router.chosen, rows * router.experts});
  std::vector<int32_t> ids(static_cast<size_t>(rows * router.chosen));
  Floats want = all.Make();
  all.In(want, [&](const std::vector<float*>& at) {
    reference::ChooseExperts(router, logits.data(), correction, rows, ids.data(), at[1]);
    std::copy(ids.begin(), ids.end(), at[0]);
    reference::ChooseExpertsBackward(router, logits.data(), ids.data(), dweights.data(), rows,
                                     at[2]);
  });
  Compare("router", want, [&](Pool& pool, Floats& got) {
    all.In(got, [&](const std::vector<float*>& at) {
      std::vector<int32_t> own(ids.size());
      ChooseExperts(pool, router, logits.data(), correction, rows, own.data(), at[1]);
      std::copy(own.begin(), own.end(), at[0]);
      ChooseExpertsBackward(pool, router, logits.data(), own.data(), dweights.data(), rows, at[2]);
    });
  });
  // The chosen scores added from the last to the first.
  if (form != 0 || router.chosen < 3) return;
  RouterShape without = router;
  without.normalise = false;
  Floats scores(ids.size()), right, wrong;
  reference::ChooseExperts(without, logits.data(), nullptr, rows, ids.data(), scores.data());
  const auto chosen = static_cast<size_t>(router.chosen);
  for (size_t row = 0; row < scores.size(); row += chosen) {
    float sum = 0.0f;
    for (size_t j = chosen; j-- > 0;) sum = sum + scores[row + j];
    wrong.push_back(scores[row] / sum);
    right.push_back(want[ids.size() + row]);
  }
  MustDiffer("chosen scores descending", right, wrong);
}

// One linear an expert, its weight gradient by units, and the rows joined and taken apart.
void BlocksSweepTest::Experts() {
  const int64_t rows = Between(1, 60), experts = Between(1, 12);
  const int64_t chosen = Between(1, std::min<int64_t>(experts, 4));
  std::vector<int32_t> ids(static_cast<size_t>(rows * chosen));
  Floats unused(ids.size());
  reference::ChooseExperts({.experts = experts, .chosen = chosen},
                           UniformFloats(rows * experts, Seed()).data(), nullptr, rows, ids.data(),
                           unused.data());
  const int leaves = 1 << random_.Below(3);
  const int64_t k = 2 * leaves * Between(1, 100 / (2 * leaves)), n = Between(1, 100);
  const int64_t places = rows * chosen;
  const Floats x = WideFloats(rows * k, Seed()), dplaces = WideFloats(places * n, Seed());
  const Floats weights = UniformFloats(rows * chosen, Seed()),
               shared = WideFloats(rows * n, Seed());
  const Floats dy = WideFloats(rows * n, Seed());
  std::vector<Floats> plain, rounded, bias;
  std::vector<SweepMatrix> matrices;
  for (int64_t e = 0; e < experts; ++e) {
    plain.push_back(WideFloats(n * k, Seed()));
    bias.push_back(WideFloats(n, Seed()));
    matrices.emplace_back(plain.back(), n, k);
    rounded.push_back(matrices.back().rounded);
  }
  const int64_t cut = random_.Below(rows + 1);
  const std::vector<RowRange> units = {{0, cut}, {cut, rows}};
  const struct {
    const char* name;
    Element element;
    Inputs inputs;
  } modes[] = {{"experts", Element::kF32, Inputs::kF32},
               {"experts w16", Element::kBf16, Inputs::kF32},
               {"experts bf16", Element::kBf16, Inputs::kBf16}};
  const auto& mode = modes[round_ / 8 % 3];
  const Floats rows_in = mode.inputs == Inputs::kBf16 ? Rounded(x) : x;
  // outputs [places][n], dW [experts][n][k], dbias [experts][n], y, dout [places][n], dweights, dx.
  const Arrays all(
      {places * n, experts * n * k, experts * n, rows * n, places * n, places, rows * n});
  Floats want = all.Make();
  all.In(want, [&](const std::vector<float*>& at) {
    reference::ExpertLinear(ids.data(), rows, chosen, false, rows_in.data(),
                            mode.element == Element::kBf16 ? rounded : plain, bias, n, k, leaves,
                            at[0]);
    for (int64_t e = 0; e < experts; ++e) {
      for (const RowRange& unit : units) {
        Floats in, gradient;
        for (int64_t i = unit.begin * chosen; i < unit.end * chosen; ++i) {
          if (ids[static_cast<size_t>(i)] != e) continue;
          const float* row = rows_in.data() + i / chosen * k;
          in.insert(in.end(), row, row + k);
          gradient.insert(gradient.end(), dplaces.begin() + i * n, dplaces.begin() + (i + 1) * n);
        }
        const int64_t m = static_cast<int64_t>(gradient.size()) / n;
        if (m == 0) continue;
        reference::LinearWeightGradient(in.data(), k, gradient.data(), n, m, n, k,
                                        at[1] + e * n * k);
        reference::LinearBiasGradient(gradient.data(), n, m, n, at[2] + e * n);
      }
    }
    reference::CombinePlaces(rows, chosen, weights.data(), at[0], shared.data(), n, at[3]);
    reference::CombinePlacesBackward(rows, chosen, weights.data(), at[0], dy.data(), n, at[4],
                                     at[5]);
    reference::ScatterPlaces(rows, chosen, dplaces.data(), n, at[6]);
  });
  Compare(
      mode.name, want,
      [&](Pool& pool, Floats& got) {
        ExpertPlan plan;
        plan.Set(ids.data(), rows, chosen, experts);
        // The kernels' places lie expert after expert, the twins' row after row.
        const auto by_expert = [&](const float* by_row) {
          Floats out(static_cast<size_t>(places * n));
          for (int64_t i = 0; i < places; ++i) {
            std::copy_n(by_row + i * n, n, out.begin() + plan.place_of(i / chosen, i % chosen) * n);
          }
          return out;
        };
        const auto by_row = [&](const Floats& by_expert, float* out) {
          for (int64_t i = 0; i < places; ++i) {
            std::copy_n(by_expert.begin() + plan.place_of(i / chosen, i % chosen) * n, n,
                        out + i * n);
          }
        };
        std::vector<ConstPanels> panels;
        std::vector<Floats> sums;
        std::vector<float*> accumulators, bias_accumulators;
        std::vector<const float*> biases;
        all.In(got, [&](const std::vector<float*>& at) {
          std::fill_n(at[2], experts * n, 0.0f);
          for (int64_t e = 0; e < experts; ++e) {
            const auto i = static_cast<size_t>(e);
            panels.push_back(mode.element == Element::kBf16
                                 ? ConstPanels(matrices[i].half.data())
                                 : ConstPanels(matrices[i].panels.data()));
            sums.emplace_back(matrices[i].panels.size());
            accumulators.push_back(sums.back().data());
            bias_accumulators.push_back(at[2] + e * n);
            biases.push_back(bias[i].data());
          }
          Floats gathered(static_cast<size_t>(places * k)), out(static_cast<size_t>(places * n));
          GatherPlaces(pool, plan, x.data(), k, gathered.data());
          ExpertLinear(pool, plan, gathered.data(), k, {panels, biases, n, leaves, out.data()},
                       mode.inputs);
          by_row(out, at[0]);
          const Floats dout = by_expert(dplaces.data());
          ExpertWeightGradient(pool, plan, units, gathered.data(), dout.data(), n, k, accumulators,
                               bias_accumulators, mode.inputs);
          for (int64_t e = 0; e < experts; ++e) {
            UnpackPanels(pool, sums[static_cast<size_t>(e)].data(), n, k, at[1] + e * n * k);
          }
          CombinePlaces(pool, plan, weights.data(), out.data(), shared.data(), n, at[3]);
          Floats back(out.size());
          CombinePlacesBackward(pool, plan, weights.data(), out.data(), dy.data(), n, back.data(),
                                at[5]);
          by_row(back, at[4]);
          ScatterPlaces(pool, plan, dout.data(), n, at[6]);
        });
      },
      mode.inputs);
  if (chosen < 3) return;
  // Experts added from the last to the first.
  Floats last_first, y(static_cast<size_t>(rows * n));
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t j = chosen - 1; j >= 0; --j) {
      const float* place = want.data() + (t * chosen + j) * n;
      last_first.insert(last_first.end(), place, place + n);
    }
  }
  reference::CombinePlaces(rows, chosen, Backwards(weights, chosen).data(), last_first.data(),
                           shared.data(), n, y.data());
  all.In(want, [&](const std::vector<float*>& at) {
    MustDiffer("experts descending", std::span<const float>(at[3], y.size()), y);
  });
}

void BlocksSweepTest::Delta() {
  const int64_t key_heads = Between(1, 2);
  const DeltaShape shape{key_heads, key_heads * Between(1, 2), Between(1, 60), Between(1, 60)};
  const int64_t rows = Between(1, 150);
  const int64_t keys = rows * shape.key_heads * shape.key_dim,
                values = rows * shape.value_heads * shape.value_dim,
                pairs = rows * shape.value_heads;
  const auto dim = static_cast<float>(shape.key_dim);
  const Floats q = UniformFloats(keys, Seed(), 1 / dim),
               k = UniformFloats(keys, Seed(), 1.7f / std::sqrt(dim));
  const Floats v = UniformFloats(values, Seed()), dout = UniformFloats(values, Seed());
  Floats g = UniformFloats(pairs, Seed(), 0.2f), beta = UniformFloats(pairs, Seed(), 0.49f);
  for (float& decay : g) decay = random_.Below(50) == 0 ? -40.0f : -std::abs(decay);
  for (float& rate : beta) rate += 0.5f;
  const int64_t chunks = (rows + kDeltaChunk - 1) / kDeltaChunk;
  // out, u, states at the chunks' starts, dq, dk, dv, dg, dbeta.
  const Arrays all({values, values, chunks * shape.value_heads * shape.key_dim * shape.value_dim,
                    keys, keys, values, pairs, pairs});
  const auto twin = [&](const Floats& queries, const Floats& key_rows) {
    Floats out = all.Make();
    all.In(out, [&](const std::vector<float*>& at) {
      const DeltaSaved saved = {at[1], at[2]};
      reference::DeltaForward(shape, rows, queries.data(), key_rows.data(), v.data(), g.data(),
                              beta.data(), at[0], &saved);
      reference::DeltaBackward(shape, rows, queries.data(), key_rows.data(), g.data(), beta.data(),
                               saved, dout.data(), {at[3], at[4], at[5], at[6], at[7]});
    });
    return out;
  };
  const Floats want = twin(q, k);
  Compare("gated delta", want, [&](Pool& pool, Floats& got) {
    all.In(got, [&](const std::vector<float*>& at) {
      Floats state(static_cast<size_t>(DeltaStateFloats(shape)), NAN);
      const DeltaSegment segment = {0, rows, 0, state.data()};
      const DeltaSaved saved = {at[1], at[2]};
      DeltaForward(pool, shape, {&segment, 1}, q.data(), k.data(), v.data(), g.data(), beta.data(),
                   at[0], &saved);
      DeltaBackward(pool, shape, {&segment, 1}, q.data(), k.data(), g.data(), beta.data(), saved,
                    dout.data(), {at[3], at[4], at[5], at[6], at[7]});
    });
  });
  if (rows < 20 || shape.key_dim < 8) return;
  const auto outputs = std::span<const float>(want).first(static_cast<size_t>(values));
  Floats wrong(static_cast<size_t>(values));
  reference::DeltaForward(shape, rows, Backwards(q, shape.key_dim).data(),
                          Backwards(k, shape.key_dim).data(), v.data(), g.data(), beta.data(),
                          wrong.data(), nullptr);
  MustDiffer("keys' channels descending", outputs, wrong);
}

void BlocksSweepTest::Latent() {
  const bool is_long = round_ / 8 % 2 == 0;
  const int64_t rope = random_.Below(2) == 0 ? 0 : Between(1, 12);
  const LatentShape shape{Between(1, is_long ? 2 : 4), Between(1, is_long ? 16 : 50), rope, 0.3f};
  const int64_t rows = is_long ? Between(500, 640) : Between(1, 140), width = shape.width();
  const int64_t q_floats = rows * shape.heads * width, outs = rows * shape.heads * shape.latent;
  const int64_t value = Between(1, 30);  // of a head behind its part of kv_b
  const Floats q = UniformFloats(q_floats, Seed(), 3),
               cached = UniformFloats(rows * width, Seed(), 2);
  const Floats dout = UniformFloats(outs, Seed());
  std::vector<Floats> parts;
  std::vector<SweepMatrix> matrices;
  for (int64_t h = 0; h < shape.heads; ++h) {
    parts.push_back(UniformFloats(value * shape.latent, Seed()));
    matrices.emplace_back(parts.back(), value, shape.latent);
  }
  // out, row_max, row_sum, dq, dcache, values.
  const Arrays all({outs, rows * shape.heads, rows * shape.heads, q_floats, rows * width,
                    rows * shape.heads * value});
  Floats want = all.Make();
  all.In(want, [&](const std::vector<float*>& at) {
    reference::LatentAttentionForward(shape, rows, q.data(), cached.data(), at[0], at[1], at[2]);
    reference::LatentAttentionBackward(shape, rows, q.data(), cached.data(), at[0], dout.data(),
                                       at[1], at[2], at[3], at[4]);
    for (int64_t h = 0; h < shape.heads; ++h) {
      reference::Linear(at[0] + h * shape.latent, shape.heads * shape.latent, rows,
                        parts[static_cast<size_t>(h)].data(), value, shape.latent, 1, nullptr,
                        at[5] + h * value, shape.heads * value);
    }
  });
  Compare("latent attention", want, [&](Pool& pool, Floats& got) {
    std::vector<int32_t> pages;
    for (int64_t p = NumPages(rows) - 1; p >= 0; --p) pages.push_back(static_cast<int32_t>(p));
    Floats cache(pages.size() * static_cast<size_t>(LatentPageFloats(shape)), NAN);
    const Segment segment = {0, static_cast<int32_t>(rows), 0, pages.data()};
    std::vector<ConstPanels> panels;
    for (const SweepMatrix& matrix : matrices) panels.push_back(matrix.panels.data());
    WriteLatent(pool, shape, cached.data(), {&segment, 1}, cache.data());
    all.In(got, [&](const std::vector<float*>& at) {
      LatentAttentionForward(pool, shape, q.data(), {&segment, 1}, cache.data(), at[0], at[1],
                             at[2]);
      LatentAttentionBackward(pool, shape, q.data(), {&segment, 1}, cache.data(), at[0],
                              dout.data(), at[1], at[2], at[3], at[4]);
      PerHeadLinear(pool, at[0], rows, panels, value, shape.latent, 1, at[5]);
    });
  });
  if (rows < 30 || shape.latent < 8 || shape.rope != 0) return;
  // Without rotated channels the latent may be turned round as a whole.
  Floats out(static_cast<size_t>(outs)), max(static_cast<size_t>(rows * shape.heads)), sum(max);
  reference::LatentAttentionForward(shape, rows, Backwards(q, width).data(),
                                    Backwards(cached, width).data(), out.data(), max.data(),
                                    sum.data());
  MustDiffer("latent channels descending",
             std::span<const float>(want).first(static_cast<size_t>(outs)),
             Backwards(out, shape.latent));
}

void BlocksSweepTest::Rotations() {
  const int half = static_cast<int>(Between(1, 64));
  const int head_dim = 2 * half + (random_.Below(2) == 0 ? 0 : 2 * static_cast<int>(Between(1, 9)));
  const int heads = static_cast<int>(Between(1, 6));
  const int64_t rows = Between(1, 60), positions = Between(1, 4000);
  const int64_t ld = int64_t{heads} * head_dim;
  constexpr RopeScaling::Kind kKinds[] = {RopeScaling::Kind::kNone, RopeScaling::Kind::kLinear,
                                          RopeScaling::Kind::kLlama3, RopeScaling::Kind::kYarn};
  RopeScaling scaling{.kind = kKinds[random_.Below(4)]};
  if (scaling.kind != RopeScaling::Kind::kNone)
    scaling.factor = static_cast<double>(Between(2, 32));
  const StatusOr<RopeTable> table =
      RopeTable::Create(head_dim, 10000.0, scaling, positions, 2 * half,
                        random_.Below(2) == 0 ? RopePairs::kHalf : RopePairs::kInterleaved);
  ASSERT_TRUE(table.ok()) << table.status();
  std::vector<int32_t> at_row;
  for (int64_t t = 0; t < rows; ++t) {
    at_row.push_back(static_cast<int32_t>(random_.Below(positions)));
  }
  const Floats x = WideFloats(rows * ld, Seed());
  // Rotated, and rotated back.
  const Arrays all({rows * ld, rows * ld});
  const auto start = [&](const std::vector<float*>& at) {
    for (float* array : at) std::copy(x.begin(), x.end(), array);
  };
  Floats want = all.Make();
  all.In(want, [&](const std::vector<float*>& at) {
    start(at);
    reference::ApplyRope(*table, at[0], ld, rows, heads, at_row.data());
    reference::ApplyRopeBackward(*table, at[1], ld, rows, heads, at_row.data());
  });
  Compare("rotations", want, [&](Pool& pool, Floats& got) {
    all.In(got, [&](const std::vector<float*>& at) {
      start(at);
      ApplyRope(pool, *table, at[0], ld, rows, heads, at_row.data());
      ApplyRopeBackward(pool, *table, at[1], ld, rows, heads, at_row.data());
    });
  });
  // The first of each half's pairs with both products rounded.
  if (table->pairs() != RopePairs::kHalf) return;
  Floats right, wrong;
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t i = 0; i < half; ++i) {
      const float* row = x.data() + t * ld;
      const float cosine = table->cosines(at_row[static_cast<size_t>(t)])[i],
                  sine = table->sines(at_row[static_cast<size_t>(t)])[i];
      right.push_back(want[static_cast<size_t>(t * ld + i)]);
      wrong.push_back(row[i] * cosine - row[i + half] * sine);
    }
  }
  MustDiffer("rotations not fused", right, wrong);
}

void BlocksSweepTest::Embeddings() {
  const int64_t vocab = Between(1, 90), hidden = Between(1, 180), rows = Between(1, 250);
  std::vector<int32_t> tokens;
  for (int64_t t = 0; t < rows; ++t) {
    tokens.push_back(static_cast<int32_t>(random_.Below(t % 2 == 0 ? vocab : (vocab + 9) / 10)));
  }
  const int64_t cut = random_.Below(rows + 1);
  const std::vector<RowRange> units = {{0, cut}, {cut, rows}};
  const Floats table = WideFloats(vocab * hidden, Seed()), dy = WideFloats(rows * hidden, Seed());
  const SweepMatrix matrix(table, vocab, hidden);
  const bool half = round_ / 8 % 2 == 0;
  // Gathered rows and the table's gradient.
  const Arrays all({rows * hidden, vocab * hidden});
  Floats want = all.Make();
  all.In(want, [&](const std::vector<float*>& at) {
    for (int64_t t = 0; t < rows; ++t) {
      const Floats& from = half ? matrix.rounded : table;
      std::copy_n(from.begin() + tokens[static_cast<size_t>(t)] * hidden, hidden,
                  at[0] + t * hidden);
    }
    reference::EmbeddingGradient(TableLayout::kRows, dy.data(), vocab, hidden, tokens.data(), units,
                                 at[1]);
  });
  Compare("embeddings", want, [&](Pool& pool, Floats& got) {
    all.In(got, [&](const std::vector<float*>& at) {
      EmbeddingGather(pool,
                      half ? ConstPanels(matrix.half.data()) : ConstPanels(matrix.panels.data()),
                      vocab, hidden, tokens.data(), rows, at[0]);
      Floats sum(matrix.panels.size());
      EmbeddingGradient(pool, TableLayout::kPanels32, dy.data(), vocab, hidden, tokens.data(),
                        units, sum.data());
      UnpackPanels(pool, sum.data(), vocab, hidden, at[1]);
    });
  });
  if (rows < 100 || rows < 4 * vocab) return;
  // Rows from the last to the first.
  Floats wrong(table.size());
  std::vector<int32_t> back(tokens.rbegin(), tokens.rend());
  const RowRange all_rows = {0, rows};
  Floats upside_down;
  for (int64_t t = rows - 1; t >= 0; --t) {
    upside_down.insert(upside_down.end(), dy.begin() + t * hidden, dy.begin() + (t + 1) * hidden);
  }
  reference::EmbeddingGradient(TableLayout::kRows, upside_down.data(), vocab, hidden, back.data(),
                               {&all_rows, 1}, wrong.data());
  MustDiffer("rows of a token descending",
             std::span<const float>(want).last(static_cast<size_t>(vocab * hidden)), wrong);
}

void BlocksSweepTest::Gates() {
  const int64_t n = Between(1, 6000);
  const Floats gate = WideFloats(n, Seed(), 4), up = WideFloats(n, Seed(), 4),
               dout = WideFloats(n, Seed());
  const GateBounds bounds{7.0f, 1.702f, 1.0f};
  // Of each gate: out, dgate, dup; of softplus: out, dx.
  const Arrays all({n, n, n, n, n, n, n, n, n, n, n});
  Floats want = all.Make();
  const float *a = gate.data(), *b = up.data(), *d = dout.data();
  all.In(want, [&](const std::vector<float*>& at) {
    reference::SwiGlu(n, a, b, at[0]);
    reference::SwiGluBackward(n, a, b, d, at[1], at[2]);
    reference::GeluGlu(n, a, b, at[3]);
    reference::GeluGluBackward(n, a, b, d, at[4], at[5]);
    reference::BoundedGate(bounds, n, a, b, at[6]);
    reference::BoundedGateBackward(bounds, n, a, b, d, at[7], at[8]);
    reference::Softplus(n, a, at[9]);
    reference::SoftplusBackward(n, a, d, at[10]);
  });
  Compare("gates", want, [&](Pool& pool, Floats& got) {
    all.In(got, [&](const std::vector<float*>& at) {
      SwiGlu(pool, n, a, b, at[0]);
      SwiGluBackward(pool, n, a, b, d, at[1], at[2]);
      GeluGlu(pool, n, a, b, at[3]);
      GeluGluBackward(pool, n, a, b, d, at[4], at[5]);
      BoundedGate(pool, bounds, n, a, b, at[6]);
      BoundedGateBackward(pool, bounds, n, a, b, d, at[7], at[8]);
      Softplus(pool, n, a, at[9]);
      SoftplusBackward(pool, n, a, d, at[10]);
    });
  });
}

void BlocksSweepTest::Optimizer() {
  AdamWPowers powers;
  const AdamWConfig config{1e-3, 0.9, 0.98, 1e-8, 0.1};
  StatusOr<AdamWScalars> scalars = NextAdamWStep(config, &powers);
  for (int64_t step = random_.Below(5); step > 0; --step) scalars = NextAdamWStep(config, &powers);
  ASSERT_TRUE(scalars.ok()) << scalars.status();
  const int64_t n = Between(1, 200), k = Between(1, 200), count = PanelFloats(n, k);
  const Floats g = WideFloats(n * k, Seed(), 8), p = WideFloats(count, Seed(), 4);
  const Floats m = WideFloats(count, Seed(), 8);
  Floats v = WideFloats(count, Seed(), 8), panels(static_cast<size_t>(count));
  for (float& value : v) value = std::abs(value);
  PackPanels(Pool::OfThisThread(), g.data(), n, k, panels.data());
  // p, m, v; the sum of the gradient's squares, whose double is two floats.
  const Arrays all({count, count, count, 2});
  const auto square_sum = [](double sum, float* out) { std::memcpy(out, &sum, sizeof(sum)); };
  const auto start = [&](const std::vector<float*>& at) {
    std::copy(p.begin(), p.end(), at[0]);
    std::copy(m.begin(), m.end(), at[1]);
    std::copy(v.begin(), v.end(), at[2]);
  };
  Floats want = all.Make();
  all.In(want, [&](const std::vector<float*>& at) {
    start(at);
    EXPECT_TRUE(reference::AdamWStep(count, *scalars, 0.3f, panels.data(), at[0], at[1], at[2]));
    square_sum(reference::GradientSquareSum({g.data(), TableLayout::kRows, n, k}), at[3]);
  });
  Compare("optimizer", want, [&](Pool& pool, Floats& got) {
    all.In(got, [&](const std::vector<float*>& at) {
      start(at);
      EXPECT_TRUE(AdamWStep(pool, count, *scalars, 0.3f, panels.data(), at[0], at[1], at[2]));
      square_sum(GradientSquareSum(pool, {panels.data(), TableLayout::kPanels32, n, k}), at[3]);
    });
  });
  Floats wrong;
  for (size_t i = 0; i < p.size(); ++i) {
    wrong.push_back(scalars->beta1 * m[i] + scalars->one_minus_beta1 * (panels[i] * 0.3f));
  }
  MustDiffer("moments not fused", std::span<const float>(want).subspan(p.size(), p.size()), wrong);
}

void BlocksSweepTest::NextOperation() {
  constexpr void (BlocksSweepTest::*kOperations[])() = {
      &BlocksSweepTest::Router,     &BlocksSweepTest::Experts,  &BlocksSweepTest::Delta,
      &BlocksSweepTest::Latent,     &BlocksSweepTest::Gates,    &BlocksSweepTest::Rotations,
      &BlocksSweepTest::Embeddings, &BlocksSweepTest::Optimizer};
  (this->*kOperations[round_ % 8])();
}

TEST_F(BlocksSweepTest, ExpertsDeltaLatentRotationsAndOptimizer) {
  Guards({"chosen scores descending", "experts descending", "keys' channels descending",
          "latent channels descending", "rotations not fused", "rows of a token descending",
          "moments not fused"});
  while (Goes()) NextOperation();
}

}  // namespace
}  // namespace titan::kernels
