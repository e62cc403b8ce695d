// SPDX-License-Identifier: Apache-2.0
#include "services/contract/contract.h"

#include <string>
#include <vector>

#include "core/kernels/digest.h"
#include "core/model/contract.h"

namespace titan::services {

using kernels::ContractItem;

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
  TITAN_ASSIGN_OR_RETURN(const std::vector<ContractItem> items,
                         model::ForwardItems(pool, config, mode));
  return kernels::DigestOf(items);
}

}  // namespace titan::services
