// SPDX-License-Identifier: Apache-2.0
//
// Status <-> grpc::Status. The ErrorInfo of a Status travels as a detail of google.rpc.Status in
// the grpc-status-details-bin trailer, where every gRPC client looks for it. Pure functions, any
// thread.
#ifndef TITAN_SERVICES_RPC_STATUS_CONVERT_H_
#define TITAN_SERVICES_RPC_STATUS_CONVERT_H_

#include <grpcpp/support/status.h>

#include <optional>
#include <string>
#include <string_view>

#include "core/base/status.h"
#include "titan/type/v1/types.pb.h"

namespace titan::rpc {

// The same failure with the detail attached (replacing an earlier one). REQUIRES: !status.ok().
Status WithErrorInfo(Status status, const type::v1::ErrorInfo& info);
// Shorthand: reason in UPPER_SNAKE_CASE and what a person should do.
Status WithReason(Status status, std::string_view reason, std::string_view fix,
                  int64_t retry_after_ms = 0);
std::optional<type::v1::ErrorInfo> ErrorInfoOf(const Status& status);
// The reason of the detail, or empty.
std::string ReasonOf(const Status& status);

grpc::Status ToGrpc(const Status& status);
// An unreadable detail is left out; unknown codes become Internal.
Status FromGrpc(const grpc::Status& status);

}  // namespace titan::rpc

#endif  // TITAN_SERVICES_RPC_STATUS_CONVERT_H_
