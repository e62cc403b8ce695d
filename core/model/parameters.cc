// SPDX-License-Identifier: Apache-2.0
#include "core/model/parameters.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <numeric>

#include "core/base/check.h"
#include "core/kernels/order.h"
#include "core/kernels/panels.h"

namespace titan::model {
namespace {

constexpr int64_t kMaxParameters = 1 << 20;

int64_t RoundUp(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

// The role of "mlp.experts.J.NAME", null if it is none of that form. Experts come in order.
int* ExpertRole(LayerParameters& layer, std::string_view suffix) {
  constexpr std::string_view kExperts = "mlp.experts.";
  if (!suffix.starts_with(kExperts)) return nullptr;
  suffix.remove_prefix(kExperts.size());
  const size_t dot = suffix.find('.');
  const size_t expert = static_cast<size_t>(std::stoi(std::string(suffix.substr(0, dot))));
  if (expert >= layer.experts.size()) layer.experts.resize(expert + 1);
  const std::string_view name = suffix.substr(dot + 1);
  ExpertParameters& parameters = layer.experts[expert];
  if (name == "gate_proj.weight") return &parameters.gate;
  if (name == "up_proj.weight") return &parameters.up;
  if (name == "down_proj.weight") return &parameters.down;
  if (name == "gate_proj.bias") return &parameters.gate_bias;
  if (name == "up_proj.bias") return &parameters.up_bias;
  return name == "down_proj.bias" ? &parameters.down_bias : nullptr;
}

// The role field of a layer for what follows "model.layers.N.", null if there is none of that name.
int* LayerRole(LayerParameters& layer, bool gemma, std::string_view suffix) {
  // There it is the norm of attention's branch; elsewhere the norm before the MLP.
  if (gemma && suffix == "post_attention_layernorm.weight") return &layer.attention_norm;
  const struct {
    std::string_view suffix;
    int LayerParameters::*role;
  } roles[] = {
      {"input_layernorm.weight", &LayerParameters::input_norm},
      {"self_attn.q_proj.weight", &LayerParameters::q},
      {"self_attn.k_proj.weight", &LayerParameters::k},
      {"self_attn.v_proj.weight", &LayerParameters::v},
      {"self_attn.o_proj.weight", &LayerParameters::o},
      {"self_attn.q_proj.bias", &LayerParameters::q_bias},
      {"self_attn.k_proj.bias", &LayerParameters::k_bias},
      {"self_attn.v_proj.bias", &LayerParameters::v_bias},
      {"self_attn.o_proj.bias", &LayerParameters::o_bias},
      {"self_attn.q_norm.weight", &LayerParameters::q_norm},
      {"self_attn.k_norm.weight", &LayerParameters::k_norm},
      {"self_attn.sinks", &LayerParameters::sinks},
      {"post_attention_layernorm.weight", &LayerParameters::post_norm},
      {"pre_feedforward_layernorm.weight", &LayerParameters::post_norm},
      {"post_feedforward_layernorm.weight", &LayerParameters::mlp_norm},
      {"mlp.gate_proj.weight", &LayerParameters::gate},
      {"mlp.up_proj.weight", &LayerParameters::up},
      {"mlp.down_proj.weight", &LayerParameters::down},
      {"mlp.gate_proj.bias", &LayerParameters::gate_bias},
      {"mlp.up_proj.bias", &LayerParameters::up_bias},
      {"mlp.down_proj.bias", &LayerParameters::down_bias},
      {"mlp.gate.weight", &LayerParameters::router},
      {"mlp.router.weight", &LayerParameters::router},
      {"mlp.router.bias", &LayerParameters::router_bias},
  };
  for (const auto& r : roles) {
    if (suffix == r.suffix) return &(layer.*r.role);
  }
  return ExpertRole(layer, suffix);
}

// Reduced axes that are concatenated heads: the forward of o, the input gradient of q, k and v.
void SetLeaves(const formats::ModelConfig& config, std::string_view suffix, Parameter& parameter) {
  const bool is_o = suffix == "self_attn.o_proj.weight";
  const bool is_qkv = suffix == "self_attn.q_proj.weight" || suffix == "self_attn.k_proj.weight" ||
                      suffix == "self_attn.v_proj.weight";
  parameter.forward_leaves = kernels::LeafCount(parameter.columns(), is_o ? config.head_dim : 0);
  parameter.input_gradient_leaves =
      kernels::LeafCount(parameter.rows(), is_qkv ? config.head_dim : 0);
}

// Rows of one step of ownership.
int64_t OwnedStep(const formats::TensorSpec& spec) {
  if (spec.name == "lm_head.weight" || spec.name == "model.embed_tokens.weight") {
    return kernels::kRowSumChunk;
  }
  const int64_t panel = kernels::kPanelColumns;
  return panel * (panel / std::gcd(panel, spec.shape[1]));
}

const std::byte* At(const void* slot, const Parameter& parameter) {
  return static_cast<const std::byte*>(slot) + parameter.offset;
}
std::byte* At(void* slot, const Parameter& parameter) {
  return static_cast<std::byte*>(slot) + parameter.offset;
}

// vector(index) and matrix(index) give the pointers of a parameter; index -1 means none.
template <typename Pointers, typename VectorAt, typename MatrixAt>
Pointers PointersOf(const ParameterTable& table, const VectorAt& vector, const MatrixAt& matrix) {
  Pointers pointers;
  pointers.embedding = matrix(table.embedding());
  pointers.final_norm = vector(table.final_norm());
  pointers.head = matrix(table.head());
  pointers.layers.reserve(table.layers().size());
  for (const LayerParameters& l : table.layers()) {
    pointers.layers.push_back({.input_norm = vector(l.input_norm),
                               .q = matrix(l.q),
                               .k = matrix(l.k),
                               .v = matrix(l.v),
                               .o = matrix(l.o),
                               .q_bias = vector(l.q_bias),
                               .k_bias = vector(l.k_bias),
                               .v_bias = vector(l.v_bias),
                               .o_bias = vector(l.o_bias),
                               .q_norm = vector(l.q_norm),
                               .k_norm = vector(l.k_norm),
                               .sinks = vector(l.sinks),
                               .attention_norm = vector(l.attention_norm),
                               .mlp_norm = vector(l.mlp_norm),
                               .post_norm = vector(l.post_norm),
                               .gate = matrix(l.gate),
                               .up = matrix(l.up),
                               .down = matrix(l.down),
                               .gate_bias = vector(l.gate_bias),
                               .up_bias = vector(l.up_bias),
                               .down_bias = vector(l.down_bias),
                               .router = matrix(l.router),
                               .router_bias = vector(l.router_bias),
                               .experts = {}});
    for (const ExpertParameters& e : l.experts) {
      pointers.layers.back().experts.push_back({.gate = matrix(e.gate),
                                                .up = matrix(e.up),
                                                .down = matrix(e.down),
                                                .gate_bias = vector(e.gate_bias),
                                                .up_bias = vector(e.up_bias),
                                                .down_bias = vector(e.down_bias)});
    }
  }
  return pointers;
}

}  // namespace

std::string_view ModeName(Mode mode) {
  return mode == Mode::kF32 ? "f32" : mode == Mode::kW16 ? "w16" : "bf16";
}

StatusOr<Mode> ModeFromName(std::string_view name) {
  for (const Mode mode : {Mode::kF32, Mode::kW16, Mode::kBf16}) {
    if (name == ModeName(mode)) return mode;
  }
  return InvalidArgument("numerics mode '" + std::string(name.substr(0, 32)) +
                         "' is not one of f32, w16, bf16");
}

Slice OwnedRows(const Parameter& parameter, TensorShard shard) {
  const int64_t step = parameter.owned_step, rows = parameter.rows();
  if (step == 0) return {0, rows};
  const int64_t steps = (rows + step - 1) / step;
  const auto first = [&](int rank) { return std::min(rows, steps * rank / shard.size * step); };
  return {first(shard.rank), first(shard.rank + 1)};
}

Slice OwnedColumns(const Parameter& parameter, TensorShard shard) {
  const int64_t columns = parameter.columns(), panels = kernels::PanelCount(columns);
  const auto first = [&](int rank) {
    return std::min(columns, panels * rank / shard.size * kernels::kPanelColumns);
  };
  return {first(shard.rank), first(shard.rank + 1)};
}

StatusOr<ParameterTable> ParameterTable::Of(const formats::ModelConfig& config, Mode mode,
                                            TensorShard shard) {
  TITAN_CHECK(shard.rank >= 0 && shard.rank < shard.size);
  TITAN_RETURN_IF_ERROR(formats::ValidateModelConfig(config));
  const std::vector<formats::TensorSpec> specs = formats::CanonicalTensors(config);
  if (static_cast<int64_t>(specs.size()) > kMaxParameters) {
    return InvalidArgument("model: num_layers gives more than 2^20 parameters");
  }
  ParameterTable table;
  table.mode_ = mode;
  table.shard_ = shard;
  table.layers_.resize(static_cast<size_t>(config.num_layers));
  for (const formats::TensorSpec& spec : specs) {
    Parameter parameter;
    parameter.name = spec.name;
    parameter.shape = spec.shape;
    parameter.offset = table.slot_bytes_;
    parameter.held = {0, parameter.rows()};
    int64_t elements = parameter.num_elements();
    const int index = table.size();
    if (parameter.is_matrix()) {
      parameter.layout = Layout::kPanels;
      const bool is_router =
          spec.name.ends_with(".mlp.gate.weight") || spec.name.ends_with(".mlp.router.weight");
      if (HasRoundedWeights(mode) && !is_router) parameter.element = kernels::Element::kBf16;
      if (shard.size > 1 && !is_router) {
        parameter.owned_step = OwnedStep(spec);
        parameter.held = OwnedRows(parameter, shard);
      }
      elements =
          kernels::PanelElements(parameter.element, parameter.held.size(), parameter.columns());
    }
    constexpr std::string_view kLayers = "model.layers.";
    if (spec.name.starts_with(kLayers)) {
      const size_t dot = spec.name.find('.', kLayers.size());
      const int layer = std::stoi(spec.name.substr(kLayers.size(), dot - kLayers.size()));
      const std::string_view suffix = std::string_view(spec.name).substr(dot + 1);
      int* role = LayerRole(table.layers_[static_cast<size_t>(layer)], config.is_gemma(), suffix);
      if (role == nullptr) {
        return Unimplemented("model: tensor " + spec.name + " has no place in a Llama-form layer");
      }
      *role = index;
      if (parameter.is_matrix()) SetLeaves(config, suffix, parameter);
    } else if (spec.name == "model.norm.weight") {
      table.final_norm_ = index;
    } else if (spec.name == "lm_head.weight" || spec.name == "model.embed_tokens.weight") {
      if (spec.name == "lm_head.weight") table.head_ = index;
      SetLeaves(config, "", parameter);
    } else {
      return Unimplemented("model: tensor " + spec.name + " has no place in a Llama-form decoder");
    }
    parameter.bytes = elements * kernels::ElementBytes(parameter.element);
    table.slot_bytes_ = RoundUp(parameter.offset + parameter.bytes, kSlotAlignment);
    table.num_elements_ += parameter.num_elements();
    table.parameters_.push_back(std::move(parameter));
  }
  if (table.head_ < 0) table.head_ = 0;
  TITAN_CHECK(table.parameters_[0].name == "model.embed_tokens.weight");
  TITAN_CHECK(table.final_norm_ > 0);
  return table;
}

int ParameterTable::Find(std::string_view name) const {
  for (int i = 0; i < size(); ++i) {
    if (at(i).name == name) return i;
  }
  return -1;
}

Weights WeightsOf(const ParameterTable& table, const void* slot) {
  const auto vector = [&](int i) -> const float* {
    return i < 0 ? nullptr : reinterpret_cast<const float*>(At(slot, table.at(i)));
  };
  const auto matrix = [&](int i) -> kernels::ConstPanels {
    if (i < 0) return {};
    return {At(slot, table.at(i)), table.at(i).element};
  };
  auto weights = PointersOf<Weights>(table, vector, matrix);
  weights.slot = slot;
  return weights;
}

Weights WeightsIn(const ParameterTable& table, const ParameterTable& whole,
                  const void* whole_slot) {
  TITAN_CHECK(table.size() == whole.size() && table.mode() == whole.mode());
  const auto vector = [&](int i) -> const float* {
    return i < 0 ? nullptr : reinterpret_cast<const float*>(At(whole_slot, whole.at(i)));
  };
  const auto matrix = [&](int i) -> kernels::ConstPanels {
    if (i < 0) return {};
    const Parameter& p = table.at(i);
    const int64_t before = kernels::PanelElements(p.element, p.held.begin, p.columns());
    return {At(whole_slot, whole.at(i)) + before * kernels::ElementBytes(p.element), p.element};
  };
  auto weights = PointersOf<Weights>(table, vector, matrix);
  weights.slot = whole_slot;
  return weights;
}

Gradients GradientsOf(const ParameterTable& table, float* slot) {
  TITAN_CHECK(table.mode() == Mode::kF32);
  const auto at = [&](int i) -> float* {
    return i < 0 ? nullptr : reinterpret_cast<float*>(At(slot, table.at(i)));
  };
  auto gradients = PointersOf<Gradients>(table, at, at);
  gradients.slot = slot;
  return gradients;
}

Status StoreParameter(kernels::Pool& pool, const Parameter& parameter,
                      std::span<const float> values, void* slot) {
  TITAN_CHECK(static_cast<int64_t>(values.size()) == parameter.num_elements());
  std::byte* out = At(slot, parameter);
  const float* held = values.data() + parameter.held.begin * parameter.columns();
  if (parameter.layout == Layout::kRows) {
    std::memcpy(out, values.data(), values.size_bytes());
  } else if (parameter.element == kernels::Element::kF32) {
    kernels::PackPanels(pool, held, parameter.held.size(), parameter.columns(),
                        reinterpret_cast<float*>(out));
  } else if (!kernels::PackPanels(pool, held, parameter.held.size(), parameter.columns(),
                                  reinterpret_cast<kernels::BFloat16*>(out))) {
    return InvalidArgument("tensor " + parameter.name +
                           ": a value is not a finite number in bfloat16");
  }
  return OkStatus();
}

void ReadParameter(kernels::Pool& pool, const Parameter& parameter, const void* slot,
                   std::span<float> values) {
  TITAN_CHECK(static_cast<int64_t>(values.size()) == parameter.num_elements());
  TITAN_CHECK(parameter.held.size() == parameter.rows());
  const std::byte* in = At(slot, parameter);
  if (parameter.layout == Layout::kRows) {
    std::memcpy(values.data(), in, values.size_bytes());
  } else {
    kernels::UnpackPanels(pool, {in, parameter.element}, parameter.rows(), parameter.columns(),
                          values.data());
  }
}

Status RoundMaster(kernels::Pool& pool, const ParameterTable& master_table, const float* master,
                   const ParameterTable& table, void* slot) {
  TITAN_CHECK(master_table.mode() == Mode::kF32 && master_table.size() == table.size());
  for (int i = 0; i < table.size(); ++i) {
    const Parameter& from = master_table.at(i);
    const Parameter& to = table.at(i);
    TITAN_CHECK(from.shape == to.shape && from.held == to.held);
    const std::byte* in = At(master, from);
    std::byte* out = At(slot, to);
    if (to.element == kernels::Element::kF32) {
      std::memcpy(out, in, static_cast<size_t>(to.bytes));
    } else if (!kernels::RoundPanels(pool, reinterpret_cast<const float*>(in), to.held.size(),
                                     to.columns(), reinterpret_cast<kernels::BFloat16*>(out))) {
      return DataLoss("parameter " + to.name + ": a weight is not a finite number in bfloat16");
    }
  }
  return OkStatus();
}

}  // namespace titan::model
