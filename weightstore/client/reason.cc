// SPDX-License-Identifier: Apache-2.0
#include "weightstore/client/reason.h"

#include <absl/strings/cord.h>

#include "core/base/check.h"

namespace titan::weightstore {
namespace {

constexpr char kPayload[] = "titan.weightstore.reason";

}  // namespace

Status WithReason(Status status, std::string_view reason) {
  TITAN_CHECK(!status.ok());
  status.SetPayload(kPayload, absl::Cord(absl::string_view(reason.data(), reason.size())));
  return status;
}

std::string ReasonOf(const Status& status) {
  const auto payload = status.GetPayload(kPayload);
  return payload.has_value() ? std::string(*payload) : std::string();
}

}  // namespace titan::weightstore
