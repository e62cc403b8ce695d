// SPDX-License-Identifier: Apache-2.0
#include "core/model/packing.h"

#include <string>

#include "core/base/check.h"
#include "core/kernels/order.h"

namespace titan::model {

int64_t PackedBatch::MaxPages(int64_t max_rows, int64_t max_samples) {
  return max_rows / kernels::kPageTokens + max_samples;
}

PackedBatch::PackedBatch(int64_t max_rows, int64_t max_samples)
    : max_rows_(max_rows), max_samples_(max_samples) {
  positions_.resize(static_cast<size_t>(max_rows));
  pages_.resize(static_cast<size_t>(MaxPages(max_rows, max_samples)));
  for (size_t i = 0; i < pages_.size(); ++i) pages_[i] = static_cast<int32_t>(i);
  segments_.reserve(static_cast<size_t>(max_samples));
}

Status PackedBatch::Set(std::span<const int32_t> lengths) {
  num_rows_ = 0;
  segments_.clear();
  if (lengths.empty() || static_cast<int64_t>(lengths.size()) > max_samples_) {
    return InvalidArgument("pack: " + std::to_string(lengths.size()) + " samples, planned for 1.." +
                           std::to_string(max_samples_));
  }
  int64_t row = 0;
  int64_t page = 0;
  for (const int32_t length : lengths) {
    if (length < 1 || row + length > max_rows_) {
      return InvalidArgument("pack: a sample of " + std::to_string(length) + " tokens after " +
                             std::to_string(row) + " rows, planned for " +
                             std::to_string(max_rows_));
    }
    segments_.push_back({.first_row = static_cast<int32_t>(row),
                         .num_rows = length,
                         .first_position = 0,
                         .pages = pages_.data() + page});
    for (int32_t i = 0; i < length; ++i) positions_[static_cast<size_t>(row + i)] = i;
    row += length;
    page += (length + kernels::kPageTokens - 1) / kernels::kPageTokens;
  }
  num_rows_ = row;
  return OkStatus();
}

ForwardBatch PackedBatch::Batch(std::span<const int32_t> tokens) const {
  TITAN_CHECK(static_cast<int64_t>(tokens.size()) == num_rows_);
  return {.tokens = tokens,
          .positions = std::span(positions_).first(static_cast<size_t>(num_rows_)),
          .segments = segments_};
}

}  // namespace titan::model
