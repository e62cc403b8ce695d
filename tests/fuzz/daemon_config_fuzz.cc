// SPDX-License-Identifier: Apache-2.0
// The configuration of a job or of a cluster: what is accepted is read back equal from what it is
// shown as.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "services/rpc/config.h"
#include "titan/config/v1/daemons.pb.h"
#include "titan/config/v1/job.pb.h"

using namespace titan;

namespace {

template <typename Message>
void Check(std::string_view text) {
  Message message;
  rpc::ConfigOrigins origins;
  if (!rpc::ReadConfigText(text, "fuzz.json", &message, &origins).ok()) return;
  Message again;
  if (!rpc::ReadConfigText(rpc::ToJsonText(message), "again", &again, &origins).ok() ||
      again.SerializeAsString() != message.SerializeAsString()) {
    std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  Check<config::v1::JobSpec>(text);
  Check<config::v1::ClusterConfig>(text);
  return 0;
}
