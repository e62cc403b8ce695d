// SPDX-License-Identifier: Apache-2.0
//
// Where a process listens, as a file: `<data folder>/<worker id>.endpoint.json`, written once it
// accepts calls and removed when it ends. `titanctl up` merges them into `<data
// folder>/endpoints.json`.
#ifndef TITAN_CORE_RUNTIME_ENDPOINT_H_
#define TITAN_CORE_RUNTIME_ENDPOINT_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/status.h"

namespace titan::runtime {

struct Endpoint {
  std::string worker_id;
  std::string role;         // orchestrator, generator, ...
  std::string incarnation;  // new at each start of the process
  int64_t pid = 0;
  std::string exe;             // the program's file
  std::string address;         // host:port of gRPC
  std::string health_address;  // host:port of /metrics, /healthz, /readyz

  friend bool operator==(const Endpoint&, const Endpoint&) = default;
};

std::string EndpointPath(const std::string& data_folder, const std::string& worker_id);

std::string ToJsonText(const Endpoint& endpoint);
// InvalidArgument: not such a file.
StatusOr<Endpoint> EndpointFromJsonText(std::string_view text);

Status WriteEndpoint(const std::string& data_folder, const Endpoint& endpoint);
StatusOr<Endpoint> ReadEndpoint(const std::string& data_folder, const std::string& worker_id);
// Removes the file if this incarnation wrote it.
void RemoveEndpoint(const std::string& data_folder, const Endpoint& endpoint);

// The file of the running program (/proc/self/exe).
std::string ExecutablePath();

}  // namespace titan::runtime

#endif  // TITAN_CORE_RUNTIME_ENDPOINT_H_
