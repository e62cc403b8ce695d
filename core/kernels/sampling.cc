// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/sampling.h"

#include <cmath>
#include <limits>
#include <mutex>
#include <string>

#include "core/base/check.h"
#include "core/base/philox.h"
#include "core/kernels/isa.h"
#include "core/kernels/pool.h"
#include "core/kernels/reference_ops.h"

namespace titan::kernels {

LogSoftmaxStats ComputeLogSoftmax(const float* logits, int64_t vocab, float inv_temperature) {
  return reference::ComputeLogSoftmax(logits, vocab, inv_temperature);
}

float EntropyOf(const float* logits, int64_t vocab, float inv_temperature,
                const LogSoftmaxStats& stats) {
  return reference::EntropyOf(logits, vocab, inv_temperature, stats);
}

int32_t ArgMax(const float* logits, int64_t vocab) { return reference::ArgMax(logits, vocab); }

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
  const LogSoftmaxStats stats = ComputeLogSoftmax(logits, vocab, inverse);
  if (!std::isfinite(stats.log_sum) || !std::isfinite(stats.max)) {
    return DataLoss("logits hold NaN or +inf, or nothing but -inf: no distribution to sample from");
  }
  SampledToken sampled;
  if (request.temperature == 0.0) {
    sampled.token = ArgMax(logits, vocab);
  } else {
    const double u = UniformFromWord(
        RandomWord(request.seed, RandomDomain::kSampling, static_cast<uint32_t>(request.sample_id),
                   static_cast<uint32_t>(request.sample_id >> 32), request.position));
    sampled.token = reference::SampleId(logits, vocab, inverse, u);
  }
  sampled.logprob = LogProbOf(logits, sampled.token, inverse, stats);
  return sampled;
}

Status SampleTokens(Pool& pool, const float* logits, int64_t ld, int64_t rows, int64_t vocab,
                    const SampleRequest* requests, SampledToken* out) {
  std::mutex mutex;
  int64_t failed_row = rows;
  Status failure = OkStatus();
  pool.Run(static_cast<int>(rows), [&](int row) {
    StatusOr<SampledToken> sampled = SampleToken(logits + row * ld, vocab, requests[row]);
    if (sampled.ok()) {
      out[row] = *sampled;
      return;
    }
    const std::lock_guard<std::mutex> lock(mutex);
    if (row < failed_row) {
      failed_row = row;
      failure = Annotate(sampled.status(), "row " + std::to_string(row));
    }
  });
  return failure;
}

}  // namespace titan::kernels
