// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/sampling.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "core/base/check.h"
#include "core/base/philox.h"
#include "core/kernels/isa.h"
#include "core/kernels/order.h"

#ifndef TITAN_CORE_KERNELS_SAMPLING_TYPES_
#define TITAN_CORE_KERNELS_SAMPLING_TYPES_
namespace titan::kernels {

inline constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// One chunk of 1024 logits: m_c, s_c and C_c of the header; skipped: -inf only.
struct ChunkStats {
  float max = kMinusInfinity;
  float sum = 0.0f;
  float running = 0.0f;
  bool skipped = true;
};

}  // namespace titan::kernels
#endif  // TITAN_CORE_KERNELS_SAMPLING_TYPES_

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/sampling.cc"
#include "core/kernels/targets.h"
// clang-format off: foreach_target comes before highway.h
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include "core/kernels/elementary-inl.h"

#if TITAN_KERNEL_TARGET
HWY_BEFORE_NAMESPACE();
namespace titan::kernels::HWY_NAMESPACE {

// z of elements i.. of which `left` exist, `fill` beyond.
HWY_INLINE FloatVec ScaledLogits(const float* logits, int64_t left, FloatVec scale, float fill) {
  const FloatVec z = hn::Mul(LoadPart(logits, left), scale);
  if (HWY_LIKELY(left >= kLanes)) return z;
  return hn::IfThenElse(hn::FirstN(FloatTag(), static_cast<size_t>(left)), z, Broadcast(fill));
}

HWY_INLINE FloatVec ZeroBeyond(FloatVec v, int64_t left) {
  if (HWY_LIKELY(left >= kLanes)) return v;
  return hn::IfThenElseZero(hn::FirstN(FloatTag(), static_cast<size_t>(left)), v);
}

void ScanChunk(const float* logits, int64_t count, float inv_temperature, ChunkStats* stats) {
  const FloatTag d;
  const FloatVec scale = Broadcast(inv_temperature);
  const FloatVec low = Broadcast(kMinusInfinity);
  FloatVec max = low;
  auto all_low = hn::Eq(low, low);
  for (int64_t i = 0; i < count; i += kLanes) {
    const FloatVec z = ScaledLogits(logits + i, count - i, scale, kMinusInfinity);
    max = hn::IfThenElse(hn::Gt(z, max), z, max);
    all_low = hn::And(all_low, hn::Eq(z, low));
  }
  stats->skipped = hn::AllTrue(d, all_low);
  stats->max = hn::GetLane(hn::MaxOfLanes(d, max)) + 0.0f;
  if (stats->skipped) return;
  const FloatVec chunk_max = Broadcast(stats->max);
  stats->sum = ChunkSum(count, [&](FloatVec acc, int64_t i, int64_t left) {
    const FloatVec z = ScaledLogits(logits + i, left, scale, kMinusInfinity);
    return hn::Add(acc, ZeroBeyond(VExp(hn::Sub(z, chunk_max)), left));
  });
}

LogSoftmaxStats ScanRow(const float* logits, int64_t vocab, float inv_temperature,
                        ChunkStats* chunks) {
  LogSoftmaxStats stats;
  stats.max = kMinusInfinity;
  const int64_t num_chunks = (vocab + kRowSumChunk - 1) / kRowSumChunk;
  for (int64_t c = 0; c < num_chunks; ++c) {
    const int64_t begin = c * kRowSumChunk;
    const int64_t count = vocab - begin < kRowSumChunk ? vocab - begin : kRowSumChunk;
    ScanChunk(logits + begin, count, inv_temperature, &chunks[c]);
    stats.max = chunks[c].max > stats.max ? chunks[c].max : stats.max;
  }
  for (int64_t c = 0; c < num_chunks; ++c) {
    if (!chunks[c].skipped)
      stats.sum = std::fma(chunks[c].sum, DExp(chunks[c].max - stats.max), stats.sum);
    chunks[c].running = stats.sum;
  }
  stats.log_sum = DLog(stats.sum);
  return stats;
}

// B of the header, over chunks that ScanRow filled.
float WeightedSum(const float* logits, int64_t vocab, float inv_temperature,
                  const LogSoftmaxStats& stats, const ChunkStats* chunks) {
  const FloatTag d;
  const FloatVec scale = Broadcast(inv_temperature);
  float weighted = 0.0f;
  for (int64_t begin = 0; begin < vocab; begin += kRowSumChunk) {
    const ChunkStats& chunk = chunks[begin / kRowSumChunk];
    if (chunk.skipped) continue;
    const int64_t count = vocab - begin < kRowSumChunk ? vocab - begin : kRowSumChunk;
    const FloatVec max = Broadcast(chunk.max);
    const float b = ChunkSum(count, [&](FloatVec acc, int64_t i, int64_t left) {
      const FloatVec z = ScaledLogits(logits + begin + i, left, scale, kMinusInfinity);
      const FloatVec difference = hn::Sub(z, max);
      const FloatVec e = ZeroBeyond(VExp(difference), left);
      return hn::IfThenElse(hn::Eq(e, hn::Zero(d)), acc, hn::MulAdd(e, difference, acc));
    });
    const float shift = chunk.max - stats.max;
    weighted = std::fma(std::fma(chunk.sum, shift, b), DExp(shift), weighted);
  }
  return weighted;
}

int32_t ArgMaxRow(const float* logits, int64_t vocab) {
  const FloatTag d;
  FloatVec max = Broadcast(kMinusInfinity);
  for (int64_t i = 0; i < vocab; i += kLanes) {
    const FloatVec z = ScaledLogits(logits + i, vocab - i, Broadcast(1.0f), kMinusInfinity);
    max = hn::IfThenElse(hn::Gt(z, max), z, max);
  }
  const float largest = hn::GetLane(hn::MaxOfLanes(d, max));
  for (int64_t i = 0; i < vocab; ++i) {
    if (logits[i] == largest) return static_cast<int32_t>(i);
  }
  return 0;
}

// The drawn id; a finite row has one, because target < S.
int32_t PickToken(const float* logits, int64_t vocab, float inv_temperature,
                  const LogSoftmaxStats& stats, const ChunkStats* chunks, double u) {
  const double target = u * static_cast<double>(stats.sum);
  int64_t c = 0;
  while (chunks[c].skipped || !(static_cast<double>(chunks[c].running) > target)) ++c;
  const int64_t begin = c * kRowSumChunk;
  const int64_t count = vocab - begin < kRowSumChunk ? vocab - begin : kRowSumChunk;
  alignas(64) float terms[kRowSumChunk];
  const FloatVec scale = Broadcast(inv_temperature), max = Broadcast(chunks[c].max);
  for (int64_t i = 0; i < count; i += kLanes) {
    const FloatVec z = ScaledLogits(logits + begin + i, count - i, scale, kMinusInfinity);
    Store(VExp(hn::Sub(z, max)), terms + i);
  }
  const float factor = DExp(chunks[c].max - stats.max);
  float r = c == 0 ? 0.0f : chunks[c - 1].running;
  int64_t last = 0;
  for (int64_t i = 0; i < count; ++i) {
    r = std::fma(terms[i], factor, r);
    if (static_cast<double>(r) > target) return static_cast<int32_t>(begin + i);
    if (terms[i] > 0.0f) last = i;
  }
  return static_cast<int32_t>(begin + last);
}

}  // namespace titan::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // TITAN_KERNEL_TARGET

#if HWY_ONCE
namespace titan::kernels {

LogSoftmaxStats ComputeLogSoftmax(const float* logits, int64_t vocab, float inv_temperature) {
  TITAN_DCHECK(NumericEnvironmentIsSet());
  std::vector<ChunkStats> chunks((vocab + kRowSumChunk - 1) / kRowSumChunk);
  return TITAN_DISPATCH(ScanRow)(logits, vocab, inv_temperature, chunks.data());
}

float EntropyOf(const float* logits, int64_t vocab, float inv_temperature) {
  TITAN_DCHECK(NumericEnvironmentIsSet());
  std::vector<ChunkStats> chunks((vocab + kRowSumChunk - 1) / kRowSumChunk);
  const LogSoftmaxStats stats =
      TITAN_DISPATCH(ScanRow)(logits, vocab, inv_temperature, chunks.data());
  const float weighted =
      TITAN_DISPATCH(WeightedSum)(logits, vocab, inv_temperature, stats, chunks.data());
  return stats.log_sum - weighted / stats.sum;
}

int32_t ArgMax(const float* logits, int64_t vocab) {
  return TITAN_DISPATCH(ArgMaxRow)(logits, vocab);
}

StatusOr<float> InverseTemperature(double temperature) {
  if (temperature == 0.0) return 1.0f;
  const float inverse = static_cast<float>(1.0 / temperature);
  if (!(temperature > 0.0) || !std::isnormal(inverse)) {
    return InvalidArgument("temperature must be 0 or lie in 3e-39..8e37, got " +
                           std::to_string(temperature));
  }
  return inverse;
}

StatusOr<SampledToken> SampleToken(const float* logits, int64_t vocab,
                                   const SampleRequest& request) {
  TITAN_CHECK(vocab >= 1 && vocab <= std::numeric_limits<int32_t>::max());
  TITAN_ASSIGN_OR_RETURN(const float inverse, InverseTemperature(request.temperature));
  const NumericThread numeric;
  const int64_t num_chunks = (vocab + kRowSumChunk - 1) / kRowSumChunk;
  std::vector<ChunkStats> chunks(num_chunks);
  const LogSoftmaxStats stats = TITAN_DISPATCH(ScanRow)(logits, vocab, inverse, chunks.data());
  if (!std::isfinite(stats.log_sum) || !std::isfinite(stats.max)) {
    return DataLoss("logits hold NaN or +inf, or nothing but -inf: no distribution to sample from");
  }
  SampledToken sampled;
  if (request.temperature == 0.0) {
    sampled.token = TITAN_DISPATCH(ArgMaxRow)(logits, vocab);
  } else {
    const double u = UniformFromWord(
        RandomWord(request.seed, RandomDomain::kSampling, static_cast<uint32_t>(request.sample_id),
                   static_cast<uint32_t>(request.sample_id >> 32), request.position));
    sampled.token = TITAN_DISPATCH(PickToken)(logits, vocab, inverse, stats, chunks.data(), u);
  }
  sampled.logprob = LogProbOf(logits, sampled.token, inverse, stats);
  return sampled;
}

}  // namespace titan::kernels
#endif  // HWY_ONCE
