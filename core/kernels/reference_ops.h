// SPDX-License-Identifier: Apache-2.0
//
// Scalar twins of the vector kernels, written straight from the orders that the kernels' headers
// define: std::fma where an FMA is written, one loop per chain, no blocking, no threads. The oracle
// of the tests; the product never calls them. Same arguments and shapes as the kernel of that name,
// without the pool. The caller sets the numeric environment (NumericThread).
#ifndef TITAN_CORE_KERNELS_REFERENCE_OPS_H_
#define TITAN_CORE_KERNELS_REFERENCE_OPS_H_

#include <cstdint>
#include <span>

#include "core/kernels/attention.h"
#include "core/kernels/embedding.h"
#include "core/kernels/gelu.h"
#include "core/kernels/norm.h"
#include "core/kernels/optimizer.h"
#include "core/kernels/rope.h"
#include "core/kernels/sampling.h"
#include "core/kernels/units.h"

namespace titan::kernels::reference {

float RowSum(const float* x, int64_t n);
float RowSumProduct(const float* a, const float* b, int64_t n);

void RmsNorm(const float* x, int64_t rows, int64_t width, const float* gain, float eps, float* out,
             float* inv_rms, const NormShape& shape = {});
void RmsNormBackward(const float* x, int64_t rows, int64_t width, const float* gain,
                     const float* inv_rms, const float* dy, float* dx,
                     std::span<const RowRange> units, float* dgain, const NormShape& shape = {});

void SwiGlu(int64_t n, const float* gate, const float* up, float* out);
void SwiGluBackward(int64_t n, const float* gate, const float* up, const float* dout, float* dgate,
                    float* dup);

void GeluGlu(int64_t n, const float* gate, const float* up, float* out);
void GeluGluBackward(int64_t n, const float* gate, const float* up, const float* dout, float* dgate,
                     float* dup);

void Softplus(int64_t n, const float* x, float* out);
void SoftplusBackward(int64_t n, const float* x, const float* dout, float* dx);

void ApplyRope(const RopeTable& table, float* x, int64_t ldx, int64_t rows, int num_heads,
               const int32_t* positions);
void ApplyRopeBackward(const RopeTable& table, float* dx, int64_t ldx, int64_t rows, int num_heads,
                       const int32_t* positions);

void WriteKv(const AttentionShape& shape, const float* k, const float* v,
             std::span<const Segment> segments, float* base);
void AttentionForward(const AttentionShape& shape, const float* q,
                      std::span<const Segment> segments, const float* base, float* out,
                      float* row_max, float* row_sum);
void AttentionBackward(const AttentionShape& shape, const float* q,
                       std::span<const Segment> segments, const float* base, const float* out,
                       const float* dout, const float* row_max, const float* row_sum, float* dq,
                       float* dk, float* dv);

void SinkGradient(const AttentionShape& shape, const float* out, const float* dout,
                  const float* row_max, const float* row_sum, std::span<const RowRange> units,
                  float* dsinks);

void EmbeddingGradient(TableLayout layout, const float* dy, int64_t vocab, int64_t hidden,
                       const int32_t* tokens, std::span<const RowRange> units, float* accumulator);

double GradientSquareSum(const GradientTensor& tensor);
bool AdamWStep(int64_t count, const AdamWScalars& scalars, float grad_scale, const float* g,
               float* p, float* m, float* v);

LogSoftmaxStats ComputeLogSoftmax(const float* logits, int64_t vocab, float inv_temperature);
float EntropyOf(const float* logits, int64_t vocab, float inv_temperature);
// The sampled id for temperature > 0, given u in (0, 1).
int32_t SampleId(const float* logits, int64_t vocab, float inv_temperature, double u);
int32_t ArgMax(const float* logits, int64_t vocab);

}  // namespace titan::kernels::reference

#endif  // TITAN_CORE_KERNELS_REFERENCE_OPS_H_
