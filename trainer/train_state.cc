// SPDX-License-Identifier: Apache-2.0
#include "trainer/train_state.h"

#include <utility>

#include "core/base/check.h"

namespace titan::trainer {

StatusOr<std::shared_ptr<TrainState::Arrays>> TrainState::Allocate() const {
  auto arrays = std::make_shared<Arrays>();
  TITAN_ASSIGN_OR_RETURN(arrays->master, model::AllocateFloats(num_floats_));
  TITAN_ASSIGN_OR_RETURN(arrays->first_moment, model::AllocateFloats(num_floats_));
  TITAN_ASSIGN_OR_RETURN(arrays->second_moment, model::AllocateFloats(num_floats_));
  return arrays;
}

StatusOr<std::unique_ptr<TrainState>> TrainState::Create(kernels::Pool& pool, int64_t num_floats,
                                                         bool snapshots) {
  std::unique_ptr<TrainState> state(new TrainState(num_floats));
  TITAN_ASSIGN_OR_RETURN(state->now_, state->Allocate());
  if (!snapshots) return state;
  TITAN_ASSIGN_OR_RETURN(state->other_, state->Allocate());
  // Taken now, so that the first step after a snapshot does not wait for pages.
  for (float* array : {state->other_->master.get(), state->other_->first_moment.get(),
                       state->other_->second_moment.get()}) {
    model::TakePages(pool, array, num_floats);
  }
  return state;
}

bool TrainState::Step(kernels::Pool& pool, const kernels::AdamWScalars& scalars, float grad_scale,
                      const float* gradient) {
  const std::shared_ptr<Arrays> from = now_;
  if (now_->held.load(std::memory_order_acquire)) {
    TITAN_CHECK(!other_->held.load(std::memory_order_acquire));
    std::swap(now_, other_);
  }
  const auto pointers = [](const Arrays& arrays) {
    return kernels::AdamWState{arrays.master.get(), arrays.first_moment.get(),
                               arrays.second_moment.get()};
  };
  return kernels::AdamWStep(pool, num_floats_, scalars, grad_scale, gradient, pointers(*from),
                            pointers(*now_));
}

StatusOr<std::unique_ptr<TrainState::Snapshot>> TrainState::TakeSnapshot() {
  if (other_ == nullptr) return FailedPrecondition("the run was made without snapshots");
  if (now_->held.load(std::memory_order_acquire) || other_->held.load(std::memory_order_acquire)) {
    return Unavailable("the snapshot before this one is still held");
  }
  now_->held.store(true, std::memory_order_relaxed);
  return std::unique_ptr<Snapshot>(new Snapshot(now_, powers_));
}

}  // namespace titan::trainer
