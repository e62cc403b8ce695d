// SPDX-License-Identifier: Apache-2.0
//
// What is looked at before the first daemon of a cluster starts: is there room, and is the data
// folder one that this version of the program can use, are the ports free? Decisions are pure
// functions, but for the ports, which are tried.
#ifndef TITAN_CLIENTS_CLUSTER_PREFLIGHT_H_
#define TITAN_CLIENTS_CLUSTER_PREFLIGHT_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/status.h"
#include "services/rpc/config.h"
#include "titan/config/v1/daemons.pb.h"

namespace titan::cluster {

// Of the files in a data folder; raised when an older program could not read what a newer one
// wrote.
inline constexpr int kDataFormat = 1;
inline constexpr uint64_t kMinDiskBytes = uint64_t{64} << 20;

// For a config whose defaults are filled in. ResourceExhausted, with the numbers and the fix: the
// generators' caches do not fit into `memory_available`, or the volume has less than kMinDiskBytes.
Status CheckRoom(const config::v1::ClusterConfig& cluster, uint64_t memory_available,
                 uint64_t disk_available);

// `text` of <data folder>/format.json. FailedPrecondition: a newer program wrote the folder;
// DataLoss: not such a file.
Status CheckFormat(std::string_view text, const std::string& path);

// FailedPrecondition: a port that the config names cannot be had, with field, place and fix.
Status CheckPorts(const config::v1::ClusterConfig& cluster, const rpc::ConfigOrigins& origins);

// All of it for a folder that exists; writes format.json when it is not there.
Status Preflight(const config::v1::ClusterConfig& cluster, const rpc::ConfigOrigins& origins);

// Changes when one of the titan-* programs in the folder does (size or time of change).
std::string ProgramStamp(const std::string& bin_folder);

}  // namespace titan::cluster

#endif  // TITAN_CLIENTS_CLUSTER_PREFLIGHT_H_
