// SPDX-License-Identifier: Apache-2.0
//
// Sampling and log-softmax: kernel = scalar twin by bits on both instruction sets, frequencies
// against the distribution, the cumulative rule at its edges, masked and non-finite rows, greedy
// ties.
#include "core/kernels/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/kernels/elementary.h"
#include "core/kernels/pool.h"
#include "core/kernels/reference_ops.h"
#include "tests/support/kernel_cases.h"

namespace titan::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Every third chunk is masked whole, and some single entries.
void Mask(tests::Guarded& logits, int64_t vocab) {
  for (int64_t i = 0; i < vocab; ++i) {
    if ((i / 1024) % 3 == 1 || i % 7 == 3) logits.data()[i] = -kInfinity;
  }
}

TEST(SamplingTest, StatisticsAndDrawsEqualScalarTwin) {
  const NumericThread numeric;
  int64_t different_tokens = 0, last = -1;
  for (const int64_t vocab : {1, 2, 11, 64, 1000, 1023, 1024, 1025, 4500, 49152}) {
    for (const bool masked : {false, true}) {
      tests::Guarded logits(vocab, 1);
      logits.FillWide(vocab, 3.0f);
      if (masked && vocab > 4) Mask(logits, vocab);
      for (const Isa isa : tests::AllIsas()) {
        ASSERT_TRUE(SetIsa(isa).ok());
        SCOPED_TRACE(testing::Message()
                     << IsaName(isa) << " vocab " << vocab << " masked " << masked);
        for (const double temperature : {1.0, 0.7}) {
          const float inverse = *InverseTemperature(temperature);
          const LogSoftmaxStats want = reference::ComputeLogSoftmax(logits.data(), vocab, inverse);
          const LogSoftmaxStats got = ComputeLogSoftmax(logits.data(), vocab, inverse);
          EXPECT_EQ(tests::BitsOf(want.max), tests::BitsOf(got.max));
          EXPECT_EQ(tests::BitsOf(want.sum), tests::BitsOf(got.sum));
          EXPECT_EQ(tests::BitsOf(want.log_sum), tests::BitsOf(got.log_sum));
          EXPECT_EQ(tests::BitsOf(EntropyOf(logits.data(), vocab, inverse)),
                    tests::BitsOf(reference::EntropyOf(logits.data(), vocab, inverse)));
          EXPECT_EQ(ArgMax(logits.data(), vocab), reference::ArgMax(logits.data(), vocab));
          for (uint32_t position = 0; position < (vocab > 5000 ? 6 : 30); ++position) {
            const SampleRequest request{temperature, 17, (uint64_t{5} << 32) | 9, position};
            const StatusOr<SampledToken> sampled = SampleToken(logits.data(), vocab, request);
            ASSERT_TRUE(sampled.ok());
            const double u =
                UniformFromWord(RandomWord(17, RandomDomain::kSampling, 9, 5, position));
            EXPECT_EQ(sampled->token, reference::SampleId(logits.data(), vocab, inverse, u));
            EXPECT_TRUE(std::isfinite(sampled->logprob));
            EXPECT_EQ(sampled->logprob, LogProbOf(logits.data(), sampled->token, inverse, got));
            different_tokens += sampled->token != last;
            last = sampled->token;
          }
        }
      }
    }
  }
  EXPECT_GT(different_tokens, 500);
}

TEST(SamplingTest, ProbabilitiesSumToOneInDouble) {
  const NumericThread numeric;
  constexpr int64_t kVocab = 5000;
  tests::Guarded logits(kVocab, 2);
  logits.FillWide(1, 4.0f);
  const LogSoftmaxStats stats = ComputeLogSoftmax(logits.data(), kVocab, 1.25f);
  double sum = 0.0, entropy = 0.0, exact_sum = 0.0;
  for (int64_t i = 0; i < kVocab; ++i) exact_sum += std::exp(1.25 * logits.data()[i] - stats.max);
  double worst = 0.0;
  for (int64_t i = 0; i < kVocab; ++i) {
    const double lp = LogProbOf(logits.data(), i, 1.25f, stats);
    const double exact = 1.25 * logits.data()[i] - stats.max - std::log(exact_sum);
    worst = std::max(worst, std::abs(lp - exact) / (1.0 - exact + stats.max));
    sum += std::exp(lp);
    entropy -= std::exp(lp) * lp;
  }
  EXPECT_NEAR(sum, 1.0, 1e-6);
  EXPECT_LT(worst, 2e-7);  // a few roundings of z, of its maximum and of the result
  EXPECT_NEAR(EntropyOf(logits.data(), kVocab, 1.25f), entropy, 1e-5);
}

TEST(SamplingTest, FrequenciesFollowTheDistribution) {
  const float logits[6] = {0.0f, 1.0f, -kInfinity, 2.0f, -1.0f, 0.5f};
  constexpr int kDraws = 60000;
  std::vector<int> counts(6, 0);
  for (uint32_t i = 0; i < kDraws; ++i) {
    const StatusOr<SampledToken> sampled = SampleToken(logits, 6, {1.0, 3, 40 + i, 2});
    ASSERT_TRUE(sampled.ok());
    ++counts[sampled->token];
  }
  double sum = 0.0;
  for (const float x : logits) sum += std::exp(x);
  for (int i = 0; i < 6; ++i) {
    const double p = std::exp(logits[i]) / sum;
    EXPECT_NEAR(counts[i], p * kDraws, 5.0 * std::sqrt(p * (1 - p) * kDraws) + 1e-9) << i;
  }
}

TEST(SamplingTest, LowTemperatureApproachesGreedy) {
  constexpr int64_t kVocab = 3000, kRows = 6, kLd = 3007;
  tests::Guarded logits(kRows * kLd, 3);
  logits.FillWide(5, 2.0f);
  for (const Isa isa : tests::AllIsas()) {
    ASSERT_TRUE(SetIsa(isa).ok());
    for (uint32_t r = 0; r < kRows; ++r) {
      const float* row = logits.data() + r * kLd;
      const StatusOr<SampledToken> drawn =
          SampleToken(row, kVocab, {r % 2 == 0 ? 0.0 : 1e-4, 8, r, r * 5});
      ASSERT_TRUE(drawn.ok());
      EXPECT_EQ(drawn->token, ArgMax(row, kVocab));
    }
  }
}

TEST(SamplingTest, RowsWithoutADistributionAreRefused) {
  for (const float bad : {kInfinity, std::nanf(""), -kInfinity}) {
    std::vector<float> logits(2100, bad == -kInfinity ? bad : 0.5f);
    logits[1500] = bad;
    EXPECT_EQ(SampleToken(logits.data(), 2100, {1.0, 1, 1, 1}).status().code(),
              StatusCode::kDataLoss)
        << bad;
    EXPECT_EQ(SampleToken(logits.data(), 2100, {0.0, 1, 1, 1}).status().code(),
              StatusCode::kDataLoss)
        << bad;
  }
  // A chunk that is NaN whole is not taken for a masked one.
  std::vector<float> chunk(2048, 0.0f);
  for (int i = 1024; i < 2048; ++i) chunk[i] = std::nanf("");
  EXPECT_EQ(SampleToken(chunk.data(), 2048, {1.0, 1, 1, 1}).status().code(), StatusCode::kDataLoss);
  for (const double bad : {-1.0, std::nan(""), HUGE_VAL, 1e-320, 1e300}) {
    EXPECT_EQ(SampleToken(chunk.data(), 4, {bad, 1, 1, 1}).status().code(),
              StatusCode::kInvalidArgument)
        << bad;
  }
}

}  // namespace
}  // namespace titan::kernels
