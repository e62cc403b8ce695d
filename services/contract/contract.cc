// SPDX-License-Identifier: Apache-2.0
#include "services/contract/contract.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/base/hash.h"
#include "core/kernels/digest.h"
#include "core/model/contract.h"

namespace titan::services {

using kernels::ContractItem;

namespace {

constexpr size_t kMaxValueBytes = 256;
constexpr size_t kShownBytes = 128;

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
  TITAN_ASSIGN_OR_RETURN(const std::vector<ContractItem> items,
                         model::ForwardItems(pool, config, mode));
  return kernels::DigestOf(items);
}

std::vector<weightstore::ContractItem> ToManifest(const std::vector<ContractItem>& items) {
  std::vector<weightstore::ContractItem> out;
  for (const ContractItem& item : items) {
    std::string value = item.value;
    if (value.size() > kMaxValueBytes) {
      value = value.substr(0, kShownBytes) + "... (" + std::to_string(value.size()) + " bytes, " +
              ToHex(Hash128Of(value.data(), value.size(), 0)) + ")";
    }
    out.push_back({item.name, std::move(value)});
  }
  return out;
}

Status CheckRunContract(kernels::Pool& pool, const formats::ModelConfig& config, model::Mode mode,
                        const weightstore::Manifest& manifest) {
  TITAN_ASSIGN_OR_RETURN(const std::vector<ContractItem> items,
                         model::ForwardItems(pool, config, mode));
  const std::string digest = kernels::DigestOf(items);
  if (digest == manifest.contract_forward) return OkStatus();
  // The manifest has the items of a trainer, which are more.
  const std::vector<weightstore::ContractItem> here = ToManifest(items);
  std::vector<weightstore::ContractItem> there;
  for (const weightstore::ContractItem& item : manifest.contract_items) {
    const bool forward = std::any_of(here.begin(), here.end(),
                                     [&](const auto& mine) { return mine.name == item.name; });
    if (forward) there.push_back(item);
  }
  const std::string item = weightstore::DifferingItem(there, here);
  return FailedPrecondition("the run's weights were made under forward contract " +
                            manifest.contract_forward + ", this process computes " + digest +
                            (item.empty() ? "" : ": " + item) +
                            "; run the same build and kernels on both");
}

}  // namespace titan::services
