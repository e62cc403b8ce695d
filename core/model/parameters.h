// SPDX-License-Identifier: Apache-2.0
//
// The parameters of a model in their one canonical order, and where each lies in a slot.
//
// A *slot* is one contiguous block of memory (a weight version, a gradient, an optimizer moment)
// whose bytes are exactly what the kernels read: no copy is made between the weight store's mapping
// and a forward. Where each parameter lies is described by a ParameterTable. Modes (numerics.md
// section 2) are one table each:
//
//   kF32  everything is binary32. Master weights, gradients and moments always use this table, so a
//         gradient or a moment is found at the offset of its master weight.
//   kW16  matrices are bfloat16 (embedding and head too), vectors (norm weights, biases) and
//   routers
//         binary32.
//         The weights that forward and backward read in this mode.
//   kBf16 the table of kW16; what is multiplied with a matrix is rounded to bfloat16 too.
//
// Order: model.embed_tokens.weight; for each layer input_layernorm, q_proj, k_proj, v_proj, o_proj
// (each weight, then bias where the family has one), q_norm and k_norm or sinks where the family
// has them,
// post_attention_layernorm (Gemma: then pre_feedforward_layernorm, post_feedforward_layernorm),
// gate_proj, up_proj, down_proj, or the router and each expert's three (gpt_oss: by role);
// model.norm.weight; lm_head.weight where embeddings are untied. Names are those of Hugging Face.
//
// Of a tensor-parallel rank (numerics.md section 8) the slot holds only the rows that it owns of
// every matrix but routers: whole panels, so that they are the bytes of the whole matrix. Vectors
// and routers are whole on every rank. Shapes and leaves stay those of the whole matrix.
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
#include "core/kernels/panels.h"
#include "core/kernels/pool.h"

namespace titan::model {

enum class Mode : uint8_t { kF32, kW16, kBf16 };
std::string_view ModeName(Mode mode);  // "f32", "w16", "bf16", as in a job
// Forward and backward read bfloat16 matrices, roundings of the master.
constexpr bool HasRoundedWeights(Mode mode) { return mode != Mode::kF32; }
// InvalidArgument: another name.
StatusOr<Mode> ModeFromName(std::string_view name);

// kRows: row-major as in a file. kPanels: the kernels' execution layout of the parameter's element
// type, panels32 or panels32k2 (core/kernels/panels.h).
enum class Layout { kRows, kPanels };

// Offsets and sizes in a slot are multiples of this.
inline constexpr int64_t kSlotAlignment = 256;

// One rank of a tensor-parallel group; {0, 1}: alone, with whole matrices.
struct TensorShard {
  int rank = 0;
  int size = 1;

  bool operator==(const TensorShard&) const = default;
};

// Rows or columns [begin, end) of a matrix.
struct Slice {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  bool operator==(const Slice&) const = default;
};

struct Parameter {
  std::string name;            // for example "model.layers.0.self_attn.q_proj.weight"
  std::vector<int64_t> shape;  // logical: {n} or {out features, in features}
  Layout layout = Layout::kRows;
  kernels::Element element = kernels::Element::kF32;
  int64_t offset = 0;  // of the first byte in the slot, a multiple of kSlotAlignment
  int64_t bytes = 0;   // with pad lanes, without the gap to the next parameter
  // Leaves of the forward (over in features) and of the input gradient (over out features),
  // numerics.md section 2. 1 for vectors.
  int forward_leaves = 1;
  int input_gradient_leaves = 1;
  // Rows are owned in steps of so many; 0: every rank has all of them.
  int64_t owned_step = 0;
  Slice held;  // the rows that the slot holds

  bool is_matrix() const { return shape.size() == 2; }
  int64_t rows() const { return shape[0]; }
  int64_t columns() const { return is_matrix() ? shape[1] : 1; }
  int64_t num_elements() const { return rows() * columns(); }  // logical, without pad lanes
  // Floats of the payload held, pad lanes included. Of the table of kF32.
  int64_t num_floats() const { return bytes / static_cast<int64_t>(sizeof(float)); }
};

// Rows that a rank owns, ascending with the rank; none where there are fewer steps than ranks. A
// step is whole panels and a multiple of 1024 elements of the flat matrix, so that no chunk of the
// gradient's norm lies on two ranks; of the embedding and the head 1024 tokens.
Slice OwnedRows(const Parameter& parameter, TensorShard shard);
// Columns of the input gradient that a rank computes, whole panels of the transposed matrix.
Slice OwnedColumns(const Parameter& parameter, TensorShard shard);

struct ExpertParameters {
  int gate = -1, up = -1, down = -1;
  int gate_bias = -1, up_bias = -1, down_bias = -1;
};

// Indices into ParameterTable::parameters(); -1 = the model has no such parameter.
struct LayerParameters {
  int input_norm = -1;
  int q = -1, k = -1, v = -1, o = -1;
  int q_bias = -1, k_bias = -1, v_bias = -1, o_bias = -1;
  int q_norm = -1, k_norm = -1;
  int sinks = -1;
  int attention_norm = -1, mlp_norm = -1;  // of a branch before it is added (Gemma)
  int post_norm = -1;
  int gate = -1, up = -1, down = -1;
  int gate_bias = -1, up_bias = -1, down_bias = -1;
  int router = -1, router_bias = -1;
  std::vector<ExpertParameters> experts;  // empty: the layer has an MLP
};

class ParameterTable {
 public:
  // InvalidArgument: sizes that cannot be a model (names the field). Unimplemented: a family or
  // feature outside the Llama form (names it).
  static StatusOr<ParameterTable> Of(const formats::ModelConfig& config, Mode mode = Mode::kF32,
                                     TensorShard shard = {});

  TensorShard shard() const { return shard_; }

  Mode mode() const { return mode_; }
  std::span<const Parameter> parameters() const { return parameters_; }
  const Parameter& at(int index) const { return parameters_[static_cast<size_t>(index)]; }
  int size() const { return static_cast<int>(parameters_.size()); }
  // Index of a name, -1 when absent.
  int Find(std::string_view name) const;

  int64_t slot_bytes() const { return slot_bytes_; }  // a multiple of kSlotAlignment
  // The slot's size in floats, whatever it holds.
  int64_t slot_floats() const { return slot_bytes_ / static_cast<int64_t>(sizeof(float)); }
  int64_t num_elements() const { return num_elements_; }  // logical, tied table once

  int embedding() const { return 0; }
  int final_norm() const { return final_norm_; }
  int head() const { return head_; }  // equals embedding() when tied
  bool tied() const { return head_ == 0; }
  std::span<const LayerParameters> layers() const { return layers_; }

 private:
  Mode mode_ = Mode::kF32;
  TensorShard shard_;
  std::vector<Parameter> parameters_;
  std::vector<LayerParameters> layers_;
  int final_norm_ = -1;
  int head_ = -1;
  int64_t slot_bytes_ = 0;
  int64_t num_elements_ = 0;
};

template <typename Vector, typename Matrix>
struct ExpertPointers {
  Matrix gate, up, down;
  Vector gate_bias, up_bias, down_bias;
};

// Pointers into a slot by role: vectors are floats, matrices panels. Null where the model has no
// such parameter. Valid as long as the slot.
template <typename Vector, typename Matrix>
struct LayerPointers {
  Vector input_norm;
  Matrix q, k, v, o;
  Vector q_bias, k_bias, v_bias, o_bias;
  Vector q_norm, k_norm;
  Vector sinks;
  Vector attention_norm, mlp_norm;
  Vector post_norm;
  Matrix gate, up, down;
  Vector gate_bias, up_bias, down_bias;
  Matrix router;
  Vector router_bias;
  std::vector<ExpertPointers<Vector, Matrix>> experts;
};

template <typename Slot, typename Vector, typename Matrix>
struct SlotPointers {
  Slot slot = {};
  Matrix embedding = {};
  Vector final_norm = {};
  Matrix head = {};  // the embedding's when tied
  std::vector<LayerPointers<Vector, Matrix>> layers;
};

using Weights = SlotPointers<const void*, const float*, kernels::ConstPanels>;
using Gradients = SlotPointers<float*, float*, float*>;
using LayerWeights = LayerPointers<const float*, kernels::ConstPanels>;
using LayerGradients = LayerPointers<float*, float*>;

// REQUIRES: slot is 64-byte aligned and holds table.slot_bytes(); for gradients, table is of kF32.
Weights WeightsOf(const ParameterTable& table, const void* slot);
// What `table`'s rank owns, inside a slot of the whole model.
Weights WeightsIn(const ParameterTable& table, const ParameterTable& whole, const void* whole_slot);
Gradients GradientsOf(const ParameterTable& table, float* slot);

// Writes one parameter into its place in a slot from its logical row-major form
// ([rows][columns], parameter.num_elements() values; of which the rows held are written), rounded
// once where it is bfloat16; pad lanes are written too. InvalidArgument, naming it: a value is not
// finite in bfloat16.
Status StoreParameter(kernels::Pool& pool, const Parameter& parameter,
                      std::span<const float> values, void* slot);
// The other way, exactly. REQUIRES: all rows are held.
void ReadParameter(kernels::Pool& pool, const Parameter& parameter, const void* slot,
                   std::span<float> values);

// Writes the slot of `table` from master weights in the slot layout of kF32: vectors bit for bit,
// matrices rounded once where they are bfloat16; gaps are left alone. REQUIRES: both tables are of
// one model. DataLoss, naming the parameter: a value is not finite in bfloat16.
Status RoundMaster(kernels::Pool& pool, const ParameterTable& master_table, const float* master,
                   const ParameterTable& table, void* slot);

}  // namespace titan::model

#endif  // TITAN_CORE_MODEL_PARAMETERS_H_
