// SPDX-License-Identifier: Apache-2.0
//
// The decoder as the trainer runs it: LibTorch's autograd drives one node per block (embedding,
// each layer, final norm with head and log-prob), each of which calls the functions of
// core/model/decoder.h. Weight gradients never pass through autograd: a node's backward accumulates
// them into the caller's gradient slot and returns undefined gradients for them (numerics.md
// section 7).
//
//   Forward(batch) -> log-probs of the trained tokens (and entropies)
//   the caller computes its loss and the derivative
//   Backward(d loss / d log-probs, gradients)
//
// One microbatch is open at a time: a Backward belongs to the last Forward with keep = true. A
// Forward with keep = false runs the same calls and keeps nothing (old and reference log-probs).
//
// Not thread-safe: one engine thread. LibTorch is set to one thread and runs only inside these
// calls; its exceptions become Internal. Headers of this folder are free of torch.
#ifndef TITAN_CORE_MODEL_TORCH_TRAINABLE_DECODER_H_
#define TITAN_CORE_MODEL_TORCH_TRAINABLE_DECODER_H_

#include <cstdint>
#include <memory>
#include <span>

#include "core/base/status.h"
#include "core/kernels/pool.h"
#include "core/kernels/units.h"
#include "core/model/decoder.h"
#include "core/model/tied_embedding.h"

namespace titan::model {

// Runs of rows packed one after another (core/model/packing.h): whole samples, or prefixes and what
// continues them.
struct TrainBatch {
  std::span<const int32_t> tokens;       // [T]
  std::span<const int32_t> run_lengths;  // sum = T
  std::span<const int32_t> run_parents;  // parallel; -1 none; empty when no run has one
  // Row rows[i] predicts targets[i] (the token after it in its sample); not descending: the last
  // row of a shared prefix is named once for each sample that continues it, in their order. Rows
  // that no loss reads are not named.
  std::span<const int32_t> rows;     // [R]
  std::span<const int32_t> targets;  // [R]
  // Ranges of whole units that cover 0..T-1 (core/kernels/units.h). Used by Backward only.
  std::span<const kernels::RowRange> units;
};

// A gradient slot of the decoder's master table, which starts as zeros, and, for tied models, the
// embedding's part of the open shard (null when untied); at the shard's end AddTo joins them.
struct GradientBuffers {
  float* slot = nullptr;
  TiedEmbedding* tied_embedding = nullptr;
};

class TrainableDecoder {
 public:
  struct Limits {
    int64_t max_rows = 0;                    // T of one microbatch
    int64_t max_head_rows = 0;               // R of one microbatch
    int64_t max_runs = 0;                    // runs of one microbatch
    bool backward = true;                    // false: only Forward with keep = false
    Recompute recompute = Recompute::kNone;  // memory against time; no bit depends on it
  };

  // Bytes beside weights and gradients: activations of all layers, scratch, what kernels keep for
  // calls of this size, pages of one layer.
  static int64_t MemoryNeeded(const Decoder& decoder, const Limits& limits);

  // decoder, pool and tensor must outlive the result; tensor null: the decoder is whole.
  // ResourceExhausted: the memory cannot be had.
  static StatusOr<std::unique_ptr<TrainableDecoder>> Create(const Decoder& decoder,
                                                            kernels::Pool& pool,
                                                            const Limits& limits,
                                                            TensorParallel* tensor = nullptr);
  ~TrainableDecoder();

  // log_probs [R] of the targets under softmax(logits * inverse_temperature); entropy [R] of the
  // same distribution, or empty. Weights must stay as they are until Backward returns.
  // InvalidArgument: a batch outside the limits or malformed (names the field). Of a part of a
  // model: every rank of its group makes the same calls; the error of an exchange.
  Status Forward(const Weights& weights, const TrainBatch& batch, float inverse_temperature,
                 bool keep, std::span<float> log_probs, std::span<float> entropy);

  // Accumulates the gradient of sum_i dlog_probs[i] * log_probs[i]. FailedPrecondition: no Forward
  // with keep = true is open. Closes the microbatch.
  Status Backward(std::span<const float> dlog_probs, const GradientBuffers& gradients);

  struct Impl;  // of the source file

 private:
  explicit TrainableDecoder(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace titan::model

#endif  // TITAN_CORE_MODEL_TORCH_TRAINABLE_DECODER_H_
