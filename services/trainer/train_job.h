// SPDX-License-Identifier: Apache-2.0
//
// A run on this trainer: its model, its training state and its publisher. Turns a planned step into
// a committed version: parity under the older version, update, publish.
//
// Not thread-safe, but for Cancel: the trainer's engine thread, which its blocking calls may block.
#ifndef TITAN_SERVICES_TRAINER_TRAIN_JOB_H_
#define TITAN_SERVICES_TRAINER_TRAIN_JOB_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/kernels/pool.h"
#include "core/model/decoder.h"
#include "core/text/import_model.h"
#include "services/trainer/checkpointer.h"
#include "titan/config/v1/daemons.pb.h"
#include "titan/config/v1/job.pb.h"
#include "titan/trainer/v1/trainer.pb.h"
#include "trainer/train_run.h"
#include "trainer/training_sample.h"
#include "weightstore/client/checkpoint_port.h"
#include "weightstore/client/leader_port.h"
#include "weightstore/client/publisher.h"
#include "weightstore/client/stored_model.h"
#include "weightstore/client/subscriber.h"
#include "weightstore/transport/puller.h"

namespace titan::services {

// What trainer::TrainRun needs of a resolved job. InvalidArgument names the field.
StatusOr<trainer::TrainConfig> ToTrainConfig(const config::v1::JobSpec& spec,
                                             const config::v1::TrainerConfig& daemon);

// InvalidArgument names the field and the sample.
StatusOr<trainer::TrainingSample> ParseSample(const trainer::v1::TrainingSample& message);

class TrainJob {
 public:
  struct Options {
    config::v1::TrainerConfig config;
    std::string run_id;
    config::v1::JobSpec spec;
    std::string request_id;        // of this start, unique
    bool from_checkpoint = false;  // go on from the run's newest one, if there is any
    // Of each checkpoint, on any thread. May be empty.
    std::function<void(const CheckpointOutcome&)> on_checkpoint;
    // Of versions that other hosts have, which are pulled to be compared: PullerOptions' report and
    // memory. May be empty.
    std::function<void(const weightstore::lanes::PullReport&)> on_pull;
    std::function<void(double num_bytes)> on_pull_memory;
  };
  // The weight store, by what the job wants of it.
  struct Store {
    weightstore::LeaderPort& leader;
    weightstore::ModelPort& models;
    weightstore::CheckpointPort& checkpoints;
  };

  // Loads the model (model.path, or model.id out of the store), takes the run over and publishes
  // version 0, whose manifest names the model's bundle; or goes on from a checkpoint, whose version
  // it publishes again where the store has lost it. store, pool and clock must outlive the job.
  // InvalidArgument, NotFound, Unimplemented: the model or the spec; ResourceExhausted: memory,
  // with the numbers; FailedPrecondition: the checkpoint is of another run (names what differs), or
  // divergence; DataLoss: it is damaged; codes of Publisher.
  static StatusOr<std::unique_ptr<TrainJob>> Start(const Store& store, kernels::Pool& pool,
                                                   const Clock& clock, Options options);

  const std::string& run_id() const { return options_.run_id; }
  uint64_t version() const { return version_; }          // the newest
  const std::string& digest() const { return digest_; }  // of it
  bool broken() const { return !broken_.ok(); }          // no step can follow
  int64_t num_parameters() const { return decoder_->table().num_elements(); }

  // One step. A repeated call for the newest version with the same plan answers the same.
  // FailedPrecondition: not the next step, or the run is broken by an earlier failure. DataLoss:
  // numbers broke. Codes of Publisher and Subscriber.
  StatusOr<trainer::v1::TrainStepResponse> TrainStep(
      const trainer::v1::StepHeader& header, const std::vector<trainer::TrainingSample>& samples);

  // The process is shutting down: a step that waits for a version, or pulls it, ends with
  // Cancelled. Any thread, beside TrainStep.
  void Cancel();

 private:
  TrainJob(const Store& store, kernels::Pool& pool, const Clock& clock, Options options);
  StatusOr<text::ImportedModel> OpenModel(bool with_bundle);
  Status Load();
  // The newest checkpoint of the run, which must be one of `manifest`; nullopt: there is none.
  StatusOr<std::optional<weightstore::StoredModel>> FindCheckpoint(
      const weightstore::Manifest& manifest);
  Status Restore(const weightstore::StoredModel& checkpoint);
  // After a version that is to be kept: hands the state to the checkpointer.
  void SaveCheckpoint();
  // For the comparison of log-probs: mapped where this host has it, else pulled over TCP.
  StatusOr<weightstore::HeldVersion> Acquire(uint64_t version) const;
  StatusOr<std::string> Publish(uint64_t version, const std::string& plan_digest, uint64_t step);
  StatusOr<trainer::v1::TrainStepResponse> DoStep(
      const trainer::v1::StepHeader& header, const std::vector<trainer::TrainingSample>& samples);
  double Now() const { return Seconds(clock_.Now()); }

  const Store store_;
  kernels::Pool& pool_;
  const Clock& clock_;
  const Options options_;
  const std::unique_ptr<weightstore::lanes::Puller> puller_;
  weightstore::Subscriber subscriber_;
  std::stop_source stop_;
  std::unique_ptr<const model::Decoder> decoder_;
  std::unique_ptr<trainer::TrainRun> run_;
  std::unique_ptr<weightstore::Publisher> publisher_;
  std::unique_ptr<Checkpointer> checkpointer_;  // null: the job wants none
  uint64_t version_ = 0;                        // newest committed
  std::string digest_;
  Status broken_;
  std::string last_plan_;
  std::optional<trainer::v1::TrainStepResponse> last_response_;
};

}  // namespace titan::services

#endif  // TITAN_SERVICES_TRAINER_TRAIN_JOB_H_
