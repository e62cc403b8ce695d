// SPDX-License-Identifier: Apache-2.0
//
// A host daemon's tie to its leader in another process: attaches with all that the host has,
// carries out what comes, reports what happens, and attaches again whenever the tie breaks. Between
// two attachments the host serves on by what it was told, and what happens then is part of what the
// next one reports.
#ifndef TITAN_SERVICES_WEIGHTSTORE_LEADER_LINK_H_
#define TITAN_SERVICES_WEIGHTSTORE_LEADER_LINK_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>

#include "core/base/status.h"
#include "services/rpc/daemon.h"
#include "services/rpc/wait_notice.h"
#include "titan/weightstore/v1/host.grpc.pb.h"
#include "weightstore/host.h"
#include "weightstore/leader.h"

namespace titan::weightstore {

// HostEvents may come on any thread; everything else is on the control strand. Start() once, Stop()
// before destruction (from Drain).
class LeaderLink final : public HostEvents {
 public:
  struct Options {
    std::string leader_address;
    std::string host;  // name
    uint64_t memory_limit_bytes = 0;
  };
  // `context` must outlive the link. InvalidArgument: not an address that may be dialled.
  static StatusOr<std::unique_ptr<LeaderLink>> Create(rpc::DaemonContext& context, Options options);
  ~LeaderLink() override;

  // Before Start: what the leader tells readers on other machines; without it, nothing.
  void Serves(DataPlane data_plane) { data_plane_ = std::move(data_plane); }
  // Runs until Stop: the daemon is ready while it is attached. A leader that refuses this host for
  // good (another protocol) ends the daemon. `host` must live until Stop has returned and the
  // blocking pool is idle.
  void Start(Host& host);
  boost::asio::awaitable<void> Stop();

  // HostEvents.
  void SlotMade(uint64_t slot_id) override;
  void SlotNotMade(uint64_t slot_id, const Status& why) override;
  void LeaseMapped(uint64_t lease_id) override;
  void LeaseEnded(uint64_t lease_id) override;
  void WriterGone(const std::string& run_id, uint64_t epoch) override;
  void SlotOffered(const std::string& host, const SlotOffer& offer) override;
  void CommandsDone() override {}

 private:
  struct News;  // shared with questions that are being answered

  LeaderLink(rpc::DaemonContext& context, Options options, std::shared_ptr<grpc::Channel> channel);
  boost::asio::awaitable<void> Loop();
  // Until the attachment is over.
  boost::asio::awaitable<Status> StayAttached();
  void Take(const v1::AttachResponse& message);
  void Answer(const v1::HostCommand& question, uint64_t number);
  // What there is to report; false: nothing.
  bool TakeNews(v1::ReportRequest* report);
  void Add(v1::HostEvent event);

  rpc::DaemonContext& context_;
  const Options options_;
  DataPlane data_plane_;
  const std::unique_ptr<v1::HostService::StubInterface> stub_;
  const std::shared_ptr<News> news_;
  Host* host_ = nullptr;
  bool running_ = false, stopping_ = false;
  // Of the present attachment.
  uint64_t attachment_ = 0;  // 0: not attached yet
  uint64_t num_done_ = 0, num_reported_ = 0;
  std::chrono::steady_clock::time_point heard_;
  Status broken_;  // why this side ends it
  rpc::WaitNotice notice_;
};

}  // namespace titan::weightstore

#endif  // TITAN_SERVICES_WEIGHTSTORE_LEADER_LINK_H_
