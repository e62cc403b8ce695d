// SPDX-License-Identifier: Apache-2.0
//
// The exit codes that all programs share. What else titanctl says with them:
// clients/cli/exit_codes.h.
#ifndef TITAN_CORE_BASE_EXIT_CODES_H_
#define TITAN_CORE_BASE_EXIT_CODES_H_

#include "core/base/status.h"

namespace titan {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;    // wrong use or wrong input
inline constexpr int kExitDamaged = 8;  // what is stored is not what was written

// Of a program that ends with this: kExitDamaged for DataLoss, else kExitFailed.
inline int ExitCodeOfEnd(const Status& status) {
  if (status.ok()) return kExitOk;
  return status.code() == StatusCode::kDataLoss ? kExitDamaged : kExitFailed;
}

}  // namespace titan

#endif  // TITAN_CORE_BASE_EXIT_CODES_H_
