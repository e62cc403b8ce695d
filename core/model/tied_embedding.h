// SPDX-License-Identifier: Apache-2.0
//
// The embedding's part of a tied table's gradient while a shard is open. numerics.md section 7 adds
// it to the head's part once, at the shard's end, so it is kept apart until then; and only rows of
// tokens that occur have one, so only these take memory:
//
//   Add for each microbatch of the shard;  AddTo at its end
//
// Bits are those of a whole table of zeros that is accumulated into and added: a row without a
// token adds +0. One caller at a time.
#ifndef TITAN_CORE_MODEL_TIED_EMBEDDING_H_
#define TITAN_CORE_MODEL_TIED_EMBEDDING_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/base/status.h"
#include "core/kernels/pool.h"
#include "core/kernels/units.h"
#include "core/model/memory.h"
#include "core/model/parameters.h"

namespace titan::model {

class TiedEmbedding {
 public:
  // Bytes if every token occurs in one shard; pages are taken as tokens first occur.
  static int64_t MemoryNeeded(const ParameterTable& master_table);

  // REQUIRES: the master table, tied; it must outlive the result. ResourceExhausted: the memory
  // cannot be had.
  static StatusOr<std::unique_ptr<TiedEmbedding>> Create(const ParameterTable& master_table);

  // Adds dx [T][H], the gradient of the rows of tokens [T], unit by unit
  // (core/kernels/embedding.h). Tokens whose rows the table does not hold are left out. REQUIRES:
  // tokens of the vocabulary.
  void Add(kernels::Pool& pool, std::span<const int32_t> tokens,
           std::span<const kernels::RowRange> units, const float* dx);

  // table_gradient, panels of the rows held, becomes table_gradient + the rows; then Clear.
  void AddTo(kernels::Pool& pool, float* table_gradient);

  // Forgets the open shard.
  void Clear();

 private:
  explicit TiedEmbedding(const Parameter& table);

  const Parameter& table_;
  std::vector<int32_t> place_of_;  // of each row held: its place in rows_, -1 none
  std::vector<int32_t> open_;      // the row held of each place
  Floats rows_;                    // [places][H]
};

}  // namespace titan::model

#endif  // TITAN_CORE_MODEL_TIED_EMBEDDING_H_
