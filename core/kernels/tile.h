// SPDX-License-Identifier: Apache-2.0
//
// Internal to core/kernels: the register-tiled micro-kernel under linear.cc and head.cc. It
// multiplies a tile of a few rows, packed as a[k][rows], with one 32-column panel b of floats or
// bfloat16 (panels.h). Lanes run over the panel's columns and every output is one chain over
// ascending k, so the tile's height, the place where a chain is interrupted and the instruction set
// cannot change a bit; a bfloat16 is upconverted in registers, exactly, and takes the same chain.
#ifndef TITAN_CORE_KERNELS_TILE_H_
#define TITAN_CORE_KERNELS_TILE_H_

#include <xmmintrin.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "core/kernels/order.h"
#include "core/kernels/panels.h"

namespace titan::kernels::internal {

inline constexpr int kMaxTileRows = 14;
// Of a tile that has its panel to itself (WeightTile::lone_rows).
inline constexpr int kMaxLoneTileRows = 28;

// m rows cut into the fewest tiles of at most max_rows, as even as possible; their number is a
// multiple of `multiple`, as far as there are rows.
class RowTiles {
 public:
  RowTiles(int64_t m, int max_rows, int64_t multiple = 1)
      : count_(std::min(m, (m + max_rows * multiple - 1) / (max_rows * multiple) * multiple)),
        base_(count_ == 0 ? 0 : m / count_),
        longer_(count_ == 0 ? 0 : m % count_) {}
  int64_t count() const { return count_; }
  int64_t begin(int64_t tile) const { return tile * base_ + std::min(tile, longer_); }
  int rows(int64_t tile) const { return static_cast<int>(base_ + (tile < longer_ ? 1 : 0)); }

 private:
  int64_t count_, base_, longer_;
};

// Two steps of k of a row rounded to bfloat16, the even k in the upper half as in panels32k2; the
// pad of an odd k is +0.
struct Bf16Pair {
  uint32_t bits;
};

// Elements of type A that hold k steps of a packed row.
template <typename A>
constexpr int64_t RowDepth(int64_t k) {
  return std::is_same_v<A, Bf16Pair> ? (k + 1) / 2 : k;
}

// What is fetched while a tile is computed, with each 128 bytes of its panel: two lines at `far`
// into the second-level cache, then `stride` bytes on, and two lines at `near`, of the panel
// itself, into the first. Speed only; any address may stand here.
struct Ahead {
  static constexpr int64_t kStep = 128;  // bytes of a panel's f32 step, or pair of bfloat16 steps

  const char* far = nullptr;
  const char* near = nullptr;
  int64_t stride = 0;

  void Fetch() {
    FetchLines(far, near);
    FetchLines(far + kStep / 2, near + kStep / 2);
    Advance();
  }
  // Those at `far` alone, for a tile that loads as often as it can.
  void FetchFar() {
    _mm_prefetch(far, _MM_HINT_T1);
    _mm_prefetch(far + kStep / 2, _MM_HINT_T1);
    Advance();
  }
  // The first of the two lines alone, for a tile that reads half of each 128 bytes.
  void FetchLine() {
    FetchLines(far, near);
    Advance();
  }

 private:
  static void FetchLines(const char* far, const char* near) {
    _mm_prefetch(far, _MM_HINT_T1);
    _mm_prefetch(near, _MM_HINT_T0);
  }
  void Advance() {
    far += stride;
    near += kStep;
  }
};

// For tile t of `tiles` that are computed one after the other with the panel at `panel`: a lone
// tile reads it from memory itself, and the hardware's own prefetching stops at each 4 KiB page;
// several share the fetching of the panel after it. Tiles of the fewest rows fetch by themselves
// (FetchStream). The distances are measured.
template <typename W>
Ahead AheadOf(const W* panel, int64_t panel_elements, int64_t t, int64_t tiles) {
  constexpr int64_t kFar = 12288, kNear = 2048;
  const auto* bytes = reinterpret_cast<const char*>(panel);
  if (tiles == 1) return {bytes + kFar, bytes + kNear, Ahead::kStep};
  const int64_t panel_bytes = panel_elements * static_cast<int64_t>(sizeof(W));
  return {bytes + panel_bytes + panel_bytes / tiles * t, bytes + kNear, Ahead::kStep / tiles};
}

// What a tile of few rows fetches with each 128 bytes of a panel, which it reads as fast as memory
// gives it: two lines a little further on, beyond the end of the page and of the panel too, where
// the next one lies. The distance is measured; faster than memory gives them a core drops fetches.
inline void FetchStream(const void* at) {
  constexpr int64_t kDistance = 2048;
  const char* line = static_cast<const char*>(at) + kDistance;
  _mm_prefetch(line, _MM_HINT_T1);
  _mm_prefetch(line + Ahead::kStep / 2, _MM_HINT_T1);
}

// The first lines of a panel that such a tile reads next.
inline void FetchFirst(const void* panel) {
  constexpr int64_t kBytes = 2048;
  const char* first = static_cast<const char*>(panel);
  for (int64_t i = 0; i < kBytes; i += Ahead::kStep / 2) _mm_prefetch(first + i, _MM_HINT_T1);
}

// Where the products of a tile go: out[rows][columns] (stride ld) = addend + (product + bias).
struct TileOutput {
  const float* bias = nullptr;    // [32] or null
  const float* addend = nullptr;  // as out, perhaps out itself, or null
  float* out = nullptr;
  int64_t ld = 0;
  int columns = static_cast<int>(kPanelColumns);  // 1..32; nothing beyond is written

  // That of the panel `apart` panels on.
  TileOutput operator+(int64_t apart) const {
    const int64_t at = apart * kPanelColumns;
    return {bias == nullptr ? nullptr : bias + at, addend == nullptr ? nullptr : addend + at,
            out + at, ld, columns};
  }
};

// Products of packed rows of type A with a panel whose elements are of type W. For bfloat16 a chain
// may be interrupted only at an even k, so a leaf has an even length where there are several.
template <typename W, typename A = float>
struct WeightTile {
  // What the registers hold: for floats 14 with AVX-512 and 6 with AVX2, for bfloat16 one less, for
  // the mask. More rows (up to the other's) give the same bits, slower.
  int max_rows;
  // As many rows as a call's only tile may have: 28 with AVX-512, 16 columns at a time, so that the
  // matrix is read from memory while all its products are computed; max_rows with AVX2.
  int lone_rows;
  // So few rows that memory alone decides how long they take.
  int pair_rows;
  // rows <= lone_rows. The tree over leaves of the chains over a leaf's k.
  void (*output)(int rows, const A* a, const W* b, int64_t k, int leaves, const TileOutput& to,
                 const Ahead& ahead);
  // The same of two panels, the second one `apart` panels after the first, rows <= pair_rows and
  // columns = 32: memory is read faster in two streams than in one.
  void (*pair)(int rows, const A* a, const W* b, int64_t apart, int64_t k, int leaves,
               const TileOutput& to);
  // rows <= max_rows. c[rows][32] = the chain over k that starts at +0, or at c when `resume`.
  void (*chain)(int rows, const A* a, const W* b, int64_t k, bool resume, float* c, int64_t ldc);
};

struct TileKernels {
  WeightTile<float> f32;
  WeightTile<BFloat16> bf16;
  // rows <= f32.max_rows. c[rows][columns] = c + chain over k from +0; both operands are
  // activations, b[k][32].
  void (*accumulate)(int rows, const float* a, const float* b, int64_t k, float* c, int64_t ldc,
                     int columns);

  const WeightTile<float>& For(const float*) const { return f32; }
  const WeightTile<BFloat16>& For(const BFloat16*) const { return bf16; }
};

// Those of the instruction set in use.
const TileKernels& CurrentTileKernels();

// products[rows][32] (with the bias) where `to` wants them.
void StoreColumns(const float* products, int rows, const TileOutput& to);

// x[rows][k] (stride ldx) -> packed[k][rows], rounded with Inputs::kBf16.
void PackRows(const float* x, int64_t ldx, int rows, int64_t k, float* packed,
              Inputs inputs = Inputs::kF32);
// x[k][rows] (stride ldx) -> packed[k][rows], rounded with Inputs::kBf16.
void PackColumns(const float* x, int64_t ldx, int rows, int64_t k, float* packed,
                 Inputs inputs = Inputs::kF32);
// y[k][columns] (stride ldy) -> panel[k][32], pad columns +0.
void PackPanelRows(const float* y, int64_t ldy, int columns, int64_t k, float* panel);

// Steps [k0, k0 + count) of a panel as floats [count][32]: the panel itself, or upconverted into
// `buffer`. REQUIRES: k0 is even.
inline const float* AsFloats(const float* panel, int64_t k0, int64_t, float*) {
  return panel + k0 * kPanelColumns;
}
const float* AsFloats(const BFloat16* panel, int64_t k0, int64_t count, float* buffer);

// Working memory of the calling thread, 64-byte aligned, kept until the thread ends and grown on
// demand; the contents are undefined. Each slot is one buffer: a function owns the slots that it
// names.
enum class Scratch {
  kRows,
  kMade,
  kPanel,
  kPartial,
  kLogits,
  kGradient,
  kTransposed,
  kStatistics,
  kCount
};
float* ScratchFloats(Scratch slot, int64_t floats);

}  // namespace titan::kernels::internal

#endif  // TITAN_CORE_KERNELS_TILE_H_
