// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/reference_linear.h"

#include <bit>
#include <cmath>

// std::fma as one instruction; the library call gives the same value, slower.
#define TITAN_SCALAR_FMA __attribute__((target("avx2,fma")))

namespace titan::kernels::reference {
namespace {

TITAN_SCALAR_FMA float Chain(const float* x, const float* w, int64_t length) {
  float acc = 0.0f;
  for (int64_t i = 0; i < length; ++i) acc = std::fma(x[i], w[i], acc);
  return acc;
}

// Leaves [first, first + count) as a balanced tree, left + right.
TITAN_SCALAR_FMA float Tree(const float* x, const float* w, int64_t leaf_length, int first,
                            int count) {
  if (count == 1) return Chain(x + first * leaf_length, w + first * leaf_length, leaf_length);
  const float left = Tree(x, w, leaf_length, first, count / 2);
  const float right = Tree(x, w, leaf_length, first + count / 2, count / 2);
  return left + right;
}

}  // namespace

float LinearOutput(const float* x, const float* w, int64_t k, int leaves) {
  return Tree(x, w, k / leaves, 0, leaves);
}

TITAN_SCALAR_FMA float DotStep(float acc, uint32_t x, uint32_t w) {
  const auto upper = [](uint32_t bits) { return std::bit_cast<float>(bits & 0xffff0000u); };
  acc = std::fma(upper(x), upper(w), acc);
  return std::fma(upper(x << 16), upper(w << 16), acc);
}

void Linear(const float* x, int64_t ldx, int64_t m, const float* rows, int64_t n, int64_t k,
            int leaves, const float* bias, float* out, int64_t ldo) {
  for (int64_t row = 0; row < m; ++row) {
    for (int64_t column = 0; column < n; ++column) {
      float value = LinearOutput(x + row * ldx, rows + column * k, k, leaves);
      if (bias != nullptr) value = value + bias[column];
      out[row * ldo + column] = value;
    }
  }
}

TITAN_SCALAR_FMA void LinearWeightGradient(const float* x, int64_t ldx, const float* dy,
                                           int64_t ldy, int64_t m, int64_t n, int64_t k,
                                           float* accumulator) {
  for (int64_t column = 0; column < n; ++column) {
    for (int64_t i = 0; i < k; ++i) {
      float acc = 0.0f;
      for (int64_t row = 0; row < m; ++row) {
        acc = std::fma(x[row * ldx + i], dy[row * ldy + column], acc);
      }
      accumulator[column * k + i] = accumulator[column * k + i] + acc;
    }
  }
}

void LinearBiasGradient(const float* dy, int64_t ldy, int64_t m, int64_t n, float* accumulator) {
  for (int64_t column = 0; column < n; ++column) {
    float acc = 0.0f;
    for (int64_t row = 0; row < m; ++row) acc = acc + dy[row * ldy + column];
    accumulator[column] = accumulator[column] + acc;
  }
}

}  // namespace titan::kernels::reference
