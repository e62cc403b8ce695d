// SPDX-License-Identifier: Apache-2.0
#include "core/model/decoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "core/base/check.h"
#include "core/kernels/bf16.h"
#include "core/kernels/embedding.h"
#include "core/kernels/gelu.h"
#include "core/kernels/head.h"
#include "core/kernels/isa.h"
#include "core/kernels/linear.h"
#include "core/kernels/norm.h"
#include "core/kernels/panels.h"
#include "core/kernels/swiglu.h"
#include "core/model/experts.h"
#include "core/model/kv_cache.h"
#include "core/model/project.h"

namespace titan::model {
namespace {

// Arrays in scratch start at cache lines.
constexpr int64_t kArrayAlignment = 16;  // floats

// Hands out consecutive arrays of one block; with null memory it only counts.
class Arena {
 public:
  explicit Arena(float* memory) : memory_(memory) {}

  float* Take(int64_t floats) {
    float* array = memory_ == nullptr ? nullptr : memory_ + used_;
    used_ += (floats + kArrayAlignment - 1) / kArrayAlignment * kArrayAlignment;
    return array;
  }
  int64_t used() const { return used_; }

 private:
  float* memory_;
  int64_t used_ = 0;
};

kernels::RopeScaling ScalingOf(const formats::RopeScaling& scaling) {
  using Kind = formats::RopeScaling::Kind;
  kernels::RopeScaling out;
  if (scaling.kind == Kind::kNone) return out;
  out.kind = scaling.kind == Kind::kLinear   ? kernels::RopeScaling::Kind::kLinear
             : scaling.kind == Kind::kLlama3 ? kernels::RopeScaling::Kind::kLlama3
                                             : kernels::RopeScaling::Kind::kYarn;
  out.factor = scaling.factor;
  out.low_freq_factor = scaling.low_freq_factor;
  out.high_freq_factor = scaling.high_freq_factor;
  out.original_max_positions = scaling.original_max_position_embeddings;
  out.beta_fast = scaling.beta_fast;
  out.beta_slow = scaling.beta_slow;
  out.truncate = scaling.truncate;
  out.attention_factor = scaling.attention_factor;
  out.mscale = scaling.mscale;
  out.mscale_all_dim = scaling.mscale_all_dim;
  return out;
}

std::string Number(int64_t value) { return std::to_string(value); }

// Of the largest matrix of a layer, or of those that share their rows together.
int64_t TransposedFloats(const Decoder& decoder) {
  const ParameterTable& table = decoder.table();
  const auto floats = [&](int parameter) {
    const Parameter& p = table.at(parameter);
    const int64_t columns =
        p.owned_step > 0 ? OwnedColumns(p, decoder.shard()).size() : p.columns();
    return kernels::PanelFloats(columns, p.rows());
  };
  int64_t largest = 0;
  for (const LayerParameters& layer : table.layers()) {
    largest =
        std::max({largest, floats(layer.q) + floats(layer.k) + floats(layer.v), floats(layer.o)});
    if (layer.experts.empty()) {
      largest = std::max({largest, floats(layer.gate) + floats(layer.up), floats(layer.down)});
      continue;
    }
    largest = std::max(largest, floats(layer.router));
    for (const ExpertParameters& expert : layer.experts) {
      largest = std::max({largest, floats(expert.gate), floats(expert.up), floats(expert.down)});
    }
  }
  return largest;
}

}  // namespace

Decoder::Decoder(formats::ModelConfig config, ParameterTable table, ParameterTable master_table,
                 std::optional<ParameterTable> whole_table, kernels::RopeTable rope,
                 std::optional<kernels::RopeTable> local_rope)
    : config_(std::move(config)),
      table_(std::move(table)),
      master_table_(std::move(master_table)),
      whole_table_(std::move(whole_table)),
      rope_(std::move(rope)),
      local_rope_(std::move(local_rope)) {
  const double scalar = config_.is_gemma() ? config_.query_pre_attn_scalar : config_.head_dim;
  if (config_.is_gemma()) {
    embedding_scale_ = static_cast<float>(std::sqrt(static_cast<double>(config_.hidden_size)));
    if (HasRoundedWeights(mode())) {
      embedding_scale_ = kernels::ToFloat(kernels::RoundToBf16(embedding_scale_));
    }
  }
  attention_ = {.num_heads = config_.num_heads,
                .num_kv_heads = config_.num_kv_heads,
                .head_dim = config_.head_dim,
                .scale = static_cast<float>(1.0 / std::sqrt(scalar))};
  max_positions_ = rope_.max_positions();
  hidden_ = config_.hidden_size;
  intermediate_ = config_.intermediate_size;
  vocabulary_ = config_.vocab_size;
}

int64_t Decoder::RopePositionBytes(const formats::ModelConfig& config) {
  return int64_t{config.head_dim} * static_cast<int64_t>(sizeof(float)) *
         (config.local_rope_theta != 0 ? 2 : 1);
}

StatusOr<std::unique_ptr<const Decoder>> Decoder::Create(const formats::ModelConfig& config,
                                                         int64_t max_positions, Mode mode,
                                                         TensorShard shard) {
  TITAN_ASSIGN_OR_RETURN(ParameterTable table, ParameterTable::Of(config, mode, shard));
  TITAN_ASSIGN_OR_RETURN(ParameterTable master_table,
                         ParameterTable::Of(config, Mode::kF32, shard));
  std::optional<ParameterTable> whole_table;
  if (shard.size > 1) {
    TITAN_ASSIGN_OR_RETURN(whole_table, ParameterTable::Of(config, mode));
  }
  if (config.head_dim > kernels::kMaxHeadDim) {
    return Unimplemented("model: head_dim " + Number(config.head_dim) + " is above " +
                         Number(kernels::kMaxHeadDim));
  }
  if (max_positions < 0 || max_positions > config.max_position_embeddings) {
    return InvalidArgument("model: max_positions " + Number(max_positions) +
                           " lies outside the context of the model (max_position_embeddings " +
                           Number(config.max_position_embeddings) + ")");
  }
  if (max_positions == 0) max_positions = config.max_position_embeddings;
  const int64_t position_bytes = RopePositionBytes(config);
  if (position_bytes > 0 && max_positions > kMaxRopeTableBytes / position_bytes) {
    return ResourceExhausted("model: the rotary table of max_position_embeddings " +
                             Number(max_positions) + " with head_dim " + Number(config.head_dim) +
                             " would take more than " + Number(kMaxRopeTableBytes >> 20) +
                             " MiB; lower max_position_embeddings in the model's config");
  }
  TITAN_ASSIGN_OR_RETURN(kernels::RopeTable rope,
                         kernels::RopeTable::Create(config.head_dim, config.rope_theta,
                                                    ScalingOf(config.rope_scaling), max_positions));
  std::optional<kernels::RopeTable> local_rope;
  if (config.local_rope_theta != 0) {
    TITAN_ASSIGN_OR_RETURN(
        local_rope,
        kernels::RopeTable::Create(config.head_dim, config.local_rope_theta, {}, max_positions));
  }
  return std::unique_ptr<const Decoder>(new Decoder(config, std::move(table),
                                                    std::move(master_table), std::move(whole_table),
                                                    std::move(rope), std::move(local_rope)));
}

int64_t Workspace::Plan(const Decoder& decoder, float* memory) {
  const int64_t rows = limits_.max_rows;
  const int64_t any_rows = std::max(rows, limits_.max_head_rows);
  Arena arena(memory);
  hidden_a = arena.Take(any_rows * decoder.hidden());
  hidden_b = arena.Take(any_rows * decoder.hidden());
  hidden_c = arena.Take(any_rows * decoder.hidden());
  query_a = arena.Take(rows * decoder.query_width());
  query_b = arena.Take(rows * decoder.query_width());
  key_a = arena.Take(rows * decoder.kv_width());
  value_a = arena.Take(rows * decoder.kv_width());
  gate = arena.Take(rows * decoder.mlp_width());
  up = arena.Take(rows * decoder.mlp_width());
  activation = arena.Take(rows * decoder.mlp_width());
  const int64_t num_experts = decoder.config().num_experts;
  if (num_experts > 0) {
    const int64_t places = rows * decoder.config().experts_per_token;
    experts.logits = arena.Take(rows * num_experts);
    experts.weights = arena.Take(places);
    experts.places_a = arena.Take(places * decoder.hidden());
    experts.places_b = arena.Take(places * decoder.hidden());
    if (limits_.backward) {
      experts.dlogits = arena.Take(rows * num_experts);
      experts.dweights = arena.Take(places);
      experts.places_c = arena.Take(places * decoder.hidden());
    }
    if (memory != nullptr) experts.ids.resize(static_cast<size_t>(places));
  }
  if (limits_.backward) {
    transposed = arena.Take(TransposedFloats(decoder));
    if (decoder.config().is_gemma()) branch = arena.Take(rows * decoder.hidden());
    if (decoder.config().qk_norm) {
      query_c = arena.Take(rows * decoder.query_width());
      key_c = arena.Take(rows * decoder.kv_width());
      query_inverse_rms = arena.Take(rows * decoder.attention_shape().num_heads);
      key_inverse_rms = arena.Take(rows * decoder.attention_shape().num_kv_heads);
    }
  }
  return arena.used();
}

int64_t Workspace::MemoryNeeded(const Decoder& decoder, const Limits& limits) {
  Workspace planned;
  planned.limits_ = limits;
  return planned.Plan(decoder, nullptr) * static_cast<int64_t>(sizeof(float));
}

StatusOr<std::unique_ptr<Workspace>> Workspace::Create(const Decoder& decoder, const Limits& limits,
                                                       kernels::Pool& pool) {
  if (limits.max_rows < 1 || limits.max_rows > (int64_t{1} << 30) || limits.max_head_rows < 0 ||
      limits.max_head_rows > (int64_t{1} << 30)) {
    return InvalidArgument("workspace: max_rows must lie in 1..2^30 and max_head_rows in 0..2^30");
  }
  std::unique_ptr<Workspace> workspace(new Workspace());
  workspace->limits_ = limits;
  const int64_t floats = workspace->Plan(decoder, nullptr);
  TITAN_ASSIGN_OR_RETURN(workspace->memory_, AllocateFloats(floats));
  TakePages(pool, workspace->memory_.get(), floats);
  workspace->Plan(decoder, workspace->memory_.get());
  return workspace;
}

StatusOr<Recompute> RecomputeFromName(std::string_view name) {
  if (name == "none") return Recompute::kNone;
  if (name == "selective") return Recompute::kSelective;
  if (name == "full") return Recompute::kFull;
  return InvalidArgument("'" + std::string(name) + "'; valid: none, selective, full");
}

int64_t BlockActivations::FloatsNeeded(const Decoder& decoder, int64_t rows, Recompute recompute) {
  const int64_t hidden = decoder.hidden();
  const int64_t attention =
      2 * decoder.query_width() + 2 * decoder.kv_width() + 2 * decoder.attention_shape().num_heads;
  const int64_t branches = decoder.config().is_gemma() ? 2 * hidden + 2 : 0;
  int64_t row = hidden;
  if (recompute != Recompute::kFull) {
    row += hidden + attention + 2 + branches + decoder.config().num_experts;
  }
  if (recompute == Recompute::kNone) row += 2 * decoder.mlp_width();
  return rows * row + 17 * kArrayAlignment;
}

BlockActivations BlockActivations::At(const Decoder& decoder, int64_t rows, Recompute recompute,
                                      float* memory) {
  Arena arena(memory);
  BlockActivations a;
  a.input = arena.Take(rows * decoder.hidden());
  if (recompute != Recompute::kFull) {
    a.query = arena.Take(rows * decoder.query_width());
    a.key = arena.Take(rows * decoder.kv_width());
    a.value = arena.Take(rows * decoder.kv_width());
    a.attention = arena.Take(rows * decoder.query_width());
    a.middle = arena.Take(rows * decoder.hidden());
    a.input_inverse_rms = arena.Take(rows);
    a.middle_inverse_rms = arena.Take(rows);
    a.row_max = arena.Take(rows * decoder.attention_shape().num_heads);
    a.row_sum = arena.Take(rows * decoder.attention_shape().num_heads);
    if (decoder.config().num_experts > 0) {
      a.router_logits = arena.Take(rows * decoder.config().num_experts);
    }
    if (decoder.config().is_gemma()) {
      a.attention_branch = arena.Take(rows * decoder.hidden());
      a.mlp_branch = arena.Take(rows * decoder.hidden());
      a.attention_branch_inverse_rms = arena.Take(rows);
      a.mlp_branch_inverse_rms = arena.Take(rows);
    }
  }
  if (recompute == Recompute::kNone) {
    a.gate = arena.Take(rows * decoder.mlp_width());
    a.up = arena.Take(rows * decoder.mlp_width());
  }
  TITAN_CHECK(arena.used() <= FloatsNeeded(decoder, rows, recompute));
  return a;
}

Status ValidateBatch(const DecoderContext& context, const ForwardBatch& batch) {
  const int64_t rows = batch.num_rows();
  if (rows < 1 || rows > context.workspace.limits().max_rows) {
    return InvalidArgument("batch: " + Number(rows) + " rows, planned for 1.." +
                           Number(context.workspace.limits().max_rows));
  }
  if (batch.positions.size() != batch.tokens.size()) {
    return InvalidArgument("batch: " + Number(static_cast<int64_t>(batch.positions.size())) +
                           " positions for " + Number(rows) + " tokens");
  }
  for (int64_t i = 0; i < rows; ++i) {
    const int32_t token = batch.tokens[static_cast<size_t>(i)];
    if (token < 0 || token >= context.decoder.vocabulary()) {
      return InvalidArgument("batch: token " + Number(token) + " of row " + Number(i) +
                             " lies outside the vocabulary of " +
                             Number(context.decoder.vocabulary()));
    }
  }
  int64_t next = 0;
  for (size_t s = 0; s < batch.segments.size(); ++s) {
    const kernels::Segment& segment = batch.segments[s];
    const std::string name = "batch: segment " + Number(static_cast<int64_t>(s));
    if (segment.first_row != next || segment.num_rows < 1 || segment.num_rows > rows - next) {
      return InvalidArgument(name + " does not follow the rows before it");
    }
    if (segment.pages == nullptr || segment.first_position < 0 ||
        segment.first_position > context.decoder.max_positions() - segment.num_rows) {
      return InvalidArgument(name + ": positions " + Number(segment.first_position) + " and " +
                             Number(segment.num_rows - 1) + " more do not fit into a context of " +
                             Number(context.decoder.max_positions()) + ", or it has no pages");
    }
    if (segment.parent >= 0) {
      const bool exists = segment.parent < static_cast<int64_t>(batch.segments.size());
      const kernels::Segment* parent =
          exists ? &batch.segments[static_cast<size_t>(segment.parent)] : nullptr;
      if (!exists || parent->parent >= 0 || parent->first_position != 0 ||
          parent->num_rows != segment.first_position) {
        return InvalidArgument(name + ": segment " + Number(segment.parent) +
                               " does not hold exactly the positions before it");
      }
    }
    for (int64_t i = 0; i < segment.num_rows; ++i) {
      if (batch.positions[static_cast<size_t>(next + i)] != segment.first_position + i) {
        return InvalidArgument("batch: position of row " + Number(next + i) +
                               " does not follow from " + name.substr(7));
      }
    }
    next += segment.num_rows;
  }
  if (next != rows)
    return InvalidArgument("batch: segments cover " + Number(next) + " rows of " + Number(rows));
  return OkStatus();
}

void EmbedTokens(const DecoderContext& context, const Weights& weights, const ForwardBatch& batch,
                 float* x) {
  if (context.tensor == nullptr) {
    kernels::EmbeddingGather(context.pool, weights.embedding, context.decoder.vocabulary(),
                             context.decoder.hidden(), batch.tokens.data(), batch.num_rows(), x);
  } else {
    EmbedOwnedTokens(context, weights, batch.tokens, x);
  }
  const float scale = context.decoder.embedding_scale();
  if (scale != 1) {
    const kernels::NumericThread numeric;
    kernels::ScaleBy(context.pool, batch.num_rows() * context.decoder.hidden(), scale, x);
  }
}

namespace {

// The norm of x times the projections, which share it. A norm whose statistics are kept is made
// once.
void ProjectNormed(const DecoderContext& context, const float* x, int64_t rows, const float* gain,
                   float* inverse_rms, std::span<const Projection> projections) {
  float* normed = context.workspace.hidden_a;
  const auto norm = [&](kernels::Pool& pool, float* out) {
    kernels::RmsNorm(pool, x, rows, context.decoder.hidden(), gain,
                     context.decoder.config().rms_norm_eps, out, inverse_rms,
                     {.kind = context.decoder.norm_kind()});
  };
  if (inverse_rms != nullptr) {
    norm(context.pool, normed);
    return Project(context, normed, rows, projections);
  }
  Project(context, kernels::MadeRows{norm, normed}, rows, projections);
}

}  // namespace

void FeedForwardInputs(const DecoderContext& context, const Weights& weights, int layer,
                       int64_t rows, const float* middle, float* middle_inverse_rms,
                       float* router_logits, float* gate, float* up) {
  const kernels::NumericThread numeric;
  const LayerWeights& w = weights.layers[static_cast<size_t>(layer)];
  const LayerParameters& p = context.decoder.table().layers()[static_cast<size_t>(layer)];
  if (!p.experts.empty()) {
    float* normed = context.workspace.hidden_a;
    kernels::RmsNorm(context.pool, middle, rows, context.decoder.hidden(), w.post_norm,
                     context.decoder.config().rms_norm_eps, normed, middle_inverse_rms,
                     {.kind = context.decoder.norm_kind()});
    return ExpertsInputs(context, w, p, normed, rows, router_logits, gate, up);
  }
  const Projection projections[] = {{p.gate, w.gate, w.gate_bias, gate},
                                    {p.up, w.up, w.up_bias, up}};
  ProjectNormed(context, middle, rows, w.post_norm, middle_inverse_rms, projections);
}

void BlockForward(const DecoderContext& context, const Weights& weights, int layer,
                  const ForwardBatch& batch, float* kv, float* x, BlockActivations* saved) {
  const kernels::NumericThread numeric;
  const Decoder& decoder = context.decoder;
  Workspace& workspace = context.workspace;
  kernels::Pool& pool = context.pool;
  const int64_t rows = batch.num_rows();
  TITAN_CHECK(layer >= 0 && layer < decoder.num_layers());
  TITAN_CHECK(rows <= workspace.limits().max_rows);
  const LayerWeights& w = weights.layers[static_cast<size_t>(layer)];
  const LayerParameters& p = decoder.table().layers()[static_cast<size_t>(layer)];
  const kernels::AttentionShape shape = decoder.attention_shape(layer, w.sinks);
  const size_t x_bytes = static_cast<size_t>(rows * decoder.hidden()) * sizeof(float);
  const float eps = decoder.config().rms_norm_eps;
  const kernels::NormKind kind = decoder.norm_kind();

  const BlockActivations kept = saved != nullptr ? *saved : BlockActivations{};
  const auto or_scratch = [](float* array, float* scratch) {
    return array != nullptr ? array : scratch;
  };
  float* query = or_scratch(kept.query, workspace.query_a);
  float* key = or_scratch(kept.key, workspace.key_a);
  float* value = or_scratch(kept.value, workspace.value_a);
  float* attention = or_scratch(kept.attention, workspace.query_b);
  float* gate = or_scratch(kept.gate, workspace.gate);
  float* up = or_scratch(kept.up, workspace.up);
  float* middle = or_scratch(kept.middle, x);
  float* branch = workspace.hidden_b;

  if (kept.input != nullptr) std::memcpy(kept.input, x, x_bytes);
  const Projection heads[] = {
      {p.q, w.q, w.q_bias, query}, {p.k, w.k, w.k_bias, key}, {p.v, w.v, w.v_bias, value}};
  ProjectNormed(context, x, rows, w.input_norm, kept.input_inverse_rms, heads);
  if (decoder.config().qk_norm) {
    // Kept as projected; BlockBackward makes what attention reads again.
    kernels::RmsNorm(pool, query, rows, shape.head_dim, w.q_norm, eps, workspace.query_a, nullptr,
                     {.kind = kind, .heads = shape.num_heads});
    kernels::RmsNorm(pool, key, rows, shape.head_dim, w.k_norm, eps, workspace.key_a, nullptr,
                     {.kind = kind, .heads = shape.num_kv_heads});
    query = workspace.query_a;
    key = workspace.key_a;
  }
  kernels::ApplyRope(pool, decoder.rope(layer), query, decoder.query_width(), rows, shape.num_heads,
                     batch.positions.data());
  kernels::ApplyRope(pool, decoder.rope(layer), key, decoder.kv_width(), rows, shape.num_kv_heads,
                     batch.positions.data());
  kernels::WriteKv(pool, shape, key, value, batch.segments, kv);
  kernels::AttentionForward(pool, shape, query, batch.segments, kv, attention, kept.row_max,
                            kept.row_sum);
  if (w.attention_norm == nullptr) {
    const Projection output = {p.o, w.o, w.o_bias, middle, x};
    Project(context, attention, rows, {&output, 1});
  } else {
    const Projection output = {p.o, w.o, w.o_bias, branch};
    Project(context, attention, rows, {&output, 1});
    if (kept.attention_branch != nullptr) std::memcpy(kept.attention_branch, branch, x_bytes);
    kernels::RmsNorm(pool, branch, rows, decoder.hidden(), w.attention_norm, eps, branch,
                     kept.attention_branch_inverse_rms, {.kind = kind});
    kernels::Add(pool, rows * decoder.hidden(), x, branch, middle);
  }

  FeedForwardInputs(context, weights, layer, rows, middle, kept.middle_inverse_rms,
                    or_scratch(kept.router_logits, workspace.experts.logits), gate, up);
  if (!p.experts.empty()) {
    ExpertsOutput(context, w, p, gate, up, branch);
    kernels::Add(pool, rows * decoder.hidden(), middle, branch, x);
    return;
  }
  const auto activate = [&](kernels::Pool& of, float* out) {
    GateForward(decoder, of, rows * decoder.intermediate(), gate, up, out);
  };
  const kernels::MadeRows activation = {activate, workspace.activation};
  if (w.mlp_norm == nullptr) {
    const Projection output = {p.down, w.down, w.down_bias, x, middle};
    return Project(context, activation, rows, {&output, 1});
  }
  const Projection output = {p.down, w.down, w.down_bias, branch};
  Project(context, activation, rows, {&output, 1});
  if (kept.mlp_branch != nullptr) std::memcpy(kept.mlp_branch, branch, x_bytes);
  kernels::RmsNorm(pool, branch, rows, decoder.hidden(), w.mlp_norm, eps, branch,
                   kept.mlp_branch_inverse_rms, {.kind = kind});
  kernels::Add(pool, rows * decoder.hidden(), middle, branch, x);
}

void FinalNorm(const DecoderContext& context, const Weights& weights, const float* x,
               std::span<const int32_t> rows, float* hidden, float* inverse_rms) {
  const kernels::NumericThread numeric;
  const int64_t width = context.decoder.hidden();
  const int64_t num_rows = static_cast<int64_t>(rows.size());
  TITAN_CHECK(num_rows <= context.workspace.limits().max_head_rows);
  float* gathered = context.workspace.hidden_b;
  TITAN_CHECK(hidden != gathered && x != gathered);
  for (int64_t i = 0; i < num_rows; ++i) {
    std::memcpy(gathered + i * width, x + rows[static_cast<size_t>(i)] * width,
                static_cast<size_t>(width) * sizeof(float));
  }
  kernels::RmsNorm(context.pool, gathered, num_rows, width, weights.final_norm,
                   context.decoder.config().rms_norm_eps, hidden, inverse_rms,
                   {.kind = context.decoder.norm_kind()});
}

void HeadLogits(const DecoderContext& context, const Weights& weights, const float* hidden,
                int64_t num_rows, float* logits) {
  const kernels::NumericThread numeric;
  const Projection head = {context.decoder.table().head(), weights.head, nullptr, logits};
  Project(context, hidden, num_rows, {&head, 1});
}

void HeadLogProbForward(const DecoderContext& context, const Weights& weights, const float* hidden,
                        std::span<const int32_t> targets, float inverse_temperature,
                        float* log_probs, const HeadState& state, float* entropy) {
  const kernels::NumericThread numeric;
  const kernels::HeadShape shape = HeadShapeOf(context.decoder, inverse_temperature);
  const int64_t rows = static_cast<int64_t>(targets.size());
  if (context.tensor != nullptr) {
    return HeadLogProbOfParts(context, weights, shape, hidden, targets, log_probs, state, entropy);
  }
  kernels::HeadLogProb(context.pool, shape, hidden, shape.hidden, rows, weights.head,
                       targets.data(), log_probs, state.max, state.log_sum, entropy);
}

void ForwardLogits(const DecoderContext& context, const Weights& weights, const ForwardBatch& batch,
                   KvCache& cache, std::span<const int32_t> rows, float* logits) {
  float* x = context.workspace.hidden_c;
  EmbedTokens(context, weights, batch, x);
  for (int layer = 0; layer < context.decoder.num_layers(); ++layer) {
    BlockForward(context, weights, layer, batch, cache.layer(layer), x, nullptr);
  }
  if (rows.empty()) return;
  float* hidden = context.workspace.hidden_a;
  FinalNorm(context, weights, x, rows, hidden, nullptr);
  HeadLogits(context, weights, hidden, static_cast<int64_t>(rows.size()), logits);
}

}  // namespace titan::model
