// SPDX-License-Identifier: Apache-2.0
//
// What the sweeps of kernels_sweep_test share: kernels against their scalar twins over random
// shapes until the wanted number of outputs was compared by bits (--outputs=N), every instruction
// set of this CPU in one process, random thread counts. Shapes, values and threads are functions of
// the seed alone. Wrong orders are held against the twins too and must differ: else the comparison
// would be empty.
#ifndef TITAN_TESTS_SUPPORT_KERNEL_SWEEP_H_
#define TITAN_TESTS_SUPPORT_KERNEL_SWEEP_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/kernels/isa.h"
#include "core/kernels/panels.h"
#include "core/kernels/pool.h"
#include "tests/support/kernel_cases.h"
#include "tests/support/kernel_data.h"

namespace titan::kernels::tests {

using Floats = std::vector<float>;

class SweepTest : public ::testing::Test {
 protected:
  static int64_t WantedOutputs() {
    for (const std::string& argument : ::testing::internal::GetArgvs()) {
      if (argument.rfind("--outputs=", 0) == 0) return std::atoll(argument.c_str() + 10);
    }
    return kOutputsOfMakeTest;
  }

  // Names the wrong orders of this sweep: each must have been held against a twin, and be seen.
  void Guards(std::initializer_list<const char*> names) {
    for (const char* name : names) guards_[name];
  }

  void TearDown() override {
    ASSERT_TRUE(SetIsa("auto").ok());
    std::string counts, seen;
    for (const auto& [what, count] : outputs_) counts += ", " + what + " " + std::to_string(count);
    EXPECT_FALSE(guards_.empty());
    for (const auto& [name, guard] : guards_) {
      EXPECT_GT(guard.judged, 0) << name << ": was never held against a twin";
      EXPECT_EQ(guard.unseen, 0) << name << ": has the bits of the defined order, of "
                                 << guard.judged;
      seen += (seen.empty() ? "" : ", ") + name + " " + std::to_string(guard.judged);
    }
    EXPECT_GE(compared_, WantedOutputs());
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin_;
    std::printf("%lld outputs, %lld different%s; wrong orders seen: %s; %.1f s\n",
                static_cast<long long>(compared_), static_cast<long long>(different_),
                counts.c_str(), seen.c_str(), took.count());
    RecordProperty("outputs", std::to_string(compared_));
  }

  bool Goes() {
    ++round_;
    return compared_ < WantedOutputs() && !HasFatalFailure();
  }

  // Every instruction set that these inputs can run on writes `got` and is compared.
  template <typename Run>
  void Compare(const char* what, const Floats& want, const Run& run, Inputs inputs = Inputs::kF32) {
    const int threads = static_cast<int>(1 + random_.Below(3));
    Pool pool(threads);
    for (const std::string& isa : IsaNames(inputs)) {
      ASSERT_TRUE(SetIsa(isa).ok());
      Floats got = titan::testing::PoisonedFloats(static_cast<int64_t>(want.size()));
      run(pool, got);
      const int64_t differing = CountDifferentBits(got, want);
      different_ += differing;
      ASSERT_EQ(differing, 0) << what << " round " << round_ << " " << isa << " threads "
                              << threads;
      compared_ += static_cast<int64_t>(want.size());
      outputs_[std::string(what) + " " + isa] += static_cast<int64_t>(want.size());
    }
  }

  // Outputs of a wrong order. Single ones may round alike: they are gathered until there are enough
  // of them for a judgement.
  void MustDiffer(const char* name, std::span<const float> want, std::span<const float> wrong) {
    Guard& guard = guards_.at(name);
    guard.outputs += static_cast<int64_t>(want.size());
    guard.differing += CountDifferentBits(want, wrong);
    if (guard.outputs < kOutputsOfAJudgement) return;
    ++guard.judged;
    if (guard.differing == 0) ++guard.unseen;
    guard.outputs = guard.differing = 0;
  }

  int64_t Between(int64_t low, int64_t high) { return low + random_.Below(high - low + 1); }
  uint64_t Seed() { return random_.Next(); }

  const NumericThread numeric_;
  titan::testing::TestRandom random_{2026};
  int64_t round_ = 0;

 private:
  static constexpr int64_t kOutputsOfMakeTest = 5'000'000, kOutputsOfAJudgement = 128;
  struct Guard {
    int64_t outputs = 0, differing = 0, judged = 0, unseen = 0;
  };

  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  int64_t compared_ = 0, different_ = 0;
  std::map<std::string, int64_t> outputs_;
  std::map<std::string, Guard> guards_;
};

// A matrix [n][k] in every form that a product takes.
struct SweepMatrix {
  SweepMatrix(const Floats& rows, int64_t n, int64_t k)
      : panels(static_cast<size_t>(PanelFloats(n, k))),
        half(static_cast<size_t>(PanelElements(Element::kBf16, n, k))),
        rounded(rows.size()) {
    Pool& pool = Pool::OfThisThread();
    PackPanels(pool, rows.data(), n, k, panels.data());
    EXPECT_TRUE(PackPanels(pool, rows.data(), n, k, half.data()));
    UnpackPanels(pool, half.data(), n, k, rounded.data());
  }
  Floats panels;
  std::vector<BFloat16> half;
  Floats rounded;  // what `half` holds, row-major
};

inline Floats Rounded(const Floats& x) {
  Floats out;
  for (const float value : x) out.push_back(ToFloat(RoundToBf16(value)));
  return out;
}

// Rows of k with the two steps of every pair exchanged: what an instruction that takes the lower
// half of a pair first would add up.
inline Floats LowerHalvesFirst(Floats rows, int64_t k) {
  for (size_t row = 0; row < rows.size(); row += static_cast<size_t>(k)) {
    for (int64_t i = 0; i + 1 < k; i += 2) {
      std::swap(rows[row + static_cast<size_t>(i)], rows[row + static_cast<size_t>(i) + 1]);
    }
  }
  return rows;
}

// Rows of k, each from its end to its beginning.
inline Floats Backwards(Floats rows, int64_t k) {
  for (auto at = rows.begin(); at != rows.end(); at += k) std::reverse(at, at + k);
  return rows;
}

}  // namespace titan::kernels::tests

#endif  // TITAN_TESTS_SUPPORT_KERNEL_SWEEP_H_
