// SPDX-License-Identifier: Apache-2.0
//
// Status and StatusOr: how every fallible function of the project reports failure. The only file
// that names absl status; it takes std::string_view where Debian's absl would not.
//
// Codes mean one thing each: InvalidArgument = the request can never succeed; FailedPrecondition =
// not in this state; Aborted = lost a race, read again; NotFound; AlreadyExists; ResourceExhausted
// = a bound is reached, back off; Unavailable = a peer or dependency is down, retry;
// DeadlineExceeded; DataLoss = bytes are not what was written; Cancelled; Unimplemented = a kind
// that this version does not cover; Internal = our own bug reached a boundary.
#ifndef TITAN_CORE_BASE_STATUS_H_
#define TITAN_CORE_BASE_STATUS_H_

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/strings/cord.h>

#include <string>
#include <string_view>
#include <utility>

namespace titan {

using Status = absl::Status;
using StatusCode = absl::StatusCode;
template <typename T>
using StatusOr = absl::StatusOr<T>;

inline Status OkStatus() { return absl::OkStatus(); }
inline Status MakeStatus(StatusCode code, std::string_view message) {
  return Status(code, absl::string_view(message.data(), message.size()));
}
inline Status InvalidArgument(std::string_view m) {
  return MakeStatus(StatusCode::kInvalidArgument, m);
}
inline Status FailedPrecondition(std::string_view m) {
  return MakeStatus(StatusCode::kFailedPrecondition, m);
}
inline Status Aborted(std::string_view m) { return MakeStatus(StatusCode::kAborted, m); }
inline Status NotFound(std::string_view m) { return MakeStatus(StatusCode::kNotFound, m); }
inline Status AlreadyExists(std::string_view m) {
  return MakeStatus(StatusCode::kAlreadyExists, m);
}
inline Status ResourceExhausted(std::string_view m) {
  return MakeStatus(StatusCode::kResourceExhausted, m);
}
inline Status Unavailable(std::string_view m) { return MakeStatus(StatusCode::kUnavailable, m); }
inline Status DeadlineExceeded(std::string_view m) {
  return MakeStatus(StatusCode::kDeadlineExceeded, m);
}
inline Status DataLoss(std::string_view m) { return MakeStatus(StatusCode::kDataLoss, m); }
inline Status Cancelled(std::string_view m) { return MakeStatus(StatusCode::kCancelled, m); }
inline Status Unimplemented(std::string_view m) {
  return MakeStatus(StatusCode::kUnimplemented, m);
}
inline Status Internal(std::string_view m) { return MakeStatus(StatusCode::kInternal, m); }

// The message as std::string (absl's own string_view is not std's in Debian's build).
inline std::string MessageOf(const Status& status) {
  return std::string(status.message().data(), status.message().size());
}

// The same failure, payloads included, with "context: " before its message. REQUIRES: !status.ok().
inline Status Annotate(const Status& status, std::string_view context) {
  Status annotated = MakeStatus(status.code(), std::string(context) + ": " + MessageOf(status));
  status.ForEachPayload([&annotated](absl::string_view type, const absl::Cord& payload) {
    annotated.SetPayload(type, payload);
  });
  return annotated;
}

}  // namespace titan

#define TITAN_CONCAT_INNER_(a, b) a##b
#define TITAN_CONCAT_(a, b) TITAN_CONCAT_INNER_(a, b)

#define TITAN_RETURN_IF_ERROR(expr)                \
  do {                                             \
    ::titan::Status titan_status_ = (expr);        \
    if (!titan_status_.ok()) return titan_status_; \
  } while (false)

// TITAN_ASSIGN_OR_RETURN(auto x, F()): declares or assigns x, or returns the failure.
#define TITAN_ASSIGN_OR_RETURN(lhs, expr) \
  TITAN_ASSIGN_OR_RETURN_IMPL_(TITAN_CONCAT_(titan_status_or_, __LINE__), lhs, expr)
#define TITAN_ASSIGN_OR_RETURN_IMPL_(var, lhs, expr) \
  auto var = (expr);                                 \
  if (!var.ok()) return var.status();                \
  lhs = *std::move(var)

#endif  // TITAN_CORE_BASE_STATUS_H_
