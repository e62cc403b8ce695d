// SPDX-License-Identifier: Apache-2.0
#include "core/model/parameters.h"

#include <cstring>

#include "core/base/check.h"
#include "core/kernels/order.h"
#include "core/kernels/panels.h"

namespace titan::model {
namespace {

constexpr int64_t kMaxParameters = 1 << 20;

int64_t RoundUp(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

// The role field of a layer for what follows "model.layers.N.", null if there is none of that name.
int* LayerRole(LayerParameters& layer, std::string_view suffix) {
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
      {"post_attention_layernorm.weight", &LayerParameters::post_norm},
      {"mlp.gate_proj.weight", &LayerParameters::gate},
      {"mlp.up_proj.weight", &LayerParameters::up},
      {"mlp.down_proj.weight", &LayerParameters::down},
      {"mlp.gate_proj.bias", &LayerParameters::gate_bias},
      {"mlp.up_proj.bias", &LayerParameters::up_bias},
      {"mlp.down_proj.bias", &LayerParameters::down_bias},
  };
  for (const auto& r : roles) {
    if (suffix == r.suffix) return &(layer.*r.role);
  }
  return nullptr;
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

template <typename T>
SlotPointers<T> PointersOf(const ParameterTable& table, T* slot) {
  const auto at = [&](int index) -> T* {
    if (index < 0) return nullptr;
    return slot + table.at(index).offset / static_cast<int64_t>(sizeof(float));
  };
  SlotPointers<T> pointers;
  pointers.slot = slot;
  pointers.embedding = at(table.embedding());
  pointers.final_norm = at(table.final_norm());
  pointers.head = at(table.head());
  pointers.layers.reserve(table.layers().size());
  for (const LayerParameters& l : table.layers()) {
    pointers.layers.push_back({.input_norm = at(l.input_norm),
                               .q = at(l.q),
                               .k = at(l.k),
                               .v = at(l.v),
                               .o = at(l.o),
                               .q_bias = at(l.q_bias),
                               .k_bias = at(l.k_bias),
                               .v_bias = at(l.v_bias),
                               .o_bias = at(l.o_bias),
                               .post_norm = at(l.post_norm),
                               .gate = at(l.gate),
                               .up = at(l.up),
                               .down = at(l.down),
                               .gate_bias = at(l.gate_bias),
                               .up_bias = at(l.up_bias),
                               .down_bias = at(l.down_bias)});
  }
  return pointers;
}

}  // namespace

StatusOr<ParameterTable> ParameterTable::Of(const formats::ModelConfig& config) {
  TITAN_RETURN_IF_ERROR(formats::ValidateModelConfig(config));
  const std::vector<formats::TensorSpec> specs = formats::CanonicalTensors(config);
  if (static_cast<int64_t>(specs.size()) > kMaxParameters) {
    return InvalidArgument("model: num_layers gives more than 2^20 parameters");
  }
  ParameterTable table;
  table.layers_.resize(static_cast<size_t>(config.num_layers));
  for (const formats::TensorSpec& spec : specs) {
    Parameter parameter;
    parameter.name = spec.name;
    parameter.shape = spec.shape;
    parameter.offset = table.slot_bytes_;
    int64_t floats = parameter.num_elements();
    const int index = table.size();
    if (parameter.is_matrix()) {
      parameter.layout = Layout::kPanels32;
      floats = kernels::PanelFloats(parameter.rows(), parameter.columns());
    }
    constexpr std::string_view kLayers = "model.layers.";
    if (spec.name.starts_with(kLayers)) {
      const size_t dot = spec.name.find('.', kLayers.size());
      const int layer = std::stoi(spec.name.substr(kLayers.size(), dot - kLayers.size()));
      const std::string_view suffix = std::string_view(spec.name).substr(dot + 1);
      int* role = LayerRole(table.layers_[static_cast<size_t>(layer)], suffix);
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
    parameter.bytes = floats * static_cast<int64_t>(sizeof(float));
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

Weights WeightsOf(const ParameterTable& table, const float* slot) {
  return PointersOf(table, slot);
}
Gradients GradientsOf(const ParameterTable& table, float* slot) { return PointersOf(table, slot); }

void StoreParameter(kernels::Pool& pool, const Parameter& parameter, std::span<const float> values,
                    float* slot) {
  TITAN_CHECK(static_cast<int64_t>(values.size()) == parameter.num_elements());
  float* out = slot + parameter.offset / static_cast<int64_t>(sizeof(float));
  if (parameter.layout == Layout::kPanels32) {
    kernels::PackPanels(pool, values.data(), parameter.rows(), parameter.columns(), out);
  } else {
    std::memcpy(out, values.data(), values.size_bytes());
  }
}

void ReadParameter(kernels::Pool& pool, const Parameter& parameter, const float* slot,
                   std::span<float> values) {
  TITAN_CHECK(static_cast<int64_t>(values.size()) == parameter.num_elements());
  const float* in = slot + parameter.offset / static_cast<int64_t>(sizeof(float));
  if (parameter.layout == Layout::kPanels32) {
    kernels::UnpackPanels(pool, in, parameter.rows(), parameter.columns(), values.data());
  } else {
    std::memcpy(values.data(), in, values.size_bytes());
  }
}

}  // namespace titan::model
