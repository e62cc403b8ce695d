// SPDX-License-Identifier: Apache-2.0
//
// Goal: a snapshot is the state bit for bit, stays so while steps go on, and changes nothing about
// them. Method: two states that take the same steps, one of them with snapshots that another thread
// reads and drops.
#include "trainer/train_state.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <vector>

namespace titan::trainer {
namespace {

constexpr int64_t kFloats = 100'003;
constexpr int kSteps = 7;

class TrainStateTest : public ::testing::Test {
 protected:
  std::unique_ptr<TrainState> Make(bool snapshots) {
    auto state = TrainState::Create(pool_, kFloats, snapshots);
    EXPECT_TRUE(state.ok()) << state.status();
    for (int64_t i = 0; i < kFloats; ++i)
      (*state)->master()[i] = static_cast<float>(i % 97) * 0.01f;
    return *std::move(state);
  }
  void Step(TrainState& state, int step) {
    std::vector<float> gradient(kFloats);
    for (int64_t i = 0; i < kFloats; ++i) {
      gradient[static_cast<size_t>(i)] = static_cast<float>((i * 31 + step * 7) % 53 - 26) * 0.1f;
    }
    const auto scalars = kernels::NextAdamWStep({.lr = 1e-2, .weight_decay = 0.1}, &state.powers());
    ASSERT_TRUE(scalars.ok()) << scalars.status();
    ASSERT_TRUE(state.Step(pool_, *scalars, 0.5f, gradient.data()));
  }
  static std::vector<float> Copy(const float* master, const float* first, const float* second) {
    std::vector<float> all;
    for (const float* array : {master, first, second})
      all.insert(all.end(), array, array + kFloats);
    return all;
  }
  static std::vector<float> Copy(TrainState& state) {
    return Copy(state.master(), state.first_moment(), state.second_moment());
  }
  static bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  }

  kernels::Pool pool_{2};
};

TEST_F(TrainStateTest, StepsAreTheSameWithSnapshotsAndWithout) {
  const auto plain = Make(false), saved = Make(true);
  for (int step = 0; step < kSteps; ++step) {
    std::thread reader;
    if (step % 2 == 1) {
      auto snapshot = saved->TakeSnapshot();
      ASSERT_TRUE(snapshot.ok()) << snapshot.status();
      EXPECT_EQ((*snapshot)->powers().step, step);
      reader = std::thread([want = Copy(*saved), held = *std::move(snapshot)]() mutable {
        for (int look = 0; look < 20; ++look) {
          EXPECT_TRUE(
              SameBits(Copy(held->master(), held->first_moment(), held->second_moment()), want));
        }
        held.reset();
      });
    }
    Step(*plain, step);
    Step(*saved, step);
    if (reader.joinable()) reader.join();
    ASSERT_TRUE(SameBits(Copy(*plain), Copy(*saved))) << "step " << step;
  }
}

TEST_F(TrainStateTest, OneSnapshotAtATimeForAsManyStepsAsItTakes) {
  const auto state = Make(true);
  auto first = state->TakeSnapshot();
  ASSERT_TRUE(first.ok()) << first.status();
  const std::vector<float> want = Copy(*state);
  for (int step = 0; step < 3; ++step) {
    EXPECT_EQ(state->TakeSnapshot().status().code(), StatusCode::kUnavailable);
    Step(*state, step);
  }
  EXPECT_TRUE(SameBits(
      Copy((*first)->master(), (*first)->first_moment(), (*first)->second_moment()), want));
  first->reset();
  EXPECT_TRUE(state->TakeSnapshot().ok());
  EXPECT_EQ(Make(false)->TakeSnapshot().status().code(), StatusCode::kFailedPrecondition);
}

TEST_F(TrainStateTest, ASnapshotMayOutliveItsState) {
  auto state = Make(true);
  const auto snapshot = *state->TakeSnapshot();
  const std::vector<float> want = Copy(*state);
  state.reset();
  EXPECT_TRUE(SameBits(
      Copy(snapshot->master(), snapshot->first_moment(), snapshot->second_moment()), want));
}

}  // namespace
}  // namespace titan::trainer
