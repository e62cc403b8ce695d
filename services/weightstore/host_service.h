// SPDX-License-Identifier: Apache-2.0
//
// The leader's end of the ties to host daemons in other processes.
//
//   Attach --> the name is free, or its former attachment is over: Leader::AttachHost
//   nothing heard for kHostSilence, or the stream breaks --> Leader::DetachHost
//   not attached again for kHostGrace --> Leader::ForgetHost
//
// Everything on the control strand.
#ifndef TITAN_SERVICES_WEIGHTSTORE_HOST_SERVICE_H_
#define TITAN_SERVICES_WEIGHTSTORE_HOST_SERVICE_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>

#include "core/base/status.h"
#include "core/runtime/metrics.h"
#include "services/rpc/rpc_server.h"
#include "services/weightstore/remote_host.h"
#include "titan/weightstore/v1/host.grpc.pb.h"
#include "weightstore/leader.h"

namespace titan::weightstore {

// How often leader and host show that they are there.
inline constexpr std::chrono::milliseconds kHostSign{500};
// Who was not heard of for this long is taken to be gone, by either side.
inline constexpr std::chrono::milliseconds kHostSilence{2'000};
// How long a host that is gone may take to come back with what it has.
inline constexpr std::chrono::milliseconds kHostGrace{10'000};

class HostGrpcService final : public v1::HostService::CallbackService {
 public:
  // All must outlive the service. own_host: the leader's own, whose name no other may have; empty:
  // there is none. first_attachment: another one in each life of the leader.
  HostGrpcService(rpc::RpcServer& server, Leader& leader, runtime::Metrics& metrics,
                  std::string own_host, uint64_t first_attachment);
  ~HostGrpcService() override;

  grpc::ServerWriteReactor<v1::AttachResponse>* Attach(grpc::CallbackServerContext* context,
                                                       const v1::AttachRequest* request) override;
  grpc::ServerUnaryReactor* Report(grpc::CallbackServerContext* context,
                                   const v1::ReportRequest* request,
                                   v1::ReportResponse* response) override;

  // What the calls do. The stream of an attachment that is refused ends with the failure.
  void Attach(const v1::AttachRequest& request, std::shared_ptr<RemoteHost::Stream> stream);
  Status Report(const v1::ReportRequest& request);

  // Until Stop: signs of life, hosts that are silent or gone for long.
  boost::asio::awaitable<void> Watch();
  void Stop();

 private:
  using SteadyTime = std::chrono::steady_clock::time_point;
  struct Attachment {
    std::string host;
    std::string incarnation;
    std::shared_ptr<RemoteHost> port;
    SteadyTime heard;
  };

  Status Check(const v1::AttachRequest& request) const;
  void Detach(uint64_t attachment, const Status& why);

  rpc::RpcServer& server_;
  Leader& leader_;
  const std::string own_host_;
  uint64_t last_attachment_;
  std::map<uint64_t, Attachment> attachments_;
  std::map<std::string, SteadyTime> gone_since_;  // hosts
  boost::asio::steady_timer timer_;
  bool stopping_ = false;
  runtime::Gauge attached_;
};

}  // namespace titan::weightstore

#endif  // TITAN_SERVICES_WEIGHTSTORE_HOST_SERVICE_H_
