// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/dot.h"

#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "core/kernels/reference_linear.h"

// Highway has no vdpbf16ps: intrinsics of our own, and nothing but this region is compiled for
// CPUs that have it.
#pragma GCC push_options
#pragma GCC target("avx2,fma,avx512f,avx512vl,avx512dq,avx512bw,avx512bf16")
namespace titan::kernels::internal {
namespace {

#define TITAN_DOT_INLINE inline __attribute__((always_inline))

constexpr int kPanel = static_cast<int>(kPanelColumns);
constexpr int kMaxRows = 14;  // 28 accumulators, two vectors of weights, one of x
constexpr int kMaxLoneRows = 28;
constexpr int kMaxLevels = 3;  // log2(kMaxLeaves)
constexpr int kLanes = 16;
// A lower tile takes what memory gives, and the hardware's own prefetching gives most; the lowest
// ones take two panels at once.
constexpr int kAheadRows = 6, kPairRows = 3;
constexpr int kPairPart = 128;  // pairs that are rounded on the stack before they are packed

static_assert(kMaxRows <= kMaxTileRows && kMaxLoneRows <= kMaxLoneTileRows &&
              1 << kMaxLevels == kMaxLeaves);

// kRows rows in registers: of one panel, of half of one, or of two.
template <int kRows, int kPanels = 1>
class Tile {
 public:
  static constexpr int kVectors = kRows > kMaxRows ? 1 : 2;
  static constexpr int kSpan = kVectors * kLanes;

  // `apart`: floats from the first panel's columns to the second's.
  TITAN_DOT_INLINE void Clear() {
    Each(0, [](__m512& acc, int, int64_t) { acc = _mm512_setzero_ps(); });
  }
  TITAN_DOT_INLINE void Load(const float* c, int64_t ldc, int64_t apart = 0) {
    Each(apart,
         [=](__m512& acc, int row, int64_t at) { acc = _mm512_loadu_ps(c + row * ldc + at); });
  }
  TITAN_DOT_INLINE void Store(float* c, int64_t ldc, int64_t apart = 0) {
    Each(apart,
         [=](__m512& acc, int row, int64_t at) { _mm512_storeu_ps(c + row * ldc + at, acc); });
  }
  // left + tile.
  TITAN_DOT_INLINE void AddToLeft(const float* left, int64_t ld, int64_t apart = 0) {
    Each(apart, [=](__m512& acc, int row, int64_t at) {
      acc = _mm512_add_ps(_mm512_loadu_ps(left + row * ld + at), acc);
    });
  }
  TITAN_DOT_INLINE void AddBias(const float* bias, int64_t apart = 0) {
    Each(apart, [=](__m512& acc, int, int64_t at) {
      acc = _mm512_add_ps(acc, _mm512_loadu_ps(bias + at));
    });
  }
  // Advances the chains by 2 * pairs steps: a[pairs][kRows], b[pairs][32][2]; the second panel lies
  // `next` elements on.
  TITAN_DOT_INLINE void Advance(const Bf16Pair* __restrict a, const BFloat16* __restrict b,
                                int64_t pairs) {
    Ahead nothing;
    Advance<false>(a, b, 0, pairs, nothing);
  }
  template <bool kAhead>
  TITAN_DOT_INLINE void Advance(const Bf16Pair* __restrict a, const BFloat16* __restrict b,
                                int64_t next, int64_t pairs, Ahead& ahead) {
#pragma GCC unroll 2
    for (int64_t i = 0; i < pairs; ++i) {
      if constexpr (kAhead && kRows <= kPairRows) {
#pragma GCC unroll 2
        for (int p = 0; p < kPanels; ++p) FetchStream(b + p * next);
      } else if constexpr (kAhead && kVectors == 2 && kRows >= kAheadRows) {
        ahead.Fetch();
      } else if constexpr (kAhead && kVectors == 1) {
        ahead.FetchLine();
      }
      __m512bh weights[kAll];
#pragma GCC unroll 4
      for (int v = 0; v < kAll; ++v) {
        weights[v] =
            (__m512bh)_mm512_loadu_si512(b + v / kVectors * next + 2 * (v % kVectors) * kLanes);
      }
#pragma GCC unroll 32
      for (int row = 0; row < kRows; ++row) {
        const __m512bh x = (__m512bh)_mm512_set1_epi32(static_cast<int>(a[row].bits));
#pragma GCC unroll 4
        for (int v = 0; v < kAll; ++v) {
          acc_[row][v] = _mm512_dpbf16_ps(acc_[row][v], x, weights[v]);
        }
      }
      a += kRows;
      b += 2 * kPanel;
    }
  }

 private:
  template <typename Function>
  TITAN_DOT_INLINE void Each(int64_t apart, const Function& function) {
#pragma GCC unroll 32
    for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
      for (int v = 0; v < kAll; ++v) {
        function(acc_[row][v], row, v / kVectors * apart + v % kVectors * kLanes);
      }
    }
  }

  static constexpr int kAll = kPanels * kVectors;
  static_assert(kPanels == 1 || kVectors == 2);
  __m512 acc_[kRows][kAll];
};

// `apart`: panels from the first to the second.
template <int kRows, int kPanels>
void OutputTile(const Bf16Pair* __restrict a, const BFloat16* __restrict b, int64_t apart,
                int64_t k, int leaves, const TileOutput& to, const Ahead& ahead) {
  constexpr int kSpan = Tile<kRows>::kSpan, kWidth = kPanels * kSpan;
  const int64_t pairs = RowDepth<Bf16Pair>(k) / leaves, columns = apart * kPanel;
  const int64_t next = columns * PanelDepth(Element::kBf16, k);
  alignas(64) float levels[kMaxLevels][kRows * kWidth];  // as in tile.cc
  for (int first = 0; first < kPanel; first += kSpan) {
    Ahead pass = ahead;
    pass.far += first * static_cast<int>(sizeof(Bf16Pair));
    pass.near += first * static_cast<int>(sizeof(Bf16Pair));
    for (int leaf = 0; leaf < leaves; ++leaf) {
      Tile<kRows, kPanels> tile;
      tile.Clear();
      tile.template Advance<true>(a + leaf * pairs * kRows,
                                  b + leaf * pairs * 2 * kPanel + 2 * first, next, pairs, pass);
      int level = 0;
      for (int bits = leaf; (bits & 1) != 0; bits >>= 1) {
        tile.AddToLeft(levels[level++], kWidth, kSpan);
      }
      if (leaf + 1 < leaves) {
        tile.Store(levels[level], kWidth, kSpan);
        continue;
      }
      if (to.bias != nullptr) tile.AddBias(to.bias + first, columns);
      if (to.addend != nullptr) tile.AddToLeft(to.addend + first, to.ld, columns);
      tile.Store(to.out + first, to.ld, columns);
    }
  }
}

template <int kRows>
void ChainTile(const Bf16Pair* __restrict a, const BFloat16* __restrict b, int64_t k, bool resume,
               float* __restrict c, int64_t ldc) {
  static_assert(kRows <= kMaxRows);
  Tile<kRows> tile;
  tile.Clear();
  if (resume) tile.Load(c, ldc);
  tile.Advance(a, b, RowDepth<Bf16Pair>(k));
  tile.Store(c, ldc);
}

// Calls function<rows>(args...) for a run-time rows in 1..kRows.
template <int kRows, typename Call>
TITAN_DOT_INLINE void WithRows(int rows, const Call& call) {
  if constexpr (kRows == 1) {
    call(std::integral_constant<int, 1>());
  } else {
    if (rows == kRows) {
      call(std::integral_constant<int, kRows>());
    } else {
      WithRows<kRows - 1>(rows, call);
    }
  }
}

void Output(int rows, const Bf16Pair* a, const BFloat16* b, int64_t k, int leaves,
            const TileOutput& to, const Ahead& ahead) {
  if (to.columns == kPanel) {
    WithRows<kMaxLoneRows>(rows,
                           [&](auto n) { OutputTile<n(), 1>(a, b, 0, k, leaves, to, ahead); });
    return;
  }
  alignas(64) float whole[kMaxLoneRows * kPanel];
  Output(rows, a, b, k, leaves, {.bias = to.bias, .out = whole, .ld = kPanel}, ahead);
  StoreColumns(whole, rows, to);
}

void Pair(int rows, const Bf16Pair* a, const BFloat16* b, int64_t apart, int64_t k, int leaves,
          const TileOutput& to) {
  WithRows<kPairRows>(rows, [&](auto n) { OutputTile<n(), 2>(a, b, apart, k, leaves, to, {}); });
}

void Chain(int rows, const Bf16Pair* a, const BFloat16* b, int64_t k, bool resume, float* c,
           int64_t ldc) {
  WithRows<kMaxRows>(rows, [&](auto n) { ChainTile<n()>(a, b, k, resume, c, ldc); });
}

// 32 floats -> 16 pairs, rounded as bf16.h says; the instruction itself keeps the payload of a NaN.
TITAN_DOT_INLINE __m512i RoundPairs(__m512 first, __m512 second) {
  const __mmask32 nan = _mm512_kunpackw(_mm512_cmp_ps_mask(second, second, _CMP_UNORD_Q),
                                        _mm512_cmp_ps_mask(first, first, _CMP_UNORD_Q));
  const __m512i rounded = _mm512_mask_mov_epi16((__m512i)_mm512_cvtne2ps_pbh(second, first), nan,
                                                _mm512_set1_epi16(0x7fc0));
  // The even k goes to the upper half. The unmasked form is uninitialized in the eyes of GCC 12.
  return _mm512_maskz_rol_epi32(0xffff, rounded, 16);
}

// count steps, count even or the last one padded with +0.
void RoundRow(const float* x, int64_t count, uint32_t* pairs) {
  int64_t i = 0;
  for (; i + 32 <= count; i += 32) {
    _mm512_storeu_si512(pairs + i / 2,
                        RoundPairs(_mm512_loadu_ps(x + i), _mm512_loadu_ps(x + i + 16)));
  }
  if (i == count) return;
  const auto left = static_cast<unsigned>(count - i);
  const uint32_t steps = (1u << left) - 1;
  const __m512i part =
      RoundPairs(_mm512_maskz_loadu_ps(static_cast<__mmask16>(steps), x + i),
                 _mm512_maskz_loadu_ps(static_cast<__mmask16>(steps >> 16), x + i + 16));
  _mm512_mask_storeu_epi32(pairs + i / 2, static_cast<__mmask16>((1u << ((left + 1) / 2)) - 1),
                           part);
}

constexpr WeightTile<BFloat16, Bf16Pair> kTile = {kMaxRows, kMaxLoneRows, kPairRows,
                                                  &Output,  &Pair,        &Chain};

}  // namespace

void HardwareDotStep16(const uint32_t* x, const uint32_t* w, float* acc) {
  _mm512_storeu_ps(acc, _mm512_dpbf16_ps(_mm512_loadu_ps(acc), (__m512bh)_mm512_loadu_si512(x),
                                         (__m512bh)_mm512_loadu_si512(w)));
}

void HardwareRoundPairs16(const float* x, uint32_t* pairs) { RoundRow(x, 32, pairs); }

void PackPairs(const float* x, int64_t ldx, int rows, int64_t k, Bf16Pair* packed) {
  static_assert(sizeof(Bf16Pair) == sizeof(uint32_t));
  if (rows == 1) return RoundRow(x, k, reinterpret_cast<uint32_t*>(packed));
  alignas(64) uint32_t part[kMaxLoneRows * kPairPart];
  for (int64_t i = 0; i < k; i += 2 * kPairPart) {
    const int64_t steps = std::min<int64_t>(2 * kPairPart, k - i);
    for (int r = 0; r < rows; ++r) RoundRow(x + r * ldx + i, steps, part + r * kPairPart);
    // Moves words, whatever they hold.
    PackRows(reinterpret_cast<const float*>(part), kPairPart, rows, (steps + 1) / 2,
             reinterpret_cast<float*>(packed + i / 2 * rows));
  }
}

}  // namespace titan::kernels::internal
#pragma GCC pop_options

namespace titan::kernels::internal {
namespace {

// Operands of the probe, the same on every machine.
class ProbeBits {
 public:
  uint32_t Next() {
    state_ = state_ * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<uint32_t>(state_ >> 32);
  }
  // Sign and fraction at random, exponent in [low, high] as stored.
  uint32_t Float(uint32_t low, uint32_t high) {
    const uint32_t bits = Next();
    return (bits & 0x807fffffu) | (low + Next() % (high - low + 1)) << 23;
  }
  uint32_t Pair(uint32_t low, uint32_t high) {
    return (Float(low, high) & 0xffff0000u) | Float(low, high) >> 16;
  }

 private:
  uint64_t state_ = 1;
};

bool SameOrNan(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

}  // namespace

bool DotStepIsAsDefined(DotStep16 step) {
  // Stored exponents of x and w, and of the accumulator: from equal ones to wide ones; products
  // near the least normal number; denormal operands and accumulators; near overflow, infinities.
  struct Range {
    uint32_t low, high, acc_low, acc_high;
  };
  constexpr Range kRanges[] = {{127, 127, 127, 127}, {123, 131, 120, 134}, {107, 147, 90, 160},
                               {55, 72, 0, 3},       {62, 65, 0, 24},      {0, 1, 0, 130},
                               {0, 130, 0, 3},       {186, 194, 250, 254}, {250, 255, 0, 255}};
  constexpr int kRounds = 200;
  const NumericThread environment;
  ProbeBits random;
  uint32_t x[kLanes], w[kLanes];
  float acc[kLanes], wanted[kLanes];
  const auto agrees = [&] {
    for (int i = 0; i < kLanes; ++i) wanted[i] = reference::DotStep(acc[i], x[i], w[i]);
    step(x, w, acc);
    return std::equal(acc, acc + kLanes, wanted, SameOrNan);
  };
  for (const Range& range : kRanges) {
    for (int round = 0; round < kRounds; ++round) {
      for (int i = 0; i < kLanes; ++i) {
        x[i] = random.Pair(range.low, range.high);
        w[i] = random.Pair(range.low, range.high);
        acc[i] = std::bit_cast<float>(random.Float(range.acc_low, range.acc_high));
        if (round % 16 == i) acc[i] = std::copysign(0.0f, acc[i]);
      }
      if (!agrees()) return false;
      // Cancellation: the sum so far is taken away again, but for what rounding left.
      for (int i = 0; i < kLanes; ++i) {
        w[i] = round % 2 == 0 ? w[i] ^ 0x80008000u : w[i] ^ 0x80000000u;
      }
      if (!agrees()) return false;
    }
  }
  return true;
}

bool RoundingIsAsDefined(RoundPairs16 round) {
  constexpr uint32_t kCutOff[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
  const NumericThread environment;
  float x[2 * kLanes];
  uint32_t pairs[kLanes];
  for (uint32_t upper = 0; upper < 1u << 16; upper += 2 * kLanes) {
    for (const uint32_t lower : kCutOff) {
      for (uint32_t i = 0; i < 2 * kLanes; ++i) {
        x[i] = std::bit_cast<float>((upper + i) << 16 | lower);
      }
      round(x, pairs);
      for (int i = 0; i < kLanes; ++i) {
        const uint32_t even = RoundToBf16(x[2 * i]).bits, odd = RoundToBf16(x[2 * i + 1]).bits;
        if (pairs[i] != (even << 16 | odd)) return false;
      }
    }
  }
  return true;
}

bool CpuHasDot() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512bf16");
}

bool DotIsAdmitted() {
  static const bool admitted = CpuHasDot() && DotStepIsAsDefined(&HardwareDotStep16) &&
                               RoundingIsAsDefined(&HardwareRoundPairs16);
  return admitted;
}

const WeightTile<BFloat16, Bf16Pair>& DotTile() { return kTile; }

}  // namespace titan::kernels::internal
