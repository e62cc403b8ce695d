// SPDX-License-Identifier: Apache-2.0
#include "services/trainer/checkpointer.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"
#include "core/runtime/log.h"
#include "services/trainer/checkpoint.h"

namespace titan::services {

Checkpointer::Checkpointer(weightstore::CheckpointPort& store, const Clock& clock,
                           CheckpointerOptions options)
    : store_(store),
      clock_(clock),
      options_(std::move(options)),
      manifest_(std::make_shared<const weightstore::Manifest>(options_.manifest)),
      thread_([this] { Run(); }) {}

Checkpointer::~Checkpointer() {
  {
    const std::lock_guard lock(mutex_);
    *stopped_ = true;
  }
  changed_.notify_all();
}

void Checkpointer::WaitUntilFree() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !work_.has_value(); });
}

void Checkpointer::Save(std::unique_ptr<trainer::TrainState::Snapshot> snapshot, uint64_t version,
                        const Hash128& weights_digest) {
  const std::lock_guard lock(mutex_);
  TITAN_CHECK(!work_.has_value());
  work_.emplace(Work{std::move(snapshot), version, weights_digest});
  changed_.notify_all();
}

void Checkpointer::Run() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return *stopped_ || work_.has_value(); });
      if (*stopped_) return;
    }
    const Instant start = clock_.Now();
    CheckpointOutcome outcome;
    outcome.version = work_->version;
    outcome.status = Write(*work_);
    outcome.seconds = Seconds(clock_.Now() - start);
    if (*stopped_) return;
    if (outcome.status.ok()) {
      TITAN_LOG(kInfo, "checkpoint_written", {"run", options_.run_id}, {"version", outcome.version},
                {"seconds", outcome.seconds});
    } else {
      TITAN_LOG(kError, "checkpoint_not_written", {"run", options_.run_id},
                {"version", outcome.version}, {"status", outcome.status});
    }
    if (options_.on_done) options_.on_done(outcome);
    const std::lock_guard lock(mutex_);
    work_.reset();
    changed_.notify_all();
  }
}

Status Checkpointer::Write(const Work& work) {
  // What the store still asks for when this call has been given up.
  struct Source {
    std::shared_ptr<const trainer::TrainState::Snapshot> snapshot;
    std::shared_ptr<const weightstore::Manifest> manifest;
    CheckpointBytes bytes;
  };
  const trainer::TrainState::Snapshot& state = *work.snapshot;
  const auto bytes = [](const float* array) { return reinterpret_cast<const std::byte*>(array); };
  const CheckpointArrays arrays = {bytes(state.master()), bytes(state.first_moment()),
                                   bytes(state.second_moment())};
  weightstore::Checkpoint checkpoint;
  checkpoint.request_id =
      options_.run_id + "/" + std::to_string(options_.epoch) + "/" + std::to_string(work.version);
  checkpoint.run_id = options_.run_id;
  checkpoint.epoch = options_.epoch;
  checkpoint.version = work.version;
  checkpoint.manifest = *manifest_;
  checkpoint.facts = EncodeFacts({work.weights_digest, state.powers()});
  checkpoint.digest = CheckpointDigest(*manifest_, arrays);
  checkpoint.needed_version = work.version - std::min(work.version, options_.max_age);
  const auto source = std::make_shared<Source>(
      Source{work.snapshot, manifest_, CheckpointBytes(*manifest_, arrays)});
  return store_.PutCheckpoint(checkpoint, [source, stopped = stopped_]() -> StatusOr<std::string> {
    if (*stopped) return Cancelled("the run ends");
    return source->bytes.Next();
  });
}

}  // namespace titan::services
