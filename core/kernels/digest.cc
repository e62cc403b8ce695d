// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/digest.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <numeric>
#include <string_view>
#include <utility>

#include "core/base/check.h"
#include "core/base/hash.h"
#include "core/kernels/attention.h"
#include "core/kernels/bf16.h"
#include "core/kernels/digest_items.h"
#include "core/kernels/elementary.h"
#include "core/kernels/embedding.h"
#include "core/kernels/gelu.h"
#include "core/kernels/head.h"
#include "core/kernels/isa.h"
#include "core/kernels/linear.h"
#include "core/kernels/norm.h"
#include "core/kernels/optimizer.h"
#include "core/kernels/order.h"
#include "core/kernels/panels.h"
#include "core/kernels/rope.h"
#include "core/kernels/row_sum.h"
#include "core/kernels/sampling.h"
#include "core/kernels/softplus.h"
#include "core/kernels/swiglu.h"
#include "core/kernels/units.h"

namespace titan::kernels {
namespace {

using internal::Canned;
using internal::CannedIds;
using internal::Items;
using internal::kHashSeed;

// A weight with its panels, and the transposed panels of the input gradient.
struct CannedLinear {
  CannedLinear(Pool& pool, uint32_t id, int64_t n, int64_t k)
      : storage(static_cast<size_t>(PanelFloats(n, k))),
        transposed(static_cast<size_t>(PanelFloats(k, n))) {
    const std::vector<float> rows = Canned(id, n * k, 0.1f);
    PackPanels(pool, rows.data(), n, k, storage.data());
    TransposePanels(pool, storage.data(), n, k, transposed.data());
  }
  ConstPanels panels() const { return storage.data(); }
  std::vector<float> storage, transposed;
};

// The same weight in bfloat16.
struct CannedBf16 {
  CannedBf16(Pool& pool, uint32_t id, int64_t n, int64_t k)
      : storage(static_cast<size_t>(PanelElements(Element::kBf16, n, k))) {
    const std::vector<float> rows = Canned(id, n * k, 0.1f);
    TITAN_CHECK(PackPanels(pool, rows.data(), n, k, storage.data()));
  }
  ConstPanels panels() const { return storage.data(); }
  std::vector<BFloat16> storage;
};

constexpr int64_t kLinearRows[] = {1, 5, 33};
constexpr int64_t kLinearColumns = 72;
constexpr std::pair<int64_t, int> kLinearDepths[] = {{577, 1}, {576, 2}, {1040, 4}, {2048, 8}};

// panels(id, n, k) gives the canned weight of that id in one of the element types.
template <typename PanelsOf>
void LinearItem(Pool& pool, std::string name, const PanelsOf& panels, Items* items,
                Inputs inputs = Inputs::kF32) {
  std::vector<float> all;
  for (const auto& [k, leaves] : kLinearDepths) {
    const auto weight = panels(10 + static_cast<uint32_t>(leaves), kLinearColumns, k);
    const std::vector<float> bias = Canned(20, kLinearColumns);
    for (const int64_t m : kLinearRows) {
      const std::vector<float> x = Canned(21, m * k);
      std::vector<float> out(static_cast<size_t>(m * kLinearColumns));
      // Few rows on one thread: so few columns shared out would leave none its pair of panels.
      Linear(m < 4 ? Pool::OfThisThread() : pool, {x.data(), k, m, k, inputs},
             {weight.panels(), kLinearColumns, leaves, bias.data(), out.data(), kLinearColumns});
      all.insert(all.end(), out.begin(), out.end());
    }
  }
  items->Hash(std::move(name), all);
}

void LinearGradientItem(Pool& pool, Items* items) {
  constexpr int64_t kRows = 37, kDepth = 512;
  const CannedLinear weight(pool, 30, kDepth, kLinearColumns);
  const std::vector<float> x = Canned(31, kRows * kLinearColumns), dy = Canned(32, kRows * kDepth);
  std::vector<float> dx(kRows * kLinearColumns),
      dw = Canned(33, PanelFloats(kDepth, kLinearColumns));
  std::vector<float> db(kDepth, 0.0f);
  Linear(pool, {dy.data(), kDepth, kRows, kDepth},
         {weight.transposed.data(), kLinearColumns, LeafCount(kDepth, 0), nullptr, dx.data(),
          kLinearColumns});
  LinearWeightGradient(pool, {x.data(), kLinearColumns, kRows, kLinearColumns},
                       {dy.data(), kDepth, kDepth, dw.data()});
  LinearBiasGradient(pool, dy.data(), kDepth, kRows, kDepth, db.data());
  items->Hash("canned.linear_gradient", dx, dw, db);
}

// One problem for head, norm, gate and rope, forward and backward.
constexpr int64_t kRows = 19, kHidden = 96, kVocab = 2600;

template <typename Weight>
struct HeadRun {
  explicit HeadRun(Pool& pool, Inputs inputs = Inputs::kF32)
      : shape{kVocab, kHidden, 2, 1.25f, inputs},
        weight(pool, 40, kVocab, kHidden),
        x(Canned(41, kRows * kHidden, 4.0f)),
        targets(CannedIds(42, kRows, kVocab)),
        lp(kRows),
        max(kRows),
        log_sum(kRows),
        entropy(kRows) {
    HeadLogProb(pool, shape, x.data(), kHidden, kRows, weight.panels(), targets.data(), lp.data(),
                max.data(), log_sum.data(), entropy.data());
  }
  HeadShape shape;
  Weight weight;
  std::vector<float> x;
  std::vector<int32_t> targets;
  std::vector<float> lp, max, log_sum, entropy;
};

template <typename Weight>
void HeadGradientItem(Pool& pool, std::string name, Items* items, Inputs inputs = Inputs::kF32) {
  const HeadRun<Weight> run(pool, inputs);
  const std::vector<float> dlp = Canned(43, kRows);
  const HeadUnit units[] = {{0, 7}, {7, kRows - 7}};
  std::vector<float> dhidden(kRows * kHidden);
  std::vector<float> dw(static_cast<size_t>(PanelFloats(kVocab, kHidden)), 0.0f);
  HeadLogProbBackward(pool, run.shape, run.x.data(), kHidden, kRows, run.weight.panels(),
                      run.targets.data(), dlp.data(), run.max.data(), run.log_sum.data(), units,
                      dhidden.data(), kHidden, dw.data());
  items->Hash(std::move(name), dhidden, dw);
}

// Of keys in two segments of 512: two sequences, or two that continue a third.
enum class Sequences { kApart, kSharedPrefix };

struct AttentionRun {
  explicit AttentionRun(Pool& pool, Sequences sequences = Sequences::kApart, int64_t window = 0,
                        const float* sinks = nullptr)
      : shape{4, 2, 32, 0.17677669f, window, sinks},
        q(Canned(50, kTokens * 4 * 32, 3.0f)),
        k(Canned(51, kTokens * 2 * 32, 3.0f)),
        v(Canned(52, kTokens * 2 * 32)),
        out(q.size()),
        row_max(kTokens * 4),
        row_sum(kTokens * 4) {
    constexpr int32_t kOthers = kTokens - kLong;
    if (sequences == Sequences::kApart) {
      Add(0, kLong, 0, 0, -1);
      Add(kLong, kOthers, 0, 0, -1);
    } else {
      constexpr int32_t kFullPages = kLong / static_cast<int32_t>(kPageTokens), kFirst = 11;
      num_pages = static_cast<int32_t>(NumPages(kLong));  // the prefix's own come first
      Add(0, kFirst, kLong, kFullPages, 2);
      Add(kFirst, kOthers - kFirst, kLong, kFullPages, 2);
      Add(kOthers, kLong, 0, static_cast<int32_t>(NumPages(kLong)), -1);
    }
    for (size_t i = 0; i < segments.size(); ++i) segments[i].pages = pages[i].data();
    cache.resize(static_cast<size_t>(num_pages * PageFloats(shape)));
    WriteKv(pool, shape, k.data(), v.data(), segments, cache.data());
    AttentionForward(pool, shape, q.data(), segments, cache.data(), out.data(), row_max.data(),
                     row_sum.data());
  }
  // Rows of one sequence, whose first pages are those from 0.
  void Add(int32_t first_row, int32_t rows, int32_t position, int32_t shared_pages,
           int32_t parent) {
    pages.emplace_back(static_cast<size_t>(NumPages(position + rows)));
    std::iota(pages.back().begin(), pages.back().begin() + shared_pages, 0);
    std::iota(pages.back().begin() + shared_pages, pages.back().end(), num_pages);
    num_pages += static_cast<int32_t>(pages.back().size()) - shared_pages;
    segments.push_back({first_row, rows, position, nullptr, parent});
  }
  static constexpr int32_t kLong = 530, kTokens = 570;
  AttentionShape shape;
  std::vector<float> q, k, v, out, row_max, row_sum;
  std::vector<std::vector<int32_t>> pages;
  int32_t num_pages = 0;
  std::vector<float> cache;
  std::vector<Segment> segments;
};

// A window over keys in two segments, and sinks.
constexpr int64_t kCannedWindow = 100;
constexpr float kCannedSinks[] = {0.5f, -1.0f, 2.0f, 0.0f};

void AttentionGradientItem(Pool& pool, std::string name, const AttentionRun& run, Items* items) {
  const std::vector<float> dout = Canned(53, static_cast<int64_t>(run.out.size()));
  std::vector<float> dq(run.q.size()), dk(run.k.size()), dv(run.v.size());
  AttentionBackward(pool, run.shape, run.q.data(), run.segments, run.cache.data(), run.out.data(),
                    dout.data(), run.row_max.data(), run.row_sum.data(), dq.data(), dk.data(),
                    dv.data());
  std::vector<float> dsinks(static_cast<size_t>(run.shape.num_heads), 0.0f);
  if (run.shape.sinks != nullptr) {
    const RowRange units[] = {{0, 300}, {300, AttentionRun::kTokens}};
    SinkGradient(pool, run.shape, run.out.data(), dout.data(), run.row_max.data(),
                 run.row_sum.data(), units, dsinks.data());
    dq.insert(dq.end(), dsinks.begin(), dsinks.end());
  }
  items->Hash(std::move(name), dq, dk, dv);
}

constexpr NormShape kNormShapes[] = {{.heads = 4},
                                     {.kind = NormKind::kCentredGain},
                                     {.kind = NormKind::kPlain},
                                     {.kind = NormKind::kGainFirst}};

// The other norm kinds and the norm of heads: [rows][heads][hidden / heads].
void NormKindsItem(Pool& pool, Items* items) {
  const std::vector<float> x = Canned(2, kRows * kHidden), gain = Canned(3, kHidden);
  std::vector<float> all;
  for (const NormShape& shape : kNormShapes) {
    std::vector<float> out(x.size());
    RmsNorm(pool, x.data(), kRows, kHidden / shape.heads, gain.data(), 1e-5f, out.data(), nullptr,
            shape);
    all.insert(all.end(), out.begin(), out.end());
  }
  items->Hash("canned.norm_kinds", all);
}

void NormKindsGradientItem(Pool& pool, Items* items) {
  const std::vector<float> x = Canned(80, kRows * kHidden), gain = Canned(81, kHidden);
  const std::vector<float> dy = Canned(82, kRows * kHidden);
  const RowRange units[] = {{0, 8}, {8, kRows}};
  std::vector<float> all;
  for (const NormShape& shape : kNormShapes) {
    const int64_t width = kHidden / shape.heads;
    std::vector<float> out(x.size()), dx(x.size()), dgain(kHidden, 0.0f);
    std::vector<float> inv_rms(static_cast<size_t>(kRows * shape.heads));
    RmsNorm(pool, x.data(), kRows, width, gain.data(), 1e-5f, out.data(), inv_rms.data(), shape);
    RmsNormBackward(pool, x.data(), kRows, width, gain.data(), inv_rms.data(), dy.data(), dx.data(),
                    units, shape.kind == NormKind::kPlain ? nullptr : dgain.data(), shape);
    all.insert(all.end(), dx.begin(), dx.end());
    all.insert(all.end(), dgain.begin(), dgain.end());
  }
  items->Hash("canned.norm_kinds_gradient", all);
}

RopeTable CannedRope(RopeScaling::Kind kind, int rotary_dim = 0,
                     RopePairs pairs = RopePairs::kHalf) {
  RopeScaling scaling;
  scaling.kind = kind;
  scaling.factor = kind == RopeScaling::Kind::kNone ? 1.0 : 8.0;
  scaling.original_max_positions = 64.0;
  StatusOr<RopeTable> table = RopeTable::Create(32, 10000.0, scaling, 300, rotary_dim, pairs);
  TITAN_CHECK(table.ok());
  return *std::move(table);
}

void RopeItem(Pool& pool, Items* items) {
  std::vector<float> all;
  for (const auto kind :
       {RopeScaling::Kind::kNone, RopeScaling::Kind::kLinear, RopeScaling::Kind::kLlama3}) {
    const RopeTable table = CannedRope(kind);
    std::vector<float> x = Canned(60, kRows * 96);
    const std::vector<int32_t> positions = CannedIds(61, kRows, 300);
    ApplyRope(pool, table, x.data(), 96, kRows, 3, positions.data());
    all.insert(all.end(), x.begin(), x.end());
    all.insert(all.end(), table.inv_freq().begin(), table.inv_freq().end());
  }
  items->Hash("canned.rope", all);
  // The attention factor, a partial rotation, the other pairing.
  all.clear();
  for (const RopeTable& table :
       {CannedRope(RopeScaling::Kind::kYarn), CannedRope(RopeScaling::Kind::kNone, 8),
        CannedRope(RopeScaling::Kind::kNone, 32, RopePairs::kInterleaved)}) {
    std::vector<float> x = Canned(60, kRows * 96);
    const std::vector<int32_t> positions = CannedIds(61, kRows, 300);
    ApplyRope(pool, table, x.data(), 96, kRows, 3, positions.data());
    all.insert(all.end(), x.begin(), x.end());
    all.insert(all.end(), table.inv_freq().begin(), table.inv_freq().end());
  }
  items->Hash("canned.rope_forms", all);
}

void SamplingItem(Items* items) {
  std::vector<int32_t> tokens;
  std::vector<float> log_probs;
  for (uint32_t i = 0; i < 24; ++i) {
    const std::vector<float> logits = Canned(70 + i, kVocab, 6.0f);
    const SampleRequest request{i % 6 == 5 ? 0.0 : 0.5 + 0.25 * i, 7, i, i};
    const StatusOr<SampledToken> sampled = SampleToken(logits.data(), kVocab, request);
    TITAN_CHECK(sampled.ok());
    tokens.push_back(sampled->token);
    log_probs.push_back(sampled->logprob);
  }
  items->Hash("canned.sampling", tokens, log_probs);
}

void BlockGradientItem(Pool& pool, Items* items) {
  const std::vector<float> x = Canned(80, kRows * kHidden), gain = Canned(81, kHidden);
  const std::vector<float> dy = Canned(82, kRows * kHidden), up = Canned(83, kRows * kHidden);
  const RowRange units[] = {{0, 8}, {8, kRows}};
  std::vector<float> normed(x.size()), inv_rms(kRows), dx(x.size()), dgain(kHidden, 0.0f);
  RmsNorm(pool, x.data(), kRows, kHidden, gain.data(), 1e-5f, normed.data(), inv_rms.data());
  RmsNormBackward(pool, x.data(), kRows, kHidden, gain.data(), inv_rms.data(), dy.data(), dx.data(),
                  units, dgain.data());
  std::vector<float> dgate(x.size()), dup(x.size()), rotated = dy;
  SwiGluBackward(pool, static_cast<int64_t>(x.size()), x.data(), up.data(), dy.data(), dgate.data(),
                 dup.data());
  const std::vector<int32_t> positions = CannedIds(61, kRows, 300),
                             tokens = CannedIds(84, kRows, 6);
  ApplyRopeBackward(pool, CannedRope(RopeScaling::Kind::kNone), rotated.data(), kHidden, kRows, 3,
                    positions.data());
  std::vector<float> embedding(static_cast<size_t>(PanelFloats(6, kHidden)), 0.0f);
  EmbeddingGradient(pool, TableLayout::kPanels32, dy.data(), 6, kHidden, tokens.data(), units,
                    embedding.data());
  items->Hash("canned.block_gradient", dx, dgain, dgate, dup, rotated, embedding);
}

void OptimizerItem(Pool& pool, Items* items) {
  constexpr int64_t kN = 70, kK = 40;
  const std::vector<float> g = Canned(90, PanelFloats(kN, kK), 0.01f);
  std::vector<float> p = Canned(91, PanelFloats(kN, kK)), m(p.size(), 0.0f), v(p.size(), 0.0f);
  AdamWConfig config;
  config.lr = 1e-3;
  config.weight_decay = 0.01;
  AdamWPowers powers;
  std::vector<double> norms;
  for (int step = 0; step < 3; ++step) {
    const GradientTensor tensors[] = {{g.data(), TableLayout::kPanels32, kN, kK},
                                      {g.data(), TableLayout::kRows, 1, 1100}};
    norms.push_back(GradientNorm(pool, tensors));
    const StatusOr<float> scale = ClipScale(norms.back(), 0.1);
    const StatusOr<AdamWScalars> scalars = NextAdamWStep(config, &powers);
    TITAN_CHECK(scale.ok() && scalars.ok());
    TITAN_CHECK(AdamWStep(pool, static_cast<int64_t>(p.size()), *scalars, *scale, g.data(),
                          p.data(), m.data(), v.data()));
  }
  items->Hash("canned.optimizer", norms, p, m, v);
}

void UnitsItem(Items* items) {
  const int64_t lengths[] = {300, 700, 30, 1024, 2049, 5, 1023, 1, 4000};
  std::vector<int64_t> ends;
  for (const Unit& unit : ScanUnits(lengths)) ends.push_back(unit.first_row + unit.num_rows);
  std::vector<int32_t> shards;
  for (int group = 0; group < 13; ++group) shards.push_back(ShardOfGroup(group, 13, 8));
  for (int index = 0; index < 8; ++index) shards.push_back(MergesAfterShard(index));
  items->Hash("units.scan", ends, shards);
}

// Constants and polynomials, and what the vector forms make of `wide`; gives its exponentials.
std::vector<float> ElementaryItems(const std::vector<float>& wide, Items* items) {
  using namespace elementary;
  const float exp_constants[] = {kExpOverflow, kExpUnderflow, kLog2E, kLn2Hi, kLn2Lo};
  items->Hash("elementary.exp", std::span<const float>(exp_constants),
              std::span<const float>(kExpPoly));
  items->Hash("elementary.log", std::span<const float>(kLogPoly));
  const float expm1_constants[] = {kExpm1Tiny, kExpm1Large, kExpm1Low};
  items->Hash("elementary.expm1", std::span<const float>(expm1_constants));
  const float tanh_constants[] = {kTanhTiny, kTanhOne};
  items->Hash("elementary.tanh", std::span<const float>(tanh_constants));
  const float erf_constants[] = {kErfSplit, kErfOne};
  items->Hash("elementary.erf", std::span<const float>(erf_constants),
              std::span<const float>(kErfPoly), std::span<const float>(kLogErfcPoly));
  const float softplus_constants[] = {kSoftplusSplit, kSoftplusLarge};
  items->Hash("elementary.softplus", std::span<const float>(softplus_constants));
  const auto n = static_cast<int64_t>(wide.size());
  std::vector<float> exps(wide.size()), logs(wide.size());
  ExpOf(wide.data(), n, exps.data());
  LogOf(exps.data(), n, logs.data());
  items->Hash("canned.elementary", exps, logs);
  // Around zero, where the forms are others than far from it.
  std::vector<float> near = Canned(4, n, 30.0f), out(near.size());
  for (size_t i = 0; i < near.size(); i += 3) near[i] = near[i] * near[i] * near[i] * 0x1p-16f;
  const std::pair<const char*, void (*)(const float*, int64_t, float*)> functions[] = {
      {"canned.expm1", &Expm1Of},
      {"canned.log1p", &Log1pOf},
      {"canned.tanh", &TanhOf},
      {"canned.erf", &ErfOf},
      {"canned.softplus", &SoftplusOf}};
  for (const auto& [name, function] : functions) {
    function(near.data(), n, out.data());
    items->Hash(name, out);
  }
  return exps;
}

std::string OrderConstants() {
  std::string text;
  const std::pair<std::string_view, int64_t> constants[] = {
      {"max_leaves", kMaxLeaves},      {"min_leaf", kMinLeafLength},
      {"row_sum_chunk", kRowSumChunk}, {"row_sum_lanes", kRowSumLanes},
      {"key_block", kKeyBlock},        {"key_segment", kKeySegment},
      {"unit_tokens", kUnitTokens},
  };
  for (const auto& [name, value] : constants) {
    if (!text.empty()) text += ' ';
    text += std::string(name) + ' ' + std::to_string(value);
  }
  return text;
}

}  // namespace

std::vector<ContractItem> ForwardKernelItems(Pool& pool) {
  const NumericThread environment;
  Items items;
  items.Text("order.class", "F");
  items.Text("order.constants", OrderConstants());
  items.Text("layout", "panels32");
  const std::vector<float> wide = Canned(1, 3000, 90.0f);
  const std::vector<float> exps = ElementaryItems(wide, &items);
  const std::vector<float> sums = {RowSum(wide.data(), 3000), RowSum(wide.data(), 77),
                                   RowSumProduct(wide.data(), exps.data(), 2000)};
  items.Hash("canned.row_sum", sums);
  LinearItem(
      pool, "canned.linear",
      [&](uint32_t id, int64_t n, int64_t k) { return CannedLinear(pool, id, n, k); }, &items);
  const std::vector<float> x = Canned(2, kRows * kHidden), gain = Canned(3, kHidden);
  std::vector<float> normed(x.size()), inv_rms(kRows), gated(x.size());
  RmsNorm(pool, x.data(), kRows, kHidden, gain.data(), 1e-5f, normed.data(), inv_rms.data());
  items.Hash("canned.norm", normed, inv_rms);
  NormKindsItem(pool, &items);
  SwiGlu(pool, static_cast<int64_t>(x.size()), x.data(), normed.data(), gated.data());
  items.Hash("canned.swiglu", gated);
  GeluGlu(pool, static_cast<int64_t>(x.size()), x.data(), normed.data(), gated.data());
  ScaleBy(pool, static_cast<int64_t>(x.size()), 6.9282031f, normed.data());
  items.Hash("canned.gelu", gated, normed);
  RopeItem(pool, &items);
  const AttentionRun attention(pool);
  items.Hash("canned.attention", attention.out, attention.row_max, attention.row_sum);
  const AttentionRun window(pool, Sequences::kApart, kCannedWindow, kCannedSinks);
  items.Hash("canned.attention_window", window.out, window.row_max, window.row_sum);
  const AttentionRun prefix(pool, Sequences::kSharedPrefix);
  items.Hash("canned.attention_prefix", prefix.out, prefix.row_max, prefix.row_sum);
  const HeadRun<CannedLinear> head(pool);
  items.Hash("canned.head", head.lp, head.max, head.log_sum);
  SamplingItem(&items);
  items.Append(internal::ForwardBlockItems(pool));
  return items.Take();
}

std::vector<ContractItem> TrainingKernelItems(Pool& pool) {
  const NumericThread environment;
  Items items;
  UnitsItem(&items);
  LinearGradientItem(pool, &items);
  AttentionGradientItem(pool, "canned.attention_gradient", AttentionRun(pool), &items);
  AttentionGradientItem(pool, "canned.attention_window_gradient",
                        AttentionRun(pool, Sequences::kApart, kCannedWindow, kCannedSinks), &items);
  AttentionGradientItem(pool, "canned.attention_prefix_gradient",
                        AttentionRun(pool, Sequences::kSharedPrefix), &items);
  BlockGradientItem(pool, &items);
  NormKindsGradientItem(pool, &items);
  const std::vector<float> gate = Canned(80, kRows * kHidden), up = Canned(83, kRows * kHidden);
  std::vector<float> dgate = Canned(82, kRows * kHidden), dup(dgate.size());
  GeluGluBackward(pool, static_cast<int64_t>(gate.size()), gate.data(), up.data(), dgate.data(),
                  dgate.data(), dup.data());
  items.Hash("canned.gelu_gradient", dgate, dup);
  SoftplusBackward(pool, static_cast<int64_t>(gate.size()), gate.data(), up.data(), dup.data());
  items.Hash("canned.softplus_gradient", dup);
  HeadGradientItem<CannedLinear>(pool, "canned.head_gradient", &items);
  OptimizerItem(pool, &items);
  items.Append(internal::TrainingBlockItems(pool));
  return items.Take();
}

std::vector<ContractItem> ForwardW16Items(Pool& pool) {
  const NumericThread environment;
  Items items;
  items.Text("layout_w16", "panels32k2");
  // Every upper half with lower halves around a tie: NaN, infinity and denormals among them.
  std::vector<uint16_t> rounded;
  for (uint32_t upper = 0; upper < 0x10000u; upper += 0x3fu) {
    for (const uint32_t lower : {0x0000u, 0x7fffu, 0x8000u, 0x8001u}) {
      rounded.push_back(RoundToBf16(std::bit_cast<float>(upper << 16 | lower)).bits);
    }
  }
  items.Hash("rounding_w16", rounded);
  LinearItem(
      pool, "canned.linear_w16",
      [&](uint32_t id, int64_t n, int64_t k) { return CannedBf16(pool, id, n, k); }, &items);
  const HeadRun<CannedBf16> head(pool);
  items.Hash("canned.head_w16", head.lp, head.max, head.log_sum);
  const std::vector<int32_t> tokens = CannedIds(100, kRows, kVocab);
  std::vector<float> rows(kRows * kHidden);
  EmbeddingGather(pool, head.weight.panels(), kVocab, kHidden, tokens.data(), kRows, rows.data());
  items.Hash("canned.embedding_w16", rows);
  internal::ExpertLinearItem(pool, "canned.expert_linear_w16", Element::kBf16, Inputs::kF32,
                             &items);
  return items.Take();
}

std::vector<ContractItem> TrainingW16Items(Pool& pool) {
  const NumericThread environment;
  Items items;
  constexpr int64_t kDepth = 512;
  const CannedBf16 weight(pool, 30, kDepth, kLinearColumns);
  const std::vector<float> dy = Canned(32, kRows * kDepth);
  std::vector<float> dx(kRows * kLinearColumns);
  std::vector<float> transposed(static_cast<size_t>(PanelFloats(kLinearColumns, kDepth)));
  TransposePanels(pool, weight.panels(), kDepth, kLinearColumns, transposed.data());
  Linear(pool, {dy.data(), kDepth, kRows, kDepth},
         {transposed.data(), kLinearColumns, LeafCount(kDepth, 0), nullptr, dx.data(),
          kLinearColumns});
  items.Hash("canned.input_gradient_w16", dx);
  HeadGradientItem<CannedBf16>(pool, "canned.head_gradient_w16", &items);
  return items.Take();
}

std::vector<ContractItem> ForwardBf16Items(Pool& pool) {
  const NumericThread environment;
  Items items;
  LinearItem(
      pool, "canned.linear_bf16",
      [&](uint32_t id, int64_t n, int64_t k) { return CannedBf16(pool, id, n, k); }, &items,
      Inputs::kBf16);
  const HeadRun<CannedBf16> head(pool, Inputs::kBf16);
  items.Hash("canned.head_bf16", head.lp, head.max, head.log_sum);
  internal::ExpertLinearItem(pool, "canned.expert_linear_bf16", Element::kBf16, Inputs::kBf16,
                             &items);
  return items.Take();
}

std::vector<ContractItem> TrainingBf16Items(Pool& pool) {
  const NumericThread environment;
  Items items;
  constexpr int64_t kDepth = 512;
  const std::vector<float> x = Canned(31, kRows * kLinearColumns), dy = Canned(32, kRows * kDepth);
  std::vector<float> dw = Canned(33, PanelFloats(kDepth, kLinearColumns));
  LinearWeightGradient(pool, {x.data(), kLinearColumns, kRows, kLinearColumns, Inputs::kBf16},
                       {dy.data(), kDepth, kDepth, dw.data()});
  items.Hash("canned.weight_gradient_bf16", dw);
  HeadGradientItem<CannedBf16>(pool, "canned.head_gradient_bf16", &items, Inputs::kBf16);
  internal::ExpertGradientItem(pool, "canned.expert_weight_gradient_bf16", Inputs::kBf16, &items);
  return items.Take();
}

std::string DigestOf(std::span<const ContractItem> items) {
  std::string text;
  for (const ContractItem& item : items) text += item.name + '=' + item.value + '\n';
  return ToHex(Hash128Of(text.data(), text.size(), kHashSeed));
}

}  // namespace titan::kernels
