// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/optimizer.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "core/base/check.h"
#include "core/kernels/elements.h"
#include "core/kernels/isa.h"
#include "core/kernels/panels.h"
#include "core/kernels/pool.h"
#include "core/kernels/transpose.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/optimizer.cc"
#include "core/kernels/targets.h"
// clang-format off: foreach_target comes before highway.h
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include "core/kernels/elementary-inl.h"

#if TITAN_KERNEL_TARGET
HWY_BEFORE_NAMESPACE();
namespace titan::kernels::HWY_NAMESPACE {

// Sum of squares in f64 of a chunk of at most 1024 consecutive elements: 64 lanes, then the tree.
double SquareSumChunk(const float* x, int64_t count) {
  const hn::ScalableTag<double> dd;
  const hn::Rebind<float, hn::ScalableTag<double>> half;
  constexpr int64_t kDoubles = HWY_LANES(double);
  constexpr int64_t kVectors = kRowSumLanes / kDoubles;
  // Two sweeps of 32 lanes each, so that the sums of one sweep stay in registers.
  alignas(64) double lane[kRowSumLanes];
  for (int64_t sweep = 0; sweep < 2; ++sweep) {
    hn::Vec<decltype(dd)> sums[kVectors / 2];
    for (int64_t v = 0; v < kVectors / 2; ++v) sums[v] = hn::Zero(dd);
    const int64_t base = sweep * kRowSumLanes / 2;
    for (int64_t i = base; i < count; i += kRowSumLanes) {
      if (HWY_LIKELY(i + kRowSumLanes / 2 <= count)) {
        for (int64_t v = 0; v < kVectors / 2; ++v) {
          const auto g = hn::PromoteTo(dd, hn::LoadU(half, x + i + v * kDoubles));
          sums[v] = hn::Add(sums[v], hn::Mul(g, g));
        }
        continue;
      }
      alignas(64) float last[kRowSumLanes / 2] = {};
      for (int64_t j = i; j < count; ++j) last[j - i] = x[j];
      for (int64_t v = 0; v < kVectors / 2; ++v) {
        const auto g = hn::PromoteTo(dd, hn::LoadU(half, last + v * kDoubles));
        sums[v] = hn::Add(sums[v], hn::Mul(g, g));
      }
    }
    for (int64_t v = 0; v < kVectors / 2; ++v) hn::Store(sums[v], dd, lane + base + v * kDoubles);
  }
  for (int64_t h = kRowSumLanes / 2; h > 0; h /= 2) {
    for (int64_t j = 0; j < h; ++j) lane[j] = lane[j] + lane[j + h];
  }
  return lane[0];
}

bool Aligned(const float* p) {
  return reinterpret_cast<uintptr_t>(p) % (kLanes * sizeof(float)) == 0;
}

bool AdamWRange(int64_t n, const AdamWScalars& s, float grad_scale, const float* g,
                const AdamWState& from, const AdamWState& to) {
  const FloatTag d;
  const FloatVec scale = Broadcast(grad_scale), beta1 = Broadcast(s.beta1),
                 beta2 = Broadcast(s.beta2);
  const FloatVec rest1 = Broadcast(s.one_minus_beta1), rest2 = Broadcast(s.one_minus_beta2);
  const FloatVec eps = Broadcast(s.eps), decay = Broadcast(s.decay), step = Broadcast(-s.step_size);
  const FloatVec correction = Broadcast(s.inv_sqrt_correction2);
  const FloatVec largest = Broadcast(std::numeric_limits<float>::max());
  auto finite = hn::Eq(scale, scale);
  // An ordinary store reads its line first, which in place has happened anyway.
  const bool past_cache = to.p != from.p && Aligned(to.p) && Aligned(to.m) && Aligned(to.v);
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t left = n - i;
    const FloatVec grad = hn::Mul(LoadPart(g + i, left), scale);
    const FloatVec m_new = hn::MulAdd(beta1, LoadPart(from.m + i, left), hn::Mul(rest1, grad));
    const FloatVec v_new =
        hn::MulAdd(beta2, LoadPart(from.v + i, left), hn::Mul(hn::Mul(rest2, grad), grad));
    const FloatVec denominator = hn::MulAdd(hn::Sqrt(v_new), correction, eps);
    const FloatVec p_new =
        hn::MulAdd(step, hn::Div(m_new, denominator), hn::Mul(LoadPart(from.p + i, left), decay));
    if (past_cache && left >= kLanes) {
      hn::Stream(m_new, d, to.m + i);
      hn::Stream(v_new, d, to.v + i);
      hn::Stream(p_new, d, to.p + i);
    } else {
      StorePart(m_new, to.m + i, left);
      StorePart(v_new, to.v + i, left);
      StorePart(p_new, to.p + i, left);
    }
    finite = hn::And(
        finite, hn::And(hn::Le(hn::Abs(m_new), largest),
                        hn::And(hn::Le(hn::Abs(v_new), largest), hn::Le(hn::Abs(p_new), largest))));
  }
  if (past_cache) hwy::FlushStream();
  return hn::AllTrue(d, finite);
}

}  // namespace titan::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // TITAN_KERNEL_TARGET

#if HWY_ONCE
namespace titan::kernels {
namespace {

constexpr double kLeastMaxNorm = 1e-30;
constexpr int64_t kChunksPerTask = 64;

Status OutOfRange(const char* field, double value, const char* range) {
  return InvalidArgument(std::string("adamw: ") + field + " must be " + range + ", got " +
                         std::to_string(value));
}

// Copies elements [first, first + count) of the flat logical tensor out of panels. Whole rows of
// one panel at once: their elements share cache lines.
void FlattenPanels(const GradientTensor& tensor, int64_t first, int64_t count, float* out) {
  const int64_t k = tensor.k, end = first + count;
  for (int64_t row = first / k; row * k < end;) {
    const bool whole = row * k >= first && (row + 1) * k <= end;
    const int64_t rows = whole ? std::min(kPanelColumns - row % kPanelColumns, end / k - row) : 1;
    const int64_t begin = std::max<int64_t>(0, first - row * k);
    const int64_t stop = std::min(k, end - row * k);
    internal::TransposeFloats(tensor.data + PanelIndex(k, row, begin), kPanelColumns, rows,
                              stop - begin, out + row * k + begin - first, k);
    row += rows;
  }
}

}  // namespace

double GradientSquareSum(Pool& pool, const GradientTensor& tensor, double before) {
  const int64_t count = tensor.n * tensor.k;
  const int64_t num_chunks = (count + kRowSumChunk - 1) / kRowSumChunk;
  std::vector<double> sums(num_chunks);
  pool.Run(static_cast<int>((num_chunks + kChunksPerTask - 1) / kChunksPerTask), [&](int task) {
    const int64_t first_chunk = task * kChunksPerTask,
                  end_chunk = std::min(num_chunks, first_chunk + kChunksPerTask);
    const int64_t first = first_chunk * kRowSumChunk,
                  end = std::min(count, end_chunk * kRowSumChunk);
    std::unique_ptr<float[]> flat;
    const float* x = tensor.data + first;
    if (tensor.layout == TableLayout::kPanels32) {
      flat = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(end - first));
      FlattenPanels(tensor, first, end - first, flat.get());
      x = flat.get();
    }
    for (int64_t c = first_chunk; c < end_chunk; ++c) {
      const int64_t at = c * kRowSumChunk - first;
      sums[c] = TITAN_DISPATCH(SquareSumChunk)(x + at, std::min(kRowSumChunk, end - first - at));
    }
  });
  double total = before;
  for (const double sum : sums) total = total + sum;
  return total;
}

double GradientNorm(Pool& pool, std::span<const GradientTensor> tensors) {
  double total = 0.0;
  for (const GradientTensor& tensor : tensors) total = total + GradientSquareSum(pool, tensor);
  return std::sqrt(total);
}

StatusOr<float> ClipScale(double norm, double max_norm) {
  if (!std::isfinite(max_norm) || max_norm < kLeastMaxNorm) {
    return InvalidArgument("max_norm must be finite and >= 1e-30, got " + std::to_string(max_norm));
  }
  if (!std::isfinite(norm) || norm < 0.0) {
    return FailedPrecondition(
        "the gradient norm is not finite: a gradient is NaN or infinite; the step is refused");
  }
  const double ratio = max_norm / (norm + 1e-6);
  const float scale = static_cast<float>(ratio < 1.0 ? ratio : 1.0);
  if (!(scale >= std::numeric_limits<float>::min())) {
    return FailedPrecondition("the gradient norm " + std::to_string(norm) +
                              " is too large to clip to max_norm " + std::to_string(max_norm) +
                              " in f32; the step is refused");
  }
  return scale;
}

StatusOr<AdamWScalars> NextAdamWStep(const AdamWConfig& config, AdamWPowers* powers) {
  if (!std::isfinite(config.lr) || config.lr < 0.0)
    return OutOfRange("lr", config.lr, "finite and >= 0");
  if (!(config.beta1 >= 0.0 && config.beta1 < 1.0))
    return OutOfRange("beta1", config.beta1, "in [0, 1)");
  if (!(config.beta2 >= 0.0 && config.beta2 < 1.0))
    return OutOfRange("beta2", config.beta2, "in [0, 1)");
  if (!std::isfinite(config.eps) ||
      static_cast<float>(config.eps) < std::numeric_limits<float>::min()) {
    return OutOfRange("eps", config.eps, "finite and a normal f32");
  }
  if (!std::isfinite(config.weight_decay) || config.weight_decay < 0.0 ||
      config.lr * config.weight_decay > 1.0) {
    return OutOfRange("weight_decay", config.weight_decay, "finite, >= 0 and at most 1 / lr");
  }
  powers->step += 1;
  powers->beta1_power *= config.beta1;
  powers->beta2_power *= config.beta2;
  AdamWScalars scalars;
  scalars.beta1 = static_cast<float>(config.beta1);
  scalars.one_minus_beta1 = static_cast<float>(1.0 - config.beta1);
  scalars.beta2 = static_cast<float>(config.beta2);
  scalars.one_minus_beta2 = static_cast<float>(1.0 - config.beta2);
  scalars.eps = static_cast<float>(config.eps);
  scalars.decay = static_cast<float>(1.0 - config.lr * config.weight_decay);
  scalars.step_size = static_cast<float>(config.lr / (1.0 - powers->beta1_power));
  scalars.inv_sqrt_correction2 = static_cast<float>(1.0 / std::sqrt(1.0 - powers->beta2_power));
  return scalars;
}

bool AdamWStep(Pool& pool, int64_t count, const AdamWScalars& scalars, float grad_scale,
               const float* g, const AdamWState& from, const AdamWState& to) {
  std::atomic<bool> finite{true};
  internal::OverElements(pool, count, [&](int64_t at, int64_t elements) {
    const AdamWState from_here = {from.p + at, from.m + at, from.v + at};
    const AdamWState to_here = {to.p + at, to.m + at, to.v + at};
    const bool good =
        TITAN_DISPATCH(AdamWRange)(elements, scalars, grad_scale, g + at, from_here, to_here);
    if (!good) finite.store(false, std::memory_order_relaxed);
  });
  return finite.load();
}

}  // namespace titan::kernels
#endif  // HWY_ONCE
