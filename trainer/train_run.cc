// SPDX-License-Identifier: Apache-2.0
#include "trainer/train_run.h"

#include <algorithm>
#include <array>
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
#include "trainer/contract.h"
#include "trainer/gradient_digest.h"

namespace titan::trainer {
namespace {

constexpr size_t kDifferencesKept = 8;
constexpr int64_t kCopyBlockBytes = 1 << 20;

std::byte* AsBytes(float* memory) { return reinterpret_cast<std::byte*>(memory); }

// By integer operations (numerics.md section 1); the master keeps what is published or rounded.
void FlushDenormals(std::byte* floats, int64_t bytes) {
  auto* words = reinterpret_cast<uint32_t*>(floats);
  for (int64_t i = 0; i < bytes / static_cast<int64_t>(sizeof(uint32_t)); ++i) {
    const uint32_t bits = words[i];
    words[i] = (bits & 0x7f800000u) == 0 ? bits & 0x80000000u : bits;
  }
}

bool IsPowerOfTwo(int n) { return n > 0 && (n & (n - 1)) == 0; }

// Buffers of the shard tree: after shard i at most log2(i + 1) + 1 partial sums are open. Between
// ranks the sums of a rank's own subtrees wait beside those that are joined.
int NumGradientBuffers(int num_shards, int num_ranks) {
  const int open = std::bit_width(static_cast<unsigned>(num_shards));
  if (num_ranks == 1) return open;
  size_t own = 0;
  for (int rank = 0; rank < num_ranks; ++rank) {
    own = std::max(own, SubtreesOf(num_shards, num_ranks, rank).size());
  }
  return open + static_cast<int>(own);
}

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

model::Workspace::Limits ScratchOf(const TrainConfig& config) {
  return {config.max_pack_rows, config.max_pack_rows, /*backward=*/true};
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

TrainRun::TrainRun(const model::Decoder& decoder, kernels::Pool& pool, const TrainConfig& config,
                   Clock clock, Ranks* ranks, Ranks* tensor_ranks)
    : decoder_(decoder),
      pool_(pool),
      config_(config),
      clock_(std::move(clock)),
      ranks_(ranks),
      tensor_ranks_(tensor_ranks) {}

int64_t TrainRun::MemoryNeeded(const model::Decoder& decoder, const TrainConfig& config,
                               int num_ranks) {
  const int64_t slots =
      TrainState::NumArrays(config.snapshots) + NumGradientBuffers(config.num_shards, num_ranks);
  const model::ParameterTable& table = decoder.master_table();
  int64_t bytes =
      slots * table.slot_bytes() + model::TrainableDecoder::MemoryNeeded(decoder, LimitsOf(config));
  if (model::HasRoundedWeights(decoder.mode())) bytes += decoder.table().slot_bytes();
  if (table.tied()) bytes += model::TiedEmbedding::MemoryNeeded(table);
  if (decoder.shard().size > 1) {
    bytes += model::TensorParallel::MemoryNeeded(decoder, ScratchOf(config));
  }
  return bytes;
}

StatusOr<std::unique_ptr<TrainRun>> TrainRun::Create(const model::Decoder& decoder,
                                                     kernels::Pool& pool, const TrainConfig& config,
                                                     Clock clock, Ranks* ranks, Ranks* tensor) {
  TITAN_RETURN_IF_ERROR(ValidateConfig(config));
  if (ranks != nullptr && ranks->size() > config.num_shards) {
    return InvalidArgument("training.shards: is " + std::to_string(config.num_shards) +
                           ", must be at least the number of trainer ranks, " +
                           std::to_string(ranks->size()));
  }
  if ((tensor != nullptr) != (decoder.shard().size > 1)) {
    return InvalidArgument("tensor parallel: the decoder is part of " +
                           std::to_string(decoder.shard().size) +
                           "; a part needs a tensor group, a whole one has none");
  }
  auto run = std::unique_ptr<TrainRun>(
      new TrainRun(decoder, pool, config, std::move(clock), ranks, tensor));
  const auto inverse = kernels::InverseTemperature(config.temperature);
  if (!inverse.ok() || !(config.temperature > 0)) {
    return InvalidArgument("rollout.temperature: must be above 0 for training");
  }
  run->inverse_temperature_ = *inverse;
  TITAN_RETURN_IF_ERROR(run->AgreeWithRanks());
  TITAN_RETURN_IF_ERROR(run->Allocate());
  return run;
}

// A rank of another contract would leave other weights; a rank of another part or other packs would
// make other exchanges.
Status TrainRun::AgreeWithRanks() {
  if (ranks_ == nullptr && tensor_ranks_ == nullptr) return OkStatus();
  TITAN_ASSIGN_OR_RETURN(const std::vector<kernels::ContractItem> contract,
                         TrainingContract(pool_, decoder_, config_));
  const auto of = [](int index, int size) {
    return std::to_string(index) + " of " + std::to_string(size);
  };
  if (ranks_ != nullptr) {
    std::vector<kernels::ContractItem> items = contract;
    const model::TensorShard shard = decoder_.shard();
    items.push_back({"tensor rank", of(shard.rank, shard.size)});
    TITAN_RETURN_IF_ERROR(AgreeOnContract(*ranks_, items));
  }
  if (tensor_ranks_ != nullptr) {
    std::vector<kernels::ContractItem> items = contract;
    items.push_back({"data rank", of(rank(), num_ranks())});
    items.push_back({"max_pack_tokens", std::to_string(config_.max_pack_rows)});
    items.push_back({"max_sequence_tokens", std::to_string(config_.max_sequence_tokens)});
    items.push_back({"recompute", std::to_string(static_cast<int>(config_.recompute))});
    items.push_back({"digest_gradient", config_.digest_gradient ? "true" : "false"});
    TITAN_RETURN_IF_ERROR(AgreeOnContract(*tensor_ranks_, items));
  }
  return OkStatus();
}

Status TrainRun::Allocate() {
  const int64_t floats = decoder_.master_table().slot_floats();
  TITAN_ASSIGN_OR_RETURN(state_, TrainState::Create(pool_, floats, config_.snapshots));
  if (model::HasRoundedWeights(decoder_.mode())) {
    TITAN_ASSIGN_OR_RETURN(rounded_, model::AllocateFloats(decoder_.table().slot_floats()));
  }
  for (int i = 0; i < NumGradientBuffers(config_.num_shards, num_ranks()); ++i) {
    TITAN_ASSIGN_OR_RETURN(model::Floats buffer, model::AllocateFloats(floats));
    gradients_.push_back(std::move(buffer));
  }
  if (decoder_.master_table().tied()) {
    TITAN_ASSIGN_OR_RETURN(tied_embedding_, model::TiedEmbedding::Create(decoder_.master_table()));
  }
  if (tensor_ranks_ != nullptr) {
    TITAN_ASSIGN_OR_RETURN(
        tensor_, model::TensorParallel::Create(decoder_, *tensor_ranks_, ScratchOf(config_)));
  }
  TITAN_ASSIGN_OR_RETURN(trainable_, model::TrainableDecoder::Create(
                                         decoder_, pool_, LimitsOf(config_), tensor_.get()));
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

PackedBatch TrainRun::Lay(const Shard& shard, const Pack& pack) const {
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
  const model::Weights weights = model::WeightsIn(decoder_.table(), decoder_.whole_table(), slot);
  for (const Pack& pack : compared.packs) {
    const PackedBatch batch = Lay(compared, pack);
    std::vector<float> log_probs(batch.targets.size());
    TITAN_RETURN_IF_ERROR(TrainingForward(weights, batch, log_probs));
    CompareBits(batch, log_probs, &result);
  }
  return result;
}

Status TrainRun::AccumulateShard(const Shard& shard, const UpdateCounts& counts, bool compare,
                                 float* gradient, UpdateResult* result,
                                 std::vector<SampleFigures>* figures) {
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
      const double weight = AggregationWeight(config_.aggregation, counts, static_cast<int64_t>(n));
      const std::span<const float> of_sample = std::span(log_probs).subspan(at, n);
      const SequenceLoss loss =
          PolicySequenceLoss(config_.loss, of_sample, sample->log_probs, sample->advantage, weight,
                             std::span(derivative).subspan(at, n));
      at += n;
      figures->push_back({loss.loss, loss.ratio_sum, loss.ratio_max, loss.clipped_tokens,
                          Hash64(of_sample.data(), of_sample.size_bytes())});
    }
    std::vector<float> by_row(derivative.size());
    for (size_t i = 0; i < derivative.size(); ++i) {
      by_row[static_cast<size_t>(batch.predicted_by[i])] = derivative[i];
    }
    TITAN_RETURN_IF_ERROR(trainable_->Backward(by_row, buffers));
    result->forward_seconds += middle - start;
    result->backward_seconds += clock_() - middle;
  }
  if (tied_embedding_ != nullptr) {
    tied_embedding_->AddTo(pool_, model::GradientsOf(decoder_.master_table(), gradient).head);
  }
  return OkStatus();
}

// Of a tensor group: a rank's rows of a tensor go on from the total of the ranks before it.
double TrainRun::GradientNorm(const float* gradient) {
  const std::span<const model::Parameter> parameters = decoder_.master_table().parameters();
  const int own = tensor_ == nullptr ? 0 : tensor_->shard().rank;
  const int size = tensor_ == nullptr ? 1 : tensor_->shard().size;
  std::vector<double> totals(parameters.size());
  for (int from = 0; from < size; ++from) {
    for (size_t i = 0; i < parameters.size() && from == own; ++i) {
      const model::Parameter& parameter = parameters[i];
      if (parameter.owned_step == 0 && from > 0) continue;
      kernels::GradientTensor tensor;
      tensor.data = gradient + parameter.offset / static_cast<int64_t>(sizeof(float));
      tensor.layout = parameter.layout == model::Layout::kPanels ? kernels::TableLayout::kPanels32
                                                                 : kernels::TableLayout::kRows;
      tensor.n = parameter.is_matrix() ? parameter.held.size() : 1;
      tensor.k = parameter.is_matrix() ? parameter.columns() : parameter.num_elements();
      totals[i] = kernels::GradientSquareSum(pool_, tensor, totals[i]);
    }
    if (tensor_ != nullptr) tensor_->Share(from, std::as_writable_bytes(std::span(totals)));
  }
  double total = 0.0;
  for (const double of_tensor : totals) total = total + of_tensor;
  return std::sqrt(total);
}

Hash128 TrainRun::WholeGradientDigest(const float* gradient) {
  const Hash128 own = GradientDigest(pool_, decoder_.master_table(), gradient);
  if (tensor_ == nullptr) return own;
  Hash128 sum;
  for (int from = 0; from < tensor_->shard().size; ++from) {
    Hash128 part = own;
    tensor_->Share(from, std::as_writable_bytes(std::span(&part, 1)));
    sum += part;
  }
  return sum;
}

Status TrainRun::Step(float* gradient, UpdateResult* result) {
  if (config_.digest_gradient) result->gradient_digest = WholeGradientDigest(gradient);
  result->gradient_norm = GradientNorm(gradient);
  if (tensor_ != nullptr) TITAN_RETURN_IF_ERROR(tensor_->status());
  const auto scale = kernels::ClipScale(result->gradient_norm, config_.max_gradient_norm);
  if (!scale.ok()) {
    return DataLoss("gradient norm " + std::to_string(result->gradient_norm) +
                    " cannot be clipped: " + MessageOf(scale.status()));
  }
  TITAN_ASSIGN_OR_RETURN(const kernels::AdamWScalars scalars,
                         kernels::NextAdamWStep(config_.optimizer, &state_->powers()));
  forward_is_current_ = false;
  denormals_are_flushed_ = false;
  const bool finite = state_->Step(pool_, scalars, *scale, gradient);
  return AgreeOn(finite ? OkStatus()
                        : DataLoss("a weight or moment became NaN or infinite in the optimizer "
                                   "step"));
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

size_t TrainRun::TakeBuffer() {
  TITAN_CHECK(!free_buffers_.empty());
  const size_t buffer = free_buffers_.back();
  free_buffers_.pop_back();
  return buffer;
}

void TrainRun::PushSum(const OpenSum& sum, std::vector<OpenSum>* stack) {
  stack->push_back(sum);
  while (stack->size() >= 2) {
    OpenSum& left = (*stack)[stack->size() - 2];
    const OpenSum right = stack->back();
    if (left.shards.size != right.shards.size || left.shards.first % (2 * left.shards.size) != 0) {
      return;
    }
    kernels::AddInto(pool_, decoder_.master_table().slot_floats(), gradients_[left.buffer].get(),
                     gradients_[right.buffer].get());
    left.shards.size *= 2;
    free_buffers_.push_back(right.buffer);
    stack->pop_back();
  }
}

StatusOr<size_t> TrainRun::Gradient(const std::vector<Shard>& shards, const UpdateCounts& counts,
                                    bool compare, UpdateResult* result,
                                    std::vector<SampleFigures>* figures) {
  const auto slot_bytes = static_cast<size_t>(decoder_.master_table().slot_bytes());
  free_buffers_.clear();
  for (size_t i = gradients_.size(); i > 0; --i) free_buffers_.push_back(i - 1);
  std::vector<OpenSum> own;
  for (const Subtree& subtree : SubtreesOf(config_.num_shards, num_ranks(), rank())) {
    std::vector<OpenSum> stack;
    for (int shard = subtree.first; shard < subtree.first + subtree.size; ++shard) {
      const OpenSum sum = {{shard, 1}, TakeBuffer()};
      float* gradient = gradients_[sum.buffer].get();
      std::memset(gradient, 0, slot_bytes);
      TITAN_RETURN_IF_ERROR(AccumulateShard(shards[static_cast<size_t>(shard)], counts, compare,
                                            gradient, result, figures));
      PushSum(sum, &stack);
    }
    TITAN_CHECK(stack.size() == 1 && stack.front().shards == subtree);
    own.push_back(stack.front());
  }
  if (num_ranks() == 1) return own.front().buffer;
  std::vector<OpenSum> stack;
  auto next = own.begin();
  for (int from = 0; from < num_ranks(); ++from) {
    for (const Subtree& subtree : SubtreesOf(config_.num_shards, num_ranks(), from)) {
      const OpenSum sum = from == rank() ? *next++ : OpenSum{subtree, TakeBuffer()};
      auto* bytes = reinterpret_cast<std::byte*>(gradients_[sum.buffer].get());
      TITAN_RETURN_IF_ERROR(ranks_->Broadcast(from, {bytes, slot_bytes}));
      PushSum(sum, &stack);
    }
  }
  TITAN_CHECK(stack.size() == 1 && stack.front().shards.size == config_.num_shards);
  return stack.front().buffer;
}

Status TrainRun::ExchangeFigures(const std::vector<Shard>& shards,
                                 std::vector<SampleFigures>* figures, ParityResult* parity) {
  if (num_ranks() == 1) return OkStatus();
  struct Compared {
    double difference_max;
    uint64_t tokens_differing, tokens_compared;
    uint32_t samples_per_pack_min, num_differences;
    std::array<ParityDifference, kDifferencesKept> differences;
  };
  const std::vector<SampleFigures> own = std::move(*figures);
  const ParityResult compared = std::move(*parity);
  figures->clear();
  *parity = {};
  for (int from = 0; from < num_ranks(); ++from) {
    size_t samples = 0;
    for (const Subtree& subtree : SubtreesOf(config_.num_shards, num_ranks(), from)) {
      for (int shard = subtree.first; shard < subtree.first + subtree.size; ++shard) {
        samples += shards[static_cast<size_t>(shard)].samples.size();
      }
    }
    std::vector<SampleFigures> part(samples);
    Compared header = {};
    if (from == rank()) {
      part = own;
      header = {compared.difference_max,
                compared.tokens_differing,
                compared.tokens_compared,
                compared.samples_per_pack_min,
                static_cast<uint32_t>(compared.differences.size()),
                {}};
      std::copy(compared.differences.begin(), compared.differences.end(),
                header.differences.begin());
    }
    TITAN_RETURN_IF_ERROR(ranks_->Broadcast(from, std::as_writable_bytes(std::span(part))));
    TITAN_RETURN_IF_ERROR(ranks_->Broadcast(from, std::as_writable_bytes(std::span(&header, 1))));
    figures->insert(figures->end(), part.begin(), part.end());
    parity->difference_max = std::max(parity->difference_max, header.difference_max);
    parity->tokens_differing += header.tokens_differing;
    parity->tokens_compared += header.tokens_compared;
    const uint32_t smallest = header.samples_per_pack_min;
    if (smallest > 0 &&
        (parity->samples_per_pack_min == 0 || smallest < parity->samples_per_pack_min)) {
      parity->samples_per_pack_min = smallest;
    }
    const size_t room = kDifferencesKept - parity->differences.size();
    parity->differences.insert(
        parity->differences.end(), header.differences.begin(),
        header.differences.begin() + std::min<size_t>(room, header.num_differences));
  }
  return OkStatus();
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
      result.sample_tokens_max = std::max(result.sample_tokens_max, sample->length());
    }
  }
  if (counts.sequences == 0) return result;
  result.updated = true;
  result.tokens_trained = counts.tokens;

  // An update that ended early can have left a part of its embedding gradient here.
  if (tied_embedding_ != nullptr) tied_embedding_->Clear();
  std::vector<SampleFigures> figures;
  TITAN_ASSIGN_OR_RETURN(const size_t gradient,
                         Gradient(shards, counts, compare, &result, &figures));
  TITAN_RETURN_IF_ERROR(ExchangeFigures(shards, &figures, &result.parity));
  auto figure = figures.begin();
  for (const Shard& shard : shards) {
    for (const TrainingSample* sample : shard.samples) {
      if (!std::isfinite(figure->loss)) {
        return DataLoss("sample " + ToHex(sample->id.value) + ": the loss is " +
                        std::to_string(figure->loss));
      }
      result.loss += figure->loss;
      result.ratio_mean += figure->ratio_sum;
      result.ratio_max = std::max(result.ratio_max, figure->ratio_max);
      result.clip_fraction += static_cast<double>(figure->clipped_tokens);
      result.log_prob_digest = HashFields(result.log_prob_digest, figure->log_probs_hash);
      ++figure;
    }
  }
  if (!std::isfinite(result.loss)) {
    return DataLoss("the loss of the step is " + std::to_string(result.loss));
  }
  result.ratio_mean /= static_cast<double>(counts.tokens);
  result.clip_fraction /= static_cast<double>(counts.tokens);
  const double start = clock_();
  TITAN_RETURN_IF_ERROR(Step(gradients_[gradient].get(), &result));
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
  const bool is_master = decoder_.mode() == model::Mode::kF32;
  const void* slot = is_master ? state_->master() : rounded_.get();
  if (forward_is_current_ || (is_master && tensor_ == nullptr)) return slot;
  if (!denormals_are_flushed_) {
    ForBlocks(decoder_.master_table().slot_bytes(), [this](int64_t begin, int64_t count) {
      FlushDenormals(AsBytes(state_->master()) + begin, count);
    });
    denormals_are_flushed_ = true;
  }
  if (!is_master) {
    TITAN_RETURN_IF_ERROR(AgreeOn(model::RoundMaster(
        pool_, decoder_.master_table(), state_->master(), decoder_.table(), rounded_.get())));
  }
  if (tensor_ != nullptr) {
    tensor_->RefreshColumns(slot);
    TITAN_RETURN_IF_ERROR(tensor_->status());
  }
  forward_is_current_ = true;
  return slot;
}

Status TrainRun::WriteSlot(void* slot) {
  TITAN_ASSIGN_OR_RETURN(const void* forward, ForwardSlot());
  if (tensor_ != nullptr) {
    tensor_->GatherSlot(forward, slot);
    return tensor_->status();
  }
  const bool is_master = decoder_.mode() == model::Mode::kF32;
  std::byte* from = AsBytes(is_master ? state_->master() : rounded_.get());
  ForBlocks(decoder_.table().slot_bytes(), [&](int64_t begin, int64_t count) {
    if (is_master && !denormals_are_flushed_) FlushDenormals(from + begin, count);
    std::memcpy(static_cast<std::byte*>(slot) + begin, from + begin, static_cast<size_t>(count));
  });
  denormals_are_flushed_ = true;
  return OkStatus();
}

TrainRun::StateMemory TrainRun::Restore() {
  forward_is_current_ = false;
  denormals_are_flushed_ = false;
  return {state_->master(), state_->first_moment(), state_->second_moment(), &state_->powers()};
}

StatusOr<std::unique_ptr<TrainState::Snapshot>> TrainRun::TakeSnapshot() {
  if (tensor_ != nullptr) {
    return Unimplemented(
        "a rank of a tensor group holds a part of the state; checkpoints are of "
        "whole ones");
  }
  if (!denormals_are_flushed_) {
    return FailedPrecondition("the state is not published: a snapshot follows WriteSlot");
  }
  return state_->TakeSnapshot();
}

}  // namespace titan::trainer
