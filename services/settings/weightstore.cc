// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/address.h"
#include "services/settings/settings.h"
#include "services/settings/shared.h"
#include "weightstore/client/host_name.h"
#include "weightstore/client/unix_socket.h"

namespace titan::settings {
namespace {

// Others have 10 s. A run that ends leaves its last version on disk, and who stops the store then
// wants it there: some dozens of GB at the speed of a disk.
constexpr uint32_t kShutdownDeadlineMs = 60'000;
constexpr uint64_t kMinMemoryLimit = 1 << 20;

// Readers are told the address, so it is one that they can connect to.
void ValidateDataPlane(const std::string& address, rpc::ConfigProblems* problems) {
  const char* const path = "data_plane_address";
  const auto parsed = runtime::ParseHostPort(address);
  if (!parsed.ok()) {
    problems->push_back({path, MessageOf(parsed.status())});
  } else if (!runtime::IsNumeric(*parsed) || parsed->host == "0.0.0.0" || parsed->host == "::") {
    problems->push_back(
        {path, "'" + address +
                   "' is not where a reader can connect to; valid: an IP address "
                   "of this machine that readers reach, for example 10.0.0.7:7301"});
  }
}

// How other machines pull, by what else than TCP.
void ValidateRdma(const config::v1::WeightStoreConfig& config, rpc::ConfigProblems* problems) {
  const bool test_lane = config.daemon().debug().shm_test_lane();
  const std::string& address = config.data_plane_address();
  const auto refuse = [&](const char* field, const char* why) {
    problems->push_back({field, std::string("is set; ") + why});
  };
  if (address.empty()) {
    const char* const why = "only readers on other machines pull: set data_plane_address";
    if (config.require_rdma()) refuse("require_rdma", why);
    if (!config.rdma_device().empty()) refuse("rdma_device", why);
    if (test_lane) refuse("daemon.debug.shm_test_lane", why);
  }
  ValidateDevice(config.rdma_device(), config.require_rdma(), test_lane, problems);
  if (!test_lane) return;
  const auto parsed = runtime::ParseHostPort(address);
  if (parsed.ok() && !runtime::IsLoopback(*parsed)) {
    refuse("daemon.debug.shm_test_lane",
           "it is a test seam, refused when data_plane_address is not on loopback");
  }
}

}  // namespace

void FillDefaults(config::v1::WeightStoreConfig* config) {
  FillDaemonDefaults("weightstore", config->mutable_daemon());
  config->mutable_daemon()->set_shutdown_deadline_ms(kShutdownDeadlineMs);
  config->set_role("both");
  config->set_lease_ttl_ms(10'000);
  config->set_map_deadline_ms(15'000);
}

void Validate(const config::v1::WeightStoreConfig& config, rpc::ConfigProblems* problems) {
  ValidateDaemon(config.daemon(), problems);
  const bool is_leader = config.role() == "leader", is_host = config.role() == "host";
  if (config.role() != "both" && !is_leader && !is_host) {
    problems->push_back(rpc::InvalidValue("role", "\"" + config.role() + "\"",
                                          "both (leader and host in one process), leader, host"));
  }
  const auto refuse = [&](const char* field, const std::string& why) {
    problems->push_back({field, "is set; " + why});
  };
  if (is_host) {
    ValidatePeerAddress("leader_address", config.leader_address(), problems);
    if (config.host().empty()) {
      problems->push_back({"host", "is required: the name by which the leader knows this host"});
    } else if (!weightstore::IsHostName(config.host())) {
      problems->push_back(rpc::InvalidValue("host", "\"" + config.host() + "\"",
                                            "1 to 64 characters of A-Z a-z 0-9 . _ -"));
    }
    if (config.has_disk_limit_bytes()) {
      refuse("disk_limit_bytes", "a host keeps nothing on disk: set it at the leader");
    }
    if (config.has_check_index_ms()) {
      refuse("check_index_ms", "a host has no records: set it at the leader");
    }
  } else {
    if (!config.leader_address().empty()) {
      refuse("leader_address", "this process is the leader: set role to host, or leave it out");
    }
    if (!config.host().empty()) {
      refuse("host", "only role host has a name: set role to host, or leave it out");
    }
  }
  if (is_leader) {
    if (config.has_memory_limit_bytes()) {
      refuse("memory_limit_bytes", "a leader has no slots: set it at its hosts");
    }
    if (!config.data_plane_address().empty()) {
      refuse("data_plane_address", "a leader has no slots: set it at its hosts");
    }
    if (!config.socket_path().empty()) {
      refuse("socket_path", "a leader has no socket: set it at its hosts");
    }
    const char* const no_lanes = "a leader has no slots: set it at its hosts";
    if (config.require_rdma()) refuse("require_rdma", no_lanes);
    if (!config.rdma_device().empty()) refuse("rdma_device", no_lanes);
    if (config.daemon().debug().shm_test_lane()) refuse("daemon.debug.shm_test_lane", no_lanes);
  } else {
    ValidateRdma(config, problems);
  }
  ValidateRange("lease_ttl_ms", config.lease_ttl_ms(), 100, 3'600'000, "ms", problems);
  ValidateRange("map_deadline_ms", config.map_deadline_ms(), 100, 3'600'000, "ms", problems);
  if (config.has_check_index_ms()) {
    ValidateRange("check_index_ms", config.check_index_ms(), 100, 86'400'000, "ms", problems);
  }
  if (config.has_memory_limit_bytes() && config.memory_limit_bytes() < kMinMemoryLimit) {
    problems->push_back(
        rpc::InvalidValue("memory_limit_bytes", std::to_string(config.memory_limit_bytes()),
                          "at least " + std::to_string(kMinMemoryLimit) + " bytes"));
  }
  if (!config.data_plane_address().empty()) {
    ValidateDataPlane(config.data_plane_address(), problems);
  }
  if (!is_leader && (!config.socket_path().empty() || !config.daemon().data_folder().empty())) {
    const Status path = weightstore::CheckSocketPath(SocketPathOf(config));
    if (!path.ok()) problems->push_back({"socket_path", MessageOf(path)});
  }
}

std::string SocketPathOf(const config::v1::WeightStoreConfig& config) {
  return config.socket_path().empty() ? config.daemon().data_folder() + "/ws.sock"
                                      : config.socket_path();
}

}  // namespace titan::settings
