// SPDX-License-Identifier: Apache-2.0
//
// What leader and hosts tell each other, between its messages and its domain types. Pure functions,
// any thread. Failures are InvalidArgument and name the field.
#ifndef TITAN_SERVICES_WEIGHTSTORE_HOST_MESSAGES_H_
#define TITAN_SERVICES_WEIGHTSTORE_HOST_MESSAGES_H_

#include "core/base/status.h"
#include "titan/weightstore/v1/host.pb.h"
#include "weightstore/host_port.h"

namespace titan::weightstore {

inline constexpr uint32_t kHostProtocol = 2;

v1::HostCommand ToProto(const HostCommand& command);
// The message is a command, not a question.
StatusOr<HostCommand> FromProto(const v1::HostCommand& message);

// Fills slots, leases, gone_writers and offers.
void ToProto(const HostReport& report, v1::AttachRequest* message);
// Those of a host that offers itself. Refuses slots and leases that are named twice, and what no
// host would report.
StatusOr<HostReport> FromProto(const v1::AttachRequest& message);

v1::SlotOffer ToProto(const SlotOffer& offer);
StatusOr<SlotOffer> FromProto(const v1::SlotOffer& message);

v1::HostFailure FailureToProto(const Status& status);
Status FailureFromProto(const v1::HostFailure& message);

}  // namespace titan::weightstore

#endif  // TITAN_SERVICES_WEIGHTSTORE_HOST_MESSAGES_H_
