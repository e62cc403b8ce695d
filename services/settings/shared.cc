// SPDX-License-Identifier: Apache-2.0
#include "services/settings/shared.h"

#include "core/base/worker_id.h"
#include "core/runtime/address.h"
#include "core/runtime/log.h"
#include "services/settings/settings.h"
#include "weightstore/client/remote_lease.h"

namespace titan::settings {

using config::v1::DaemonConfig;
using rpc::ConfigProblems;
using rpc::InvalidValue;

void FillDaemonDefaults(const std::string& role, DaemonConfig* daemon) {
  daemon->set_listen("127.0.0.1:0");
  daemon->set_health_listen("127.0.0.1:0");
  daemon->set_worker_id(role);
  daemon->set_shutdown_deadline_ms(10000);
  daemon->set_log_level("info");
}

void ValidateDaemon(const DaemonConfig& daemon, ConfigProblems* problems) {
  const auto listen = runtime::ParseHostPort(daemon.listen());
  if (!listen.ok()) {
    problems->push_back({"daemon.listen", MessageOf(listen.status())});
  } else if (!runtime::IsLoopback(*listen)) {
    problems->push_back({"daemon.listen", "'" + daemon.listen() +
                                              "' is not on loopback; listeners without TLS and "
                                              "authentication stay on 127.0.0.1 or [::1]"});
  }
  const auto health = runtime::ParseHostPort(daemon.health_listen());
  if (!health.ok()) {
    problems->push_back({"daemon.health_listen", MessageOf(health.status())});
  } else if (!runtime::IsNumeric(*health)) {
    problems->push_back({"daemon.health_listen",
                         "'" + daemon.health_listen() +
                             "' names a host that is not an IP address; valid: localhost or an IP "
                             "address, for example 127.0.0.1:0"});
  }
  if (daemon.data_folder().empty()) {
    problems->push_back({"daemon.data_folder", "is required: the folder of this daemon's files"});
  }
  if (!IsWorkerId(daemon.worker_id())) {
    problems->push_back(
        {"daemon.worker_id", std::string(kWorkerIdRule) + "; has '" + daemon.worker_id() + "'"});
  }
  ValidateRange("daemon.shutdown_deadline_ms", daemon.shutdown_deadline_ms(), 100, 600000, "ms",
                problems);
  if (!runtime::ParseLogLevel(daemon.log_level()).ok()) {
    problems->push_back(InvalidValue("daemon.log_level", "\"" + daemon.log_level() + "\"",
                                     "debug, info, warning, error"));
  }
  const bool outside = (listen.ok() && !runtime::IsLoopback(*listen)) ||
                       (health.ok() && !runtime::IsLoopback(*health));
  const auto test_seam = [&](const char* field, bool set) {
    if (!set || !outside) return;
    problems->push_back({std::string("daemon.debug.") + field,
                         "is a test seam, refused when a listener is not on loopback"});
  };
  test_seam("rpc_delay_max_ms", daemon.debug().rpc_delay_max_ms() > 0);
  test_seam("shm_test_lane", daemon.debug().shm_test_lane());
  if (daemon.debug().rpc_delay_max_ms() > 0) {
    ValidateRange("daemon.debug.rpc_delay_max_ms", daemon.debug().rpc_delay_max_ms(), 0, 60000,
                  "ms", problems);
  }
}

void ValidateRange(const std::string& path, uint64_t value, uint64_t low, uint64_t high,
                   const std::string& unit, ConfigProblems* problems) {
  if (value >= low && value <= high) return;
  problems->push_back(InvalidValue(
      path, std::to_string(value),
      std::to_string(low) + " to " + std::to_string(high) + (unit.empty() ? "" : " " + unit)));
}

void ValidatePeerAddress(const std::string& path, const std::string& address,
                         ConfigProblems* problems) {
  if (address.empty()) {
    problems->push_back({path, "is required: host:port"});
    return;
  }
  const auto parsed = runtime::ParseHostPort(address);
  if (!parsed.ok()) {
    problems->push_back({path, MessageOf(parsed.status())});
  } else if (parsed->port == 0) {
    problems->push_back({path, "wants the real port, has 0"});
  } else if (!runtime::IsLoopback(*parsed)) {
    problems->push_back(
        {path, "'" + address + "' is not on loopback; connections without TLS stay there"});
  }
}

void ValidateDevice(const std::string& device, bool required, bool test_lane,
                    ConfigProblems* problems) {
  if (device.empty()) return;
  if (test_lane) {
    problems->push_back(
        {"rdma_device", "is set; daemon.debug.shm_test_lane takes the place of a device"});
  } else if (required && device == weightstore::kNoDevice) {
    problems->push_back({"rdma_device", "is none, but require_rdma is set"});
  }
}

std::vector<std::string> Warnings(const DaemonConfig& daemon, const std::string& prefix) {
  std::vector<std::string> warnings;
  if (daemon.debug().rpc_delay_seed() != 0 && daemon.debug().rpc_delay_max_ms() == 0) {
    warnings.push_back(prefix + "daemon.debug.rpc_delay_seed has no effect: " + prefix +
                       "daemon.debug.rpc_delay_max_ms is 0");
  }
  if (daemon.debug().has_shm_test_lock_bytes() && !daemon.debug().shm_test_lane()) {
    warnings.push_back(prefix + "daemon.debug.shm_test_lock_bytes has no effect: " + prefix +
                       "daemon.debug.shm_test_lane is not set");
  }
  return warnings;
}

}  // namespace titan::settings
