// SPDX-License-Identifier: Apache-2.0
//
// Log-softmax: z_j = x_j * inv_temperature; m = maximum of z (-0 as +0). Per chunk c of 1024
// ascending,
//   m_c its maximum and s_c = row sum of DExp(z_j - m_c); a chunk of -inf only is skipped.
//   S = chain over chunks of fma(s_c, DExp(m_c - m), S) from +0, C_c = S after chunk c.
//   lp_j = (z_j - m) - DLog(S).
// Sample: u = UniformFromWord(Philox word), target = u * f64(S). The first chunk with f64(C_c) >
// target;
//   inside it r = C_(c-1) (+0 for the first), then r = fma(DExp(z_j - m_c), DExp(m_c - m), r) over
//   ids ascending: the first id with f64(r) > target, else the chunk's last id whose term is > 0.
// Entropy: as head.h, DLog(S) - B / S.
#ifndef TITAN_CORE_KERNELS_SAMPLING_H_
#define TITAN_CORE_KERNELS_SAMPLING_H_

#include <cstdint>

#include "core/base/status.h"

namespace titan::kernels {

struct LogSoftmaxStats {
  float max = 0.0f;      // m
  float sum = 0.0f;      // S
  float log_sum = 0.0f;  // DLog(S)
};

// Statistics of one row; the calling thread, here and in EntropyOf, is inside a NumericThread
// (checked in debug builds). A row with NaN or +inf gives NaN in log_sum, one of -inf only gives
// -inf.
LogSoftmaxStats ComputeLogSoftmax(const float* logits, int64_t vocab, float inv_temperature);
inline float LogProbOf(const float* logits, int64_t token, float inv_temperature,
                       const LogSoftmaxStats& stats) {
  return (logits[token] * inv_temperature - stats.max) - stats.log_sum;
}
float EntropyOf(const float* logits, int64_t vocab, float inv_temperature);

struct SampleRequest {
  double temperature = 1.0;  // 0 = greedy
  uint64_t seed = 0;         // of the job
  uint64_t sample_id = 0;
  uint32_t position = 0;  // absolute position of the token to draw, in the sample
};

struct SampledToken {
  int32_t token = 0;
  // Log-prob under softmax(x * f32(1 / temperature)); for greedy under temperature 1.
  float logprob = 0.0f;
};

// The lowest id among the maxima, NaN ignored; 0 when all are NaN. REQUIRES: vocab >= 1.
int32_t ArgMax(const float* logits, int64_t vocab);

// f32(1 / temperature). InvalidArgument: temperature not finite, < 0, or so small or large that the
// result is not a normal f32. 0 gives 1 (greedy reports log-probs at temperature 1).
StatusOr<float> InverseTemperature(double temperature);

// InvalidArgument as InverseTemperature. DataLoss: the row has NaN or +inf, or nothing but -inf.
StatusOr<SampledToken> SampleToken(const float* logits, int64_t vocab,
                                   const SampleRequest& request);

}  // namespace titan::kernels

#endif  // TITAN_CORE_KERNELS_SAMPLING_H_
