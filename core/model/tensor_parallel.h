// SPDX-License-Identifier: Apache-2.0
//
// Gather-only tensor parallelism (numerics.md section 8): what one rank needs beside its part of
// the weights. The ranks of a group compute the same rows. Each computes the outputs of a linear
// whose rows of the weight it owns (ParameterTable with a TensorShard), and everyone gathers them;
// backward it computes columns of the input gradient from a second shard W[:, k_r]. Every output is
// one rank's whole chain, so the bits are those of one rank; what is exchanged is never added.
// Norms, rotations and attention are computed by every rank.
//
//   TrainRun: RefreshColumns after each change of the weights -> Forward, Backward
//
// An exchange that fails is kept: later ones do nothing, what they would have written is undefined,
// and whoever drives a forward or backward asks status() at its end.
//
// Not thread-safe: one engine thread. Memory is planned in Create.
#ifndef TITAN_CORE_MODEL_TENSOR_PARALLEL_H_
#define TITAN_CORE_MODEL_TENSOR_PARALLEL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/base/status.h"
#include "core/kernels/units.h"
#include "core/model/decoder.h"
#include "core/model/memory.h"
#include "core/model/ranks.h"

namespace titan::model {

class TensorParallel {
 public:
  // Bytes of one rank: the second shard (backward), and scratch.
  static int64_t MemoryNeeded(const Decoder& decoder, const Workspace::Limits& limits);

  // decoder and ranks must outlive the result. InvalidArgument: the group is not that of the
  // decoder's shard. ResourceExhausted: the memory cannot be had.
  static StatusOr<std::unique_ptr<TensorParallel>> Create(const Decoder& decoder, Ranks& ranks,
                                                          const Workspace::Limits& limits);

  const Status& status() const { return status_; }
  TensorShard shard() const { return shard_; }

  // The second shards, from what every rank owns. REQUIRES: made with backward; weights of the
  // decoder's table.
  void RefreshColumns(const void* slot);
  // W[:, k_r] of a matrix, in the panels of its element type.
  kernels::ConstPanels ColumnsOf(int parameter) const;

  // array [rows][width]: this rank's columns `of(shard)` to everyone, theirs to it.
  void GatherColumns(const std::function<Slice(TensorShard)>& of, int64_t rows, int64_t width,
                     float* array);
  // x [rows][width]: row i comes from the rank that owner[i] names, whose row is set.
  void GatherRows(std::span<const int32_t> owner, int64_t width, float* x);
  // Blocks that each rank has, in the others' arrays too: parts[r] is rank r's.
  void Gather(std::span<const std::span<std::byte>> parts);
  // data of `root` to everyone.
  void Share(int root, std::span<std::byte> data);
  // The error of a rank that has one, to all of them. Another rank's is DataLoss, without its
  // words.
  Status Agree(const Status& own);

  // The whole model's slot (of decoder.whole_table()) from what every rank owns of `slot` (of
  // decoder.table()). `whole` may be null where it is not wanted: the rank takes part.
  void GatherSlot(const void* slot, void* whole);

  // The head's halves: core/kernels/head.h, with state planned here.
  float* statistics() { return statistics_; }        // [chunks][R][kHeadStatistics]
  float* target_logits() { return target_logits_; }  // [R]
  float* staging() { return staging_; }              // [R] and more

 private:
  TensorParallel(const Decoder& decoder, Ranks& ranks, const Workspace::Limits& limits);
  int64_t Plan(const Decoder& decoder, float* memory);
  // The shard of rank r.
  TensorShard Of(int r) const { return {r, shard_.size}; }

  const Decoder& decoder_;
  Ranks& ranks_;
  const TensorShard shard_;
  const Workspace::Limits limits_;
  Status status_;
  Floats memory_;
  std::vector<std::byte*> columns_;  // of each parameter, null where there is none
  float* staging_ = nullptr;
  int64_t staging_floats_ = 0;
  float* statistics_ = nullptr;
  float* target_logits_ = nullptr;
};

}  // namespace titan::model

#endif  // TITAN_CORE_MODEL_TENSOR_PARALLEL_H_
