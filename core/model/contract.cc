// SPDX-License-Identifier: Apache-2.0
#include "core/model/contract.h"

#include <string>

namespace titan::model {
namespace {

using kernels::ContractItem;

// "name forward/input gradient" of each matrix in the table's order.
std::string LeavesOf(const ParameterTable& table) {
  std::string text;
  for (const Parameter& parameter : table.parameters()) {
    if (!parameter.is_matrix()) continue;
    if (!text.empty()) text += ' ';
    text += parameter.name + ' ' + std::to_string(parameter.forward_leaves) + '/' +
            std::to_string(parameter.input_gradient_leaves);
  }
  return text;
}

void Append(std::vector<ContractItem>* items, const std::vector<ContractItem>& more) {
  items->insert(items->end(), more.begin(), more.end());
}

}  // namespace

StatusOr<std::vector<ContractItem>> ForwardItems(kernels::Pool& pool,
                                                 const formats::ModelConfig& config, Mode mode) {
  TITAN_ASSIGN_OR_RETURN(const ParameterTable table, ParameterTable::Of(config, mode));
  std::vector<ContractItem> items = kernels::ForwardKernelItems(pool);
  if (HasRoundedWeights(mode)) Append(&items, kernels::ForwardW16Items(pool));
  if (mode == Mode::kBf16) Append(&items, kernels::ForwardBf16Items(pool));
  items.push_back({"model.config", formats::ToHfConfigJson(config)});
  items.push_back({"model.leaves", LeavesOf(table)});
  items.push_back({"model.mode", std::string(ModeName(mode))});
  items.push_back({"model.cache", "f32"});
  return items;
}

std::vector<ContractItem> TrainingItems(kernels::Pool& pool, Mode mode) {
  std::vector<ContractItem> items = kernels::TrainingKernelItems(pool);
  if (HasRoundedWeights(mode)) Append(&items, kernels::TrainingW16Items(pool));
  if (mode == Mode::kBf16) Append(&items, kernels::TrainingBf16Items(pool));
  return items;
}

}  // namespace titan::model
