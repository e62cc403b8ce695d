// SPDX-License-Identifier: Apache-2.0
//
// Hears from the weight store which versions are to be released: RETIRED is its request to whoever
// holds one, and who has not heeded it by map_deadline_ms is fenced. One stream for each run of
// which versions are held; a stream that breaks is opened again. Control strand only.
#ifndef TITAN_SERVICES_WEIGHTSTORE_CLIENT_RETIRED_WATCH_H_
#define TITAN_SERVICES_WEIGHTSTORE_CLIENT_RETIRED_WATCH_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "core/base/status.h"
#include "services/rpc/rpc_client.h"
#include "titan/weightstore/v1/weightstore.grpc.pb.h"

namespace titan::weightstore {

class RetiredWatch {
 public:
  // Called for a version that is RETIRED, now and then twice.
  using OnRetired = std::function<void(const std::string& run_id, uint64_t version)>;

  // client must outlive the watch. retry: after a stream broke. InvalidArgument: not an address
  // that may be dialled.
  static StatusOr<std::unique_ptr<RetiredWatch>> Create(
      rpc::RpcClient& client, const std::string& weightstore_address, OnRetired on_retired,
      std::chrono::milliseconds retry = std::chrono::milliseconds(1000));
  ~RetiredWatch();

  // Watches these runs and no others from here on.
  void Follow(const std::set<std::string>& runs);

 private:
  using Service = v1::WeightStoreService;
  struct State;  // outlives the watch while a stream ends

  explicit RetiredWatch(std::shared_ptr<State> state) : state_(std::move(state)) {}
  static void Open(const std::shared_ptr<State>& state, const std::string& run_id);

  const std::shared_ptr<State> state_;
};

}  // namespace titan::weightstore

#endif  // TITAN_SERVICES_WEIGHTSTORE_CLIENT_RETIRED_WATCH_H_
