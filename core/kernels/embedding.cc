// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/embedding.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "core/base/check.h"
#include "core/kernels/panels.h"
#include "core/kernels/pool.h"

namespace titan::kernels {
namespace {

constexpr int64_t kGatherRows = 16;

// A run of equal tokens in the sorted order of one unit.
struct Run {
  int32_t token;
  int64_t begin, end;  // into `order`
};

// row(token, out) writes one row.
template <typename RowOf>
void Gather(Pool& pool, int64_t vocab, int64_t hidden, const int32_t* tokens, int64_t rows,
            float* out, const RowOf& row) {
  for (int64_t t = 0; t < rows; ++t) TITAN_CHECK(tokens[t] >= 0 && tokens[t] < vocab);
  pool.Run(static_cast<int>((rows + kGatherRows - 1) / kGatherRows), [&](int task) {
    const int64_t end = std::min(rows, (task + 1) * kGatherRows);
    for (int64_t t = task * kGatherRows; t < end; ++t) row(tokens[t], out + t * hidden);
  });
}

}  // namespace

void EmbeddingGather(Pool& pool, ConstPanels table, int64_t vocab, int64_t hidden,
                     const int32_t* tokens, int64_t rows, float* out) {
  Gather(pool, vocab, hidden, tokens, rows, out,
         [&](int32_t token, float* to) { GatherRow(table, vocab, hidden, token, to); });
}

void EmbeddingGather(Pool& pool, TableLayout layout, const float* table, int64_t vocab,
                     int64_t hidden, const int32_t* tokens, int64_t rows, float* out) {
  if (layout == TableLayout::kPanels32) {
    EmbeddingGather(pool, ConstPanels(table), vocab, hidden, tokens, rows, out);
    return;
  }
  Gather(pool, vocab, hidden, tokens, rows, out, [&](int32_t token, float* to) {
    std::memcpy(to, table + token * hidden, static_cast<size_t>(hidden) * sizeof(float));
  });
}

void EmbeddingGradient(Pool& pool, TableLayout layout, const float* dy, int64_t vocab,
                       int64_t hidden, const int32_t* tokens, std::span<const RowRange> units,
                       float* accumulator, const RowRange* held) {
  const RowRange table = held == nullptr ? RowRange{0, vocab} : *held;
  TITAN_CHECK(table.begin % kPanelColumns == 0);
  std::vector<int64_t> order;
  std::vector<Run> runs;
  for (const RowRange& unit : units) {
    const int64_t first = static_cast<int64_t>(order.size());
    order.resize(first + unit.end - unit.begin);
    std::iota(order.begin() + first, order.end(), unit.begin);
    for (int64_t t = unit.begin; t < unit.end; ++t)
      TITAN_CHECK(tokens[t] >= 0 && tokens[t] < vocab);
    std::stable_sort(order.begin() + first, order.end(),
                     [&](int64_t a, int64_t b) { return tokens[a] < tokens[b]; });
    for (int64_t i = first; i < static_cast<int64_t>(order.size());) {
      int64_t end = i + 1;
      while (end < static_cast<int64_t>(order.size()) && tokens[order[end]] == tokens[order[i]])
        ++end;
      const int32_t token = tokens[order[i]];
      if (token >= table.begin && token < table.end) runs.push_back({token, i, end});
      i = end;
    }
  }
  // Tasks own ranges of columns, so that units stay in order for every element.
  const int64_t columns = std::max<int64_t>(32, (hidden + 4 * pool.size() - 1) / (4 * pool.size()));
  pool.Run(static_cast<int>((hidden + columns - 1) / columns), [&](int task) {
    const int64_t begin = task * columns, end = std::min(hidden, begin + columns);
    std::vector<float> chain(end - begin);
    for (const Run& run : runs) {
      std::fill(chain.begin(), chain.end(), 0.0f);
      for (int64_t i = run.begin; i < run.end; ++i) {
        const float* row = dy + order[i] * hidden;
        for (int64_t c = begin; c < end; ++c) chain[c - begin] = chain[c - begin] + row[c];
      }
      const bool rows = layout == TableLayout::kRows;
      const int64_t row = run.token - table.begin;
      float* place = accumulator + (rows ? row * hidden : PanelIndex(hidden, row, 0));
      const int64_t stride = rows ? 1 : kPanelColumns;
      for (int64_t c = begin; c < end; ++c)
        place[c * stride] = place[c * stride] + chain[c - begin];
    }
  });
}

}  // namespace titan::kernels
