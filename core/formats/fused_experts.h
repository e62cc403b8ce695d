// SPDX-License-Identifier: Apache-2.0
//
// Where the experts of a layer lie in a Hugging Face file that keeps all of them in one tensor
// (family gpt_oss): input-major, the columns of gate and up alternating.
//
//   mlp.experts.gate_up_proj       [experts][hidden][2 * width]   gate n at column 2n, up n at 2n+1
//   mlp.experts.gate_up_proj_bias  [experts][2 * width]
//   mlp.experts.down_proj          [experts][width][hidden]
//   mlp.experts.down_proj_bias     [experts][hidden]
//
// Everywhere else an expert's matrices are tensors of their own, [out features][in features]. Pure
// functions, any thread.
#ifndef TITAN_CORE_FORMATS_FUSED_EXPERTS_H_
#define TITAN_CORE_FORMATS_FUSED_EXPERTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/formats/model_config.h"

namespace titan::formats {

// A tensor of CanonicalTensors inside an expert's block of a file's tensor: its element (row,
// column) is element first + row * row_step + column * column_step of the block.
struct FusedPlace {
  std::string tensor;          // the file's
  std::vector<int64_t> shape;  // of that
  int64_t block_begin = 0;     // of the expert's elements in it
  int64_t block_elements = 0;
  int64_t rows = 0, columns = 0;
  int64_t first = 0, row_step = 0, column_step = 0;
};

// None: the tensor is one of the file's own.
std::optional<FusedPlace> FusedPlaceOf(const ModelConfig& config, std::string_view name);

// The tensors of a Hugging Face file of the model, in the order of CanonicalTensors.
std::vector<TensorSpec> FileTensors(const ModelConfig& config);

}  // namespace titan::formats

#endif  // TITAN_CORE_FORMATS_FUSED_EXPERTS_H_
