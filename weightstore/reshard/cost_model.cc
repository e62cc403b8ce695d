// SPDX-License-Identifier: Apache-2.0
#include "weightstore/reshard/cost_model.h"

#include <algorithm>

#include "core/base/check.h"

namespace titan::weightstore::reshard {
namespace {

constexpr uint64_t kMost = ~uint64_t{0};

uint64_t Times(uint64_t a, uint64_t b) {
  uint64_t product;
  return __builtin_mul_overflow(a, b, &product) ? kMost : product;
}
uint64_t Plus(uint64_t a, uint64_t b) {
  uint64_t sum;
  return __builtin_add_overflow(a, b, &sum) ? kMost : sum;
}

uint64_t Reads(const CostModel& model, uint64_t bytes) {
  return bytes / model.max_read_bytes + (bytes % model.max_read_bytes != 0 ? 1 : 0);
}

}  // namespace

CostModel MappedLaneCosts() {
  return {.read_ps = 20'000, .wire_ps_per_byte = 100, .max_read_bytes = kMost, .can_pack = false};
}

uint64_t CostOf(const CostModel& model, const RegionSize& size, Method method) {
  TITAN_CHECK(model.max_read_bytes > 0);
  const uint64_t bytes = Times(size.num_runs, size.run_bytes);
  const uint64_t copy =
      Plus(Times(bytes, model.copy_ps_per_byte), Times(size.num_runs, model.run_ps));
  switch (method) {
    case Method::kDirect:
      return Plus(Times(Times(size.num_runs, Reads(model, size.run_bytes)), model.read_ps),
                  Times(bytes, model.wire_ps_per_byte));
    case Method::kOverRead:
      return Plus(Plus(Times(Reads(model, size.range_bytes), model.read_ps),
                       Times(size.range_bytes, model.wire_ps_per_byte)),
                  copy);
    case Method::kPack:
      if (!model.can_pack) return kMost;
      return Plus(
          Plus(Times(Reads(model, bytes), model.read_ps), Times(bytes, model.wire_ps_per_byte)),
          Times(copy, size.destination_contiguous ? 1 : 2));
  }
  return kMost;
}

Choice Cheapest(const CostModel& model, const RegionSize& size) {
  Choice best{Method::kDirect, CostOf(model, size, Method::kDirect)};
  if (size.num_runs == 1) return best;
  for (const Method method : {Method::kOverRead, Method::kPack}) {
    const uint64_t cost = CostOf(model, size, method);
    if (cost < best.cost_ps) best = {method, cost};
  }
  return best;
}

}  // namespace titan::weightstore::reshard
