// SPDX-License-Identifier: Apache-2.0
#include "services/contract/contract.h"

#include <string>
#include <vector>

#include "core/kernels/digest.h"
#include "core/model/parameters.h"

namespace titan::services {

using kernels::ContractItem;

namespace {

// "name forward/input gradient" of each matrix in the table's order.
std::string LeavesOf(const model::ParameterTable& table) {
  std::string text;
  for (const model::Parameter& parameter : table.parameters()) {
    if (!parameter.is_matrix()) continue;
    if (!text.empty()) text += ' ';
    text += parameter.name + ' ' + std::to_string(parameter.forward_leaves) + '/' +
            std::to_string(parameter.input_gradient_leaves);
  }
  return text;
}

}  // namespace

type::v1::ContractDigest ProcessContract(kernels::Pool& pool, bool training) {
  type::v1::ContractDigest contract;
  std::vector<ContractItem> items;
  const auto add = [&](const std::vector<ContractItem>& more) {
    for (const ContractItem& item : more) {
      type::v1::ContractItem* out = contract.add_items();
      out->set_name(item.name);
      out->set_value(item.value);
    }
    items.insert(items.end(), more.begin(), more.end());
  };
  add(kernels::ForwardKernelItems(pool));
  add(kernels::ForwardW16Items(pool));
  add(kernels::ForwardBf16Items(pool));
  contract.set_forward(kernels::DigestOf(items));
  if (training) {
    add(kernels::TrainingKernelItems(pool));
    add(kernels::TrainingW16Items(pool));
    add(kernels::TrainingBf16Items(pool));
    contract.set_training(kernels::DigestOf(items));
  }
  return contract;
}

StatusOr<std::string> RunForwardDigest(kernels::Pool& pool, const formats::ModelConfig& config,
                                       model::Mode mode) {
  TITAN_ASSIGN_OR_RETURN(const model::ParameterTable table,
                         model::ParameterTable::Of(config, mode));
  std::vector<ContractItem> items = kernels::ForwardKernelItems(pool);
  const auto add = [&items](const std::vector<ContractItem>& more) {
    items.insert(items.end(), more.begin(), more.end());
  };
  if (model::HasRoundedWeights(mode)) add(kernels::ForwardW16Items(pool));
  if (mode == model::Mode::kBf16) add(kernels::ForwardBf16Items(pool));
  items.push_back({"model.config", formats::ToHfConfigJson(config)});
  items.push_back({"model.leaves", LeavesOf(table)});
  items.push_back({"model.mode", std::string(model::ModeName(mode))});
  items.push_back({"model.cache", "f32"});
  return kernels::DigestOf(items);
}

}  // namespace titan::services
