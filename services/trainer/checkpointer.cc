// SPDX-License-Identifier: Apache-2.0
#include "services/trainer/checkpointer.h"

#include <sys/resource.h>

#include <algorithm>
#include <utility>

#include "core/base/check.h"
#include "core/runtime/log.h"
#include "services/trainer/checkpoint.h"

namespace titan::services {
namespace {

// Of this thread: it takes a core from the kernels' threads when they leave it, and a tenth of one
// meanwhile, so that it also comes to an end beside steps that never wait.
constexpr int kNiceness = 10;

// The bytes of a snapshot until it is closed. The store's client may ask, on a thread of its own,
// when the call it asks for has returned: the snapshot does not wait for that. Thread-safe.
class Source {
 public:
  Source(std::unique_ptr<const trainer::TrainState::Snapshot> snapshot,
         std::shared_ptr<const weightstore::Manifest> manifest)
      : snapshot_(std::move(snapshot)),
        manifest_(std::move(manifest)),
        arrays_({Bytes(snapshot_->master()), Bytes(snapshot_->first_moment()),
                 Bytes(snapshot_->second_moment())}),
        bytes_(*manifest_, arrays_) {}

  Hash128 Digest() const { return CheckpointDigest(*manifest_, arrays_); }
  const kernels::AdamWPowers& powers() const { return snapshot_->powers(); }
  StatusOr<std::string> Next() {
    const std::lock_guard lock(mutex_);
    if (snapshot_ == nullptr) return Cancelled("the checkpoint is not written any more");
    return bytes_.Next();
  }
  void Close() {
    const std::lock_guard lock(mutex_);
    snapshot_.reset();
  }

 private:
  static const std::byte* Bytes(const float* array) {
    return reinterpret_cast<const std::byte*>(array);
  }

  std::mutex mutex_;                                               // guards snapshot_ and bytes_
  std::unique_ptr<const trainer::TrainState::Snapshot> snapshot_;  // null: closed
  const std::shared_ptr<const weightstore::Manifest> manifest_;
  const CheckpointArrays arrays_;
  CheckpointBytes bytes_;
};

}  // namespace

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
    stopped_ = true;
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
  ::setpriority(PRIO_PROCESS, 0, kNiceness);  // of the calling thread alone; speed only
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopped_ || work_.has_value(); });
      if (stopped_) return;
    }
    const Instant start = clock_.Now();
    CheckpointOutcome outcome;
    outcome.version = work_->version;
    outcome.status = Write(*work_);
    outcome.seconds = Seconds(clock_.Now() - start);
    if (stopped_) return;
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

Status Checkpointer::Write(Work& work) {
  const auto source = std::make_shared<Source>(std::move(work.snapshot), manifest_);
  weightstore::Checkpoint checkpoint;
  checkpoint.request_id =
      options_.run_id + "/" + std::to_string(options_.epoch) + "/" + std::to_string(work.version);
  checkpoint.run_id = options_.run_id;
  checkpoint.epoch = options_.epoch;
  checkpoint.version = work.version;
  checkpoint.manifest = *manifest_;
  checkpoint.facts = EncodeFacts({work.weights_digest, source->powers()});
  checkpoint.digest = source->Digest();
  checkpoint.needed_version = work.version - std::min(work.version, options_.max_age);
  const Status written = store_.PutCheckpoint(
      checkpoint, [source] { return source->Next(); }, [this] { return stopped_.load(); });
  source->Close();
  return written;
}

}  // namespace titan::services
