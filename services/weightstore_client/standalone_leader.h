// SPDX-License-Identifier: Apache-2.0
//
// The weight store's leader for programs without a control strand of their own: a GrpcLeader and
// the thread that completes its calls.
#ifndef TITAN_SERVICES_WEIGHTSTORE_CLIENT_STANDALONE_LEADER_H_
#define TITAN_SERVICES_WEIGHTSTORE_CLIENT_STANDALONE_LEADER_H_

#include <memory>
#include <string>

#include "core/base/status.h"
#include "services/weightstore_client/grpc_leader.h"

namespace titan::weightstore {

// Thread-safe as LeaderPort. The destructor cancels what is in flight.
class StandaloneLeader {
 public:
  // InvalidArgument: not an address that may be dialled.
  static StatusOr<std::unique_ptr<StandaloneLeader>> Create(const std::string& address);
  ~StandaloneLeader();
  StandaloneLeader(const StandaloneLeader&) = delete;
  StandaloneLeader& operator=(const StandaloneLeader&) = delete;

  GrpcLeader& port();

 private:
  struct Impl;
  explicit StandaloneLeader(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace titan::weightstore

#endif  // TITAN_SERVICES_WEIGHTSTORE_CLIENT_STANDALONE_LEADER_H_
