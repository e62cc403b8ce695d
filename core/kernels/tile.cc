// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/tile.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <new>
#include <type_traits>

#include "core/base/check.h"
#include "core/kernels/isa.h"
#include "core/kernels/transpose.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/tile.cc"
#include "core/kernels/targets.h"
// clang-format off: foreach_target comes before highway.h
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#if TITAN_KERNEL_TARGET
HWY_BEFORE_NAMESPACE();
namespace titan::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using internal::Ahead;
using internal::TileOutput;
using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

constexpr int kLanes = HWY_TARGET == HWY_AVX3 ? 16 : 8;
constexpr int kPanel = static_cast<int>(kPanelColumns);
constexpr int kMaxRows = HWY_TARGET == HWY_AVX3 ? 14 : 6;
constexpr int kMaxLoneRows = HWY_TARGET == HWY_AVX3 ? 28 : kMaxRows;
static_assert(kMaxRows <= internal::kMaxTileRows && kMaxLoneRows <= internal::kMaxLoneTileRows);
constexpr int kMaxLevels = 3;  // log2(kMaxLeaves)
// A lower tile takes what memory gives, and the hardware's own prefetching gives most: with AVX-512
// below this many rows, with AVX2 where a pass reads the whole panel.
constexpr int kAheadRows = HWY_TARGET == HWY_AVX3 ? 6 : 3;
// Up to this many, two panels at once give more. AVX2's registers suffice for one.
constexpr int kPairRows = HWY_TARGET == HWY_AVX3 ? 3 : 1;
static_assert(kPairRows < kAheadRows);

// Steps of k that the 32-bit words of a panel row hold.
template <typename W>
constexpr int kStepsPerWord = sizeof(float) / sizeof(W);

// Vector v of the weights of one step: the floats at b, or the kPart-th half of the words at b, the
// upper one first.
template <int kPart>
HWY_INLINE V Weights(const float* b, int v) {
  return hn::LoadU(D(), b + v * kLanes);
}
template <int kPart>
HWY_INLINE V Weights(const BFloat16* b, int v) {
  const hn::RebindToUnsigned<D> du;
  const auto words = hn::LoadU(du, reinterpret_cast<const uint32_t*>(b) + v * kLanes);
  if constexpr (kPart == 0) {
    return hn::BitCast(D(), hn::And(words, hn::Set(du, 0xffff0000u)));
  } else {
    return hn::BitCast(D(), hn::ShiftLeft<16>(words));
  }
}

// The register tile: kRows rows of kSpan columns of one panel, or of each of two. With 32 columns
// the panel is read in one pass; AVX2 holds that for two rows only, AVX-512 for 14, and both read
// 16 columns in each of two passes for more.
template <int kRows, int kPanels = 1>
class Tile {
 public:
  static constexpr int kVectors =
      HWY_TARGET == HWY_AVX3 ? (kRows > kMaxRows ? 1 : 2) : (kRows > 2 ? 2 : 4);
  static constexpr int kSpan = kVectors * kLanes;
  static_assert(kPanel % kSpan == 0 && (kPanels == 1 || kPanel == kSpan));

  // `apart`: floats from the first panel's columns to the second's.
  HWY_INLINE void Clear() {
    Each(0, [](V& acc, int, int64_t) { acc = hn::Zero(D()); });
  }
  HWY_INLINE void Load(const float* c, int64_t ldc, int64_t apart = 0) {
    Each(apart,
         [=](V& acc, int row, int64_t column) { acc = hn::LoadU(D(), c + row * ldc + column); });
  }
  HWY_INLINE void Store(float* c, int64_t ldc, int64_t apart = 0) {
    Each(apart,
         [=](V& acc, int row, int64_t column) { hn::StoreU(acc, D(), c + row * ldc + column); });
  }
  // left + tile, the order of the leaf tree and of c = c + chain.
  HWY_INLINE void AddToLeft(const float* left, int64_t ld, int64_t apart = 0) {
    Each(apart, [=](V& acc, int row, int64_t column) {
      acc = hn::Add(hn::LoadU(D(), left + row * ld + column), acc);
    });
  }
  // tile + bias, the same for all rows.
  HWY_INLINE void AddBias(const float* bias, int64_t apart = 0) {
    Each(apart,
         [=](V& acc, int, int64_t column) { acc = hn::Add(acc, hn::LoadU(D(), bias + column)); });
  }

  // Advances the chains by k steps: a[k][kRows], a panel b (panels.h) of which the kSpan columns
  // from b on are used; the second panel lies `next` elements on.
  template <typename W>
  HWY_INLINE void Advance(const float* HWY_RESTRICT a, const W* HWY_RESTRICT b, int64_t k) {
    Ahead nothing;
    Advance<false>(a, b, 0, k, nothing);
  }
  template <bool kAhead, typename W>
  HWY_INLINE void Advance(const float* HWY_RESTRICT a, const W* HWY_RESTRICT b, int64_t next,
                          int64_t k, Ahead& ahead) {
    constexpr int kGroup = kStepsPerWord<W>;
#pragma GCC unroll 2
    for (int64_t i = 0; i + kGroup <= k; i += kGroup) {
      if constexpr (kAhead && kRows >= kAheadRows) {
        Fetch(ahead);
      } else if constexpr (kAhead && kRows <= kPairRows) {
#pragma GCC unroll 2
        for (int p = 0; p < kPanels; ++p) internal::FetchStream(b + p * next);
      }
      Step<0>(a, b, next);
      if constexpr (kGroup == 2) {
        // The second half is loaded again: kept in registers, the words would push out
        // accumulators.
        asm volatile("" ::: "memory");
        Step<1>(a + kRows, b, next);
      }
      a += kGroup * kRows;
      b += kGroup * kPanel;
    }
    if constexpr (kGroup == 2) {
      if (k % 2 != 0) Step<0>(a, b, next);
    }
  }

 private:
  static HWY_INLINE void Fetch(Ahead& ahead) {
    if constexpr (HWY_TARGET != HWY_AVX3) {
      ahead.FetchFar();
    } else if constexpr (kVectors == 2) {
      ahead.Fetch();
    } else {
      ahead.FetchLine();
    }
  }
  // One step of k: the kPart-th of those that the words at b hold.
  template <int kPart, typename W>
  HWY_INLINE void Step(const float* HWY_RESTRICT a, const W* HWY_RESTRICT b, int64_t next) {
    V weights[kAll];
#pragma GCC unroll 8
    for (int v = 0; v < kAll; ++v) {
      weights[v] = Weights<kPart>(b + v / kVectors * next, v % kVectors);
    }
#pragma GCC unroll 32
    for (int row = 0; row < kRows; ++row) {
      const V x = hn::Set(D(), a[row]);
#pragma GCC unroll 8
      for (int v = 0; v < kAll; ++v) acc_[row][v] = hn::MulAdd(x, weights[v], acc_[row][v]);
    }
  }

  template <typename Function>
  HWY_INLINE void Each(int64_t apart, const Function& function) {
#pragma GCC unroll 32
    for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 8
      for (int v = 0; v < kAll; ++v) {
        function(acc_[row][v], row, v / kVectors * apart + v % kVectors * kLanes);
      }
    }
  }

  static constexpr int kAll = kPanels * kVectors;
  V acc_[kRows][kAll];
};

// Columns `first`.. of a panel.
template <typename W>
HWY_INLINE const W* From(const W* b, int first) {
  return b + first * kStepsPerWord<W>;
}

// `apart`: panels from the first to the second.
template <int kRows, int kPanels, typename W>
void OutputTile(const float* HWY_RESTRICT a, const W* HWY_RESTRICT b, int64_t apart, int64_t k,
                int leaves, const TileOutput& to, const Ahead& ahead) {
  constexpr int kSpan = Tile<kRows>::kSpan, kWidth = kPanels * kSpan;
  const int64_t length = k / leaves, columns = apart * kPanel;
  const int64_t next = columns * PanelDepth(kElementOf<W>, k);
  HWY_ALIGN float levels[kMaxLevels]
                        [kRows * kWidth];  // finished subtrees, a binary counter of leaves
  Ahead shared = ahead;                    // by the passes, or each fetches 64 of each 128 bytes
  for (int first = 0; first < kPanel; first += kSpan) {
    Ahead half = ahead;
    half.far += first * static_cast<int>(sizeof(float));
    half.near += first * static_cast<int>(sizeof(float));
    Ahead& pass = Tile<kRows>::kVectors == 1 ? half : shared;
    for (int leaf = 0; leaf < leaves; ++leaf) {
      Tile<kRows, kPanels> tile;
      tile.Clear();
      tile.template Advance<true>(a + leaf * length * kRows,
                                  From(b + leaf * length * kPanel, first), next, length, pass);
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

template <int kRows, typename W>
void ChainTile(const float* HWY_RESTRICT a, const W* HWY_RESTRICT b, int64_t k, bool resume,
               float* HWY_RESTRICT c, int64_t ldc) {
  for (int first = 0; first < kPanel; first += Tile<kRows>::kSpan) {
    Tile<kRows> tile;
    tile.Clear();
    if (resume) tile.Load(c + first, ldc);
    tile.Advance(a, From(b, first), k);
    tile.Store(c + first, ldc);
  }
}

template <int kRows>
void AccumulateTile(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b, int64_t k,
                    float* HWY_RESTRICT c, int64_t ldc) {
  for (int first = 0; first < kPanel; first += Tile<kRows>::kSpan) {
    Tile<kRows> tile;
    tile.Clear();
    tile.Advance(a, b + first, k);
    tile.AddToLeft(c + first, ldc);
    tile.Store(c + first, ldc);
  }
}

// Calls function<rows>(args...) for a run-time rows in 1..kRows.
template <int kRows, typename Call>
HWY_INLINE void WithRows(int rows, const Call& call) {
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

template <typename W>
void OutputRows(int rows, const float* a, const W* b, int64_t k, int leaves, const TileOutput& to,
                const Ahead& ahead) {
  WithRows<kMaxLoneRows>(rows, [&](auto n) { OutputTile<n(), 1>(a, b, 0, k, leaves, to, ahead); });
}

}  // namespace

template <typename W>
void Output(int rows, const float* a, const W* b, int64_t k, int leaves, const TileOutput& to,
            const Ahead& ahead) {
  if (to.columns == kPanel) {
    OutputRows(rows, a, b, k, leaves, to, ahead);
    return;
  }
  HWY_ALIGN float whole[kMaxLoneRows * kPanel];
  OutputRows(rows, a, b, k, leaves, {.bias = to.bias, .out = whole, .ld = kPanel}, ahead);
  internal::StoreColumns(whole, rows, to);
}

template <typename W>
void Pair(int rows, const float* a, const W* b, int64_t apart, int64_t k, int leaves,
          const TileOutput& to) {
  WithRows<kPairRows>(rows, [&](auto n) { OutputTile<n(), 2>(a, b, apart, k, leaves, to, {}); });
}

template <typename W>
void Chain(int rows, const float* a, const W* b, int64_t k, bool resume, float* c, int64_t ldc) {
  WithRows<kMaxRows>(rows, [&](auto n) { ChainTile<n()>(a, b, k, resume, c, ldc); });
}

void Accumulate(int rows, const float* a, const float* b, int64_t k, float* c, int64_t ldc,
                int columns) {
  if (columns == kPanel) {
    WithRows<kMaxRows>(rows, [&](auto n) { AccumulateTile<n()>(a, b, k, c, ldc); });
    return;
  }
  HWY_ALIGN float chain[kMaxRows * kPanel];
  Chain(rows, a, b, k, false, chain, kPanel);
  for (int r = 0; r < rows; ++r) {
    for (int j = 0; j < columns; ++j) c[r * ldc + j] = c[r * ldc + j] + chain[r * kPanel + j];
  }
}

}  // namespace titan::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // TITAN_KERNEL_TARGET

#if HWY_ONCE
namespace titan::kernels::internal {
namespace {

constexpr TileKernels kAvx2Kernels = {
    {6, 6, 1, &N_AVX2::Output<float>, &N_AVX2::Pair<float>, &N_AVX2::Chain<float>},
    {5, 5, 1, &N_AVX2::Output<BFloat16>, &N_AVX2::Pair<BFloat16>, &N_AVX2::Chain<BFloat16>},
    &N_AVX2::Accumulate};
constexpr TileKernels kAvx512Kernels = {
    {14, 28, 3, &N_AVX3::Output<float>, &N_AVX3::Pair<float>, &N_AVX3::Chain<float>},
    {13, 28, 3, &N_AVX3::Output<BFloat16>, &N_AVX3::Pair<BFloat16>, &N_AVX3::Chain<BFloat16>},
    &N_AVX3::Accumulate};

constexpr int64_t kRoundedPart = 256;  // steps of k that are rounded on the stack before packing
constexpr std::align_val_t kAlignment{64};
struct AlignedDelete {
  void operator()(float* p) const { ::operator delete[](p, kAlignment); }
};
// out[i] = in[i] rounded to bfloat16.
void RoundFloats(const float* in, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = ToFloat(RoundToBf16(in[i]));
}

struct Buffer {
  std::unique_ptr<float[], AlignedDelete> data;
  int64_t floats = 0;
};

}  // namespace

const TileKernels& CurrentTileKernels() {
  return CurrentIsa() == Isa::kAvx512 ? kAvx512Kernels : kAvx2Kernels;
}

void StoreColumns(const float* products, int rows, const TileOutput& to) {
  for (int r = 0; r < rows; ++r) {
    const float* in = products + r * kPanelColumns;
    float* out = to.out + r * to.ld;
    for (int j = 0; j < to.columns; ++j) {
      out[j] = to.addend == nullptr ? in[j] : to.addend[r * to.ld + j] + in[j];
    }
  }
}

void PackRows(const float* x, int64_t ldx, int rows, int64_t k, float* packed, Inputs inputs) {
  if (inputs == Inputs::kBf16) {
    if (rows == 1) return RoundFloats(x, k, packed);
    float part[kMaxLoneTileRows * kRoundedPart];
    for (int64_t i = 0; i < k; i += kRoundedPart) {
      const int64_t steps = std::min(kRoundedPart, k - i);
      for (int r = 0; r < rows; ++r) RoundFloats(x + r * ldx + i, steps, part + r * kRoundedPart);
      PackRows(part, kRoundedPart, rows, steps, packed + i * rows);
    }
    return;
  }
  if (rows == 1) {
    std::memcpy(packed, x, static_cast<size_t>(k) * sizeof(float));
    return;
  }
  TransposeFloats(x, ldx, k, rows, packed, rows);
}

// out[i] = in[i] for i < count <= kMaxTileRows.
void CopyFew(const float* in, int count, float* out) {
  constexpr size_t kEight = 8 * sizeof(float), kFour = 4 * sizeof(float);
  if (count >= 8) {
    std::memcpy(out, in, kEight);
    std::memcpy(out + count - 8, in + count - 8, kEight);
  } else if (count >= 4) {
    std::memcpy(out, in, kFour);
    std::memcpy(out + count - 4, in + count - 4, kFour);
  } else {
    for (int i = 0; i < count; ++i) out[i] = in[i];
  }
}

void PackColumns(const float* x, int64_t ldx, int rows, int64_t k, float* packed, Inputs inputs) {
  for (int64_t i = 0; i < k; ++i) {
    if (inputs == Inputs::kBf16) {
      RoundFloats(x + i * ldx, rows, packed + i * rows);
      continue;
    }
    CopyFew(x + i * ldx, rows, packed + i * rows);
  }
}

void PackPanelRows(const float* y, int64_t ldy, int columns, int64_t k, float* panel) {
  if (columns == kPanelColumns) {
    for (int64_t i = 0; i < k; ++i) {
      std::memcpy(panel + i * kPanelColumns, y + i * ldy, kPanelColumns * sizeof(float));
    }
    return;
  }
  for (int64_t i = 0; i < k; ++i) {
    for (int j = 0; j < kPanelColumns; ++j) {
      panel[i * kPanelColumns + j] = j < columns ? y[i * ldy + j] : 0.0f;
    }
  }
}

float* ScratchFloats(Scratch slot, int64_t floats) {
  thread_local std::array<Buffer, static_cast<size_t>(Scratch::kCount)> buffers;
  Buffer& buffer = buffers[static_cast<size_t>(slot)];
  if (buffer.floats < floats) {
    buffer.data.reset();
    buffer.data.reset(static_cast<float*>(
        ::operator new[](static_cast<size_t>(floats) * sizeof(float), kAlignment)));
    buffer.floats = floats;
  }
  return buffer.data.get();
}

}  // namespace titan::kernels::internal
#endif  // HWY_ONCE
