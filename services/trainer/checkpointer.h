// SPDX-License-Identifier: Apache-2.0
//
// Writes snapshots of a run to the weight store's disk, on a thread of its own, while training goes
// on: what a step waits for is the checkpoint before it, if that is still being written.
//
//   engine thread:  WaitUntilFree -> TrainRun::TakeSnapshot -> Save
//   own thread:     digest -> send -> drop the snapshot -> on_done
#ifndef TITAN_SERVICES_TRAINER_CHECKPOINTER_H_
#define TITAN_SERVICES_TRAINER_CHECKPOINTER_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "core/base/clock.h"
#include "core/base/hash.h"
#include "core/base/status.h"
#include "trainer/train_state.h"
#include "weightstore/client/checkpoint_port.h"
#include "weightstore/client/manifest.h"

namespace titan::services {

struct CheckpointOutcome {
  uint64_t version = 0;
  Status status;         // of writing it; the run goes on all the same
  double seconds = 0.0;  // that writing took
};

struct CheckpointerOptions {
  std::string run_id;
  uint64_t epoch = 0;              // of the trainer
  weightstore::Manifest manifest;  // CheckpointManifest
  uint64_t max_age = 0;            // S of the schedule: recovery needs the step so far back
  // On the own thread. May be empty.
  std::function<void(const CheckpointOutcome&)> on_done;
};

// One thread calls.
class Checkpointer {
 public:
  // store and clock must outlive it.
  Checkpointer(weightstore::CheckpointPort& store, const Clock& clock, CheckpointerOptions options);
  // Breaks off what is being written, also when the store does not answer; nothing stays of it
  // unless the store had all of it.
  ~Checkpointer();
  Checkpointer(const Checkpointer&) = delete;
  Checkpointer& operator=(const Checkpointer&) = delete;

  // Until nothing is being written.
  void WaitUntilFree();
  // REQUIRES: WaitUntilFree returned, and nothing was saved since.
  void Save(std::unique_ptr<trainer::TrainState::Snapshot> snapshot, uint64_t version,
            const Hash128& weights_digest);

 private:
  struct Work {
    std::unique_ptr<const trainer::TrainState::Snapshot> snapshot;
    uint64_t version = 0;
    Hash128 weights_digest;
  };
  void Run();
  Status Write(Work& work);  // drops its snapshot

  weightstore::CheckpointPort& store_;
  const Clock& clock_;
  const CheckpointerOptions options_;
  const std::shared_ptr<const weightstore::Manifest> manifest_;
  std::atomic<bool> stopped_ = false;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::optional<Work> work_;  // waits or is being written
  std::jthread thread_;       // last: it uses all of the above
};

}  // namespace titan::services

#endif  // TITAN_SERVICES_TRAINER_CHECKPOINTER_H_
