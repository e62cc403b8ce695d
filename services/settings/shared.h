// SPDX-License-Identifier: Apache-2.0
//
// The parts that several daemons' configurations have. As settings.h, for its sources and for
// stand-ins of daemons in tests.
#ifndef TITAN_SERVICES_SETTINGS_SHARED_H_
#define TITAN_SERVICES_SETTINGS_SHARED_H_

#include <cstdint>
#include <string>

#include "services/rpc/config.h"
#include "titan/config/v1/daemons.pb.h"

namespace titan::settings {

// `role` is the default worker id.
void FillDaemonDefaults(const std::string& role, config::v1::DaemonConfig* daemon);
void ValidateDaemon(const config::v1::DaemonConfig& daemon, rpc::ConfigProblems* problems);

// Adds "is 7; valid: 1 to 4 ms" when the value is outside [low, high].
void ValidateRange(const std::string& path, uint64_t value, uint64_t low, uint64_t high,
                   const std::string& unit, rpc::ConfigProblems* problems);
// A required host:port on loopback with a port.
void ValidatePeerAddress(const std::string& path, const std::string& address,
                         rpc::ConfigProblems* problems);

// rdma_device of a process with require_rdma, or with daemon.debug.shm_test_lane.
void ValidateDevice(const std::string& device, bool required, bool test_lane,
                    rpc::ConfigProblems* problems);

void FillKernelDefaults(config::v1::KernelConfig* kernels);
// Paths "kernels....".
void ValidateKernels(const config::v1::KernelConfig& kernels, rpc::ConfigProblems* problems);

}  // namespace titan::settings

#endif  // TITAN_SERVICES_SETTINGS_SHARED_H_
