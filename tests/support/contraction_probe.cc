// SPDX-License-Identifier: Apache-2.0
// A product and a sum that a compiler may contract to an FMA, where the instruction set has one.
// Built twice by tests/cmake/kernels_disassembly.cmake: with the project's flags, and with
// contraction allowed.
#include <immintrin.h>

namespace titan::test {

__attribute__((target("avx2,fma"))) float ProbeScalar(float a, float b, float c) {
  return a * b + c;
}

__attribute__((target("avx2,fma"))) void ProbeVector(const float* a, const float* b, float* c) {
  const __m256 product = _mm256_mul_ps(_mm256_loadu_ps(a), _mm256_loadu_ps(b));
  _mm256_storeu_ps(c, _mm256_add_ps(product, _mm256_loadu_ps(c)));
}

}  // namespace titan::test
