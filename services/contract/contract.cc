// SPDX-License-Identifier: Apache-2.0
#include "services/contract/contract.h"

#include <vector>

#include "core/kernels/digest.h"

namespace titan::services {

using kernels::ContractItem;

type::v1::ContractDigest ProcessContract(kernels::Pool& pool, bool training) {
  type::v1::ContractDigest contract;
  const auto add = [&contract](const std::vector<ContractItem>& items) {
    for (const ContractItem& item : items) {
      type::v1::ContractItem* out = contract.add_items();
      out->set_name(item.name);
      out->set_value(item.value);
    }
  };
  std::vector<ContractItem> items = kernels::ForwardKernelItems(pool);
  contract.set_forward(kernels::DigestOf(items));
  add(items);
  if (training) {
    const std::vector<ContractItem> more = kernels::TrainingKernelItems(pool);
    add(more);
    items.insert(items.end(), more.begin(), more.end());
    contract.set_training(kernels::DigestOf(items));
  }
  return contract;
}

std::string RunForwardDigest(kernels::Pool& pool, const formats::ModelConfig& config) {
  std::vector<ContractItem> items = kernels::ForwardKernelItems(pool);
  items.push_back({"model.config", formats::ToHfConfigJson(config)});
  items.push_back({"model.mode", "f32"});
  return kernels::DigestOf(items);
}

}  // namespace titan::services
