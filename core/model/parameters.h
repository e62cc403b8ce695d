// SPDX-License-Identifier: Apache-2.0
//
// The parameters of a model in their one canonical order, and where each lies in a slot.
//
// A *slot* is one contiguous block of memory (a weight version, a gradient, an optimizer moment)
// whose bytes are exactly what the kernels read: no copy is made between the weight store's mapping
// and a forward. Every slot of a model has the same layout, described by its ParameterTable, so a
// gradient or a moment is found at the offset of its weight. All values are binary32.
//
// Order: model.embed_tokens.weight; for each layer input_layernorm, q_proj, k_proj, v_proj, o_proj
// (each weight, then bias where the family has one), post_attention_layernorm, gate_proj, up_proj,
// down_proj; model.norm.weight; lm_head.weight where embeddings are untied. Names are those of
// Hugging Face.
//
// A ParameterTable is immutable after Of and may be read from any thread.
#ifndef TITAN_CORE_MODEL_PARAMETERS_H_
#define TITAN_CORE_MODEL_PARAMETERS_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/formats/model_config.h"
#include "core/kernels/pool.h"

namespace titan::model {

// kRows: row-major as in a file. kPanels32: the kernels' execution layout, [ceil(rows /
// 32)][columns][32] with +0 in the pad lanes (core/kernels/panels.h).
enum class Layout { kRows, kPanels32 };

// Offsets and sizes in a slot are multiples of this.
inline constexpr int64_t kSlotAlignment = 256;

struct Parameter {
  std::string name;            // for example "model.layers.0.self_attn.q_proj.weight"
  std::vector<int64_t> shape;  // logical: {n} or {out features, in features}
  Layout layout = Layout::kRows;
  int64_t offset = 0;  // of the first byte in the slot, a multiple of kSlotAlignment
  int64_t bytes = 0;   // with pad lanes, without the gap to the next parameter
  // Leaves of the forward (over in features) and of the input gradient (over out features),
  // numerics.md section 2. 1 for vectors.
  int forward_leaves = 1;
  int input_gradient_leaves = 1;

  bool is_matrix() const { return shape.size() == 2; }
  int64_t rows() const { return shape[0]; }
  int64_t columns() const { return is_matrix() ? shape[1] : 1; }
  int64_t num_elements() const { return rows() * columns(); }  // logical, without pad lanes
  // Floats of the payload, pad lanes included.
  int64_t num_floats() const { return bytes / static_cast<int64_t>(sizeof(float)); }
};

// Indices into ParameterTable::parameters(); -1 = the model has no such parameter.
struct LayerParameters {
  int input_norm = -1;
  int q = -1, k = -1, v = -1, o = -1;
  int q_bias = -1, k_bias = -1, v_bias = -1, o_bias = -1;
  int post_norm = -1;
  int gate = -1, up = -1, down = -1;
  int gate_bias = -1, up_bias = -1, down_bias = -1;
};

class ParameterTable {
 public:
  // InvalidArgument: sizes that cannot be a model (names the field). Unimplemented: a family or
  // feature outside the Llama form (names it).
  static StatusOr<ParameterTable> Of(const formats::ModelConfig& config);

  std::span<const Parameter> parameters() const { return parameters_; }
  const Parameter& at(int index) const { return parameters_[static_cast<size_t>(index)]; }
  int size() const { return static_cast<int>(parameters_.size()); }
  // Index of a name, -1 when absent.
  int Find(std::string_view name) const;

  int64_t slot_bytes() const { return slot_bytes_; }  // a multiple of kSlotAlignment
  int64_t slot_floats() const { return slot_bytes_ / static_cast<int64_t>(sizeof(float)); }
  int64_t num_elements() const { return num_elements_; }  // logical, tied table once

  int embedding() const { return 0; }
  int final_norm() const { return final_norm_; }
  int head() const { return head_; }  // equals embedding() when tied
  bool tied() const { return head_ == 0; }
  std::span<const LayerParameters> layers() const { return layers_; }

 private:
  std::vector<Parameter> parameters_;
  std::vector<LayerParameters> layers_;
  int final_norm_ = -1;
  int head_ = -1;
  int64_t slot_bytes_ = 0;
  int64_t num_elements_ = 0;
};

// Pointers into a slot by role. Null where the model has no such parameter. T is const float
// (weights) or float (gradients). Valid as long as the slot.
template <typename T>
struct LayerPointers {
  T* input_norm;
  T *q, *k, *v, *o;
  T *q_bias, *k_bias, *v_bias, *o_bias;
  T* post_norm;
  T *gate, *up, *down;
  T *gate_bias, *up_bias, *down_bias;
};

template <typename T>
struct SlotPointers {
  T* slot = nullptr;
  T* embedding = nullptr;
  T* final_norm = nullptr;
  T* head = nullptr;  // == embedding when tied
  std::vector<LayerPointers<T>> layers;
};

using Weights = SlotPointers<const float>;
using Gradients = SlotPointers<float>;

// REQUIRES: slot is 64-byte aligned and holds table.slot_bytes().
Weights WeightsOf(const ParameterTable& table, const float* slot);
Gradients GradientsOf(const ParameterTable& table, float* slot);

// Copies one parameter between its logical row-major form ([rows][columns]) and its place in a
// slot. Pad lanes are written +0. `values` holds parameter.num_elements().
void StoreParameter(kernels::Pool& pool, const Parameter& parameter, std::span<const float> values,
                    float* slot);
void ReadParameter(kernels::Pool& pool, const Parameter& parameter, const float* slot,
                   std::span<float> values);

}  // namespace titan::model

#endif  // TITAN_CORE_MODEL_PARAMETERS_H_
