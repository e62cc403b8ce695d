// SPDX-License-Identifier: Apache-2.0
#include "weightstore/client/panel_runs.h"

// GCC 12 sees its own headers' undefined vectors as ours.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "core/base/check.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace titan::weightstore {
namespace {

// xxh3's rule for messages of more than 240 bytes: 8 accumulators of 64 bits take stripes of 64
// bytes, each under another part of the secret; after 16 stripes they are scrambled; the last
// stripe ends with the message and may overlap the one before.
constexpr int64_t kStripeWords = 16;
constexpr int64_t kStripesOfBlock = 16;
constexpr size_t kSecretBytes = 192;
constexpr size_t kScrambleAt = kSecretBytes - 64;
constexpr size_t kLastStripeAt = kSecretBytes - 64 - 7;
constexpr size_t kMergeLowAt = 11;
constexpr size_t kMergeHighAt = kSecretBytes - 64 - 11;
constexpr int64_t kHeadWords = 3;  // index and count
constexpr uint64_t kPrime32[] = {0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D};
constexpr uint64_t kPrime64[] = {0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9,
                                 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5};
constexpr uint64_t kStart[8] = {kPrime32[2], kPrime64[0], kPrime64[1], kPrime64[2],
                                kPrime64[3], kPrime32[1], kPrime64[4], kPrime32[0]};

uint64_t Key(const std::byte* secret, size_t at) {
  uint64_t key;
  std::memcpy(&key, secret + at, sizeof(key));
  return key;
}

// The messages of 32 rows as words, side by side: the first stripe is put together, the others lie
// in the panel.
struct Messages {
  Messages(const PanelRuns& runs, const PanelSecret& secret)
      : words(reinterpret_cast<const uint32_t*>(runs.words)),
        num_words(kHeadWords + runs.num_words),
        secret(secret.bytes()) {
    const auto put = [&](int64_t word, int64_t row, uint32_t value) {
      if (runs.swap_halves) value = value << 16 | value >> 16;  // to be swapped back
      head[word * kPanelRows + row] = value;
    };
    for (int64_t row = 0; row < kPanelRows; ++row) {
      const uint64_t index = runs.first_index + static_cast<uint64_t>(row) * runs.index_step;
      put(0, row, static_cast<uint32_t>(index));
      put(1, row, static_cast<uint32_t>(index >> 32));
      put(2, row, runs.count);
    }
    std::memcpy(head + kHeadWords * kPanelRows, words,
                (kStripeWords - kHeadWords) * kPanelRows * sizeof(uint32_t));
  }
  const uint32_t* Stripe(int64_t first_word) const {
    return first_word == 0 ? head : words + (first_word - kHeadWords) * kPanelRows;
  }
  int64_t num_stripes() const { return (num_words * 4 - 1) / 64; }

  const uint32_t* words;
  int64_t num_words;
  const std::byte* secret;
  alignas(64) uint32_t head[kStripeWords * kPanelRows];
};

// The accumulators of 32 rows.
struct Sums {
  alignas(64) uint64_t of[8][kPanelRows];
};

// ----------------------------------------------------------------------------------- 16 rows at
// once

#define TITAN_AVX512 __attribute__((target("avx512f"), always_inline)) inline

template <bool kSwap>
TITAN_AVX512 void AddStripe512(const uint32_t* words, const std::byte* keys, __m512i (*sums)[2]) {
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    __m512i low = _mm512_loadu_si512(words + (2 * i) * kPanelRows);
    __m512i high = _mm512_loadu_si512(words + (2 * i + 1) * kPanelRows);
    if constexpr (kSwap) {
      low = _mm512_rol_epi32(low, 16);
      high = _mm512_rol_epi32(high, 16);
    }
    const __m512i key =
        _mm512_set1_epi64(static_cast<int64_t>(Key(keys, 8 * static_cast<size_t>(i))));
    const __m512i data[2] = {_mm512_unpacklo_epi32(low, high), _mm512_unpackhi_epi32(low, high)};
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const __m512i keyed = _mm512_xor_si512(data[half], key);
      sums[i ^ 1][half] = _mm512_add_epi64(sums[i ^ 1][half], data[half]);
      sums[i][half] =
          _mm512_add_epi64(sums[i][half], _mm512_mul_epu32(keyed, _mm512_srli_epi64(keyed, 32)));
    }
  }
}

TITAN_AVX512 void Scramble512(const std::byte* keys, __m512i (*sums)[2]) {
  const __m512i prime = _mm512_set1_epi64(static_cast<int64_t>(kPrime32[0]));
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const __m512i key =
        _mm512_set1_epi64(static_cast<int64_t>(Key(keys, 8 * static_cast<size_t>(i))));
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      __m512i sum = sums[i][half];
      sum = _mm512_xor_si512(_mm512_xor_si512(sum, _mm512_srli_epi64(sum, 47)), key);
      const __m512i low = _mm512_mul_epu32(sum, prime);
      const __m512i high = _mm512_mul_epu32(_mm512_srli_epi64(sum, 32), prime);
      sums[i][half] = _mm512_add_epi64(low, _mm512_slli_epi64(high, 32));
    }
  }
}

template <bool kSwap>
__attribute__((target("avx512f"))) void Accumulate512(const Messages& messages, Sums* out) {
  for (int64_t row = 0; row < kPanelRows; row += 16) {
    __m512i sums[8][2];
    for (int i = 0; i < 8; ++i) {
      sums[i][0] = sums[i][1] = _mm512_set1_epi64(static_cast<int64_t>(kStart[i]));
    }
    for (int64_t stripe = 0; stripe < messages.num_stripes(); ++stripe) {
      const auto in_block = static_cast<size_t>(stripe % kStripesOfBlock);
      AddStripe512<kSwap>(messages.Stripe(stripe * kStripeWords) + row,
                          messages.secret + 8 * in_block, sums);
      if (in_block == kStripesOfBlock - 1) Scramble512(messages.secret + kScrambleAt, sums);
    }
    AddStripe512<kSwap>(messages.Stripe(messages.num_words - kStripeWords) + row,
                        messages.secret + kLastStripeAt, sums);
    // Of each four rows the first two are in the one half, the others in the other.
    for (int i = 0; i < 8; ++i) {
      alignas(64) uint64_t halves[2][8];
      _mm512_store_si512(halves[0], sums[i][0]);
      _mm512_store_si512(halves[1], sums[i][1]);
      for (int r = 0; r < 16; ++r) out->of[i][row + r] = halves[r % 4 / 2][r / 4 * 2 + r % 2];
    }
  }
}

// ------------------------------------------------------------------------------------ 8 rows at
// once

#define TITAN_AVX2 __attribute__((target("avx2"), always_inline)) inline

// Two accumulators that belong together, 2 * pair and the next, which is what the registers hold.
template <bool kSwap>
TITAN_AVX2 void AddStripe256(const uint32_t* words, const std::byte* keys, int pair,
                             __m256i (*sums)[2]) {
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const int word = 2 * (2 * pair + i);
    __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words + word * kPanelRows));
    __m256i high =
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words + (word + 1) * kPanelRows));
    if constexpr (kSwap) {
      low = _mm256_or_si256(_mm256_slli_epi32(low, 16), _mm256_srli_epi32(low, 16));
      high = _mm256_or_si256(_mm256_slli_epi32(high, 16), _mm256_srli_epi32(high, 16));
    }
    const __m256i key =
        _mm256_set1_epi64x(static_cast<int64_t>(Key(keys, 8 * static_cast<size_t>(2 * pair + i))));
    const __m256i data[2] = {_mm256_unpacklo_epi32(low, high), _mm256_unpackhi_epi32(low, high)};
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const __m256i keyed = _mm256_xor_si256(data[half], key);
      sums[1 - i][half] = _mm256_add_epi64(sums[1 - i][half], data[half]);
      sums[i][half] =
          _mm256_add_epi64(sums[i][half], _mm256_mul_epu32(keyed, _mm256_srli_epi64(keyed, 32)));
    }
  }
}

TITAN_AVX2 void Scramble256(const std::byte* keys, int pair, __m256i (*sums)[2]) {
  const __m256i prime = _mm256_set1_epi64x(static_cast<int64_t>(kPrime32[0]));
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const __m256i key =
        _mm256_set1_epi64x(static_cast<int64_t>(Key(keys, 8 * static_cast<size_t>(2 * pair + i))));
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      __m256i sum = sums[i][half];
      sum = _mm256_xor_si256(_mm256_xor_si256(sum, _mm256_srli_epi64(sum, 47)), key);
      const __m256i low = _mm256_mul_epu32(sum, prime);
      const __m256i high = _mm256_mul_epu32(_mm256_srli_epi64(sum, 32), prime);
      sums[i][half] = _mm256_add_epi64(low, _mm256_slli_epi64(high, 32));
    }
  }
}

// Each pass over words takes 8 rows and two accumulators, so a line is read four times or more:
// half a block at a time, which stays in the cache, while the next half is fetched in order.
template <bool kSwap>
__attribute__((target("avx2"))) void Accumulate256(const Messages& messages, Sums* out) {
  constexpr int64_t kStripes = kStripesOfBlock / 2;
  constexpr int64_t kSteps = kStripes * (kPanelRows / 8) * 4;
  constexpr int64_t kStepWords = kStripes * kStripeWords * kPanelRows / kSteps;  // two lines
  __m256i all[kPanelRows / 8][4][2][2];
  for (auto& rows : all) {
    for (int i = 0; i < 8; ++i) {
      rows[i / 2][i % 2][0] = rows[i / 2][i % 2][1] =
          _mm256_set1_epi64x(static_cast<int64_t>(kStart[i]));
    }
  }
  for (int64_t first = 0; first < messages.num_stripes(); first += kStripes) {
    const int64_t end = std::min(first + kStripes, messages.num_stripes());
    const auto* next =
        reinterpret_cast<const char*>(messages.words + end * kStripeWords * kPanelRows);
    for (int64_t rows = 0; rows < kPanelRows / 8; ++rows) {
      for (int pair = 0; pair < 4; ++pair) {
        auto& sums = all[rows][pair];
        __m256i own[2][2] = {{sums[0][0], sums[0][1]}, {sums[1][0], sums[1][1]}};
        for (int64_t stripe = first; stripe < end; ++stripe) {
          const auto in_block = static_cast<size_t>(stripe % kStripesOfBlock);
          __builtin_prefetch(next);
          __builtin_prefetch(next + 64);
          next += kStepWords * sizeof(uint32_t);
          AddStripe256<kSwap>(messages.Stripe(stripe * kStripeWords) + 8 * rows,
                              messages.secret + 8 * in_block, pair, own);
          if (in_block == kStripesOfBlock - 1) {
            Scramble256(messages.secret + kScrambleAt, pair, own);
          }
        }
        std::memcpy(sums, own, sizeof(own));
      }
    }
  }
  for (int64_t rows = 0; rows < kPanelRows / 8; ++rows) {
    for (int pair = 0; pair < 4; ++pair) {
      auto& sums = all[rows][pair];
      AddStripe256<kSwap>(messages.Stripe(messages.num_words - kStripeWords) + 8 * rows,
                          messages.secret + kLastStripeAt, pair, sums);
      for (int i = 0; i < 2; ++i) {
        alignas(32) uint64_t halves[2][4];
        _mm256_store_si256(reinterpret_cast<__m256i*>(halves[0]), sums[i][0]);
        _mm256_store_si256(reinterpret_cast<__m256i*>(halves[1]), sums[i][1]);
        for (int r = 0; r < 8; ++r) {
          out->of[2 * pair + i][8 * rows + r] = halves[r % 4 / 2][r / 4 * 2 + r % 2];
        }
      }
    }
  }
}

// ------------------------------------------------------------------------------------------ a row

uint64_t Merge(const Sums& sums, int64_t row, const std::byte* keys, uint64_t start) {
  uint64_t result = start;
  for (size_t i = 0; i < 8; i += 2) {
    const unsigned __int128 product =
        static_cast<unsigned __int128>(sums.of[i][row] ^ Key(keys, 8 * i)) *
        (sums.of[i + 1][row] ^ Key(keys, 8 * i + 8));
    result += static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  }
  result ^= result >> 37;
  result *= 0x165667919E3779F9;
  return result ^ result >> 32;
}

}  // namespace

PanelSecret::PanelSecret(uint64_t seed) {
  static_assert(XXH_SECRET_DEFAULT_SIZE == kSecretBytes);
  XXH3_generateSecret_fromSeed(bytes_.data(), seed);
}

PanelVectors BestPanelVectors() {
  static const PanelVectors best = __builtin_cpu_supports("avx512f") ? PanelVectors::kAvx512
                                   : __builtin_cpu_supports("avx2")  ? PanelVectors::kAvx2
                                                                     : PanelVectors::kNone;
  return best;
}

void HashPanelRuns(const PanelRuns& runs, const PanelSecret& secret, PanelVectors vectors,
                   std::span<Hash128, kPanelRows> hashes) {
  TITAN_CHECK(runs.num_words >= kMinPanelRunWords && vectors <= BestPanelVectors());
  const Messages messages(runs, secret);
  Sums sums;
  if (vectors == PanelVectors::kAvx512) {
    runs.swap_halves ? Accumulate512<true>(messages, &sums) : Accumulate512<false>(messages, &sums);
  } else {
    TITAN_CHECK(vectors == PanelVectors::kAvx2);
    runs.swap_halves ? Accumulate256<true>(messages, &sums) : Accumulate256<false>(messages, &sums);
  }
  const auto num_bytes = static_cast<uint64_t>(messages.num_words) * 4;
  for (int64_t row = 0; row < kPanelRows; ++row) {
    Hash128& hash = hashes[static_cast<size_t>(row)];
    hash.low = Merge(sums, row, messages.secret + kMergeLowAt, num_bytes * kPrime64[0]);
    hash.high = Merge(sums, row, messages.secret + kMergeHighAt, ~(num_bytes * kPrime64[1]));
  }
}

}  // namespace titan::weightstore
