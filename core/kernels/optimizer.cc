// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/optimizer.h"

#include <cmath>
#include <limits>
#include <string>

#include "core/base/check.h"
#include "core/kernels/pool.h"
#include "core/kernels/reference_ops.h"

namespace titan::kernels {
namespace {

constexpr double kLeastMaxNorm = 1e-30;

Status OutOfRange(const char* field, double value, const char* range) {
  return InvalidArgument(std::string("adamw: ") + field + " must be " + range + ", got " +
                         std::to_string(value));
}

}  // namespace

double GradientSquareSum(Pool& pool, const GradientTensor& tensor) {
  double total = 0.0;
  pool.Run(1, [&](int) { total = reference::GradientSquareSum(tensor); });
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
               const float* g, float* p, float* m, float* v) {
  bool finite = true;
  pool.Run(1, [&](int) { finite = reference::AdamWStep(count, scalars, grad_scale, g, p, m, v); });
  return finite;
}

}  // namespace titan::kernels
