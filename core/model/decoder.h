// SPDX-License-Identifier: Apache-2.0
//
// The forward and backward arithmetic of a Llama-form decoder: the only implementation in the
// project. Generators (any segments over a paged cache) and the trainer (packed samples from
// position 0) call the same functions, and every value of a row depends on that row's sequence
// alone, never on what shares the batch, on chunking, pages, threads or the instruction set
// (numerics.md; invariant I3).
//
//   tokens -> EmbedTokens -> x [T][H]
//     -> BlockForward per layer (x in place, K and V into the layer's pages)
//     -> FinalNorm (gathers the rows wanted) -> hidden [R][H]
//     -> HeadLogits (generator) or HeadLogProbForward (trainer)
//   trainer, backwards: HeadLogProbBackward -> FinalNormBackward
//     -> BlockBackward per layer, last to first -> EmbedBackward
//   Weight gradients are accumulated into a slot of the master weights' table.
//
// Weights are binary32 or bfloat16 as the table's mode says; a kernel upconverts a bfloat16 exactly
// where it reads it, so all modes are this one source. Everything else is binary32; in mode BF16
// what is multiplied with a matrix is rounded to bfloat16 in the product, its gradient goes
// straight through.
//
// Shapes: T rows of a batch, R rows with a head, H hidden, F intermediate, V vocabulary, D = heads
// * head dim, E = kv heads * head dim. All arrays are dense row-major.
//
// Threads: a Decoder is immutable and may be shared. A Workspace belongs to one caller at a time.
// The pool inside a call decides only who computes an output, never its bits. The
// arrays of a batch are planned in Create; kernels keep scratch for each thread that grows to the
// largest call so far, and some take small vectors of their own. Arguments are our own: what can be
// wrong about a request is found by ValidateBatch; the functions check bounds with TITAN_CHECK.
#ifndef TITAN_CORE_MODEL_DECODER_H_
#define TITAN_CORE_MODEL_DECODER_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/formats/model_config.h"
#include "core/kernels/attention.h"
#include "core/kernels/moe_experts.h"
#include "core/kernels/norm.h"
#include "core/kernels/pool.h"
#include "core/kernels/rope.h"
#include "core/kernels/units.h"
#include "core/model/memory.h"
#include "core/model/parameters.h"

namespace titan::model {

// Rows of one call. Segments lie one after another and cover rows 0..T-1 exactly; a segment is
// consecutive positions of one sequence, its page list reaching to its last position. Positions
// before a segment's first one must already lie in those pages, or in the rows of its parent.
struct ForwardBatch {
  std::span<const int32_t> tokens;             // [T]
  std::span<const int32_t> positions;          // [T], from the sequence's own start
  std::span<const kernels::Segment> segments;  // ascending first_row
  int64_t num_rows() const { return static_cast<int64_t>(tokens.size()); }
};

inline constexpr int64_t kMaxRopeTableBytes = int64_t{2} << 30;

class Decoder {
 public:
  // max_positions: longest sequence that will be asked for, at most the config's context (0 =
  // that). InvalidArgument, Unimplemented: as ParameterTable::Of; a context beyond the config's.
  // ResourceExhausted: the rotary table of that many positions would exceed kMaxRopeTableBytes.
  // shard: the tables are those of one tensor-parallel rank (tensor_parallel.h).
  static StatusOr<std::unique_ptr<const Decoder>> Create(const formats::ModelConfig& config,
                                                         int64_t max_positions = 0,
                                                         Mode mode = Mode::kF32,
                                                         TensorShard shard = {});

  const formats::ModelConfig& config() const { return config_; }
  Mode mode() const { return table_.mode(); }
  // How rows enter the product with a parameter of the table.
  kernels::Inputs InputsOf(const Parameter& parameter) const {
    return mode() == Mode::kBf16 && parameter.element == kernels::Element::kBf16
               ? kernels::Inputs::kBf16
               : kernels::Inputs::kF32;
  }
  // Of the weights that forward and backward read.
  const ParameterTable& table() const { return table_; }
  // Of master weights, gradients and moments: the table of kF32.
  const ParameterTable& master_table() const { return master_table_; }
  // Of the weights as they are published: table() of one rank alone.
  const ParameterTable& whole_table() const {
    return whole_table_.has_value() ? *whole_table_ : table_;
  }
  TensorShard shard() const { return table_.shard(); }
  const kernels::RopeTable& rope(int layer) const {
    return local_rope_.has_value() && attention_shape(layer, nullptr).window > 0 ? *local_rope_
                                                                                 : rope_;
  }
  kernels::NormKind norm_kind() const {
    return config_.is_gemma() ? kernels::NormKind::kCentredGain : kernels::NormKind::kGain;
  }
  // What an embedding is multiplied by; 1: nothing is.
  float embedding_scale() const { return embedding_scale_; }
  // Without what is the layer's: the window, and the sinks among its weights.
  const kernels::AttentionShape& attention_shape() const { return attention_; }
  kernels::AttentionShape attention_shape(int layer, const float* sinks) const {
    kernels::AttentionShape shape = attention_;
    shape.sinks = sinks;
    if (!config_.layer_windows.empty()) {
      shape.window = config_.layer_windows[static_cast<size_t>(layer)];
    }
    return shape;
  }
  int64_t max_positions() const { return max_positions_; }
  // Of the rotary tables, which are made in Create.
  int64_t rope_bytes() const { return max_positions_ * RopePositionBytes(config_); }
  int num_layers() const { return static_cast<int>(table_.layers().size()); }
  int64_t hidden() const { return hidden_; }
  int64_t intermediate() const { return intermediate_; }
  // Floats a row of what gate and up give: of the MLP, or of all chosen experts.
  int64_t mlp_width() const {
    return std::max(intermediate_,
                    int64_t{config_.experts_per_token} * config_.expert_intermediate_size);
  }
  int64_t vocabulary() const { return vocabulary_; }
  int64_t query_width() const { return attention_.num_heads * attention_.head_dim; }
  int64_t kv_width() const { return attention_.num_kv_heads * attention_.head_dim; }

 private:
  static int64_t RopePositionBytes(const formats::ModelConfig& config);
  Decoder(formats::ModelConfig config, ParameterTable table, ParameterTable master_table,
          std::optional<ParameterTable> whole_table, kernels::RopeTable rope,
          std::optional<kernels::RopeTable> local_rope);

  formats::ModelConfig config_;
  ParameterTable table_;
  ParameterTable master_table_;
  std::optional<ParameterTable> whole_table_;
  kernels::RopeTable rope_;
  std::optional<kernels::RopeTable> local_rope_;
  float embedding_scale_ = 1;
  kernels::AttentionShape attention_;
  int64_t max_positions_ = 0;
  int64_t hidden_ = 0;
  int64_t intermediate_ = 0;
  int64_t vocabulary_ = 0;
};

// Scratch of one caller, planned once for the largest batch.
class Workspace {
 public:
  struct Limits {
    int64_t max_rows = 0;       // T of one call
    int64_t max_head_rows = 0;  // R of one call
    bool backward = false;      // also what the *Backward functions need
  };
  static int64_t MemoryNeeded(const Decoder& decoder, const Limits& limits);  // bytes
  // Takes the memory now, by the threads of the pool. ResourceExhausted: the system refuses it; it
  // refuses less than it lacks, so compare MemoryNeeded with what is free before.
  static StatusOr<std::unique_ptr<Workspace>> Create(
      const Decoder& decoder, const Limits& limits,
      kernels::Pool& pool = kernels::Pool::OfThisThread());

  const Limits& limits() const { return limits_; }

  // Regions, for the functions of this module only.
  float* hidden_a = nullptr;    // [max(T, R)][H]
  float* hidden_b = nullptr;    // [max(T, R)][H]
  float* hidden_c = nullptr;    // [max(T, R)][H]
  float* query_a = nullptr;     // [T][D]
  float* query_b = nullptr;     // [T][D]
  float* key_a = nullptr;       // [T][E]
  float* value_a = nullptr;     // [T][E]
  float* gate = nullptr;        // [T][F], or [places][expert intermediate], as up and activation
  float* up = nullptr;          // [T][F]
  float* activation = nullptr;  // [T][F]
  float* transposed =
      nullptr;  // panels of transposed matrices that share their rows, backward only
  // Models with norms of queries and keys, backward only.
  float* query_c = nullptr;            // [T][D]
  float* key_c = nullptr;              // [T][E]
  float* query_inverse_rms = nullptr;  // [T][heads]
  float* key_inverse_rms = nullptr;    // [T][kv heads]
  float* branch = nullptr;             // [T][H], Gemma, backward only
  // Models with experts: k places a row.
  struct Experts {
    float* logits = nullptr;    // [T][experts]
    float* weights = nullptr;   // [T][k]
    float* dweights = nullptr;  // [T][k], backward only
    float* dlogits = nullptr;   // [T][experts], backward only
    float* places_a = nullptr;  // [T * k][H]
    float* places_b = nullptr;  // [T * k][H]
    float* places_c = nullptr;  // [T * k][H], backward only
    std::vector<int32_t> ids;   // [T][k]
    kernels::ExpertPlan plan;
  } experts;

 private:
  Workspace() = default;
  int64_t Plan(const Decoder& decoder, float* memory);

  Limits limits_;
  Floats memory_;
};

class TensorParallel;

// What a call works with; references outlive the call.
struct DecoderContext {
  const Decoder& decoder;
  kernels::Pool& pool;
  Workspace& workspace;
  TensorParallel* tensor = nullptr;  // with a decoder of a part: the way to the others' parts
};

// What the backward of a layer computes again instead of reading what the forward kept. The bits
// are the same.
enum class Recompute {
  kNone,  // nothing but norms, the activation and experts' outputs: 2 H + 2 D + 2 E + 2 F floats
          // a row are kept
  kSelective,  // also gate and up of the feed-forward: 2 H + 2 D + 2 E
  kFull,       // the whole layer from its input: H
};

// "none", "selective", "full". InvalidArgument: another name.
StatusOr<Recompute> RecomputeFromName(std::string_view name);

// What BlockForward keeps for BlockBackward, and small vectors. Pointers into memory that the
// caller owns; what is not kept is null.
struct BlockActivations {
  float* input = nullptr;          // [T][H] x at entry
  float* query = nullptr;          // [T][D] after rope; with a q_norm, as projected
  float* key = nullptr;            // [T][E] likewise
  float* value = nullptr;          // [T][E]
  float* attention = nullptr;      // [T][D] before o_proj
  float* middle = nullptr;         // [T][H] x after attention
  float* gate = nullptr;           // [T][F], or [T * k][expert intermediate]
  float* up = nullptr;             // likewise
  float* router_logits = nullptr;  // [T][experts]
  // Gemma: the branches before their norms.
  float* attention_branch = nullptr;              // [T][H]
  float* mlp_branch = nullptr;                    // [T][H]
  float* attention_branch_inverse_rms = nullptr;  // [T]
  float* mlp_branch_inverse_rms = nullptr;        // [T]
  float* input_inverse_rms = nullptr;             // [T]
  float* middle_inverse_rms = nullptr;            // [T]
  float* row_max = nullptr;                       // [T][heads]
  float* row_sum = nullptr;                       // [T][heads]

  static int64_t FloatsNeeded(const Decoder& decoder, int64_t rows, Recompute recompute);
  // Lays the arrays that are kept out in `memory` (FloatsNeeded, 64-byte aligned).
  static BlockActivations At(const Decoder& decoder, int64_t rows, Recompute recompute,
                             float* memory);
};

// InvalidArgument: naming the row or segment, for token ids outside the vocabulary, positions
// beyond max_positions or not consecutive, segments that do not cover the rows, a parent that does
// not hold the positions before, more rows than the workspace has.
Status ValidateBatch(const DecoderContext& context, const ForwardBatch& batch);

// x [T][H] = rows of the embedding.
void EmbedTokens(const DecoderContext& context, const Weights& weights, const ForwardBatch& batch,
                 float* x);

// One layer: x [T][H] in place; K and V of the batch are written into the layer's pages (kv), then
// attended over with what the pages held before. saved may be null, and so may each of its arrays.
void BlockForward(const DecoderContext& context, const Weights& weights, int layer,
                  const ForwardBatch& batch, float* kv, float* x, BlockActivations* saved);

// gate and up of a layer (with experts: of its places, and the router's logits) from saved.middle,
// as BlockForward computed them.
void FeedForwardInputs(const DecoderContext& context, const Weights& weights, int layer,
                       int64_t rows, const float* middle, float* middle_inverse_rms,
                       float* router_logits, float* gate, float* up);

// Backward of one layer for segments that start at position 0 or have a parent. dx [T][H]: gradient
// of the block's output on entry, of its input on return. kv: pages as in BlockForward, written
// again from `saved`, all of whose arrays are there. units: row ranges that cover 0..T-1
// ascending (numerics.md section 7); each adds its chain to the gradients in order.
void BlockBackward(const DecoderContext& context, const Weights& weights, int layer,
                   const ForwardBatch& batch, std::span<const kernels::RowRange> units, float* kv,
                   const BlockActivations& saved, float* dx, const Gradients& gradients);

// Adds the embedding's gradient into a buffer of the table's own layout; of a tied model that is
// not the head's.
void EmbedBackward(const DecoderContext& context, const ForwardBatch& batch,
                   std::span<const kernels::RowRange> units, const float* dx,
                   float* embedding_gradient);
// The same for a tied model, into what is kept until the shard's end (tied_embedding.h).
class TiedEmbedding;
void EmbedBackward(const DecoderContext& context, const ForwardBatch& batch,
                   std::span<const kernels::RowRange> units, const float* dx,
                   TiedEmbedding& embedding_gradient);

// hidden [R][H] = final norm of the rows of x that are named (ascending or not, each below T).
// inverse_rms [R] or null.
void FinalNorm(const DecoderContext& context, const Weights& weights, const float* x,
               std::span<const int32_t> rows, float* hidden, float* inverse_rms);

// dx [T][H] is overwritten: zero but for the named rows (not descending). A row that is named again
// gets the sum of what its names give, in their order. head_units: ranges over the R rows.
void FinalNormBackward(const DecoderContext& context, const Weights& weights, const float* x,
                       int64_t num_rows, std::span<const int32_t> rows,
                       std::span<const kernels::RowRange> head_units, const float* inverse_rms,
                       const float* dhidden, float* dx, const Gradients& gradients);

// logits [R][V] of hidden [R][H].
void HeadLogits(const DecoderContext& context, const Weights& weights, const float* hidden,
                int64_t num_rows, float* logits);

// log_probs [R] of targets [R] under softmax(logits * inverse_temperature), without logits in
// memory.
struct HeadState {
  float* max = nullptr;      // [R]
  float* log_sum = nullptr;  // [R]
};
void HeadLogProbForward(const DecoderContext& context, const Weights& weights, const float* hidden,
                        std::span<const int32_t> targets, float inverse_temperature,
                        float* log_probs, const HeadState& state, float* entropy /*[R] or null*/);

// dhidden [R][H] is overwritten; the head's gradient is accumulated into gradients.head.
void HeadLogProbBackward(const DecoderContext& context, const Weights& weights, const float* hidden,
                         std::span<const int32_t> targets, float inverse_temperature,
                         std::span<const kernels::RowRange> head_units, const float* dlog_probs,
                         const HeadState& state, float* dhidden, const Gradients& gradients);

// Embedding, all layers, final norm of `rows`, head: what a generator's step is. x [T][H] and
// hidden [R][H] live in the workspace; logits [R][V] are the caller's. kv_layer(l) is
// KvCache::layer.
class KvCache;
void ForwardLogits(const DecoderContext& context, const Weights& weights, const ForwardBatch& batch,
                   KvCache& cache, std::span<const int32_t> rows, float* logits);

}  // namespace titan::model

#endif  // TITAN_CORE_MODEL_DECODER_H_
