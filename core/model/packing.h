// SPDX-License-Identifier: Apache-2.0
//
// A packed batch of whole samples, each from position 0: what the trainer's forward runs. Fills
// positions, segments and page lists into buffers that are planned once; attention never crosses
// samples. Not thread-safe.
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
  // Pages that samples of these limits may need: sum of ceil(length / 16).
  static int64_t MaxPages(int64_t max_rows, int64_t max_samples);

  PackedBatch(int64_t max_rows, int64_t max_samples);

  // Lays samples of these lengths out one after another; sample i takes the next free pages from 0.
  // InvalidArgument: no sample, a length below 1, more rows or samples than planned.
  Status Set(std::span<const int32_t> lengths);

  int64_t num_rows() const { return num_rows_; }
  // Valid until the next Set. REQUIRES: tokens.size() == num_rows().
  ForwardBatch Batch(std::span<const int32_t> tokens) const;

 private:
  int64_t max_rows_;
  int64_t max_samples_;
  int64_t num_rows_ = 0;
  std::vector<int32_t> positions_;
  std::vector<int32_t> pages_;
  std::vector<kernels::Segment> segments_;
};

}  // namespace titan::model

#endif  // TITAN_CORE_MODEL_PACKING_H_
