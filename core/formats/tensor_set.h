// SPDX-License-Identifier: Apache-2.0
//
// Comparing the tensors that a model must have with those that a file holds. Shared by the kinds of
// ModelSource; pure functions, any thread.
#ifndef TITAN_CORE_FORMATS_TENSOR_SET_H_
#define TITAN_CORE_FORMATS_TENSOR_SET_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/formats/model_config.h"

namespace titan::formats {

using TensorShapes = std::map<std::string, std::vector<int64_t>, std::less<>>;

// OK if `found` (by file name) holds exactly the wanted tensors under the names that file_name
// gives, with their shapes. InvalidArgument "<where>: tensor <file name>: ...": missing, of another
// shape, or not part of the model. A missing head is reported with tie_word_embeddings.
Status CheckTensorSet(std::string_view where, const std::vector<TensorSpec>& wanted,
                      const TensorShapes& found,
                      const std::function<std::string(std::string_view)>& file_name);

// Null if there is none of this name.
const TensorSpec* FindTensorSpec(const std::vector<TensorSpec>& tensors, std::string_view name);

// InvalidArgument if num_elements is not the tensor's.
Status CheckSpan(const TensorSpec& tensor, size_t num_elements);

}  // namespace titan::formats

#endif  // TITAN_CORE_FORMATS_TENSOR_SET_H_
