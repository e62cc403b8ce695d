// SPDX-License-Identifier: Apache-2.0
#include "core/formats/tensor_set.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>

namespace titan::formats {

Status CheckTensorSet(std::string_view where, const std::vector<TensorSpec>& wanted,
                      const TensorShapes& found,
                      const std::function<std::string(std::string_view)>& file_name) {
  std::set<std::string, std::less<>> known;
  for (const TensorSpec& tensor : wanted) {
    const std::string& name = *known.insert(file_name(tensor.name)).first;
    const auto it = found.find(name);
    if (it == found.end()) {
      return InvalidArgument(fmt::format(
          "{}: tensor {} is missing{}", where, name,
          tensor.name == "lm_head.weight" ? " although tie_word_embeddings is false" : ""));
    }
    if (it->second != tensor.shape) {
      return InvalidArgument(fmt::format("{}: tensor {}: shape [{}] must be [{}]", where, name,
                                         fmt::join(it->second, ", "),
                                         fmt::join(tensor.shape, ", ")));
    }
  }
  for (const auto& [name, shape] : found) {
    if (!known.contains(name)) {
      return InvalidArgument(fmt::format(
          "{}: tensor {} is not part of the model that the configuration describes", where, name));
    }
  }
  return OkStatus();
}

const TensorSpec* FindTensorSpec(const std::vector<TensorSpec>& tensors, std::string_view name) {
  for (const TensorSpec& tensor : tensors) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

Status CheckSpan(const TensorSpec& tensor, size_t num_elements) {
  if (num_elements == static_cast<size_t>(tensor.num_elements())) return OkStatus();
  return InvalidArgument(fmt::format("tensor {}: has {} elements, the buffer {}", tensor.name,
                                     tensor.num_elements(), num_elements));
}

}  // namespace titan::formats
