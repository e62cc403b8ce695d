// SPDX-License-Identifier: Apache-2.0
//
// A packed batch of whole samples: what the trainer's forward runs. A sample lies in one run of
// rows from position 0, or in two: a run that several samples share as their prefix, and one of its
// own that continues it. Fills positions, segments and page lists; attention never crosses samples.
// Not thread-safe.
#ifndef TITAN_CORE_MODEL_PACKING_H_
#define TITAN_CORE_MODEL_PACKING_H_

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/status.h"
#include "core/model/decoder.h"

namespace titan::model {

class PackedBatch {
 public:
  // Pages that runs of these limits may need.
  static int64_t MaxPages(int64_t max_rows, int64_t max_runs);

  PackedBatch(int64_t max_rows, int64_t max_runs);

  // Lays runs of these lengths out one after another. parents[i] is the run whose rows are the
  // prefix of run i, or -1; empty: no run has one. InvalidArgument: no run, a length below 1, more
  // rows or runs than planned, a parent that is no run or has a parent itself.
  Status Set(std::span<const int32_t> lengths, std::span<const int32_t> parents = {});

  int64_t num_rows() const { return num_rows_; }
  // Valid until the next Set. REQUIRES: tokens.size() == num_rows().
  ForwardBatch Batch(std::span<const int32_t> tokens) const;

 private:
  void LayPages();

  int64_t max_rows_;
  int64_t max_runs_;
  int64_t num_rows_ = 0;
  std::vector<int32_t> positions_;
  std::vector<int32_t> pages_;  // the runs' page lists, end to end
  std::vector<kernels::Segment> segments_;
};

}  // namespace titan::model

#endif  // TITAN_CORE_MODEL_PACKING_H_
