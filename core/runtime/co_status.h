// SPDX-License-Identifier: Apache-2.0
//
// The Status macros for coroutines that return Status or StatusOr.
#ifndef TITAN_CORE_RUNTIME_CO_STATUS_H_
#define TITAN_CORE_RUNTIME_CO_STATUS_H_

#include "core/base/status.h"

#define TITAN_CO_RETURN_IF_ERROR(expr)                \
  do {                                                \
    ::titan::Status titan_status_ = (expr);           \
    if (!titan_status_.ok()) co_return titan_status_; \
  } while (false)

#define TITAN_CO_ASSIGN_OR_RETURN(lhs, expr) \
  TITAN_CO_ASSIGN_OR_RETURN_IMPL_(TITAN_CONCAT_(titan_status_or_, __LINE__), lhs, expr)
#define TITAN_CO_ASSIGN_OR_RETURN_IMPL_(var, lhs, expr) \
  auto var = (expr);                                    \
  if (!var.ok()) co_return var.status();                \
  lhs = *std::move(var)

#endif  // TITAN_CORE_RUNTIME_CO_STATUS_H_
