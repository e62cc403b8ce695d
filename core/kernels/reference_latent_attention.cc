// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/reference_latent_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/kernels/elementary.h"
#include "core/kernels/order.h"
#include "core/kernels/reference_ops.h"

namespace titan::kernels::reference {
namespace {

float Score(const LatentShape& shape, const float* q, const float* key) {
  float acc = 0.0f;
  for (int64_t d = 0; d < shape.width(); ++d) acc = std::fma(q[d] * shape.scale, key[d], acc);
  return acc;
}

float LaneTree(const std::vector<float>& values) {
  float lane[kKeyBlock] = {};
  std::copy(values.begin(), values.end(), lane);
  for (int64_t h = kKeyBlock / 2; h > 0; h /= 2) {
    for (int64_t j = 0; j < h; ++j) lane[j] = lane[j] + lane[j + h];
  }
  return lane[0];
}

// p and ds of key j for one query.
struct Slopes {
  float p, ds;
};
Slopes SlopesOf(const LatentShape& shape, const float* q, const float* key, const float* out,
                const float* dout, float row_max, float row_sum) {
  const float p = DExp(Score(shape, q, key) - row_max) * (1.0f / row_sum);
  float dp = 0.0f;
  for (int64_t r = 0; r < shape.latent; ++r) dp = std::fma(dout[r], key[r], dp);
  return {p, p * (dp - RowSumProduct(dout, out, shape.latent))};
}

}  // namespace

void LatentAttentionForward(const LatentShape& shape, int64_t rows, const float* q,
                            const float* cache, float* out, float* row_max, float* row_sum) {
  const int64_t width = shape.width();
  const size_t latent = static_cast<size_t>(shape.latent);
  for (int64_t at = 0; at < rows * shape.heads; ++at) {
    const int64_t visible = at / shape.heads + 1;
    float total_max = 0, total_sum = 0;
    std::vector<float> total;
    for (int64_t segment = 0; segment < visible; segment += kKeySegment) {
      float m = -std::numeric_limits<float>::infinity(), l = 0.0f;
      std::vector<float> o(latent, 0.0f);
      const int64_t end = std::min(visible, segment + kKeySegment);
      for (int64_t block = segment; block < end; block += kKeyBlock) {
        std::vector<float> p;
        float max = m;
        for (int64_t j = block; j < std::min(end, block + kKeyBlock); ++j) {
          p.push_back(Score(shape, q + at * width, cache + j * width));
          max = std::max(max, p.back());
        }
        for (float& s : p) s = DExp(s - max);
        const float alpha = block == segment ? 0.0f : DExp(m - max);
        l = std::fma(l, alpha, LaneTree(p));
        for (size_t r = 0; r < latent; ++r) {
          o[r] = o[r] * alpha;
          for (size_t j = 0; j < p.size(); ++j) {
            o[r] = std::fma(
                p[j], cache[(block + static_cast<int64_t>(j)) * width + static_cast<int64_t>(r)],
                o[r]);
          }
        }
        m = max;
      }
      if (segment == 0) {
        total_max = m, total_sum = l, total = o;
        continue;
      }
      const float max = std::max(total_max, m);
      const float x = DExp(total_max - max), y = DExp(m - max);
      total_sum = std::fma(total_sum, x, l * y);
      for (size_t r = 0; r < latent; ++r) total[r] = std::fma(o[r], y, total[r] * x);
      total_max = max;
    }
    for (size_t r = 0; r < latent; ++r) {
      out[at * shape.latent + static_cast<int64_t>(r)] = total[r] * (1.0f / total_sum);
    }
    row_max[at] = total_max + 0.0f;
    row_sum[at] = total_sum;
  }
}

void LatentAttentionBackward(const LatentShape& shape, int64_t rows, const float* q,
                             const float* cache, const float* out, const float* dout,
                             const float* row_max, const float* row_sum, float* dq, float* dcache) {
  const int64_t width = shape.width(), latent = shape.latent, heads = shape.heads;
  const auto slopes = [&](int64_t at, int64_t j) {
    return SlopesOf(shape, q + at * width, cache + j * width, out + at * latent, dout + at * latent,
                    row_max[at], row_sum[at]);
  };
  for (int64_t at = 0; at < rows * heads; ++at) {
    std::fill(dq + at * width, dq + (at + 1) * width, 0.0f);
    for (int64_t j = 0; j <= at / heads; ++j) {
      const Slopes s = slopes(at, j);
      for (int64_t d = 0; d < width; ++d) {
        dq[at * width + d] = std::fma(s.ds, cache[j * width + d], dq[at * width + d]);
      }
    }
    for (int64_t d = 0; d < width; ++d) dq[at * width + d] = dq[at * width + d] * shape.scale;
  }
  const size_t w = static_cast<size_t>(width);
  for (int64_t j = 0; j < rows; ++j) {
    std::vector<float> keys(w), values(w);
    for (int64_t h = 0; h < heads; ++h) {
      std::vector<float> key(w, 0.0f), value(w, 0.0f);
      for (int64_t t = j; t < rows; ++t) {
        const int64_t at = t * heads + h;
        const Slopes s = slopes(at, j);
        for (int64_t d = 0; d < width; ++d) {
          float& k = key[static_cast<size_t>(d)];
          k = std::fma(s.ds, q[at * width + d] * shape.scale, k);
        }
        for (int64_t r = 0; r < latent; ++r) {
          float& v = value[static_cast<size_t>(r)];
          v = std::fma(s.p, dout[at * latent + r], v);
        }
      }
      for (size_t d = 0; d < w; ++d) {
        keys[d] = h == 0 ? key[d] : keys[d] + key[d];
        values[d] = h == 0 ? value[d] : values[d] + value[d];
      }
    }
    for (int64_t d = 0; d < width; ++d) {
      const size_t i = static_cast<size_t>(d);
      dcache[j * width + d] = d < latent ? keys[i] + values[i] : keys[i];
    }
  }
}

}  // namespace titan::kernels::reference
