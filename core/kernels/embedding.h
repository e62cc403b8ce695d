// SPDX-License-Identifier: Apache-2.0
//
// Embedding rows out of a table in panels32 (panels.h) or plain rows, and the table's gradient.
//
// Gather copies bits; rows of a bfloat16 table are upconverted, exactly. Gradient order: tokens of
// one unit are sorted stably by id; for each id a chain over its rows ascending from +0 of acc +
// dy; then accumulator row = accumulator row + chain; units in the order given. A tied table keeps
// this gradient apart from the head's and adds the two once per shard. Parallel over tokens
// (gather) and over columns of the hidden axis (gradient).
#ifndef TITAN_CORE_KERNELS_EMBEDDING_H_
#define TITAN_CORE_KERNELS_EMBEDDING_H_

#include <cstdint>
#include <span>

#include "core/kernels/panels.h"
#include "core/kernels/units.h"

namespace titan::kernels {

class Pool;

enum class TableLayout { kRows, kPanels32 };

// out [rows][hidden] = table rows of tokens. REQUIRES: 0 <= token < vocab (checked).
void EmbeddingGather(Pool& pool, TableLayout layout, const float* table, int64_t vocab,
                     int64_t hidden, const int32_t* tokens, int64_t rows, float* out);

// The same of a table in the execution layout of its elements.
void EmbeddingGather(Pool& pool, ConstPanels table, int64_t vocab, int64_t hidden,
                     const int32_t* tokens, int64_t rows, float* out);

// dy [rows][hidden] added into accumulator (the table's layout, vocab x hidden). With `held` the
// accumulator has those rows of the table alone (begin a multiple of 32), the others' gradients are
// left out.
void EmbeddingGradient(Pool& pool, TableLayout layout, const float* dy, int64_t vocab,
                       int64_t hidden, const int32_t* tokens, std::span<const RowRange> units,
                       float* accumulator, const RowRange* held = nullptr);

}  // namespace titan::kernels

#endif  // TITAN_CORE_KERNELS_EMBEDDING_H_
