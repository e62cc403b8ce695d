// SPDX-License-Identifier: Apache-2.0
#include <span>
#include <utility>

#include "core/base/check.h"
#include "core/kernels/digest_items.h"
#include "core/kernels/gated_delta.h"
#include "core/kernels/isa.h"
#include "core/kernels/latent_attention.h"
#include "core/kernels/moe_experts.h"
#include "core/kernels/moe_router.h"
#include "core/kernels/order.h"

namespace titan::kernels::internal {
namespace {

using Floats = std::vector<float>;

constexpr int64_t kRows = 21;

std::vector<RouterShape> Routers() {
  return {{.experts = 24, .chosen = 4},
          {.experts = 24, .chosen = 4, .normalise = false},
          {.score = RouterScore::kSoftmaxOfChosen, .experts = 24, .chosen = 4},
          {.score = RouterScore::kSigmoid,
           .experts = 24,
           .chosen = 4,
           .normaliser_eps = 1e-20f,
           .scaling = 2.5f,
           .groups = 6,
           .chosen_groups = 3}};
}

// Routers, then the experts' outputs joined by their weights.
struct MoeRun {
  explicit MoeRun(Pool& pool) {
    const Floats logits = Canned(200, kRows * 24, 3.0f), bias = Canned(201, 24, 0.2f);
    for (const RouterShape& shape : Routers()) {
      const bool sigmoid = shape.score == RouterScore::kSigmoid;
      ids.resize(kRows * 4);
      weights.resize(ids.size());
      ChooseExperts(pool, shape, logits.data(), sigmoid ? bias.data() : nullptr, kRows, ids.data(),
                    weights.data());
      const Floats dweights = Canned(202, kRows * 4);
      Floats dlogits(logits.size());
      ChooseExpertsBackward(pool, shape, logits.data(), ids.data(), dweights.data(), kRows,
                            dlogits.data());
      all_ids.insert(all_ids.end(), ids.begin(), ids.end());
      all_weights.insert(all_weights.end(), weights.begin(), weights.end());
      all_dlogits.insert(all_dlogits.end(), dlogits.begin(), dlogits.end());
    }
    plan.Set(ids.data(), kRows, 4, 24);
    out = Canned(203, plan.places() * kWidth);
    const Floats shared = Canned(204, kRows * kWidth);
    y.resize(kRows * kWidth);
    CombinePlaces(pool, plan, weights.data(), out.data(), shared.data(), kWidth, y.data());
    gated.resize(out.size());
    BoundedGate(pool, {1.5f, 1.702f, 1.0f}, static_cast<int64_t>(out.size()), out.data(),
                Canned(205, static_cast<int64_t>(out.size()), 3.0f).data(), gated.data());
  }
  static constexpr int64_t kWidth = 40;
  std::vector<int32_t> ids, all_ids;
  Floats weights, all_weights, all_dlogits, out, y, gated;
  ExpertPlan plan;
};

struct DeltaRun {
  explicit DeltaRun(Pool& pool)
      : q(Canned(210, kTokens * 2 * 24, 0.1f)),
        k(Canned(211, kTokens * 2 * 24, 0.2f)),
        v(Canned(212, kTokens * 4 * 40)),
        g(Canned(213, kTokens * 4, 0.5f)),
        beta(Canned(214, kTokens * 4)),
        state(static_cast<size_t>(DeltaStateFloats(shape))),
        out(v.size()),
        u(v.size()),
        segment{0, kTokens, 0, state.data()} {
    for (float& decay : g) decay = decay < 0 ? decay : -decay;
    starts.resize(static_cast<size_t>(DeltaChunks({&segment, 1}) * 4 * 24 * 40));
    const DeltaSaved saved = {u.data(), starts.data()};
    DeltaForward(pool, shape, {&segment, 1}, q.data(), k.data(), v.data(), g.data(), beta.data(),
                 out.data(), &saved);
  }
  static constexpr int64_t kTokens = 140;
  DeltaShape shape{2, 4, 24, 40};
  Floats q, k, v, g, beta, state, out, u, starts;
  DeltaSegment segment;
};

struct LatentRun {
  explicit LatentRun(Pool& pool)
      : q(Canned(220, kTokens * 2 * shape.width(), 2.0f)),
        rows(Canned(221, kTokens * shape.width(), 2.0f)),
        out(static_cast<size_t>(kTokens * 2 * shape.latent)),
        row_max(kTokens * 2),
        row_sum(kTokens * 2) {
    for (int32_t p = 0; p < NumPages(kTokens); ++p) pages.push_back(p);
    cache.resize(pages.size() * static_cast<size_t>(LatentPageFloats(shape)));
    segment = {.first_row = 0, .num_rows = kTokens, .first_position = 0, .pages = pages.data()};
    WriteLatent(pool, shape, rows.data(), {&segment, 1}, cache.data());
    LatentAttentionForward(pool, shape, q.data(), {&segment, 1}, cache.data(), out.data(),
                           row_max.data(), row_sum.data());
  }
  static constexpr int32_t kTokens = 530;
  LatentShape shape{2, 24, 8, 0.2f};
  Floats q, rows, out, row_max, row_sum, cache;
  std::vector<int32_t> pages;
  Segment segment;
};

// The rows that the experts of a canned plan multiply, gathered.
constexpr int64_t kDepth = 512;

Floats GatheredRows(Pool& pool, const ExpertPlan& plan) {
  const Floats x = Canned(207, kRows * kDepth);
  Floats gathered(static_cast<size_t>(plan.places() * kDepth));
  GatherPlaces(pool, plan, x.data(), kDepth, gathered.data());
  return gathered;
}

}  // namespace

void ExpertLinearItem(Pool& pool, std::string name, Element element, Inputs inputs, Items* items) {
  const ExpertPlan plan = MoeRun(pool).plan;
  constexpr int64_t kWidth = MoeRun::kWidth;
  std::vector<Floats> f32, biases;
  std::vector<std::vector<BFloat16>> bf16;
  std::vector<ConstPanels> panels;
  std::vector<const float*> bias;
  for (uint32_t e = 0; e < static_cast<uint32_t>(plan.experts()); ++e) {
    const Floats rows = Canned(300 + e, kWidth * kDepth, 0.1f);
    if (element == Element::kF32) {
      f32.emplace_back(static_cast<size_t>(PanelFloats(kWidth, kDepth)));
      PackPanels(pool, rows.data(), kWidth, kDepth, f32.back().data());
      panels.push_back(f32.back().data());
    } else {
      bf16.emplace_back(static_cast<size_t>(PanelElements(element, kWidth, kDepth)));
      TITAN_CHECK(PackPanels(pool, rows.data(), kWidth, kDepth, bf16.back().data()));
      panels.push_back(bf16.back().data());
    }
    biases.push_back(Canned(400 + e, kWidth));
    bias.push_back(biases.back().data());
  }
  Floats out(static_cast<size_t>(plan.places() * kWidth));
  ExpertLinear(pool, plan, GatheredRows(pool, plan).data(), kDepth,
               {panels, bias, kWidth, LeafCount(kDepth, 0), out.data()}, inputs);
  items->Hash(std::move(name), out);
}

void ExpertGradientItem(Pool& pool, std::string name, Inputs inputs, Items* items) {
  const ExpertPlan plan = MoeRun(pool).plan;
  constexpr int64_t kWidth = MoeRun::kWidth;
  const Floats dy = Canned(208, plan.places() * kWidth);
  const int64_t floats = PanelFloats(kWidth, kDepth);
  Floats sums(static_cast<size_t>(plan.experts() * floats), 0.0f),
      bias_sums(static_cast<size_t>(plan.experts() * kWidth), 0.0f);
  std::vector<float*> accumulators, bias_accumulators;
  for (int64_t e = 0; e < plan.experts(); ++e) {
    accumulators.push_back(sums.data() + e * floats);
    bias_accumulators.push_back(bias_sums.data() + e * kWidth);
  }
  const RowRange units[] = {{0, 8}, {8, kRows}};
  ExpertWeightGradient(pool, plan, units, GatheredRows(pool, plan).data(), dy.data(), kWidth,
                       kDepth, accumulators, bias_accumulators, inputs);
  items->Hash(std::move(name), sums, bias_sums);
}

std::vector<ContractItem> ForwardBlockItems(Pool& pool) {
  const NumericThread environment;
  Items items;
  const MoeRun moe(pool);
  items.Hash("canned.router", moe.all_ids, moe.all_weights);
  items.Hash("canned.experts", moe.y, moe.gated);
  ExpertLinearItem(pool, "canned.expert_linear", Element::kF32, Inputs::kF32, &items);
  const DeltaRun delta(pool);
  items.Hash("canned.gated_delta", delta.out, delta.starts);
  const LatentRun latent(pool);
  items.Hash("canned.latent_attention", latent.out, latent.row_max, latent.row_sum);
  return items.Take();
}

std::vector<ContractItem> TrainingBlockItems(Pool& pool) {
  const NumericThread environment;
  Items items;
  const MoeRun moe(pool);
  items.Hash("canned.router_gradient", moe.all_dlogits);
  const Floats dy = Canned(206, kRows * MoeRun::kWidth);
  Floats dout(moe.out.size()), dweights(moe.weights.size()), dx(moe.y.size());
  CombinePlacesBackward(pool, moe.plan, moe.weights.data(), moe.out.data(), dy.data(),
                        MoeRun::kWidth, dout.data(), dweights.data());
  ScatterPlaces(pool, moe.plan, dout.data(), MoeRun::kWidth, dx.data());
  Floats dgate(moe.out.size()), dup(moe.out.size());
  BoundedGateBackward(pool, {1.5f, 1.702f, 1.0f}, static_cast<int64_t>(dgate.size()),
                      moe.out.data(), moe.gated.data(), dout.data(), dgate.data(), dup.data());
  items.Hash("canned.experts_gradient", dweights, dx, dgate, dup);
  ExpertGradientItem(pool, "canned.expert_weight_gradient", Inputs::kF32, &items);

  const DeltaRun delta(pool);
  const Floats ddelta = Canned(215, static_cast<int64_t>(delta.out.size()));
  Floats dq(delta.q.size()), dk(delta.k.size()), dv(delta.v.size()), dg(delta.g.size()),
      dbeta(delta.g.size());
  const DeltaSaved saved = {const_cast<float*>(delta.u.data()),
                            const_cast<float*>(delta.starts.data())};
  DeltaBackward(pool, delta.shape, {&delta.segment, 1}, delta.q.data(), delta.k.data(),
                delta.g.data(), delta.beta.data(), saved, ddelta.data(),
                {dq.data(), dk.data(), dv.data(), dg.data(), dbeta.data()});
  items.Hash("canned.gated_delta_gradient", dq, dk, dv, dg, dbeta);

  const LatentRun latent(pool);
  const Floats dlatent = Canned(222, static_cast<int64_t>(latent.out.size()));
  Floats dquery(latent.q.size()), drows(latent.rows.size());
  LatentAttentionBackward(pool, latent.shape, latent.q.data(), {&latent.segment, 1},
                          latent.cache.data(), latent.out.data(), dlatent.data(),
                          latent.row_max.data(), latent.row_sum.data(), dquery.data(),
                          drows.data());
  items.Hash("canned.latent_attention_gradient", dquery, drows);
  return items.Take();
}

}  // namespace titan::kernels::internal
