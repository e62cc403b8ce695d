// SPDX-License-Identifier: Apache-2.0
//
// Failures that several parts of StoreState report in the same words. Private to the module.
#ifndef TITAN_WEIGHTSTORE_STORE_STATE_ERRORS_H_
#define TITAN_WEIGHTSTORE_STORE_STATE_ERRORS_H_

#include <cstdint>
#include <string>

#include "core/base/hash.h"
#include "core/base/status.h"
#include "weightstore/client/reason.h"

namespace titan::weightstore {

inline std::string Named(const std::string& run_id, uint64_t version) {
  return "version " + std::to_string(version) + " of run " + run_id;
}

inline Status Divergence(const std::string& run_id, uint64_t version, const Hash128& recorded,
                         const Hash128& offered) {
  return WithReason(
      FailedPrecondition("divergence: " + Named(run_id, version) + " is recorded with digest " +
                         ToHex(recorded) + ", digest " + ToHex(offered) + " was offered"),
      kDivergence);
}

inline Status Superseded(const std::string& message) {
  return WithReason(Aborted(message), kEpochSuperseded);
}

inline Status EvaluationBusy(const std::string& message) {
  return WithReason(ResourceExhausted(message), kEvaluationSlotBusy);
}

inline Status NotServed(const std::string& message) {
  return WithReason(FailedPrecondition(message), kVersionNotServed);
}

}  // namespace titan::weightstore

#endif  // TITAN_WEIGHTSTORE_STORE_STATE_ERRORS_H_
