// SPDX-License-Identifier: Apache-2.0
//
// Which failure of the weight store a Status is, for callers that must tell them apart. Travels
// with the Status in the process; services carry it over gRPC. Pure functions, any thread.
#ifndef TITAN_WEIGHTSTORE_CLIENT_REASON_H_
#define TITAN_WEIGHTSTORE_CLIENT_REASON_H_

#include <string>
#include <string_view>

#include "core/base/status.h"

namespace titan::weightstore {

// (run, version) is recorded with another digest: the job has diverged and cannot go on.
inline constexpr std::string_view kDivergence = "DIVERGENCE";
// Another trainer took the run over, or this one's connection closed: register again or end.
inline constexpr std::string_view kEpochSuperseded = "EPOCH_SUPERSEDED";
// The ring is full; the message names the leases.
inline constexpr std::string_view kRingFull = "RING_FULL";
// The slots do not fit into memory.
inline constexpr std::string_view kMemoryLimit = "MEMORY_LIMIT";
// The last version of the run does not fit on the store's disk.
inline constexpr std::string_view kDiskLimit = "DISK_LIMIT";
// Committed, but no memory holds it: to be re-made.
inline constexpr std::string_view kVersionLost = "VERSION_LOST";
// Not committed yet, or no longer served.
inline constexpr std::string_view kVersionNotServed = "VERSION_NOT_SERVED";
// The evaluation slot holds another version or has readers.
inline constexpr std::string_view kEvaluationSlotBusy = "EVALUATION_SLOT_BUSY";
// The bytes of a slot are not what its writer hashed.
inline constexpr std::string_view kDigestMismatch = "DIGEST_MISMATCH";
// The store serves none of the lanes that a reader on another machine can use.
inline constexpr std::string_view kNoRemoteLane = "NO_REMOTE_LANE";

// Another host has the version that this process maps without a daemon: it keeps its map.
inline constexpr std::string_view kServedElsewhere = "SERVED_ELSEWHERE";

// REQUIRES: !status.ok().
Status WithReason(Status status, std::string_view reason);
// Empty: none.
std::string ReasonOf(const Status& status);

}  // namespace titan::weightstore

#endif  // TITAN_WEIGHTSTORE_CLIENT_REASON_H_
