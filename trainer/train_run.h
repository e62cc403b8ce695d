// SPDX-License-Identifier: Apache-2.0
//
// One rank's training state of one run: master weights, moments, gradients; and what a step does
// with them. Publishing, leases and messages are the caller's. Ranks share an update in two ways,
// and the result is that of one rank, bit for bit:
//
//   data    ranks of one group compute the shards that they own; the sums are exchanged
//   tensor  ranks of one group compute the same samples, each the columns of the linears that it
//           owns (core/model/tensor_parallel.h); it holds weights, gradients and moments of these
//           alone
//
// A rank is in one group of each kind; those of a data group have the same part of the model.
//
//   Load -> version 0;  per step:  Compare (parity, under an older version's slot) -> Update ->
//   WriteSlot
//
// Every reduction follows numerics.md section 7: samples in plan order into shards, units and
// packs; gradients of a shard summed unit by unit, shards by a balanced tree; f64 norm; AdamW.
// Master weights are f32 and share their layout with gradients and moments. In mode F32 they are
// also what is published and what forward and backward read; in W16 those are the master rounded to
// bfloat16, made once a step: a version is trained and compared on exactly the bytes that it is
// published with. The gradient goes to the master unchanged.
//
// Not thread-safe: one engine thread.
#ifndef TITAN_TRAINER_TRAIN_RUN_H_
#define TITAN_TRAINER_TRAIN_RUN_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/base/hash.h"
#include "core/base/status.h"
#include "core/kernels/optimizer.h"
#include "core/kernels/pool.h"
#include "core/model/decoder.h"
#include "core/model/memory.h"
#include "core/model/tensor_parallel.h"
#include "core/model/tied_embedding.h"
#include "core/model/torch/trainable_decoder.h"
#include "trainer/packed_batch.h"
#include "trainer/packing.h"
#include "trainer/policy_loss.h"
#include "trainer/ranks.h"
#include "trainer/train_state.h"
#include "trainer/training_sample.h"

namespace titan::trainer {

struct TrainConfig {
  PolicyLossConfig loss;
  Aggregation aggregation = Aggregation::kTokenMean;
  kernels::AdamWConfig optimizer;
  double max_gradient_norm = 1.0;
  int num_shards = 1;  // Z, a power of two
  double temperature = 1.0;
  int64_t max_pack_rows = 2048;
  int64_t max_sequence_tokens = 1024;
  // A group whose prompt and replies together have at most this many tokens computes its prompt
  // once, forward and backward: another order of the gradients' sums, the same log-probs. 0: never.
  int64_t shared_group_tokens = 1024;
  model::Recompute recompute = model::Recompute::kNone;  // memory against time, not the result
  bool snapshots = false;        // memory for TakeSnapshot: three more arrays of the master's size
  bool digest_gradient = false;  // UpdateResult::gradient_digest: one more pass over the gradient
};

struct ParityDifference {
  SampleId sample;
  uint32_t token_index = 0;  // in the reply
  float rollout = 0.0f;
  float trainer = 0.0f;
};

// Log-probs of rollout and trainer held against each other bit for bit.
struct ParityResult {
  double difference_max = 0.0;  // |trainer - rollout|; infinity when the trainer's is not a number
  uint64_t tokens_differing = 0;
  uint64_t tokens_compared = 0;
  uint32_t samples_per_pack_min = 0;          // over the forwards that compared
  std::vector<ParityDifference> differences;  // the first few
};

struct UpdateResult {
  bool updated = false;  // false: no sample is trained
  double loss = 0.0;
  double gradient_norm = 0.0;  // before clipping
  double clip_fraction = 0.0;
  double ratio_max = 0.0;
  double ratio_mean = 0.0;
  int64_t tokens_trained = 0;
  int64_t sample_tokens_max = 0;  // prompt and reply of the longest trained sample
  ParityResult parity;            // of the loss's own forward, when asked for
  // Facts of the step that no layout of packs and ranks changes: of every trained token's log-prob,
  // in plan order; and of the whole gradient before clipping (gradient_digest.h), zero unless the
  // config asks for it.
  uint64_t log_prob_digest = 0;
  Hash128 gradient_digest;
  double forward_seconds = 0.0;
  double backward_seconds = 0.0;
  double optimizer_seconds = 0.0;
};

class TrainRun {
 public:
  // Monotonic seconds, for the timings only.
  using Clock = std::function<double()>;

  // Bytes that a run of this model needs beside the weight store's slots.
  static int64_t MemoryNeeded(const model::Decoder& decoder, const TrainConfig& config,
                              int num_ranks = 1);

  // decoder, pool and ranks must outlive the run; ranks (the data group) null: this one is alone;
  // tensor (the tensor group) null: the decoder is whole. InvalidArgument names the config field;
  // FailedPrecondition: a rank of these groups has another training contract, part or packs (names
  // what differs); ResourceExhausted: the memory cannot be had.
  static StatusOr<std::unique_ptr<TrainRun>> Create(const model::Decoder& decoder,
                                                    kernels::Pool& pool, const TrainConfig& config,
                                                    Clock clock, Ranks* ranks = nullptr,
                                                    Ranks* tensor = nullptr);

  // Master weights in the layout of the decoder's master table (of this rank's part), to be filled
  // once before the first step.
  float* master() { return Restore().master; }
  // Weights, moments and powers as a snapshot has them, to be filled before the first step.
  struct StateMemory {
    float* master;
    float* first_moment;
    float* second_moment;
    kernels::AdamWPowers* powers;
  };
  StateMemory Restore();
  // The state that the newest WriteSlot published, without a copy; steps go on while it is held
  // (train_state.h). Unavailable: the one before is still held. FailedPrecondition: the config says
  // no snapshots, or nothing is published since the last step. Unimplemented: a rank of a tensor
  // group.
  StatusOr<std::unique_ptr<TrainState::Snapshot>> TakeSnapshot();

  // The training forward, the very call and packing of Update's, over the samples marked
  // `compared`, under the weights of `slot`, which is of the whole model. InvalidArgument names the
  // sample: as Update.
  StatusOr<ParityResult> Compare(const void* slot, std::span<const TrainingSample> samples);

  // One update from the samples marked `trained`, in plan order: (group_index, sample_index)
  // strictly ascending. compare: the loss's forward is also compared (the samples were made by the
  // weights in force). InvalidArgument names the sample: order, lengths, token ids outside the
  // vocabulary, log-probs that are not finite; found before anything is computed, the state stays
  // whole. DataLoss: an advantage, loss, gradient or weight is not a finite number; the state is
  // whole unless the optimizer step itself made it, so the caller must treat it as lost. Every rank
  // is given the same samples; timings are this rank's own. Another error of an exchange between
  // ranks: the state is whole.
  StatusOr<UpdateResult> Update(std::span<const TrainingSample> samples, int64_t num_groups,
                                bool compare);

  // The current weights, denormals flushed, into a slot of the whole model (the decoder's
  // whole_table()); every rank of a tensor group calls it, null: this one takes part without
  // wanting them. DataLoss, naming the parameter: a weight is not finite in bfloat16.
  Status WriteSlot(void* slot);

 private:
  // Samples in plan order and how they are laid into packs.
  struct Shard {
    std::vector<const TrainingSample*> samples;
    std::vector<PackItem> items;
    std::vector<Pack> packs;
  };

  // What one sample adds to the step's figures; exchanged between ranks.
  struct SampleFigures {
    double loss = 0.0;
    double ratio_sum = 0.0;
    double ratio_max = 0.0;
    int64_t clipped_tokens = 0;
    uint64_t log_probs_hash = 0;
  };
  // The sum of the gradients of a subtree, in buffer gradients_[buffer].
  struct OpenSum {
    Subtree shards;
    size_t buffer = 0;
  };

  TrainRun(const model::Decoder& decoder, kernels::Pool& pool, const TrainConfig& config,
           Clock clock, Ranks* ranks, Ranks* tensor_ranks);
  int rank() const { return ranks_ == nullptr ? 0 : ranks_->rank(); }
  int num_ranks() const { return ranks_ == nullptr ? 1 : ranks_->size(); }
  Status AgreeWithRanks();
  Status Allocate();
  Status CheckSample(const TrainingSample& sample) const;
  StatusOr<std::vector<Shard>> Shards(std::span<const TrainingSample> samples,
                                      int64_t num_groups) const;
  Status LayPacks(Shard* shard) const;
  PackedBatch Lay(const Shard& shard, const Pack& pack) const;
  void CompareBits(const PackedBatch& batch, std::span<const float> log_probs,
                   ParityResult* result) const;
  // log_probs: of the samples' replies end to end.
  Status TrainingForward(const model::Weights& weights, const PackedBatch& batch,
                         std::span<float> log_probs);
  Status AccumulateShard(const Shard& shard, const UpdateCounts& counts, bool compare,
                         float* gradient, UpdateResult* result,
                         std::vector<SampleFigures>* figures);
  // The gradient of all shards, in the buffer that is returned.
  StatusOr<size_t> Gradient(const std::vector<Shard>& shards, const UpdateCounts& counts,
                            bool compare, UpdateResult* result,
                            std::vector<SampleFigures>* figures);
  // Adds the two newest sums as long as they are the halves of one node.
  void PushSum(const OpenSum& sum, std::vector<OpenSum>* stack);
  size_t TakeBuffer();
  // Figures of all ranks' samples in plan order, and their comparisons.
  Status ExchangeFigures(const std::vector<Shard>& shards, std::vector<SampleFigures>* figures,
                         ParityResult* parity);
  Status Step(float* gradient, UpdateResult* result);
  double GradientNorm(const float* gradient);
  Hash128 WholeGradientDigest(const float* gradient);
  // The error of any rank of the tensor group, to all of them.
  Status AgreeOn(const Status& own) { return tensor_ == nullptr ? own : tensor_->Agree(own); }
  void ForBlocks(int64_t bytes, const std::function<void(int64_t begin, int64_t count)>& body);
  // What forward and backward read: the master itself, or in W16 its rounding, made anew if stale;
  // of a tensor group the second shards too.
  StatusOr<const void*> ForwardSlot();

  const model::Decoder& decoder_;
  kernels::Pool& pool_;
  const TrainConfig config_;
  const Clock clock_;
  Ranks* const ranks_;
  Ranks* const tensor_ranks_;
  float inverse_temperature_ = 1.0f;
  std::unique_ptr<model::TensorParallel> tensor_;  // null: the decoder is whole
  std::unique_ptr<model::TrainableDecoder> trainable_;
  std::unique_ptr<TrainState> state_;
  model::Floats rounded_;  // W16 only: a slot of the decoder's table
  bool forward_is_current_ = false;
  bool denormals_are_flushed_ = false;    // from the master
  std::vector<model::Floats> gradients_;  // sums of subtrees; those not in free_buffers_ are open
  std::vector<size_t> free_buffers_;
  std::unique_ptr<model::TiedEmbedding> tied_embedding_;  // null: the model is untied
};

}  // namespace titan::trainer

#endif  // TITAN_TRAINER_TRAIN_RUN_H_
