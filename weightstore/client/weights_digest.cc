// SPDX-License-Identifier: Apache-2.0
#include "weightstore/client/weights_digest.h"

#include <emmintrin.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "core/base/check.h"
#include "weightstore/client/panel_runs.h"

namespace titan::weightstore {
namespace {

constexpr int64_t kLanes = 32;
// Bytes that one unit of work of WeightsDigest covers, about.
constexpr int64_t kUnitBytes = 4 << 20;

// What is hashed of one run: index and count end where the elements begin, which is 16-byte
// aligned.
struct alignas(16) RunBuffer {
  static constexpr size_t kElements = 16;
  static constexpr size_t kStart = kElements - sizeof(uint64_t) - sizeof(uint32_t);
  std::byte bytes[kElements + kDigestRun * 4];

  Hash128 Hash(uint64_t index, uint32_t count, size_t element_bytes, uint64_t seed) {
    std::memcpy(bytes + kStart, &index, sizeof(index));
    std::memcpy(bytes + kStart + sizeof(index), &count, sizeof(count));
    return Hash128Of(bytes + kStart, kElements - kStart + count * element_bytes, seed);
  }
};

Hash128 RowsDigest(const TensorEntry& tensor, const std::byte* data, int64_t first_row,
                   int64_t last_row, uint64_t seed) {
  const int64_t columns = NumColumns(tensor);
  const int64_t element_bytes = ElementBytes(tensor.dtype);
  RunBuffer run;
  Hash128 sum;
  for (int64_t row = first_row; row < last_row; ++row) {
    for (int64_t column = 0; column < columns; column += kDigestRun) {
      const int64_t count = std::min(kDigestRun, columns - column);
      const int64_t index = row * columns + column;
      std::memcpy(run.bytes + RunBuffer::kElements, data + index * element_bytes,
                  static_cast<size_t>(count * element_bytes));
      sum += run.Hash(static_cast<uint64_t>(index), static_cast<uint32_t>(count),
                      static_cast<size_t>(element_bytes), seed);
    }
  }
  return sum;
}

// The 32-bit words of 32 rows of a panel, [count][32], into one buffer of words per row. A word is
// an f32, or two bf16 of which the first one is the upper half (kPairs): swapped here, because in
// memory order the first one comes first.
template <bool kPairs>
void GatherWords(const std::byte* panel, int64_t count, RunBuffer* runs) {
  constexpr int64_t kWord = 4;
  const auto in_order = [](__m128 words) {
    if constexpr (!kPairs) return words;
    const __m128i w = _mm_castps_si128(words);
    return _mm_castsi128_ps(_mm_or_si128(_mm_slli_epi32(w, 16), _mm_srli_epi32(w, 16)));
  };
  const auto load = [&](int64_t word) {
    return in_order(_mm_loadu_ps(reinterpret_cast<const float*>(panel + word * kWord)));
  };
  const auto place = [&](int64_t lane, int64_t word) {
    return reinterpret_cast<float*>(runs[lane].bytes + RunBuffer::kElements + word * kWord);
  };
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    for (int64_t lane = 0; lane < kLanes; lane += 4) {
      __m128 a = load(i * kLanes + lane);
      __m128 b = load((i + 1) * kLanes + lane);
      __m128 c = load((i + 2) * kLanes + lane);
      __m128 d = load((i + 3) * kLanes + lane);
      _MM_TRANSPOSE4_PS(a, b, c, d);
      _mm_store_ps(place(lane, i), a);
      _mm_store_ps(place(lane + 1, i), b);
      _mm_store_ps(place(lane + 2, i), c);
      _mm_store_ps(place(lane + 3, i), d);
    }
  }
  for (; i < count; ++i) {
    for (int64_t lane = 0; lane < kLanes; lane += 4) {
      alignas(16) std::byte words[16];
      _mm_store_ps(reinterpret_cast<float*>(words), load(i * kLanes + lane));
      for (int64_t j = 0; j < 4; ++j) std::memcpy(place(lane + j, i), words + j * kWord, kWord);
    }
  }
}

Hash128 PanelsDigest(const TensorEntry& tensor, const std::byte* data, int64_t first_row,
                     int64_t last_row, uint64_t seed) {
  TITAN_CHECK(first_row % kLanes == 0);
  const bool pairs = tensor.layout == Layout::kPanels32K2;
  const int64_t columns = NumColumns(tensor);
  const int64_t element_bytes = ElementBytes(tensor.dtype);
  const int64_t depth = pairs ? columns + columns % 2 : columns;
  std::vector<RunBuffer> runs(kLanes);
  const PanelVectors vectors = BestPanelVectors();
  const PanelSecret secret(seed);
  Hash128 sum;
  for (int64_t row = first_row; row < last_row; row += kLanes) {
    const std::byte* panel = data + row * depth * element_bytes;
    const int64_t rows = std::min(kLanes, last_row - row);
    for (int64_t column = 0; column < columns; column += kDigestRun) {
      const int64_t count = std::min(kDigestRun, columns - column);
      const std::byte* words = panel + column * kLanes * element_bytes;
      const int64_t num_words = pairs ? count / 2 : count;
      if (vectors != PanelVectors::kNone && num_words >= kMinPanelRunWords &&
          (!pairs || count % 2 == 0)) {
        Hash128 hashes[kPanelRows];
        HashPanelRuns({.words = words,
                       .num_words = num_words,
                       .swap_halves = pairs,
                       .first_index = static_cast<uint64_t>(row * columns + column),
                       .index_step = static_cast<uint64_t>(columns),
                       .count = static_cast<uint32_t>(count)},
                      secret, vectors, hashes);
        for (int64_t lane = 0; lane < rows; ++lane) sum += hashes[lane];
        continue;
      }
      if (pairs) {
        GatherWords<true>(words, (count + 1) / 2, runs.data());
      } else {
        GatherWords<false>(words, count, runs.data());
      }
      for (int64_t lane = 0; lane < rows; ++lane) {
        sum += runs[static_cast<size_t>(lane)].Hash(
            static_cast<uint64_t>((row + lane) * columns + column), static_cast<uint32_t>(count),
            static_cast<size_t>(element_bytes), seed);
      }
    }
  }
  return sum;
}

}  // namespace

Hash128 TensorRowsDigest(const TensorEntry& tensor, const std::byte* data, int64_t first_row,
                         int64_t last_row) {
  TITAN_CHECK(first_row >= 0 && first_row <= last_row && last_row <= NumRows(tensor));
  const uint64_t seed = Hash64(tensor.name);
  return tensor.layout == Layout::kRows ? RowsDigest(tensor, data, first_row, last_row, seed)
                                        : PanelsDigest(tensor, data, first_row, last_row, seed);
}

Hash128 TensorDigest(const TensorEntry& tensor, const std::byte* data) {
  return TensorRowsDigest(tensor, data, 0, NumRows(tensor));
}

Hash128 WeightsDigest(const Manifest& manifest, std::span<const std::byte> slot, int num_threads) {
  TITAN_CHECK(num_threads >= 1);
  TITAN_CHECK(slot.size() >= manifest.slot_bytes);
  struct Unit {
    const TensorEntry* tensor;
    int64_t first_row, last_row;
  };
  std::vector<Unit> units;
  for (const TensorEntry& tensor : manifest.tensors) {
    const int64_t rows = NumRows(tensor);
    const int64_t row_bytes = NumColumns(tensor) * ElementBytes(tensor.dtype);
    const int64_t step = (kUnitBytes / row_bytes / kLanes + 1) * kLanes;
    for (int64_t row = 0; row < rows; row += step) {
      units.push_back({&tensor, row, std::min(rows, row + step)});
    }
  }
  std::atomic<size_t> next{0};
  const auto work = [&](Hash128* sum) {
    for (size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < units.size();) {
      const Unit& unit = units[i];
      *sum += TensorRowsDigest(*unit.tensor, slot.data() + unit.tensor->offset, unit.first_row,
                               unit.last_row);
    }
  };
  const size_t helpers =
      std::min(static_cast<size_t>(num_threads), std::max<size_t>(units.size(), 1)) - 1;
  std::vector<Hash128> sums(helpers + 1);
  {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < helpers; ++i) threads.emplace_back(work, &sums[i + 1]);
    work(&sums[0]);
  }
  Hash128 total;
  for (const Hash128& sum : sums) total += sum;
  return total;
}

}  // namespace titan::weightstore
