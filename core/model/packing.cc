// SPDX-License-Identifier: Apache-2.0
#include "core/model/packing.h"

#include <algorithm>
#include <cstddef>
#include <string>

#include "core/base/check.h"
#include "core/kernels/order.h"

namespace titan::model {

// A run of n rows begins pages of its own at its first row and at most every 16th row after the
// 15th: never more than n, or n / 16 + 2.
int64_t PackedBatch::MaxPages(int64_t max_rows, int64_t max_runs) {
  return std::min(max_rows, max_rows / kernels::kPageTokens + 2 * max_runs);
}

PackedBatch::PackedBatch(int64_t max_rows, int64_t max_runs)
    : max_rows_(max_rows), max_runs_(max_runs) {
  positions_.resize(static_cast<size_t>(max_rows));
  segments_.reserve(static_cast<size_t>(max_runs));
}

Status PackedBatch::Set(std::span<const int32_t> lengths, std::span<const int32_t> parents) {
  num_rows_ = 0;
  segments_.clear();
  pages_.clear();
  if (lengths.empty() || static_cast<int64_t>(lengths.size()) > max_runs_) {
    return InvalidArgument("pack: " + std::to_string(lengths.size()) + " runs, planned for 1.." +
                           std::to_string(max_runs_));
  }
  if (!parents.empty() && parents.size() != lengths.size()) {
    return InvalidArgument("pack: " + std::to_string(parents.size()) + " parents of " +
                           std::to_string(lengths.size()) + " runs");
  }
  const auto parent_of = [&](size_t run) { return parents.empty() ? -1 : parents[run]; };
  int64_t row = 0;
  for (size_t run = 0; run < lengths.size(); ++run) {
    const int32_t length = lengths[run];
    const int32_t parent = parent_of(run);
    if (length < 1 || row + length > max_rows_) {
      return InvalidArgument("pack: a run of " + std::to_string(length) + " tokens after " +
                             std::to_string(row) + " rows, planned for " +
                             std::to_string(max_rows_));
    }
    if (parent < -1 || parent >= static_cast<int64_t>(lengths.size()) ||
        (parent >= 0 && parent_of(static_cast<size_t>(parent)) != -1)) {
      return InvalidArgument("pack: run " + std::to_string(parent) +
                             " cannot be the prefix of run " + std::to_string(run));
    }
    const int32_t first_position = parent < 0 ? 0 : lengths[static_cast<size_t>(parent)];
    segments_.push_back({.first_row = static_cast<int32_t>(row),
                         .num_rows = length,
                         .first_position = first_position,
                         .pages = nullptr,
                         .parent = parent});
    for (int32_t i = 0; i < length; ++i) {
      positions_[static_cast<size_t>(row + i)] = first_position + i;
    }
    row += length;
  }
  LayPages();
  num_rows_ = row;
  return OkStatus();
}

void PackedBatch::LayPages() {
  std::vector<size_t> first(segments_.size());  // of each run's list in pages_
  int32_t next = 0;
  const auto lay = [&](size_t run, std::span<const int32_t> shared) {
    const int64_t end = segments_[run].first_position + segments_[run].num_rows;
    first[run] = pages_.size();
    pages_.insert(pages_.end(), shared.begin(), shared.end());
    for (int64_t page = static_cast<int64_t>(shared.size()); page < kernels::NumPages(end);
         ++page) {
      pages_.push_back(next++);
    }
  };
  for (size_t run = 0; run < segments_.size(); ++run) {
    if (segments_[run].parent < 0) lay(run, {});
  }
  for (size_t run = 0; run < segments_.size(); ++run) {
    if (segments_[run].parent < 0) continue;
    const auto begin = pages_.begin() + static_cast<std::ptrdiff_t>(
                                            first[static_cast<size_t>(segments_[run].parent)]);
    const std::vector<int32_t> shared(begin,
                                      begin + segments_[run].first_position / kernels::kPageTokens);
    lay(run, shared);
  }
  TITAN_CHECK(next <= MaxPages(max_rows_, max_runs_));
  for (size_t run = 0; run < segments_.size(); ++run) {
    segments_[run].pages = pages_.data() + first[run];
  }
}

ForwardBatch PackedBatch::Batch(std::span<const int32_t> tokens) const {
  TITAN_CHECK(static_cast<int64_t>(tokens.size()) == num_rows_);
  return {.tokens = tokens,
          .positions = std::span(positions_).first(static_cast<size_t>(num_rows_)),
          .segments = segments_};
}

}  // namespace titan::model
