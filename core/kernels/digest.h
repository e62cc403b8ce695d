// SPDX-License-Identifier: Apache-2.0
//
// The kernels' part of the contract digests (numerics contract, section 10): named items whose
// values are text or the hash of canned vectors run through the kernels that this process has
// really selected. Two processes whose items are equal give equal bits; where they differ, the item
// says what differs. The model adds its own items (leaves per layer, head shapes, eps, masks, cache
// type) to these lists.
//
// Canned vectors are drawn by Philox and cover decode and batch sizes, every leaf count and several
// key segments. All lists together take some 0.1 s. Thread-safety: as the kernels.
#ifndef TITAN_CORE_KERNELS_DIGEST_H_
#define TITAN_CORE_KERNELS_DIGEST_H_

#include <span>
#include <string>
#include <vector>

#include "core/kernels/pool.h"

namespace titan::kernels {

struct ContractItem {
  std::string name;   // for example "order.constants", "canned.attention"
  std::string value;  // text, or 32 hex digits
  bool operator==(const ContractItem&) const = default;
};

// What a log-prob depends on: order class, constants, layout, polynomials, and the forward kernels.
std::vector<ContractItem> ForwardKernelItems(Pool& pool);

// What a gradient or an update depends on besides: units, the backward kernels, norm and optimizer.
std::vector<ContractItem> TrainingKernelItems(Pool& pool);

// The same of mode W16, beside those above: the layout and the kernels that read bfloat16 weights,
// and how a weight is rounded. Names end in "_w16".
std::vector<ContractItem> ForwardW16Items(Pool& pool);
std::vector<ContractItem> TrainingW16Items(Pool& pool);

// The same of mode BF16, beside all those above: products with rounded rows. Names end in "_bf16".
std::vector<ContractItem> ForwardBf16Items(Pool& pool);
std::vector<ContractItem> TrainingBf16Items(Pool& pool);

// 32 hex digits (xxh3-128) over the items as lines "name=value", in the order given.
std::string DigestOf(std::span<const ContractItem> items);

}  // namespace titan::kernels

#endif  // TITAN_CORE_KERNELS_DIGEST_H_
