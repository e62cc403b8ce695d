// SPDX-License-Identifier: Apache-2.0
//
// The sweep (tests/support/kernel_sweep.h) of attention, forward and backward: sequences and shared
// prefixes, windows and sinks, keys in up to three segments, heads of 1 to 256 channels.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/kernels/attention.h"
#include "core/kernels/elementary.h"
#include "core/kernels/order.h"
#include "core/kernels/reference_ops.h"
#include "tests/support/kernel_sweep.h"

namespace titan::kernels {
namespace {

using tests::Floats;
using tests::SweepTest;
using titan::testing::UniformFloats;

// A prefix of one sequence, after the sequences that continue it.
struct Sequences {
  Sequences(int32_t prefix, const std::vector<int32_t>& children) {
    std::vector<int32_t> own(static_cast<size_t>(NumPages(prefix)));
    for (int32_t& id : own) id = num_pages++;
    for (const int32_t child : children) {
      pages.emplace_back(own.begin(), own.begin() + prefix / kPageTokens);
      while (static_cast<int64_t>(pages.back().size()) < NumPages(prefix + child)) {
        pages.back().push_back(num_pages++);
      }
      segments.push_back({rows, child, prefix, nullptr, static_cast<int32_t>(children.size())});
      rows += child;
    }
    pages.push_back(own);
    segments.push_back({rows, prefix, 0, nullptr, -1});
    rows += prefix;
    for (size_t i = 0; i < segments.size(); ++i) segments[i].pages = pages[i].data();
  }
  int32_t rows = 0, num_pages = 0;
  std::vector<Segment> segments;
  std::vector<std::vector<int32_t>> pages;
};

// row_sum of the row at position t of a sequence whose keys are k [t + 1][kv heads * dim], over one
// chain of blocks: the keys not in segments, the sink of the head before them.
float SumOfOneChain(const AttentionShape& shape, const float* q, const float* k, int64_t t, int h) {
  const int64_t dim = shape.head_dim, width = shape.num_kv_heads * dim;
  const float* key = k + h / (shape.num_heads / shape.num_kv_heads) * dim;
  float max = shape.sinks != nullptr ? shape.sinks[h] : -std::numeric_limits<float>::infinity();
  float sum = shape.sinks != nullptr ? 1.0f : 0.0f;
  for (int64_t block = 0; block <= t; block += kKeyBlock) {
    const int64_t count = std::min(kKeyBlock, t + 1 - block);
    float p[kKeyBlock] = {};
    float top = max;
    for (int64_t j = 0; j < count; ++j) {
      for (int64_t d = 0; d < dim; ++d) {
        p[j] = std::fma(q[h * dim + d] * shape.scale, key[(block + j) * width + d], p[j]);
      }
      top = std::max(top, p[j]);
    }
    for (int64_t j = 0; j < count; ++j) p[j] = DExp(p[j] - top);
    for (int64_t half = kKeyBlock / 2; half > 0; half /= 2) {
      for (int64_t j = 0; j < half; ++j) p[j] = p[j] + p[j + half];
    }
    sum = std::fma(sum, block == 0 && shape.sinks == nullptr ? 0.0f : DExp(max - top), p[0]);
    max = top;
  }
  return sum;
}

TEST_F(SweepTest, AttentionForwardAndBackward) {
  Guards({"scores scaled after the chain", "a window one wider", "keys not in segments",
          "a sink before the keys"});
  while (Goes()) {
    // Mostly short; of every 16 rounds one over two or three segments of keys, one of wide heads.
    const bool is_long = round_ % 16 == 3, is_wide = round_ % 16 == 11;
    const int64_t form = (round_ + round_ / 16) % 4;  // so that the long ones have all forms too
    const int kv_heads = static_cast<int>(Between(1, is_long ? 1 : is_wide ? 2 : 3));
    const int group = static_cast<int>(Between(1, is_long || is_wide ? 2 : 5));
    AttentionShape shape{kv_heads * group, kv_heads, 0, 0.3f};
    shape.head_dim =
        static_cast<int>(is_wide ? Between(97, kMaxHeadDim) : Between(1, is_long ? 24 : 96));
    const auto prefix =
        static_cast<int32_t>(is_long ? Between(700, 1200) : Between(1, is_wide ? 70 : 150));
    std::vector<int32_t> children(static_cast<size_t>(random_.Below(4)));
    for (int32_t& rows : children) rows = static_cast<int32_t>(Between(1, 40));
    const Sequences sequences(prefix, children);
    const std::vector<Segment>& segments = sequences.segments;
    const int64_t rows = sequences.rows;
    if (form % 2 == 1) shape.window = Between(1, prefix + 10);
    const Floats sinks = UniformFloats(shape.num_heads, Seed(), 2);
    if (form >= 2) shape.sinks = sinks.data();
    std::vector<RowRange> units;
    for (int64_t at = 0; at < rows; at += 50) units.push_back({at, std::min(rows, at + 50)});

    const int64_t q_floats = rows * shape.num_heads * shape.head_dim;
    const int64_t kv_floats = rows * shape.num_kv_heads * shape.head_dim;
    const int64_t pairs = rows * shape.num_heads;
    const Floats q = UniformFloats(q_floats, Seed(), 3), k = UniformFloats(kv_floats, Seed(), 3);
    const Floats v = UniformFloats(kv_floats, Seed()), dout = UniformFloats(q_floats, Seed());
    Floats kv(static_cast<size_t>(sequences.num_pages * PageFloats(shape)));
    reference::WriteKv(shape, k.data(), v.data(), segments, kv.data());
    // out, max, sum, dq, dk, dv, dsinks in one array.
    Floats want(static_cast<size_t>(2 * (q_floats + pairs + kv_floats) + shape.num_heads));
    const auto parts = [&](Floats& all, const auto& body) {
      float* out = all.data();
      float* max = out + q_floats;
      float* sum = max + pairs;
      float* dq = sum + pairs;
      float* dk = dq + q_floats;
      float* dsinks = dk + 2 * kv_floats;
      std::fill_n(dsinks, shape.num_heads, 0.25f);  // what earlier units gave
      body(out, max, sum, dq, dk, dk + kv_floats, dsinks);
    };
    parts(want,
          [&](float* out, float* max, float* sum, float* dq, float* dk, float* dv, float* dsinks) {
            reference::AttentionForward(shape, q.data(), segments, kv.data(), out, max, sum);
            reference::AttentionBackward(shape, q.data(), segments, kv.data(), out, dout.data(),
                                         max, sum, dq, dk, dv);
            if (shape.sinks == nullptr) return;
            reference::SinkGradient(shape, out, dout.data(), max, sum, units, dsinks);
          });
    const char* what = is_long                  ? "several segments of keys"
                       : is_wide                ? "wide heads"
                       : shape.window > 0       ? "window"
                       : shape.sinks != nullptr ? "sinks"
                                                : "plain";
    Compare(what, want, [&](Pool& pool, Floats& got) {
      parts(got, [&](float* out, float* max, float* sum, float* dq, float* dk, float* dv,
                     float* dsinks) {
        AttentionForward(pool, shape, q.data(), segments, kv.data(), out, max, sum);
        AttentionBackward(pool, shape, q.data(), segments, kv.data(), out, dout.data(), max, sum,
                          dq, dk, dv);
        if (shape.sinks == nullptr) return;
        SinkGradient(pool, shape, out, dout.data(), max, sum, units, dsinks);
      });
    });

    const auto forward = [&](const AttentionShape& other, const Floats& keys) {
      Floats pages(kv.size()), out(static_cast<size_t>(q_floats));
      reference::WriteKv(other, keys.data(), v.data(), segments, pages.data());
      reference::AttentionForward(other, q.data(), segments, pages.data(), out.data(), nullptr,
                                  nullptr);
      return out;
    };
    const std::span<const float> out(want.data(), static_cast<size_t>(q_floats));
    // A row that sees few keys may have them all in one output.
    const bool sees_many = shape.window == 0 || shape.window >= 16;
    if (round_ % 8 < 2 && rows >= 40 && sees_many) {
      AttentionShape other = shape;
      other.scale = 1.0f;
      Floats scaled(k);
      for (float& value : scaled) value *= shape.scale;
      MustDiffer("scores scaled after the chain", out, forward(other, scaled));
      if (shape.window > 0 && shape.window < prefix / 2) {
        other = shape;
        ++other.window;
        MustDiffer("a window one wider", out, forward(other, k));
      }
    }
    // Of the last sequence, rows whose keys are in several blocks, or segments.
    if (shape.window > 0) continue;
    const bool has_sinks = shape.sinks != nullptr;
    Floats right, wrong;
    for (int64_t t = prefix - 1; t >= kKeyBlock + (has_sinks ? 0 : kKeySegment);
         t -= has_sinks ? 3 : 1) {
      const int64_t row = segments.back().first_row + t;
      for (int h = 0; h < shape.num_heads; ++h) {
        right.push_back(want[static_cast<size_t>(q_floats + pairs + row * shape.num_heads + h)]);
        wrong.push_back(SumOfOneChain(
            shape, q.data() + row * shape.num_heads * shape.head_dim,
            k.data() + int64_t{segments.back().first_row} * shape.num_kv_heads * shape.head_dim, t,
            h));
      }
    }
    MustDiffer(has_sinks ? "a sink before the keys" : "keys not in segments", right, wrong);
  }
}

}  // namespace
}  // namespace titan::kernels
