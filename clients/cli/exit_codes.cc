// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/exit_codes.h"

#include <fmt/format.h>

namespace titan::cli {

std::string ExitCodeTable() {
  std::string text;
  for (const ExitCode& row : kExitCodes) text += fmt::format("  {:<4} {}\n", row.code, row.meaning);
  return text;
}

int ExitCodeOf(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk:
      return kExitOk;
    case StatusCode::kInvalidArgument:
      return kExitUsage;
    case StatusCode::kUnavailable:
    case StatusCode::kDeadlineExceeded:
      return kExitUnreachable;
    case StatusCode::kNotFound:
      return kExitNoSuchThing;
    case StatusCode::kDataLoss:
      return kExitDamaged;
    default:
      return kExitFailed;
  }
}

}  // namespace titan::cli
