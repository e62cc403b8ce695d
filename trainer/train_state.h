// SPDX-License-Identifier: Apache-2.0
//
// Master weights and moments of one rank, and snapshots of them that no step has to copy: while a
// snapshot is held, the next update reads it and writes a second set of arrays, with which the run
// goes on. No copy is made; the price is the memory of that set.
//
//   TakeSnapshot -> (a thread writes it to disk) -> dropped;  Step, Step, ... meanwhile
#ifndef TITAN_TRAINER_TRAIN_STATE_H_
#define TITAN_TRAINER_TRAIN_STATE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "core/base/status.h"
#include "core/kernels/optimizer.h"
#include "core/kernels/pool.h"
#include "core/model/memory.h"

namespace titan::trainer {

// Not thread-safe, except that a Snapshot may be read and dropped by another thread.
class TrainState {
 private:
  struct Arrays {
    model::Floats master, first_moment, second_moment;
    std::atomic<bool> held = false;  // by a snapshot
  };

 public:
  // The state at one time, which stays as it is. May outlive the TrainState.
  class Snapshot {
   public:
    ~Snapshot() { arrays_->held.store(false, std::memory_order_release); }
    Snapshot(const Snapshot&) = delete;
    Snapshot& operator=(const Snapshot&) = delete;

    const float* master() const { return arrays_->master.get(); }
    const float* first_moment() const { return arrays_->first_moment.get(); }
    const float* second_moment() const { return arrays_->second_moment.get(); }
    const kernels::AdamWPowers& powers() const { return powers_; }

   private:
    friend class TrainState;
    Snapshot(std::shared_ptr<Arrays> arrays, const kernels::AdamWPowers& powers)
        : arrays_(std::move(arrays)), powers_(powers) {}
    const std::shared_ptr<Arrays> arrays_;
    const kernels::AdamWPowers powers_;
  };

  // snapshots: takes the memory of a second set, at once. ResourceExhausted: it cannot be had.
  static StatusOr<std::unique_ptr<TrainState>> Create(kernels::Pool& pool, int64_t num_floats,
                                                      bool snapshots);
  static int64_t NumArrays(bool snapshots) { return snapshots ? 6 : 3; }

  int64_t num_floats() const { return num_floats_; }
  float* master() { return now_->master.get(); }
  float* first_moment() { return now_->first_moment.get(); }
  float* second_moment() { return now_->second_moment.get(); }
  kernels::AdamWPowers& powers() { return powers_; }

  // An AdamW step with scalars of powers(). False: a number is not finite, the state is lost.
  bool Step(kernels::Pool& pool, const kernels::AdamWScalars& scalars, float grad_scale,
            const float* gradient);

  // Unavailable: the one before is still held. FailedPrecondition: made without snapshots. Until
  // the next Step nobody may write to the arrays.
  StatusOr<std::unique_ptr<Snapshot>> TakeSnapshot();

 private:
  explicit TrainState(int64_t num_floats) : num_floats_(num_floats) {}
  StatusOr<std::shared_ptr<Arrays>> Allocate() const;

  const int64_t num_floats_;
  std::shared_ptr<Arrays> now_;
  std::shared_ptr<Arrays> other_;  // null: without snapshots
  kernels::AdamWPowers powers_;
};

}  // namespace titan::trainer

#endif  // TITAN_TRAINER_TRAIN_STATE_H_
