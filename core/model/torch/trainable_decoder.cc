// SPDX-License-Identifier: Apache-2.0
#include "core/model/torch/trainable_decoder.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "core/base/check.h"
#include "core/kernels/attention.h"
#include "core/kernels/head.h"
#include "core/kernels/linear.h"
#include "core/kernels/order.h"
#include "core/model/memory.h"
#include "core/model/packing.h"
#include "core/model/tensor_parallel.h"

namespace titan::model {
namespace {

constexpr int64_t kArrayAlignment = 16;  // floats

int64_t Aligned(int64_t floats) {
  return (floats + kArrayAlignment - 1) / kArrayAlignment * kArrayAlignment;
}

// The head's rows of each unit, as ranges of the R named rows. Units without such rows are left
// out.
void HeadUnitsOf(std::span<const kernels::RowRange> units, std::span<const int32_t> rows,
                 std::vector<kernels::RowRange>& head_units) {
  head_units.clear();
  size_t next = 0;
  for (const kernels::RowRange& unit : units) {
    const size_t begin = next;
    while (next < rows.size() && rows[next] < unit.end) ++next;
    if (next > begin)
      head_units.push_back({static_cast<int64_t>(begin), static_cast<int64_t>(next)});
  }
}

// What kernels keep in the calling thread for the largest calls: the head's, and weight gradients
// of a unit.
int64_t KernelFloats(const Decoder& decoder, const TrainableDecoder::Limits& limits) {
  const ParameterTable& table = decoder.table();
  const kernels::HeadShape head = {.vocab = decoder.vocabulary(), .hidden = decoder.hidden()};
  const int64_t rows = std::min(limits.max_rows, 2 * kernels::kUnitTokens);
  int64_t largest = 0;
  const auto matrices = [&](std::initializer_list<int> parameters) {
    int64_t outputs = 0;
    for (const int parameter : parameters) outputs += table.at(parameter).held.size();
    largest = std::max(largest, kernels::LinearWeightGradientScratchFloats(
                                    rows, table.at(*parameters.begin()).columns(), outputs));
  };
  for (const LayerParameters& layer : table.layers()) {
    matrices({layer.q, layer.k, layer.v});
    matrices({layer.o});
    for (const ExpertParameters& expert : layer.experts) {
      matrices({expert.gate});
      matrices({expert.down});
    }
    if (!layer.experts.empty()) continue;
    matrices({layer.gate, layer.up});
    matrices({layer.down});
  }
  return (limits.backward ? largest : 0) + kernels::HeadScratchFloats(head, limits.max_head_rows);
}

// LibTorch's exceptions end here.
template <typename Body>
Status Guard(Body body) {
  try {
    body();
  } catch (const std::exception& e) {
    return Internal(std::string("torch: ") + e.what());
  }
  return OkStatus();
}

}  // namespace

struct TrainableDecoder::Impl {
  Impl(const Decoder& d, kernels::Pool& p, const Limits& l, TensorParallel* t)
      : decoder(d), pool(p), limits(l), tensor(t), packed(l.max_rows, l.max_runs) {}

  static int64_t Plan(const Decoder& decoder, const Limits& limits, Impl* impl, float* memory);

  DecoderContext context() { return {decoder, pool, *workspace, tensor}; }
  Status exchanged() const { return tensor == nullptr ? OkStatus() : tensor->status(); }
  ForwardBatch batch() const { return packed.Batch(tokens); }
  Status CheckBatch(const TrainBatch& batch) const;
  Status CheckUnits() const;
  BlockActivations Kept(int64_t layer) const {
    return BlockActivations::At(decoder, packed.num_rows(), limits.recompute,
                                activations[static_cast<size_t>(layer)]);
  }
  BlockActivations WholeActivations(int64_t layer);

  const Decoder& decoder;
  kernels::Pool& pool;
  const Limits limits;
  TensorParallel* const tensor;
  std::unique_ptr<Workspace> workspace;
  Floats memory;

  // The open microbatch, copied so that the caller's arrays may go.
  PackedBatch packed;
  std::vector<int32_t> tokens, rows, targets;
  std::vector<kernels::RowRange> units, head_units;
  const Weights* weights = nullptr;
  float inverse_temperature = 1;
  bool keep = false;
  bool want_entropy = false;
  Gradients gradients;
  TiedEmbedding* tied_embedding = nullptr;  // null: the model is untied
  at::Tensor output;  // log-probs with their graph, defined while a microbatch is open

  // Planned arrays.
  std::vector<float*> activations;  // of each layer, BlockActivations
  float* recomputed = nullptr;      // of the layer whose backward runs: what was not kept
  float* pages = nullptr;           // of one layer
  float* x = nullptr;               // [T][H]
  float* dx = nullptr;              // [T][H]
  float* hidden = nullptr;          // [R][H] after the final norm
  float* dhidden = nullptr;         // [R][H]
  float* inverse_rms = nullptr;     // [R]
  float* log_probs = nullptr;       // [R]
  float* dlog_probs = nullptr;      // [R]
  float* entropy = nullptr;         // [R]
  HeadState head;                   // [R] each
};

int64_t TrainableDecoder::Impl::Plan(const Decoder& decoder, const Limits& limits, Impl* impl,
                                     float* memory) {
  int64_t used = 0;
  const auto take = [&](float** array, int64_t floats) {
    if (impl != nullptr && array != nullptr) *array = memory + used;
    used += Aligned(floats);
  };
  const auto member = [&](float* Impl::*array) {
    return impl == nullptr ? nullptr : &(impl->*array);
  };
  const int64_t rows = limits.max_rows;
  const int64_t head_rows = limits.max_head_rows;
  if (limits.backward) {
    for (int layer = 0; layer < decoder.num_layers(); ++layer) {
      float* array = nullptr;
      take(&array, BlockActivations::FloatsNeeded(decoder, rows, limits.recompute));
      if (impl != nullptr) impl->activations.push_back(array);
    }
    if (limits.recompute == Recompute::kSelective) {
      take(member(&Impl::recomputed), 2 * rows * decoder.mlp_width());
    } else if (limits.recompute == Recompute::kFull) {
      take(member(&Impl::recomputed),
           BlockActivations::FloatsNeeded(decoder, rows, Recompute::kNone));
    }
    take(member(&Impl::dx), rows * decoder.hidden());
    take(member(&Impl::dhidden), head_rows * decoder.hidden());
    take(member(&Impl::dlog_probs), head_rows);
  }
  take(member(&Impl::pages), PackedBatch::MaxPages(rows, limits.max_runs) *
                                 kernels::PageFloats(decoder.attention_shape()));
  take(member(&Impl::x), rows * decoder.hidden());
  take(member(&Impl::hidden), head_rows * decoder.hidden());
  take(member(&Impl::inverse_rms), head_rows);
  take(member(&Impl::log_probs), head_rows);
  take(member(&Impl::entropy), head_rows);
  take(impl == nullptr ? nullptr : &impl->head.max, head_rows);
  take(impl == nullptr ? nullptr : &impl->head.log_sum, head_rows);
  return used;
}

// What was kept of the layer and, computed again, what was not. x is free once the backward has
// come to the layers.
BlockActivations TrainableDecoder::Impl::WholeActivations(int64_t layer) {
  BlockActivations saved = Kept(layer);
  const int64_t num_rows = packed.num_rows();
  if (limits.recompute == Recompute::kSelective) {
    saved.gate = recomputed;
    saved.up = recomputed + num_rows * decoder.mlp_width();
    FeedForwardInputs(context(), *weights, static_cast<int>(layer), num_rows, saved.middle,
                      saved.middle_inverse_rms, saved.router_logits, saved.gate, saved.up);
  } else if (limits.recompute == Recompute::kFull) {
    const float* input = saved.input;
    saved = BlockActivations::At(decoder, num_rows, Recompute::kNone, recomputed);
    std::memcpy(x, input, static_cast<size_t>(num_rows * decoder.hidden()) * sizeof(float));
    BlockForward(context(), *weights, static_cast<int>(layer), batch(), pages, x, &saved);
  }
  return saved;
}

Status TrainableDecoder::Impl::CheckBatch(const TrainBatch& batch) const {
  const int64_t num_rows = packed.num_rows();
  if (static_cast<int64_t>(batch.tokens.size()) != num_rows) {
    return InvalidArgument("train batch: " + std::to_string(batch.tokens.size()) +
                           " tokens, run_lengths sum to " + std::to_string(num_rows));
  }
  if (batch.rows.size() != batch.targets.size() ||
      static_cast<int64_t>(batch.rows.size()) > limits.max_head_rows) {
    return InvalidArgument("train batch: " + std::to_string(batch.rows.size()) + " rows with " +
                           std::to_string(batch.targets.size()) + " targets, planned for " +
                           std::to_string(limits.max_head_rows));
  }
  int64_t last = -1;
  for (size_t i = 0; i < batch.rows.size(); ++i) {
    if (batch.rows[i] < last || batch.rows[i] < 0 || batch.rows[i] >= num_rows) {
      return InvalidArgument(
          "train batch: rows[" + std::to_string(i) + "] = " + std::to_string(batch.rows[i]) +
          " is below the row before it or not below " + std::to_string(num_rows));
    }
    last = batch.rows[i];
    if (batch.targets[i] < 0 || batch.targets[i] >= decoder.vocabulary()) {
      return InvalidArgument("train batch: targets[" + std::to_string(i) + "] = " +
                             std::to_string(batch.targets[i]) + " lies outside the vocabulary");
    }
  }
  return OkStatus();
}

Status TrainableDecoder::Impl::CheckUnits() const {
  int64_t next = 0;
  for (const kernels::RowRange& unit : units) {
    if (unit.begin != next || unit.end <= unit.begin) {
      return InvalidArgument("train batch: units do not follow one another at row " +
                             std::to_string(next));
    }
    next = unit.end;
  }
  if (next != packed.num_rows()) {
    return InvalidArgument("train batch: units cover " + std::to_string(next) + " rows of " +
                           std::to_string(packed.num_rows()));
  }
  return OkStatus();
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Impl = TrainableDecoder::Impl;

at::Tensor View(float* data, at::IntArrayRef shape) {
  return at::from_blob(data, shape, at::TensorOptions().dtype(at::kFloat));
}

at::Tensor ActivationView(Impl& impl, float* data) {
  return View(data, {impl.packed.num_rows(), impl.decoder.hidden()});
}

Impl& ImplOf(AutogradContext* context) {
  return *reinterpret_cast<Impl*>(context->saved_data["impl"].toInt());
}

void Remember(AutogradContext* context, Impl* impl, int64_t layer) {
  context->saved_data["impl"] = reinterpret_cast<int64_t>(impl);
  context->saved_data["layer"] = layer;
}

// The gradient that reaches a node is the planned dx itself: every tensor has one reader, so
// autograd adds nothing and copies nothing.
void CheckGradient(const Impl& impl, const variable_list& gradients) {
  TITAN_CHECK(gradients.size() == 1);
  TITAN_CHECK(gradients[0].const_data_ptr<float>() == impl.dx);
}

// `weights` is the slot as one leaf tensor; its gradient is undefined, the kernels write it
// elsewhere.
struct EmbedNode : torch::autograd::Function<EmbedNode> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& weights, Impl* impl) {
    Remember(context, impl, -1);
    EmbedTokens(impl->context(), *impl->weights, impl->batch(), impl->x);
    return ActivationView(*impl, impl->x);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    Impl& impl = ImplOf(context);
    CheckGradient(impl, gradients);
    if (impl.tied_embedding != nullptr) {
      EmbedBackward(impl.context(), impl.batch(), impl.units, impl.dx, *impl.tied_embedding);
    } else {
      EmbedBackward(impl.context(), impl.batch(), impl.units, impl.dx, impl.gradients.embedding);
    }
    return {at::Tensor(), at::Tensor()};
  }
};

struct BlockNode : torch::autograd::Function<BlockNode> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weights, Impl* impl, int64_t layer) {
    Remember(context, impl, layer);
    BlockActivations saved;
    if (impl->keep) {
      saved = impl->Kept(layer);
    }
    BlockForward(impl->context(), *impl->weights, static_cast<int>(layer), impl->batch(),
                 impl->pages, impl->x, impl->keep ? &saved : nullptr);
    return ActivationView(*impl, impl->x);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    Impl& impl = ImplOf(context);
    CheckGradient(impl, gradients);
    const int64_t layer = context->saved_data["layer"].toInt();
    const BlockActivations saved = impl.WholeActivations(layer);
    BlockBackward(impl.context(), *impl.weights, static_cast<int>(layer), impl.batch(), impl.units,
                  impl.pages, saved, impl.dx, impl.gradients);
    return {ActivationView(impl, impl.dx), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

struct HeadNode : torch::autograd::Function<HeadNode> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weights, Impl* impl) {
    Remember(context, impl, -1);
    FinalNorm(impl->context(), *impl->weights, impl->x, impl->rows, impl->hidden,
              impl->inverse_rms);
    HeadLogProbForward(impl->context(), *impl->weights, impl->hidden, impl->targets,
                       impl->inverse_temperature, impl->log_probs, impl->head,
                       impl->want_entropy ? impl->entropy : nullptr);
    return View(impl->log_probs, {static_cast<int64_t>(impl->rows.size())});
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    Impl& impl = ImplOf(context);
    TITAN_CHECK(gradients.size() == 1);
    TITAN_CHECK(gradients[0].const_data_ptr<float>() == impl.dlog_probs);
    HeadLogProbBackward(impl.context(), *impl.weights, impl.hidden, impl.targets,
                        impl.inverse_temperature, impl.head_units, impl.dlog_probs, impl.head,
                        impl.dhidden, impl.gradients);
    FinalNormBackward(impl.context(), *impl.weights, impl.x, impl.packed.num_rows(), impl.rows,
                      impl.head_units, impl.inverse_rms, impl.dhidden, impl.dx, impl.gradients);
    return {ActivationView(impl, impl.dx), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

TrainableDecoder::TrainableDecoder(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TrainableDecoder::~TrainableDecoder() = default;

int64_t TrainableDecoder::MemoryNeeded(const Decoder& decoder, const Limits& limits) {
  const Workspace::Limits scratch = {limits.max_rows, limits.max_head_rows, limits.backward};
  return Workspace::MemoryNeeded(decoder, scratch) +
         (Impl::Plan(decoder, limits, nullptr, nullptr) + KernelFloats(decoder, limits)) *
             static_cast<int64_t>(sizeof(float));
}

StatusOr<std::unique_ptr<TrainableDecoder>> TrainableDecoder::Create(const Decoder& decoder,
                                                                     kernels::Pool& pool,
                                                                     const Limits& limits,
                                                                     TensorParallel* tensor) {
  TITAN_CHECK((tensor != nullptr) == (decoder.shard().size > 1));
  if (limits.max_runs < 1 || limits.max_runs > (int64_t{1} << 24)) {
    return InvalidArgument("trainable decoder: max_runs must lie in 1..2^24");
  }
  auto impl = std::make_unique<Impl>(decoder, pool, limits, tensor);
  const Workspace::Limits scratch = {limits.max_rows, limits.max_head_rows, limits.backward};
  TITAN_ASSIGN_OR_RETURN(impl->workspace, Workspace::Create(decoder, scratch, pool));
  TITAN_ASSIGN_OR_RETURN(impl->memory,
                         AllocateFloats(Impl::Plan(decoder, limits, nullptr, nullptr)));
  Impl::Plan(decoder, limits, impl.get(), impl->memory.get());
  TITAN_RETURN_IF_ERROR(Guard([] { at::set_num_threads(1); }));
  return std::unique_ptr<TrainableDecoder>(new TrainableDecoder(std::move(impl)));
}

Status TrainableDecoder::Forward(const Weights& weights, const TrainBatch& batch,
                                 float inverse_temperature, bool keep, std::span<float> log_probs,
                                 std::span<float> entropy) {
  Impl& impl = *impl_;
  impl.output.reset();
  if (keep && !impl.limits.backward) {
    return FailedPrecondition("trainable decoder: made without backward, keep must be false");
  }
  if (!(inverse_temperature > 0) || inverse_temperature > 1e30f) {
    return InvalidArgument("train batch: inverse_temperature must be positive and at most 1e30");
  }
  if (log_probs.size() != batch.rows.size() ||
      (!entropy.empty() && entropy.size() != batch.rows.size())) {
    return InvalidArgument(
        "train batch: log_probs and entropy must hold one value for each of rows");
  }
  TITAN_RETURN_IF_ERROR(impl.packed.Set(batch.run_lengths, batch.run_parents));
  TITAN_RETURN_IF_ERROR(impl.CheckBatch(batch));
  impl.tokens.assign(batch.tokens.begin(), batch.tokens.end());
  impl.rows.assign(batch.rows.begin(), batch.rows.end());
  impl.targets.assign(batch.targets.begin(), batch.targets.end());
  impl.units.assign(batch.units.begin(), batch.units.end());
  TITAN_RETURN_IF_ERROR(ValidateBatch(impl.context(), impl.batch()));
  if (keep) {
    TITAN_RETURN_IF_ERROR(impl.CheckUnits());
    HeadUnitsOf(impl.units, impl.rows, impl.head_units);
  }
  impl.weights = &weights;
  impl.inverse_temperature = inverse_temperature;
  impl.keep = keep;
  impl.want_entropy = !entropy.empty();
  TITAN_RETURN_IF_ERROR(Guard([&] {
    c10::AutoGradMode grad_mode(keep);
    at::Tensor slot = View(static_cast<float*>(const_cast<void*>(weights.slot)),
                           {impl.decoder.table().slot_floats()});
    slot.set_requires_grad(keep);
    at::Tensor x = EmbedNode::apply(slot, &impl);
    for (int64_t layer = 0; layer < impl.decoder.num_layers(); ++layer) {
      x = BlockNode::apply(x, slot, &impl, layer);
    }
    at::Tensor output = HeadNode::apply(x, slot, &impl);
    if (keep) impl.output = output;
  }));
  TITAN_RETURN_IF_ERROR(impl.exchanged());
  std::copy_n(impl.log_probs, log_probs.size(), log_probs.begin());
  std::copy_n(impl.entropy, entropy.size(), entropy.begin());
  return OkStatus();
}

Status TrainableDecoder::Backward(std::span<const float> dlog_probs,
                                  const GradientBuffers& gradients) {
  Impl& impl = *impl_;
  if (!impl.output.defined()) {
    return FailedPrecondition("trainable decoder: Backward without an open Forward (keep = true)");
  }
  if (dlog_probs.size() != impl.rows.size()) {
    return InvalidArgument("trainable decoder: dlog_probs must hold one value for each of rows");
  }
  const bool tied = impl.decoder.master_table().tied();
  if (gradients.slot == nullptr || (gradients.tied_embedding != nullptr) != tied) {
    return InvalidArgument(
        "trainable decoder: a slot is needed, and tied_embedding if and only if tied");
  }
  std::copy_n(dlog_probs.data(), dlog_probs.size(), impl.dlog_probs);
  impl.gradients = GradientsOf(impl.decoder.master_table(), gradients.slot);
  impl.tied_embedding = gradients.tied_embedding;
  const Status status = Guard([&] {
    c10::AutoGradMode grad_mode(true);
    impl.output.backward(View(impl.dlog_probs, {static_cast<int64_t>(impl.rows.size())}));
  });
  impl.output.reset();
  TITAN_RETURN_IF_ERROR(status);
  return impl.exchanged();
}

}  // namespace titan::model
