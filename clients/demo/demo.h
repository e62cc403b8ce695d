// SPDX-License-Identifier: Apache-2.0
//
// The demo: writes the data and the job, starts every daemon on this machine, trains, checks
// parity, writes result.json, ends the daemons.
#ifndef TITAN_CLIENTS_DEMO_DEMO_H_
#define TITAN_CLIENTS_DEMO_DEMO_H_

#include <cstdint>
#include <string>

#include "core/runtime/shutdown.h"

namespace titan::demo {

struct DemoOptions {
  uint32_t steps = 40;
  uint64_t seed = 1;
  std::string output;          // folder of everything that it writes
  std::string model;           // GGUF file
  std::string cluster_config;  // ClusterConfig file; empty: two generators, defaults
};

// The exit code: 0 when the job succeeded and every compared token agreed, 1 otherwise (the reason
// is on stderr and in result.json), 130 when interrupted. `signal` must outlive the call.
int RunDemo(const DemoOptions& options, runtime::ShutdownSignal& signal);

}  // namespace titan::demo

#endif  // TITAN_CLIENTS_DEMO_DEMO_H_
