// SPDX-License-Identifier: Apache-2.0
//
// What tests of the model share: a decoder with its weights in a slot, and plain ways to run it
// that mimic a generator (paged, chunked, mixed) and a trainer (packed). Test code, one thread.
#ifndef TITAN_TESTS_SUPPORT_MODEL_FIXTURE_H_
#define TITAN_TESTS_SUPPORT_MODEL_FIXTURE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "core/base/philox.h"
#include "core/formats/model_source.h"
#include "core/kernels/order.h"
#include "core/kernels/pool.h"
#include "core/model/decoder.h"
#include "core/model/kv_cache.h"
#include "core/model/memory.h"
#include "core/model/model_files.h"

namespace titan::test {

struct LoadedModel {
  std::unique_ptr<const model::Decoder> decoder;
  model::Floats slot;
  model::Weights weights;

  const model::ParameterTable& table() const { return decoder->table(); }
};

template <typename T>
T ValueOrDie(StatusOr<T> value) {
  EXPECT_TRUE(value.ok()) << value.status();
  if (!value.ok()) std::abort();
  return *std::move(value);
}

inline LoadedModel ModelOf(const formats::ModelConfig& config, int64_t max_positions = 0,
                           model::Mode mode = model::Mode::kF32) {
  LoadedModel loaded;
  loaded.decoder = ValueOrDie(model::Decoder::Create(config, max_positions, mode));
  loaded.slot = ValueOrDie(model::AllocateFloats(loaded.table().slot_floats()));
  loaded.weights = model::WeightsOf(loaded.table(), loaded.slot.get());
  return loaded;
}

inline LoadedModel LoadModel(const std::string& path, int64_t max_positions = 0,
                             model::Mode mode = model::Mode::kF32) {
  const std::unique_ptr<formats::ModelSource> source = ValueOrDie(formats::OpenModelSource(path));
  LoadedModel loaded = ModelOf(source->config(), max_positions, mode);
  kernels::Pool pool(1);
  const Status status = model::LoadWeights(pool, *source, loaded.table(), loaded.slot.get());
  EXPECT_TRUE(status.ok()) << status;
  return loaded;
}

// Deterministic draws in [0, n).
class Random {
 public:
  explicit Random(uint64_t seed)
      : key_{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)} {}
  uint32_t Word() { return Philox4x32({next_++, 0, 0, 0x7e57u}, key_)[0]; }
  int32_t Below(int32_t n) {
    return static_cast<int32_t>((static_cast<uint64_t>(Word()) * static_cast<uint64_t>(n)) >> 32);
  }
  // Uniform in [-1, 1).
  float Signed() { return static_cast<float>(UniformFromWord(Word()) * 2 - 1); }

 private:
  PhiloxKey key_;
  uint32_t next_ = 0;
};

inline std::vector<int32_t> RandomTokens(Random& random, int64_t count, int64_t vocabulary) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) token = random.Below(static_cast<int32_t>(vocabulary));
  return tokens;
}

// One sequence in a paged cache, with page ids of its own choosing.
struct PagedSequence {
  std::vector<int32_t> tokens;
  std::vector<int32_t> pages;
  int32_t done = 0;                        // positions already in the cache
  std::vector<std::vector<float>> logits;  // [positions][V], of every position run so far
};

// Runs chunks of several sequences as one batch: chunk i is the next counts[i] tokens of
// sequences[i] (0 = not in this batch), and appends the logits of all rows.
inline void RunChunks(const model::DecoderContext& context, const model::Weights& weights,
                      model::KvCache& cache, std::vector<PagedSequence>& sequences,
                      const std::vector<int32_t>& counts) {
  std::vector<int32_t> tokens, positions, rows;
  std::vector<kernels::Segment> segments;
  for (size_t s = 0; s < sequences.size(); ++s) {
    if (counts[s] == 0) continue;
    const PagedSequence& sequence = sequences[s];
    segments.push_back({.first_row = static_cast<int32_t>(tokens.size()),
                        .num_rows = counts[s],
                        .first_position = sequence.done,
                        .pages = sequence.pages.data()});
    for (int32_t i = 0; i < counts[s]; ++i) {
      rows.push_back(static_cast<int32_t>(tokens.size()));
      tokens.push_back(sequence.tokens[static_cast<size_t>(sequence.done + i)]);
      positions.push_back(sequence.done + i);
    }
  }
  const model::ForwardBatch batch = {
      .tokens = tokens, .positions = positions, .segments = segments};
  const Status status = model::ValidateBatch(context, batch);
  ASSERT_TRUE(status.ok()) << status;
  const size_t vocabulary = static_cast<size_t>(context.decoder.vocabulary());
  std::vector<float> logits(rows.size() * vocabulary);
  model::ForwardLogits(context, weights, batch, cache, rows, logits.data());
  size_t row = 0;
  for (size_t s = 0; s < sequences.size(); ++s) {
    for (int32_t i = 0; i < counts[s]; ++i, ++row) {
      sequences[s].logits.emplace_back(
          logits.begin() + static_cast<int64_t>(row * vocabulary),
          logits.begin() + static_cast<int64_t>((row + 1) * vocabulary));
    }
    sequences[s].done += counts[s];
  }
}

// Consecutive page ids for so many tokens.
inline std::vector<int32_t> PagesFor(int64_t num_tokens, int32_t first_page = 0) {
  std::vector<int32_t> pages;
  for (int64_t p = 0; p * kernels::kPageTokens < num_tokens; ++p) {
    pages.push_back(first_page + static_cast<int32_t>(p));
  }
  return pages;
}

inline bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace titan::test

#endif  // TITAN_TESTS_SUPPORT_MODEL_FIXTURE_H_
