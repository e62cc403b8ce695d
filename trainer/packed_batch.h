// SPDX-License-Identifier: Apache-2.0
//
// The rows of one pack, as the trainable decoder takes them. A value; filled once, in order.
#ifndef TITAN_TRAINER_PACKED_BATCH_H_
#define TITAN_TRAINER_PACKED_BATCH_H_

#include <cstdint>
#include <span>
#include <vector>

#include "core/kernels/units.h"
#include "core/model/torch/trainable_decoder.h"
#include "trainer/training_sample.h"

namespace titan::trainer {

// Items of one pack, laid end to end.
struct PackedBatch {
  std::vector<const TrainingSample*> samples;
  std::vector<int32_t> tokens;
  std::vector<int32_t> run_lengths;
  std::vector<int32_t> run_parents;
  std::vector<int32_t> rows;     // those that predict a reply token
  std::vector<int32_t> targets;  // parallel to rows
  // Of each reply token, samples end to end: the index in rows of the one that predicts it.
  std::vector<int32_t> predicted_by;
  std::span<const kernels::RowRange> units;

  model::TrainBatch view() const {
    return {tokens, run_lengths, run_parents, rows, targets, units};
  }

  void AddSample(const TrainingSample& sample);
  void AddGroup(std::span<const TrainingSample* const> group);

 private:
  void Predict(int32_t row, TokenId target) {
    rows.push_back(row);
    targets.push_back(target);
  }
  int32_t AddRun(std::span<const TokenId> first, std::span<const TokenId> second, int32_t parent) {
    const auto first_row = static_cast<int32_t>(tokens.size());
    tokens.insert(tokens.end(), first.begin(), first.end());
    tokens.insert(tokens.end(), second.begin(), second.end());
    run_lengths.push_back(static_cast<int32_t>(first.size() + second.size()));
    run_parents.push_back(parent);
    return first_row;
  }
};

}  // namespace titan::trainer

#endif  // TITAN_TRAINER_PACKED_BATCH_H_
