// SPDX-License-Identifier: Apache-2.0
//
// Plans by (source digest, destination digest): layouts change rarely, versions every step. Plans
// hold no addresses, so a cached one stays right when processes restart.
#ifndef TITAN_WEIGHTSTORE_RESHARD_PLAN_CACHE_H_
#define TITAN_WEIGHTSTORE_RESHARD_PLAN_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "core/base/hash.h"
#include "core/base/status.h"
#include "weightstore/reshard/cost_model.h"
#include "weightstore/reshard/plan.h"

namespace titan::weightstore::reshard {

// Thread-safe. Two threads that ask for the same missing plan may both make it; they are equal.
class PlanCache {
 public:
  // All plans are made with these costs; the least recently used ones are dropped. REQUIRES:
  // max_plans >= 1.
  PlanCache(const CostModel& costs, size_t max_plans) : costs_(costs), max_plans_(max_plans) {}

  // Codes of MakePlan; failures are not kept.
  StatusOr<std::shared_ptr<const Plan>> Get(const Placement& source, const Placement& destination);

  size_t size() const;
  uint64_t hits() const;

 private:
  using Key = std::pair<std::pair<uint64_t, uint64_t>, std::pair<uint64_t, uint64_t>>;
  using Entry = std::pair<Key, std::shared_ptr<const Plan>>;

  const CostModel costs_;
  const size_t max_plans_;
  mutable std::mutex mutex_;  // guards what follows
  std::list<Entry> entries_;  // most recently used first
  std::map<Key, std::list<Entry>::iterator> by_key_;
  uint64_t hits_ = 0;
};

}  // namespace titan::weightstore::reshard

#endif  // TITAN_WEIGHTSTORE_RESHARD_PLAN_CACHE_H_
