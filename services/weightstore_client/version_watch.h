// SPDX-License-Identifier: Apache-2.0
//
// Hears from the weight store what its holders are to know of their versions: RETIRED is its
// request to release one, and who has not heeded it by map_deadline_ms is fenced; LOST, COMMITTED,
// FREE and the end of the run, that who keeps one without a lease is to ask for it anew. One stream
// for each run of which versions are held; a stream that breaks is opened again. Control strand
// only.
#ifndef TITAN_SERVICES_WEIGHTSTORE_CLIENT_VERSION_WATCH_H_
#define TITAN_SERVICES_WEIGHTSTORE_CLIENT_VERSION_WATCH_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "core/base/status.h"
#include "services/rpc/rpc_client.h"
#include "titan/weightstore/v1/weightstore.grpc.pb.h"

namespace titan::weightstore {

class VersionWatch {
 public:
  enum class Change { kRetired, kMoved };
  // Called for a version that is so, now and then twice; without one: for all of the run.
  using OnChange = std::function<void(const std::string& run_id, std::optional<uint64_t> version,
                                      Change change)>;

  // client must outlive the watch. retry: after a stream broke. InvalidArgument: not an address
  // that may be dialled.
  static StatusOr<std::unique_ptr<VersionWatch>> Create(
      rpc::RpcClient& client, const std::string& weightstore_address, OnChange on_change,
      std::chrono::milliseconds retry = std::chrono::milliseconds(1000));
  ~VersionWatch();

  // Watches these runs and no others from here on.
  void Follow(const std::set<std::string>& runs);

 private:
  using Service = v1::WeightStoreService;
  struct State;  // outlives the watch while a stream ends

  explicit VersionWatch(std::shared_ptr<State> state) : state_(std::move(state)) {}
  static void Open(const std::shared_ptr<State>& state, const std::string& run_id);

  const std::shared_ptr<State> state_;
};

}  // namespace titan::weightstore

#endif  // TITAN_SERVICES_WEIGHTSTORE_CLIENT_VERSION_WATCH_H_
