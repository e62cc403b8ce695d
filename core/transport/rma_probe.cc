// SPDX-License-Identifier: Apache-2.0
#include "core/transport/rma_probe.h"

#include <fmt/format.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <ucs/config/global_opts.h>
#include <uct/api/uct.h>

#include <algorithm>
#include <fstream>
#include <span>
#include <string_view>

namespace titan::transport {
namespace {

// Transports whose devices do a read without the process that they read from; ud, which is verbs
// too, sends messages to it.
bool ReadsByItself(const uct_tl_resource_desc_t& resource) {
  const std::string_view name = resource.tl_name;
  return resource.dev_type == UCT_DEVICE_TYPE_NET &&
         (name.starts_with("rc_") || name.starts_with("dc_"));
}

void AddOfDomain(uct_component_h component, const char* name, FoundTransports* found) {
  uct_md_config_t* config = nullptr;
  if (uct_md_config_read(component, nullptr, nullptr, &config) != UCS_OK) return;
  uct_md_h domain = nullptr;
  const ucs_status_t opened = uct_md_open(component, name, config, &domain);
  uct_config_release(config);
  if (opened != UCS_OK) return;  // no device, or not for this process
  uct_tl_resource_desc_t* resources = nullptr;
  unsigned count = 0;
  if (uct_md_query_tl_resources(domain, &resources, &count) == UCS_OK) {
    for (const uct_tl_resource_desc_t& one : std::span(resources, count)) {
      auto& list = ReadsByItself(one) ? found->rdma : found->others;
      list.push_back(fmt::format("{}/{}", one.tl_name, one.dev_name));
    }
    uct_release_tl_resource_list(resources);
  }
  uct_md_close(domain);
}

}  // namespace

StatusOr<FoundTransports> FindTransports() {
  ucs_global_opts_set_value("LOG_LEVEL", "fatal");
  uct_component_h* components = nullptr;
  unsigned count = 0;
  if (const ucs_status_t status = uct_query_components(&components, &count); status != UCS_OK) {
    return FailedPrecondition(
        fmt::format("UCX lists no transports ({})", ucs_status_string(status)));
  }
  FoundTransports found;
  for (uct_component_h component : std::span(components, count)) {
    uct_component_attr_t attributes{};
    attributes.field_mask = UCT_COMPONENT_ATTR_FIELD_MD_RESOURCE_COUNT;
    if (uct_component_query(component, &attributes) != UCS_OK) continue;
    std::vector<uct_md_resource_desc_t> domains(attributes.md_resource_count);
    attributes.field_mask = UCT_COMPONENT_ATTR_FIELD_MD_RESOURCES;
    attributes.md_resources = domains.data();
    if (domains.empty() || uct_component_query(component, &attributes) != UCS_OK) continue;
    for (const auto& domain : domains) AddOfDomain(component, domain.md_name, &found);
  }
  uct_release_component_list(components);
  std::ranges::sort(found.rdma);
  std::ranges::sort(found.others);
  return found;
}

LockLimit ReadLockLimit() {
  rlimit limit{};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  LockLimit found{limit.rlim_cur, limit.rlim_cur == RLIM_INFINITY};
  constexpr std::string_view kEffective = "CapEff:";
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with(kEffective)) continue;
    const uint64_t capabilities = std::strtoull(line.c_str() + kEffective.size(), nullptr, 16);
    found.unlimited |= ((capabilities >> CAP_IPC_LOCK) & 1) != 0;
  }
  return found;
}

Status CheckLockable(uint64_t bytes, const std::string& what, const LockLimit& limit) {
  if (limit.unlimited || bytes <= limit.bytes) return OkStatus();
  return ResourceExhausted(fmt::format(
      "{} take {} bytes of locked memory, which the RDMA device reads and writes, and this process "
      "may lock {}; raise the limit (`ulimit -l`, or LimitMEMLOCK of a systemd unit) or give it "
      "the capability IPC_LOCK (securityContext of a pod)",
      what, bytes, limit.bytes));
}

}  // namespace titan::transport
