// SPDX-License-Identifier: Apache-2.0
//
// Scalar twin of latent_attention.h for one whole sequence from position 0, without pages or tasks:
// what the tests compare with.
#ifndef TITAN_CORE_KERNELS_REFERENCE_LATENT_ATTENTION_H_
#define TITAN_CORE_KERNELS_REFERENCE_LATENT_ATTENTION_H_

#include <cstdint>

#include "core/kernels/latent_attention.h"

namespace titan::kernels::reference {

// cache [rows][width]; other shapes as in latent_attention.h.
void LatentAttentionForward(const LatentShape& shape, int64_t rows, const float* q,
                            const float* cache, float* out, float* row_max, float* row_sum);
void LatentAttentionBackward(const LatentShape& shape, int64_t rows, const float* q,
                             const float* cache, const float* out, const float* dout,
                             const float* row_max, const float* row_sum, float* dq, float* dcache);

}  // namespace titan::kernels::reference

#endif  // TITAN_CORE_KERNELS_REFERENCE_LATENT_ATTENTION_H_
