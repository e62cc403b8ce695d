// SPDX-License-Identifier: Apache-2.0
//
// Forward and backward of packed samples by the plain functions of core/model/decoder.h, without
// autograd: the second way to drive them, for comparison with TrainableDecoder and for tests
// without LibTorch. Test code, one thread.
#ifndef TITAN_TESTS_SUPPORT_PLAIN_TRAINER_H_
#define TITAN_TESTS_SUPPORT_PLAIN_TRAINER_H_

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "core/kernels/units.h"
#include "core/model/decoder.h"
#include "core/model/packing.h"
#include "core/model/tied_embedding.h"
#include "tests/support/model_fixture.h"

namespace titan::test {

// Samples to train: every row but a sample's last predicts the next token, if its mask says so.
struct PackedSamples {
  std::vector<std::vector<int32_t>> samples;

  std::vector<int32_t> lengths() const {
    std::vector<int32_t> out;
    for (const auto& s : samples) out.push_back(static_cast<int32_t>(s.size()));
    return out;
  }
  std::vector<int32_t> tokens() const {
    std::vector<int32_t> out;
    for (const auto& s : samples) out.insert(out.end(), s.begin(), s.end());
    return out;
  }
  // The rows with a target and the targets; `first` prompt tokens of each sample predict nothing
  // before their last one.
  void Targets(int32_t first, std::vector<int32_t>* rows, std::vector<int32_t>* targets) const {
    int32_t row = 0;
    for (const auto& s : samples) {
      for (size_t i = 0; i < s.size(); ++i, ++row) {
        if (i + 1 >= s.size() || static_cast<int32_t>(i) + 1 < first) continue;
        rows->push_back(row);
        targets->push_back(s[i + 1]);
      }
    }
  }
};

// Units of these samples taken as a whole shard, as ranges of its rows.
inline std::vector<kernels::RowRange> UnitsOf(const std::vector<int32_t>& lengths) {
  const std::vector<int64_t> wide(lengths.begin(), lengths.end());
  std::vector<kernels::RowRange> units;
  for (const kernels::Unit& unit : kernels::ScanUnits(wide)) {
    units.push_back({unit.first_row, unit.first_row + unit.num_rows});
  }
  return units;
}

class PlainTrainer {
 public:
  PlainTrainer(const LoadedModel& model, kernels::Pool& pool, int64_t max_rows)
      : model_(model),
        pool_(pool),
        workspace_(ValueOrDie(model::Workspace::Create(
            *model.decoder, {.max_rows = max_rows, .max_head_rows = max_rows, .backward = true}))),
        packed_(max_rows, max_rows) {
    const model::Decoder& decoder = *model.decoder;
    pages_.resize(static_cast<size_t>(model::PackedBatch::MaxPages(max_rows, max_rows) *
                                      kernels::PageFloats(decoder.attention_shape())));
    x_.resize(static_cast<size_t>(max_rows * decoder.hidden()));
    dx_ = hidden_ = dhidden_ = x_;
    for (std::vector<float>* v : {&inverse_rms_, &max_, &log_sum_})
      v->resize(static_cast<size_t>(max_rows));
  }

  std::vector<float> Forward(const PackedSamples& samples, const std::vector<int32_t>& rows,
                             const std::vector<int32_t>& targets, float inverse_temperature,
                             std::vector<float>* entropy = nullptr) {
    const model::DecoderContext context = {*model_.decoder, pool_, *workspace_};
    const Status status = packed_.Set(samples.lengths());
    EXPECT_TRUE(status.ok()) << status;
    tokens_ = samples.tokens();
    rows_ = rows;
    targets_ = targets;
    inverse_temperature_ = inverse_temperature;
    const model::ForwardBatch batch = packed_.Batch(tokens_);
    EXPECT_TRUE(model::ValidateBatch(context, batch).ok());
    model::EmbedTokens(context, model_.weights, batch, x_.data());
    memory_.clear();
    saved_.clear();
    for (int layer = 0; layer < model_.decoder->num_layers(); ++layer) {
      memory_.push_back(ValueOrDie(model::AllocateFloats(
          model::BlockActivations::FloatsNeeded(*model_.decoder, batch.num_rows(),
                                                model::Recompute::kNone))));
      saved_.push_back(
          model::BlockActivations::At(*model_.decoder, batch.num_rows(),
                                      model::Recompute::kNone, memory_.back().get()));
      model::BlockForward(context, model_.weights, layer, batch, pages_.data(), x_.data(),
                          &saved_.back());
    }
    model::FinalNorm(context, model_.weights, x_.data(), rows_, hidden_.data(),
                     inverse_rms_.data());
    std::vector<float> log_probs(rows_.size());
    if (entropy != nullptr) entropy->resize(rows_.size());
    model::HeadLogProbForward(context, model_.weights, hidden_.data(), targets_,
                              inverse_temperature, log_probs.data(), {max_.data(), log_sum_.data()},
                              entropy == nullptr ? nullptr : entropy->data());
    return log_probs;
  }

  // Adds the gradient of sum dlog_probs * log_probs. tied_embedding, a whole table, is null for
  // untied models.
  void Backward(const std::vector<float>& dlog_probs, const std::vector<kernels::RowRange>& units,
                float* slot, float* tied_embedding) {
    const model::DecoderContext context = {*model_.decoder, pool_, *workspace_};
    const model::ForwardBatch batch = packed_.Batch(tokens_);
    const model::Gradients gradients = model::GradientsOf(model_.decoder->master_table(), slot);
    std::vector<kernels::RowRange> head_units;
    for (const kernels::RowRange& unit : units) {
      const auto begin = std::lower_bound(rows_.begin(), rows_.end(), unit.begin);
      const auto end = std::lower_bound(rows_.begin(), rows_.end(), unit.end);
      if (begin != end) head_units.push_back({begin - rows_.begin(), end - rows_.begin()});
    }
    model::HeadLogProbBackward(context, model_.weights, hidden_.data(), targets_,
                               inverse_temperature_, head_units, dlog_probs.data(),
                               {max_.data(), log_sum_.data()}, dhidden_.data(), gradients);
    model::FinalNormBackward(context, model_.weights, x_.data(), batch.num_rows(), rows_,
                             head_units, inverse_rms_.data(), dhidden_.data(), dx_.data(),
                             gradients);
    for (int layer = model_.decoder->num_layers() - 1; layer >= 0; --layer) {
      model::BlockBackward(context, model_.weights, layer, batch, units, pages_.data(),
                           saved_[static_cast<size_t>(layer)], dx_.data(), gradients);
    }
    model::EmbedBackward(context, batch, units, dx_.data(),
                         tied_embedding != nullptr ? tied_embedding : gradients.embedding);
  }

 private:
  const LoadedModel& model_;
  kernels::Pool& pool_;
  std::unique_ptr<model::Workspace> workspace_;
  model::PackedBatch packed_;
  std::vector<float> pages_, x_, dx_, hidden_, dhidden_, inverse_rms_, max_, log_sum_;
  std::vector<int32_t> tokens_, rows_, targets_;
  std::vector<model::Floats> memory_;
  std::vector<model::BlockActivations> saved_;
  float inverse_temperature_ = 1;
};

// A zeroed gradient with the embedding's part of a tied table: a whole table for PlainTrainer, what
// the product keeps for a TrainableDecoder. REQUIRES: the decoder's master table.
struct GradientMemory {
  explicit GradientMemory(const model::ParameterTable& table)
      : table(table),
        slot(static_cast<size_t>(table.slot_floats())),
        tied(table.tied() ? static_cast<size_t>(table.at(0).num_floats()) : 0),
        rows(table.tied() ? ValueOrDie(model::TiedEmbedding::Create(table)) : nullptr) {}

  float* tied_embedding() { return tied.empty() ? nullptr : tied.data(); }
  model::TiedEmbedding* tied_rows() { return rows.get(); }
  void CloseShard(kernels::Pool& pool) {
    if (!table.tied()) return;
    float* head = model::GradientsOf(table, slot.data()).head;
    rows->AddTo(pool, head);
    kernels::AddInto(pool, static_cast<int64_t>(tied.size()), head, tied.data());
    std::fill(tied.begin(), tied.end(), 0.0f);
  }
  // Row-major values of one parameter.
  std::vector<float> Values(kernels::Pool& pool, int parameter) const {
    std::vector<float> values(static_cast<size_t>(table.at(parameter).num_elements()));
    model::ReadParameter(pool, table.at(parameter), slot.data(), values);
    return values;
  }

  const model::ParameterTable& table;
  std::vector<float> slot, tied;
  std::unique_ptr<model::TiedEmbedding> rows;
};

}  // namespace titan::test

#endif  // TITAN_TESTS_SUPPORT_PLAIN_TRAINER_H_
