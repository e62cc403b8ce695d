// SPDX-License-Identifier: Apache-2.0
#include "trainer/train_run.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "core/base/check.h"
#include "core/kernels/isa.h"
#include "core/kernels/order.h"
#include "core/kernels/sampling.h"

namespace titan::trainer {
namespace {

constexpr size_t kDifferencesKept = 8;
constexpr int64_t kCopyBlockBytes = 1 << 20;

std::byte* AsBytes(const model::Floats& memory) {
  return reinterpret_cast<std::byte*>(memory.get());
}

// By integer operations (numerics.md section 1); the master keeps what is published or rounded.
void FlushDenormals(std::byte* floats, int64_t bytes) {
  auto* words = reinterpret_cast<uint32_t*>(floats);
  for (int64_t i = 0; i < bytes / static_cast<int64_t>(sizeof(uint32_t)); ++i) {
    const uint32_t bits = words[i];
    words[i] = (bits & 0x7f800000u) == 0 ? bits & 0x80000000u : bits;
  }
}

bool IsPowerOfTwo(int n) { return n > 0 && (n & (n - 1)) == 0; }

// Buffers of the shard tree: after shard i at most log2(i + 1) + 1 partial sums are open.
int NumGradientBuffers(int num_shards) { return std::bit_width(static_cast<unsigned>(num_shards)); }

Status ValidateConfig(const TrainConfig& config) {
  if (!IsPowerOfTwo(config.num_shards) || config.num_shards > 1024) {
    return InvalidArgument("training.shards: must be a power of two, at most 1024");
  }
  if (!(config.max_gradient_norm > 0) || !std::isfinite(config.max_gradient_norm)) {
    return InvalidArgument("training.max_gradient_norm: must be a finite number above 0");
  }
  if (!(config.loss.clip_low >= 0) || config.loss.clip_low > 1) {
    return InvalidArgument("training.clip_low: must be between 0 and 1");
  }
  if (!(config.loss.clip_high >= 0) || !std::isfinite(config.loss.clip_high)) {
    return InvalidArgument("training.clip_high: must be a finite number, at least 0");
  }
  if (config.loss.kl.kind != KlKind::kNone) {
    return InvalidArgument(
        "training.kl: the trainer has no reference log-probs; leave the KL term out");
  }
  // A unit is shorter than 2048 tokens; a stretch that may not be cut ends with the sample or the
  // group that it began with.
  const auto fits = [&](const char* field, int64_t tokens) -> Status {
    const int64_t needed = tokens + kernels::kUnitTokens - 1;
    if (config.max_pack_rows >= needed) return OkStatus();
    return InvalidArgument("max_pack_tokens: is " + std::to_string(config.max_pack_rows) +
                           ", must be at least " + field + " + 1023 = " + std::to_string(needed));
  };
  TITAN_RETURN_IF_ERROR(fits("max_sequence_tokens", config.max_sequence_tokens));
  if (config.shared_group_tokens < 0) {
    return InvalidArgument("training.shared_group_tokens: must not be negative");
  }
  if (config.shared_group_tokens > 0) {
    TITAN_RETURN_IF_ERROR(fits("training.shared_group_tokens", config.shared_group_tokens));
  }
  return OkStatus();
}

model::TrainableDecoder::Limits LimitsOf(const TrainConfig& config) {
  model::TrainableDecoder::Limits limits;
  limits.max_rows = config.max_pack_rows;
  limits.max_head_rows = config.max_pack_rows;
  limits.max_runs = config.max_pack_rows;
  limits.backward = true;
  limits.recompute = config.recompute;
  return limits;
}

}  // namespace

// Items of one pack, laid end to end.
struct TrainRun::PackedBatch {
  std::vector<const TrainingSample*> samples;
  std::vector<int32_t> tokens;
  std::vector<int32_t> run_lengths;
  std::vector<int32_t> run_parents;
  std::vector<int32_t> rows;     // those that predict a reply token
  std::vector<int32_t> targets;  // parallel to rows
  // Of each reply token, samples end to end: the index in rows of the one that predicts it.
  std::vector<int32_t> predicted_by;
  std::span<const kernels::RowRange> units;

  model::TrainBatch view() const {
    return {tokens, run_lengths, run_parents, rows, targets, units};
  }

  void AddSample(const TrainingSample& sample);
  void AddGroup(std::span<const TrainingSample* const> group);

 private:
  void Predict(int32_t row, TokenId target) {
    rows.push_back(row);
    targets.push_back(target);
  }
  int32_t AddRun(std::span<const TokenId> first, std::span<const TokenId> second, int32_t parent) {
    const auto first_row = static_cast<int32_t>(tokens.size());
    tokens.insert(tokens.end(), first.begin(), first.end());
    tokens.insert(tokens.end(), second.begin(), second.end());
    run_lengths.push_back(static_cast<int32_t>(first.size() + second.size()));
    run_parents.push_back(parent);
    return first_row;
  }
};

void TrainRun::PackedBatch::AddSample(const TrainingSample& sample) {
  samples.push_back(&sample);
  const int32_t first_row = AddRun(sample.prompt, sample.reply, -1);
  const auto prompt_size = static_cast<int32_t>(sample.prompt.size());
  for (size_t t = 0; t < sample.reply.size(); ++t) {
    predicted_by.push_back(static_cast<int32_t>(rows.size()));
    Predict(first_row + prompt_size - 1 + static_cast<int32_t>(t), sample.reply[t]);
  }
}

// The replies in order, then the prompt, whose last row predicts the first token of each of them.
void TrainRun::PackedBatch::AddGroup(std::span<const TrainingSample* const> group) {
  const auto parent = static_cast<int32_t>(run_lengths.size() + group.size());
  const size_t first_token = predicted_by.size();
  for (const TrainingSample* sample : group) {
    samples.push_back(sample);
    const int32_t first_row = AddRun(sample->reply, {}, parent);
    predicted_by.push_back(0);  // set below
    for (size_t t = 1; t < sample->reply.size(); ++t) {
      predicted_by.push_back(static_cast<int32_t>(rows.size()));
      Predict(first_row + static_cast<int32_t>(t) - 1, sample->reply[t]);
    }
  }
  const std::vector<TokenId>& prompt = group.front()->prompt;
  const int32_t branch = AddRun(prompt, {}, -1) + static_cast<int32_t>(prompt.size()) - 1;
  size_t token = first_token;
  for (const TrainingSample* sample : group) {
    predicted_by[token] = static_cast<int32_t>(rows.size());
    Predict(branch, sample->reply.front());
    token += sample->reply.size();
  }
}

TrainRun::TrainRun(const model::Decoder& decoder, kernels::Pool& pool, const TrainConfig& config,
                   Clock clock)
    : decoder_(decoder), pool_(pool), config_(config), clock_(std::move(clock)) {}

int64_t TrainRun::MemoryNeeded(const model::Decoder& decoder, const TrainConfig& config) {
  const int64_t slots = 3 + NumGradientBuffers(config.num_shards);
  const model::ParameterTable& table = decoder.master_table();
  int64_t bytes =
      slots * table.slot_bytes() + model::TrainableDecoder::MemoryNeeded(decoder, LimitsOf(config));
  if (decoder.mode() == model::Mode::kW16) bytes += decoder.table().slot_bytes();
  if (table.tied()) bytes += table.at(table.embedding()).bytes;
  return bytes;
}

StatusOr<std::unique_ptr<TrainRun>> TrainRun::Create(const model::Decoder& decoder,
                                                     kernels::Pool& pool, const TrainConfig& config,
                                                     Clock clock) {
  TITAN_RETURN_IF_ERROR(ValidateConfig(config));
  auto run = std::unique_ptr<TrainRun>(new TrainRun(decoder, pool, config, std::move(clock)));
  const auto inverse = kernels::InverseTemperature(config.temperature);
  if (!inverse.ok() || !(config.temperature > 0)) {
    return InvalidArgument("rollout.temperature: must be above 0 for training");
  }
  run->inverse_temperature_ = *inverse;
  TITAN_RETURN_IF_ERROR(run->Allocate());
  return run;
}

Status TrainRun::Allocate() {
  const int64_t floats = decoder_.master_table().slot_floats();
  TITAN_ASSIGN_OR_RETURN(master_, model::AllocateFloats(floats));
  if (decoder_.mode() == model::Mode::kW16) {
    TITAN_ASSIGN_OR_RETURN(rounded_, model::AllocateFloats(decoder_.table().slot_floats()));
  }
  TITAN_ASSIGN_OR_RETURN(first_moment_, model::AllocateFloats(floats));
  TITAN_ASSIGN_OR_RETURN(second_moment_, model::AllocateFloats(floats));
  for (int i = 0; i < NumGradientBuffers(config_.num_shards); ++i) {
    TITAN_ASSIGN_OR_RETURN(model::Floats buffer, model::AllocateFloats(floats));
    gradients_.push_back(std::move(buffer));
  }
  if (decoder_.master_table().tied()) {
    const auto& embedding = decoder_.master_table().at(decoder_.master_table().embedding());
    TITAN_ASSIGN_OR_RETURN(tied_embedding_, model::AllocateFloats(embedding.num_floats()));
  }
  TITAN_ASSIGN_OR_RETURN(trainable_,
                         model::TrainableDecoder::Create(decoder_, pool_, LimitsOf(config_)));
  return OkStatus();
}

Status TrainRun::CheckSample(const TrainingSample& sample) const {
  const auto refused = [&sample](const std::string& why) {
    return InvalidArgument("sample " + ToHex(sample.id.value) + ": " + why);
  };
  if (sample.prompt.empty() || sample.reply.empty() ||
      sample.reply.size() != sample.log_probs.size()) {
    return refused(
        "prompt and reply must not be empty, and token_ids and logprobs must have the same length");
  }
  if (sample.length() > config_.max_sequence_tokens) {
    return refused(std::to_string(sample.length()) +
                   " tokens are more than max_sequence_tokens = " +
                   std::to_string(config_.max_sequence_tokens));
  }
  const auto check_tokens = [&](const char* field, const std::vector<TokenId>& tokens) -> Status {
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i] >= 0 && tokens[i] < decoder_.vocabulary()) continue;
      return refused(std::string(field) + "[" + std::to_string(i) +
                     "] = " + std::to_string(tokens[i]) + " lies outside the vocabulary of " +
                     std::to_string(decoder_.vocabulary()));
    }
    return OkStatus();
  };
  TITAN_RETURN_IF_ERROR(check_tokens("prompt_token_ids", sample.prompt));
  TITAN_RETURN_IF_ERROR(check_tokens("token_ids", sample.reply));
  for (size_t t = 0; t < sample.log_probs.size(); ++t) {
    if (std::isfinite(sample.log_probs[t])) continue;
    return refused("logprobs[" + std::to_string(t) + "] is not a finite number");
  }
  return OkStatus();
}

Status TrainRun::LayPacks(Shard* shard) const {
  for (const TrainingSample* sample : shard->samples) TITAN_RETURN_IF_ERROR(CheckSample(*sample));
  shard->items = ItemsOf(shard->samples, config_.shared_group_tokens);
  TITAN_ASSIGN_OR_RETURN(shard->packs, PackShard(shard->items, config_.max_pack_rows));
  return OkStatus();
}

TrainRun::PackedBatch TrainRun::Lay(const Shard& shard, const Pack& pack) const {
  PackedBatch batch;
  batch.units = pack.units;
  for (int64_t i = 0; i < pack.num_items; ++i) {
    const PackItem& item = shard.items[static_cast<size_t>(pack.first_item + i)];
    const auto samples =
        std::span(shard.samples)
            .subspan(static_cast<size_t>(item.first_sample), static_cast<size_t>(item.num_samples));
    if (item.shares_prompt) {
      batch.AddGroup(samples);
    } else {
      batch.AddSample(*samples.front());
    }
  }
  return batch;
}

void TrainRun::CompareBits(const PackedBatch& batch, std::span<const float> log_probs,
                           ParityResult* result) const {
  size_t at = 0;
  for (const TrainingSample* sample : batch.samples) {
    for (size_t t = 0; t < sample->reply.size(); ++t, ++at) {
      const float rollout = sample->log_probs[t];
      const float trainer = log_probs[at];
      ++result->tokens_compared;
      if (std::bit_cast<uint32_t>(rollout) == std::bit_cast<uint32_t>(trainer)) continue;
      ++result->tokens_differing;
      const double difference = std::fabs(static_cast<double>(trainer) - rollout);
      result->difference_max = std::isnan(difference)
                                   ? std::numeric_limits<double>::infinity()
                                   : std::max(result->difference_max, difference);
      if (result->differences.size() < kDifferencesKept) {
        result->differences.push_back({sample->id, static_cast<uint32_t>(t), rollout, trainer});
      }
    }
  }
  const auto num_samples = static_cast<uint32_t>(batch.samples.size());
  result->samples_per_pack_min = result->samples_per_pack_min == 0
                                     ? num_samples
                                     : std::min(result->samples_per_pack_min, num_samples);
}

// The one forward of this class: what Compare compares is what Update differentiates.
Status TrainRun::TrainingForward(const model::Weights& weights, const PackedBatch& batch,
                                 std::span<float> log_probs) {
  std::vector<float> by_row(batch.rows.size());
  TITAN_RETURN_IF_ERROR(trainable_->Forward(weights, batch.view(), inverse_temperature_,
                                            /*keep=*/true, by_row, {}));
  for (size_t i = 0; i < log_probs.size(); ++i) {
    log_probs[i] = by_row[static_cast<size_t>(batch.predicted_by[i])];
  }
  return OkStatus();
}

StatusOr<ParityResult> TrainRun::Compare(const void* slot,
                                         std::span<const TrainingSample> samples) {
  const kernels::NumericThread numeric;
  ParityResult result;
  Shard compared;
  for (const TrainingSample& sample : samples) {
    if (sample.compared) compared.samples.push_back(&sample);
  }
  TITAN_RETURN_IF_ERROR(LayPacks(&compared));
  const model::Weights weights = model::WeightsOf(decoder_.table(), slot);
  for (const Pack& pack : compared.packs) {
    const PackedBatch batch = Lay(compared, pack);
    std::vector<float> log_probs(batch.targets.size());
    TITAN_RETURN_IF_ERROR(TrainingForward(weights, batch, log_probs));
    CompareBits(batch, log_probs, &result);
  }
  return result;
}

Status TrainRun::AccumulateShard(const Shard& shard, const UpdateCounts& counts, bool compare,
                                 float* gradient, UpdateResult* result) {
  TITAN_ASSIGN_OR_RETURN(const void* slot, ForwardSlot());
  const model::Weights weights = model::WeightsOf(decoder_.table(), slot);
  const model::GradientBuffers buffers{gradient, tied_embedding_.get()};
  for (const Pack& pack : shard.packs) {
    const PackedBatch batch = Lay(shard, pack);
    std::vector<float> log_probs(batch.targets.size());
    std::vector<float> derivative(batch.targets.size());
    const double start = clock_();
    TITAN_RETURN_IF_ERROR(TrainingForward(weights, batch, log_probs));
    const double middle = clock_();
    if (compare) CompareBits(batch, log_probs, &result->parity);
    size_t at = 0;
    for (const TrainingSample* sample : batch.samples) {
      const size_t n = sample->reply.size();
      result->sample_tokens_max = std::max(result->sample_tokens_max, sample->length());
      const double weight = AggregationWeight(config_.aggregation, counts, static_cast<int64_t>(n));
      const SequenceLoss loss =
          PolicySequenceLoss(config_.loss, std::span(log_probs).subspan(at, n), sample->log_probs,
                             sample->advantage, weight, std::span(derivative).subspan(at, n));
      at += n;
      if (!std::isfinite(loss.loss)) {
        return DataLoss("sample " + ToHex(sample->id.value) + ": the loss is " +
                        std::to_string(loss.loss));
      }
      result->loss += loss.loss;
      result->ratio_mean += loss.ratio_sum;
      result->ratio_max = std::max(result->ratio_max, loss.ratio_max);
      result->clip_fraction += static_cast<double>(loss.clipped_tokens);
    }
    std::vector<float> by_row(derivative.size());
    for (size_t i = 0; i < derivative.size(); ++i) {
      by_row[static_cast<size_t>(batch.predicted_by[i])] = derivative[i];
    }
    TITAN_RETURN_IF_ERROR(trainable_->Backward(by_row, buffers));
    result->forward_seconds += middle - start;
    result->backward_seconds += clock_() - middle;
  }
  if (decoder_.master_table().tied()) {
    model::AddTiedEmbedding(pool_, decoder_.master_table(), tied_embedding_.get(),
                            model::GradientsOf(decoder_.master_table(), gradient));
  }
  return OkStatus();
}

Status TrainRun::Step(float* gradient, UpdateResult* result) {
  std::vector<kernels::GradientTensor> tensors;
  for (const model::Parameter& parameter : decoder_.master_table().parameters()) {
    kernels::GradientTensor tensor;
    tensor.data = gradient + parameter.offset / static_cast<int64_t>(sizeof(float));
    tensor.layout = parameter.layout == model::Layout::kPanels ? kernels::TableLayout::kPanels32
                                                               : kernels::TableLayout::kRows;
    tensor.n = parameter.is_matrix() ? parameter.rows() : 1;
    tensor.k = parameter.is_matrix() ? parameter.columns() : parameter.num_elements();
    tensors.push_back(tensor);
  }
  result->gradient_norm = kernels::GradientNorm(pool_, tensors);
  const auto scale = kernels::ClipScale(result->gradient_norm, config_.max_gradient_norm);
  if (!scale.ok()) {
    return DataLoss("gradient norm " + std::to_string(result->gradient_norm) +
                    " cannot be clipped: " + MessageOf(scale.status()));
  }
  TITAN_ASSIGN_OR_RETURN(const kernels::AdamWScalars scalars,
                         kernels::NextAdamWStep(config_.optimizer, &powers_));
  forward_is_current_ = false;
  if (!kernels::AdamWStep(pool_, decoder_.master_table().slot_floats(), scalars, *scale, gradient,
                          master_.get(), first_moment_.get(), second_moment_.get())) {
    return DataLoss("a weight or moment became NaN or infinite in the optimizer step");
  }
  return OkStatus();
}

StatusOr<std::vector<TrainRun::Shard>> TrainRun::Shards(std::span<const TrainingSample> samples,
                                                        int64_t num_groups) const {
  std::vector<Shard> shards(static_cast<size_t>(config_.num_shards));
  const TrainingSample* last = nullptr;
  for (const TrainingSample& sample : samples) {
    if (!sample.trained) continue;
    const std::string name = "sample " + ToHex(sample.id.value);
    if (static_cast<int64_t>(sample.group_index) >= num_groups) {
      return InvalidArgument(name + ": group_index " + std::to_string(sample.group_index) +
                             " is not below num_groups_trained " + std::to_string(num_groups));
    }
    const auto place = [](const TrainingSample& s) {
      return std::pair(s.group_index, s.sample_index);
    };
    if (last != nullptr && place(*last) >= place(sample)) {
      return InvalidArgument(
          name + ": (group_index, sample_index) = (" + std::to_string(sample.group_index) + ", " +
          std::to_string(sample.sample_index) + ") does not follow (" +
          std::to_string(last->group_index) + ", " + std::to_string(last->sample_index) +
          "); trained samples come in plan order, each once");
    }
    last = &sample;
    const int shard = kernels::ShardOfGroup(sample.group_index, num_groups, config_.num_shards);
    shards[static_cast<size_t>(shard)].samples.push_back(&sample);
  }
  for (Shard& shard : shards) {
    TITAN_RETURN_IF_ERROR(LayPacks(&shard));
  }
  return shards;
}

StatusOr<UpdateResult> TrainRun::Update(std::span<const TrainingSample> samples, int64_t num_groups,
                                        bool compare) {
  const kernels::NumericThread numeric;
  UpdateResult result;
  // Every sample is checked before the first one is computed: a refusal leaves the state whole.
  TITAN_ASSIGN_OR_RETURN(const std::vector<Shard> shards, Shards(samples, num_groups));
  UpdateCounts counts;
  for (const Shard& shard : shards) {
    for (const TrainingSample* sample : shard.samples) {
      if (!std::isfinite(sample->advantage)) {
        return DataLoss("sample " + ToHex(sample->id.value) + ": the advantage is " +
                        std::to_string(sample->advantage));
      }
      counts.tokens += static_cast<int64_t>(sample->reply.size());
      ++counts.sequences;
    }
  }
  if (counts.sequences == 0) return result;
  result.updated = true;
  result.tokens_trained = counts.tokens;

  // An update that ended early can have left a part of its embedding gradient here.
  if (decoder_.master_table().tied()) {
    const auto& embedding = decoder_.master_table().at(decoder_.master_table().embedding());
    std::memset(tied_embedding_.get(), 0, static_cast<size_t>(embedding.bytes));
  }
  const size_t slot_bytes = static_cast<size_t>(decoder_.master_table().slot_bytes());
  size_t open = 0;  // partial sums on the stack
  for (int shard = 0; shard < config_.num_shards; ++shard) {
    float* gradient = gradients_[open++].get();
    std::memset(gradient, 0, slot_bytes);
    const Shard& part = shards[static_cast<size_t>(shard)];
    TITAN_RETURN_IF_ERROR(AccumulateShard(part, counts, compare, gradient, &result));
    for (int merge = 0; merge < kernels::MergesAfterShard(shard); ++merge) {
      --open;
      kernels::AddInto(pool_, decoder_.master_table().slot_floats(), gradients_[open - 1].get(),
                       gradients_[open].get());
    }
  }
  TITAN_CHECK(open == 1);
  if (!std::isfinite(result.loss)) {
    return DataLoss("the loss of the step is " + std::to_string(result.loss));
  }
  result.ratio_mean /= static_cast<double>(counts.tokens);
  result.clip_fraction /= static_cast<double>(counts.tokens);
  const double start = clock_();
  TITAN_RETURN_IF_ERROR(Step(gradients_[0].get(), &result));
  result.optimizer_seconds = clock_() - start;
  return result;
}

void TrainRun::ForBlocks(int64_t bytes, const std::function<void(int64_t, int64_t)>& body) {
  pool_.Run(static_cast<int>((bytes + kCopyBlockBytes - 1) / kCopyBlockBytes), [&](int block) {
    const int64_t begin = block * kCopyBlockBytes;
    body(begin, std::min(kCopyBlockBytes, bytes - begin));
  });
}

StatusOr<const void*> TrainRun::ForwardSlot() {
  if (decoder_.mode() == model::Mode::kF32) return master_.get();
  if (!forward_is_current_) {
    ForBlocks(decoder_.master_table().slot_bytes(), [this](int64_t begin, int64_t count) {
      FlushDenormals(AsBytes(master_) + begin, count);
    });
    TITAN_RETURN_IF_ERROR(model::RoundMaster(pool_, decoder_.master_table(), master_.get(),
                                             decoder_.table(), rounded_.get()));
    forward_is_current_ = true;
  }
  return rounded_.get();
}

Status TrainRun::WriteSlot(void* slot) {
  TITAN_RETURN_IF_ERROR(ForwardSlot().status());
  const bool is_master = decoder_.mode() == model::Mode::kF32;
  std::byte* from = AsBytes(is_master ? master_ : rounded_);
  ForBlocks(decoder_.table().slot_bytes(), [&](int64_t begin, int64_t count) {
    if (is_master) FlushDenormals(from + begin, count);
    std::memcpy(static_cast<std::byte*>(slot) + begin, from + begin, static_cast<size_t>(count));
  });
  return OkStatus();
}

}  // namespace titan::trainer
