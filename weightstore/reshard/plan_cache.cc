// SPDX-License-Identifier: Apache-2.0
#include "weightstore/reshard/plan_cache.h"

namespace titan::weightstore::reshard {

StatusOr<std::shared_ptr<const Plan>> PlanCache::Get(const Placement& source,
                                                     const Placement& destination) {
  const Hash128 from = DigestOf(source), to = DigestOf(destination);
  const Key key{{from.high, from.low}, {to.high, to.low}};
  {
    std::lock_guard lock(mutex_);
    const auto found = by_key_.find(key);
    if (found != by_key_.end()) {
      ++hits_;
      entries_.splice(entries_.begin(), entries_, found->second);
      return entries_.front().second;
    }
  }
  TITAN_ASSIGN_OR_RETURN(Plan plan, MakePlan(source, destination, costs_));
  auto shared = std::make_shared<const Plan>(std::move(plan));
  std::lock_guard lock(mutex_);
  const auto found = by_key_.find(key);  // by another thread meanwhile
  if (found != by_key_.end()) return found->second->second;
  entries_.emplace_front(key, shared);
  by_key_[key] = entries_.begin();
  if (entries_.size() > max_plans_) {
    by_key_.erase(entries_.back().first);
    entries_.pop_back();
  }
  return shared;
}

size_t PlanCache::size() const {
  std::lock_guard lock(mutex_);
  return entries_.size();
}

uint64_t PlanCache::hits() const {
  std::lock_guard lock(mutex_);
  return hits_;
}

}  // namespace titan::weightstore::reshard
