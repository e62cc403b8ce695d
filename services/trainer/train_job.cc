// SPDX-License-Identifier: Apache-2.0
#include "services/trainer/train_job.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <future>
#include <mutex>
#include <utility>

#include "core/base/check.h"
#include "core/formats/model_bundle.h"
#include "core/model/model_files.h"
#include "core/runtime/log.h"
#include "core/runtime/machine.h"
#include "core/text/import_model.h"
#include "services/contract/contract.h"
#include "services/models/manifest_of.h"
#include "services/models/stored_source.h"
#include "services/trainer/checkpoint.h"
#include "trainer/contract.h"
#include "weightstore/client/reason.h"

namespace titan::services {

namespace v1 = trainer::v1;
using trainer::Aggregation;
using trainer::TrainConfig;
using trainer::TrainingSample;

namespace {

// A reader that does not let go of its version within this blocks the run for good.
constexpr std::chrono::milliseconds kRingWait{60'000};
// A host or leader that is silent for longer fails the step that wants a version of it.
constexpr std::chrono::milliseconds kAcquirePatience{10'000};
constexpr std::chrono::milliseconds kAcquireRetry{100};

std::unique_ptr<weightstore::lanes::Puller> MakePuller(int threads, const TrainJob::Options& job) {
  weightstore::lanes::PullerOptions options;
  options.hash_threads = threads;
  options.keeps_spare = false;  // no plan of memory has room for one beside a step
  options.report = job.on_pull;
  options.memory = job.on_pull_memory;
  auto puller = weightstore::lanes::Puller::Create(std::move(options));
  TITAN_CHECK(puller.ok());
  return *std::move(puller);
}

// Whether the version may be had by another lease, or of a host that is back by then.
bool MayComeLater(const Status& status) {
  const StatusCode code = status.code();
  return code == StatusCode::kAborted || code == StatusCode::kDeadlineExceeded ||
         (code == StatusCode::kUnavailable &&
          weightstore::ReasonOf(status) != weightstore::kVersionLost);
}

}  // namespace

StatusOr<TrainConfig> ToTrainConfig(const config::v1::JobSpec& spec,
                                    const config::v1::TrainerConfig& daemon) {
  TrainConfig config;
  const config::v1::TrainingSpec& training = spec.training();
  config.loss.clip_low = training.clip_low();
  config.loss.clip_high = training.clip_high();
  if (training.aggregation() == "token_mean") {
    config.aggregation = Aggregation::kTokenMean;
  } else if (training.aggregation() == "sequence_mean_token_mean") {
    config.aggregation = Aggregation::kSequenceMeanTokenMean;
  } else if (training.aggregation() == "sequence_mean_token_sum") {
    config.aggregation = Aggregation::kSequenceMeanTokenSum;
  } else {
    return InvalidArgument("training.aggregation: unknown '" + training.aggregation() + "'");
  }
  config.optimizer.lr = training.learning_rate();
  config.optimizer.beta1 = training.beta1();
  config.optimizer.beta2 = training.beta2();
  config.optimizer.eps = training.epsilon();
  config.optimizer.weight_decay = training.weight_decay();
  config.max_gradient_norm = training.max_gradient_norm();
  config.num_shards = static_cast<int>(std::min(training.shards(), 1u << 20));
  config.temperature = spec.rollout().temperature();
  config.max_pack_rows = daemon.max_pack_tokens();
  TITAN_ASSIGN_OR_RETURN(config.recompute, model::RecomputeFromName(daemon.recompute()));
  config.max_sequence_tokens = spec.model().max_sequence_tokens();
  config.shared_group_tokens = training.shared_group_tokens();
  config.snapshots = training.checkpoint_every_steps() > 0;
  return config;
}

StatusOr<TrainingSample> ParseSample(const v1::TrainingSample& message) {
  TrainingSample sample;
  sample.group = {message.group_id()};
  sample.group_index = message.group_index();
  sample.sample_index = message.sample_index();
  sample.id = {message.sample_id()};
  const std::string name = "sample " + ToHex(message.sample_id());
  if (message.prompt_token_ids().empty()) {
    return InvalidArgument(name + ": prompt_token_ids must not be empty");
  }
  if (message.token_ids().empty() || message.token_ids_size() != message.logprobs_size()) {
    return InvalidArgument(name + ": token_ids must not be empty and logprobs be parallel to it");
  }
  sample.prompt.assign(message.prompt_token_ids().begin(), message.prompt_token_ids().end());
  sample.reply.assign(message.token_ids().begin(), message.token_ids().end());
  sample.log_probs.assign(message.logprobs().begin(), message.logprobs().end());
  sample.advantage = message.advantage();
  sample.trained = message.trained();
  sample.compared = message.compared();
  return sample;
}

TrainJob::TrainJob(const Store& store, kernels::Pool& pool, const Clock& clock, Options options)
    : store_(store),
      pool_(pool),
      clock_(clock),
      options_(std::move(options)),
      puller_(MakePuller(pool.size(), options_)),
      subscriber_(store.leader, options_.config.weightstore_socket(), *puller_,
                  options_.config.daemon().worker_id()) {}

void TrainJob::Cancel() {
  stop_.request_stop();
  puller_->Cancel();
  subscriber_.Cancel();
}

StatusOr<weightstore::HeldVersion> TrainJob::Acquire(uint64_t version) const {
  std::mutex mutex;
  std::condition_variable_any woken;
  std::unique_lock lock(mutex);
  const auto give_up = std::chrono::steady_clock::now() + kAcquirePatience;
  for (;;) {
    auto slot = subscriber_.Acquire(options_.run_id, version, /*evaluation=*/false);
    if (!MayComeLater(slot.status()) || std::chrono::steady_clock::now() >= give_up) return slot;
    woken.wait_for(lock, stop_.get_token(), kAcquireRetry, [] { return false; });
    if (stop_.stop_requested()) return Cancelled("the trainer is shutting down");
  }
}

StatusOr<std::unique_ptr<TrainJob>> TrainJob::Start(const Store& store, kernels::Pool& pool,
                                                    const Clock& clock, Options options) {
  auto job = std::unique_ptr<TrainJob>(new TrainJob(store, pool, clock, std::move(options)));
  TITAN_RETURN_IF_ERROR(job->Load());
  return job;
}

StatusOr<text::ImportedModel> TrainJob::OpenModel(bool with_bundle) {
  const config::v1::ModelSpec& spec = options_.spec.model();
  if (spec.id().empty()) {
    auto opened = text::ImportModel(spec.path(), {.without_tokenizer = !with_bundle});
    if (!opened.ok()) return Annotate(opened.status(), "model.path");
    return opened;
  }
  const auto model = store_.models.FindModel(spec.id());
  if (!model.ok()) return Annotate(model.status(), "model.id");
  auto opened = OpenStoredModel(store_.models, *model);
  if (!opened.ok()) return Annotate(opened.status(), "model.id");
  return opened;
}

Status TrainJob::Load() {
  const config::v1::JobSpec& spec = options_.spec;
  const auto mode = model::ModeFromName(spec.model().mode());
  if (!mode.ok()) return Annotate(mode.status(), "model.mode");
  TITAN_ASSIGN_OR_RETURN(const text::ImportedModel opened, OpenModel(/*with_bundle=*/false));
  const formats::ModelSource* const source = opened.source.get();
  // Tables for the job's sequences alone; a position's entry is the same in a table of any length.
  const int64_t context = source->config().max_position_embeddings;
  TITAN_ASSIGN_OR_RETURN(
      decoder_,
      model::Decoder::Create(
          source->config(), std::min<int64_t>(spec.model().max_sequence_tokens(), context), *mode));
  TITAN_ASSIGN_OR_RETURN(const TrainConfig run_config, ToTrainConfig(spec, options_.config));
  const auto needed = static_cast<uint64_t>(trainer::TrainRun::MemoryNeeded(*decoder_, run_config));
  const auto available = runtime::AvailableMemory();  // a system that does not say is tried
  if (available.ok() && needed > *available) {
    return ResourceExhausted(
        "training this model needs " + std::to_string(needed >> 20) + " MiB, " +
        std::to_string(*available >> 20) +
        " MiB are free; set recompute in the trainer's config, or lower "
        "max_pack_tokens or training.shards" +
        (run_config.snapshots ? ", or leave out training.checkpoint_every_steps" : ""));
  }
  TITAN_ASSIGN_OR_RETURN(
      run_, trainer::TrainRun::Create(*decoder_, pool_, run_config, [this] { return Now(); }));

  weightstore::PublisherOptions publisher;
  publisher.socket_path = options_.config.weightstore_socket();
  publisher.run_id = options_.run_id;
  publisher.request_id = options_.request_id;
  publisher.manifest = ManifestOf(decoder_->table(), decoder_->config());
  TITAN_ASSIGN_OR_RETURN(publisher.manifest.contract_forward,
                         RunForwardDigest(pool_, decoder_->config(), decoder_->mode()));
  TITAN_ASSIGN_OR_RETURN(const std::vector<kernels::ContractItem> contract,
                         trainer::TrainingContract(pool_, *decoder_, run_config));
  publisher.manifest.contract_training = kernels::DigestOf(contract);
  publisher.manifest.contract_items = ToManifest(contract);
  publisher.max_age = spec.schedule().max_age();
  if (spec.evaluation().has_slots()) publisher.evaluation_slots = spec.evaluation().slots();
  publisher.hash_threads = pool_.size();
  CheckpointerOptions checkpoints;
  checkpoints.run_id = options_.run_id;
  checkpoints.manifest = CheckpointManifest(publisher.manifest, decoder_->master_table());
  checkpoints.max_age = spec.schedule().max_age();
  checkpoints.on_done = options_.on_checkpoint;
  // While the weights are read: the tokenizer for the bundle, by which every version can be
  // exported and chatted with, and the memory of the store's first slot.
  auto registered = std::async(
      std::launch::async,
      [this, options = std::move(
                 publisher)]() mutable -> StatusOr<std::unique_ptr<weightstore::Publisher>> {
        TITAN_ASSIGN_OR_RETURN(const text::ImportedModel whole, OpenModel(/*with_bundle=*/true));
        TITAN_ASSIGN_OR_RETURN(const Hash128 bundle,
                               store_.models.PutBundle(formats::EncodeBundle(whole.bundle)));
        options.manifest.bundle = ToHex(bundle);
        return weightstore::Publisher::Register(store_.leader, std::move(options));
      });
  std::optional<weightstore::StoredModel> checkpoint;
  if (options_.from_checkpoint) {
    // First: who trained the run before is fenced then, and neither adds nor releases checkpoints.
    TITAN_ASSIGN_OR_RETURN(publisher_, registered.get());
    TITAN_ASSIGN_OR_RETURN(checkpoint, FindCheckpoint(checkpoints.manifest));
  }
  const bool restored = checkpoint.has_value();
  if (restored) {
    TITAN_RETURN_IF_ERROR(Restore(*checkpoint));
  } else {
    TITAN_RETURN_IF_ERROR(
        model::LoadWeights(pool_, *source, decoder_->master_table(), run_->master()));
  }
  if (publisher_ == nullptr) {
    TITAN_ASSIGN_OR_RETURN(publisher_, registered.get());
  }
  const std::string recorded = digest_;
  TITAN_ASSIGN_OR_RETURN(digest_, Publish(version_, "", version_ == 0 ? 0 : version_ - 1));
  if (restored && digest_ != recorded) {
    return DataLoss("the checkpoint's weights have digest " + digest_ + ", version " +
                    std::to_string(version_) + " was " + recorded);
  }
  if (run_config.snapshots) {
    checkpoints.epoch = publisher_->epoch();
    checkpointer_ =
        std::make_unique<Checkpointer>(store_.checkpoints, clock_, std::move(checkpoints));
  }
  return OkStatus();
}

StatusOr<std::optional<weightstore::StoredModel>> TrainJob::FindCheckpoint(
    const weightstore::Manifest& manifest) {
  StatusOr<weightstore::StoredModel> found = store_.checkpoints.FindCheckpoint(options_.run_id);
  if (found.status().code() == StatusCode::kNotFound) {
    return std::optional<weightstore::StoredModel>();
  }
  TITAN_RETURN_IF_ERROR(found.status());
  TITAN_RETURN_IF_ERROR(CheckSameRun(*found->manifest, manifest));
  return std::optional(*std::move(found));
}

Status TrainJob::Restore(const weightstore::StoredModel& checkpoint) {
  const trainer::TrainRun::StateMemory state = run_->Restore();
  const auto bytes = [](float* array) { return reinterpret_cast<std::byte*>(array); };
  TITAN_ASSIGN_OR_RETURN(
      const CheckpointFacts facts,
      ReadCheckpoint(store_.models, checkpoint,
                     {bytes(state.master), bytes(state.first_moment), bytes(state.second_moment)}));
  *state.powers = facts.powers;
  version_ = checkpoint.version;
  digest_ = ToHex(facts.weights_digest);
  TITAN_LOG(kInfo, "checkpoint_restored", {"run", options_.run_id}, {"version", version_});
  return OkStatus();
}

void TrainJob::SaveCheckpoint() {
  checkpointer_->WaitUntilFree();
  StatusOr<std::unique_ptr<trainer::TrainState::Snapshot>> snapshot = run_->TakeSnapshot();
  Hash128 digest;
  if (snapshot.ok() && FromHex(digest_, &digest)) {
    return checkpointer_->Save(*std::move(snapshot), version_, digest);
  }
  TITAN_LOG(kError, "checkpoint_not_taken", {"run", options_.run_id}, {"version", version_},
            {"status", snapshot.status()});
  if (options_.on_checkpoint) {
    options_.on_checkpoint({.version = version_, .status = snapshot.status(), .seconds = 0});
  }
}

StatusOr<std::string> TrainJob::Publish(uint64_t version, const std::string& plan_digest,
                                        uint64_t step) {
  TITAN_ASSIGN_OR_RETURN(const auto begun, publisher_->Begin(version, kRingWait));
  if (begun.recorded) {
    // Made before: the weights in force must be those of the record.
    std::vector<std::byte> bytes(publisher_->manifest().slot_bytes);
    TITAN_RETURN_IF_ERROR(run_->WriteSlot(bytes.data()));
    TITAN_ASSIGN_OR_RETURN(const Hash128 digest, publisher_->ConfirmRecorded(version, bytes));
    return ToHex(digest);
  }
  TITAN_RETURN_IF_ERROR(run_->WriteSlot(begun.bytes.data()));
  TITAN_ASSIGN_OR_RETURN(const Hash128 digest, publisher_->Finish());
  TITAN_RETURN_IF_ERROR(publisher_->Commit(plan_digest, step).status());
  TITAN_LOG(kInfo, "version_committed", {"run", options_.run_id}, {"version", version},
            {"digest", ToHex(digest)});
  return ToHex(digest);
}

StatusOr<v1::TrainStepResponse> TrainJob::TrainStep(const v1::StepHeader& header,
                                                    const std::vector<TrainingSample>& samples) {
  if (!broken_.ok()) {
    return FailedPrecondition("the run broke in an earlier step: " + MessageOf(broken_) +
                              "; StartRun with from_checkpoint begins it anew");
  }
  if (last_response_ && header.step() + 1 == version_ && header.plan_digest() == last_plan_) {
    return *last_response_;
  }
  if (header.step() != version_) {
    return FailedPrecondition("step " + std::to_string(header.step()) + " is not next: version " +
                              std::to_string(version_) + " is the newest, so step " +
                              std::to_string(version_) + " is");
  }
  auto response = DoStep(header, samples);
  if (!response.ok()) {
    // A refused message leaves the state whole; anything else may have moved it.
    if (response.status().code() != StatusCode::kInvalidArgument) broken_ = response.status();
    return response;
  }
  last_plan_ = header.plan_digest();
  last_response_ = *response;
  return response;
}

StatusOr<v1::TrainStepResponse> TrainJob::DoStep(const v1::StepHeader& header,
                                                 const std::vector<TrainingSample>& samples) {
  const bool on_policy = header.behaviour_version() == version_;
  const auto is_compared = [](const TrainingSample& s) { return s.compared; };
  const bool any_compared = std::any_of(samples.begin(), samples.end(), is_compared);
  // On-policy the loss's own forward is the comparison, unless a group is compared that is not
  // trained.
  const bool in_loss = on_policy && std::none_of(samples.begin(), samples.end(), [](const auto& s) {
                         return s.compared && !s.trained;
                       });
  v1::TrainStepResponse response;
  trainer::ParityResult parity;
  if (any_compared && !in_loss) {
    const double start = Now();
    TITAN_ASSIGN_OR_RETURN(auto slot, Acquire(header.behaviour_version()));
    TITAN_ASSIGN_OR_RETURN(parity, run_->Compare(slot.bytes().data(), samples));
    if (!slot.HeaderUnchanged()) {
      return Aborted("the store took version " + std::to_string(header.behaviour_version()) +
                     " back while its log-probs were compared");
    }
    if (const Status told = subscriber_.Release(std::move(slot)); !told.ok()) {
      TITAN_LOG(kWarning, "lease_release_not_heard", {"status", told});
    }
    response.set_parity_forward_seconds(Now() - start);
  }
  TITAN_ASSIGN_OR_RETURN(const trainer::UpdateResult update,
                         run_->Update(samples, header.num_groups_trained(),
                                      /*compare=*/any_compared && in_loss));
  if (any_compared && in_loss) parity = update.parity;

  const double start = Now();
  TITAN_ASSIGN_OR_RETURN(digest_, Publish(version_ + 1, header.plan_digest(), header.step()));
  ++version_;
  const uint32_t every = options_.spec.training().checkpoint_every_steps();
  if (every > 0 && version_ % every == 0) SaveCheckpoint();
  response.set_publish_seconds(Now() - start);
  response.set_version(version_);
  response.set_weights_digest(digest_);
  response.set_updated(update.updated);
  response.set_loss(update.loss);
  response.set_gradient_norm(update.gradient_norm);
  response.set_clip_fraction(update.clip_fraction);
  response.set_ratio_max(update.ratio_max);
  response.set_ratio_mean(update.ratio_mean);
  response.set_tokens_trained(static_cast<uint64_t>(update.tokens_trained));
  response.set_sample_tokens_max(static_cast<uint32_t>(update.sample_tokens_max));
  response.set_forward_seconds(update.forward_seconds);
  response.set_backward_seconds(update.backward_seconds);
  response.set_optimizer_seconds(update.optimizer_seconds);
  response.set_learning_rate(options_.spec.training().learning_rate());
  response.set_logprob_difference_max(parity.difference_max);
  response.set_tokens_differing(parity.tokens_differing);
  response.set_tokens_compared(parity.tokens_compared);
  response.set_samples_per_pack_min(parity.samples_per_pack_min);
  for (const trainer::ParityDifference& difference : parity.differences) {
    v1::ParityDifference* out = response.add_differences();
    out->set_sample_id(difference.sample.value);
    out->set_token_index(difference.token_index);
    out->set_rollout_logprob(difference.rollout);
    out->set_trainer_logprob(difference.trainer);
  }
  return response;
}

}  // namespace titan::services
