// SPDX-License-Identifier: Apache-2.0
#include "services/weightstore/host_service.h"

#include <utility>
#include <vector>

#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "core/runtime/log.h"
#include "services/weightstore/host_messages.h"
#include "services/weightstore_client/convert.h"
#include "weightstore/client/host_name.h"

namespace titan::weightstore {
namespace {

namespace asio = rpc::asio;
using std::chrono::steady_clock;

// More than the slots and leases of a host ever need while it is alive.
constexpr size_t kMessagesQueued = 4096;

}  // namespace

HostGrpcService::HostGrpcService(rpc::RpcServer& server, Leader& leader, runtime::Metrics& metrics,
                                 std::string own_host, uint64_t first_attachment)
    : server_(server),
      leader_(leader),
      own_host_(std::move(own_host)),
      last_attachment_(first_attachment),
      timer_(server.control()),
      attached_(metrics.AddGauge("titan_weightstore_attached_hosts",
                                 "Host daemons in other processes that are attached")) {}

HostGrpcService::~HostGrpcService() = default;

grpc::ServerWriteReactor<v1::AttachResponse>* HostGrpcService::Attach(
    grpc::CallbackServerContext* context, const v1::AttachRequest* request) {
  return rpc::ServeStreamThen<v1::AttachRequest, v1::AttachResponse>(
      server_, context, request, kMessagesQueued,
      [this](const v1::AttachRequest& message, std::shared_ptr<RemoteHost::Stream> stream) {
        Attach(message, std::move(stream));
      });
}

grpc::ServerUnaryReactor* HostGrpcService::Report(grpc::CallbackServerContext* context,
                                                  const v1::ReportRequest* request,
                                                  v1::ReportResponse* response) {
  return rpc::ServeUnaryThen(
      server_, context, request, response,
      [this](v1::ReportRequest message, std::function<void(StatusOr<v1::ReportResponse>)> reply) {
        const Status taken = Report(message);
        if (taken.ok()) {
          reply(v1::ReportResponse());
        } else {
          reply(taken);
        }
      });
}

Status HostGrpcService::Check(const v1::AttachRequest& request) const {
  if (request.protocol() != kHostProtocol) {
    return InvalidArgument("protocol: the host speaks " + std::to_string(request.protocol()) +
                           ", this leader " + std::to_string(kHostProtocol) +
                           ": run both from the same build");
  }
  if (!IsHostName(request.host())) {
    return InvalidArgument("host: must be 1 to 64 characters of A-Z a-z 0-9 . _ -");
  }
  if (request.data_plane_address().size() > 256) {
    return InvalidArgument("data_plane_address: has more than 256 bytes");
  }
  if (request.data_plane_lanes().empty() != request.data_plane_address().empty()) {
    return InvalidArgument("data_plane_lanes: belong to data_plane_address");
  }
  for (const int lane : request.data_plane_lanes()) {
    const auto known = FromProto(static_cast<v1::Lane>(lane));
    if (!known.ok()) return Annotate(known.status(), "data_plane_lanes");
  }
  if (request.incarnation().empty()) return InvalidArgument("incarnation: is required");
  if (request.host() == own_host_) {
    return FailedPrecondition("host: " + own_host_ +
                              " is the leader's own host; choose another name");
  }
  for (const auto& [id, other] : attachments_) {
    if (other.host == request.host() && other.incarnation != request.incarnation()) {
      return FailedPrecondition("host: another daemon is attached as " + other.host +
                                " (incarnation " + other.incarnation +
                                "); if it still runs, give one of them another name");
    }
  }
  return OkStatus();
}

void HostGrpcService::Attach(const v1::AttachRequest& request,
                             std::shared_ptr<RemoteHost::Stream> stream) {
  if (stopping_) return stream->Finish(Unavailable("the weight store is shutting down"));
  if (const Status checked = Check(request); !checked.ok()) return stream->Finish(checked);
  const StatusOr<HostReport> report = FromProto(request);
  if (!report.ok()) return stream->Finish(report.status());
  std::vector<uint64_t> former;
  for (const auto& [id, other] : attachments_) {
    if (other.host == request.host()) former.push_back(id);
  }
  for (const uint64_t id : former) Detach(id, Aborted("the host attached again"));

  const uint64_t id = ++last_attachment_;
  auto port = std::make_shared<RemoteHost>(stream, id);
  attachments_[id] = {request.host(), request.incarnation(), port, steady_clock::now()};
  gone_since_.erase(request.host());
  attached_.Set(static_cast<double>(attachments_.size()));
  stream->OnCancel([this, id] { Detach(id, Cancelled("the host's connection ended")); });
  DataPlane data_plane{{}, request.data_plane_address()};
  for (const int lane : request.data_plane_lanes()) {
    data_plane.lanes.push_back(static_cast<Lane>(lane));
  }
  leader_.AttachHost(request.host(), std::move(port), request.memory_limit_bytes(),
                     std::move(data_plane), *report);
  TITAN_LOG(kInfo, "host_attached", {"host", request.host()},
            {"incarnation", request.incarnation()}, {"slots", report->slots.size()},
            {"leases", report->leases.size()},
            {"memory_limit_bytes", request.memory_limit_bytes()});
}

void HostGrpcService::Detach(uint64_t attachment, const Status& why) {
  const auto found = attachments_.find(attachment);
  if (found == attachments_.end()) return;
  const Attachment gone = std::move(found->second);
  attachments_.erase(found);
  attached_.Set(static_cast<double>(attachments_.size()));
  gone_since_[gone.host] = steady_clock::now();
  leader_.DetachHost(gone.host, gone.port.get());
  gone.port->End(why);
  if (!stopping_) TITAN_LOG(kWarning, "host_detached", {"host", gone.host}, {"status", why});
}

Status HostGrpcService::Report(const v1::ReportRequest& request) {
  const auto found = attachments_.find(request.attachment());
  if (found == attachments_.end()) {
    return NotFound("attachment: " + std::to_string(request.attachment()) +
                    " is over; attach again");
  }
  Attachment& attachment = found->second;
  attachment.heard = steady_clock::now();
  // What happened first: an answer may rely on it.
  for (const v1::HostEvent& event : request.events()) {
    switch (event.event_case()) {
      case v1::HostEvent::kSlotMade:
        leader_.SlotMade(event.slot_made());
        break;
      case v1::HostEvent::kSlotNotMade:
        leader_.SlotNotMade(event.slot_not_made().slot_id(),
                            FailureFromProto(event.slot_not_made().why()));
        break;
      case v1::HostEvent::kLeaseMapped:
        leader_.LeaseMapped(event.lease_mapped());
        break;
      case v1::HostEvent::kLeaseEnded:
        leader_.LeaseEnded(event.lease_ended());
        break;
      case v1::HostEvent::kWriterGone:
        leader_.WriterGone(event.writer_gone().run_id(), event.writer_gone().epoch());
        break;
      case v1::HostEvent::kSlotOffered: {
        TITAN_ASSIGN_OR_RETURN(const SlotOffer offer, FromProto(event.slot_offered()));
        leader_.SlotOffered(attachment.host, offer);
        break;
      }
      default:
        return InvalidArgument("events: has one that this leader does not know");
    }
  }
  TITAN_RETURN_IF_ERROR(attachment.port->Took(request));
  leader_.CommandsDone();
  return OkStatus();
}

asio::awaitable<void> HostGrpcService::Watch() {
  while (!stopping_) {
    const SteadyTime now = steady_clock::now();
    std::vector<uint64_t> silent;
    for (const auto& [id, attachment] : attachments_) {
      attachment.port->SignOfLife();
      if (now - attachment.heard > kHostSilence) silent.push_back(id);
    }
    for (const uint64_t id : silent) {
      Detach(id, DeadlineExceeded("the host reported nothing for " +
                                  std::to_string(kHostSilence.count()) + " ms"));
    }
    std::vector<std::string> given_up;
    for (const auto& [host, since] : gone_since_) {
      if (now - since > kHostGrace) given_up.push_back(host);
    }
    for (const std::string& host : given_up) {
      gone_since_.erase(host);
      leader_.ForgetHost(host);
      TITAN_LOG(kWarning, "host_given_up", {"host", host}, {"after_ms", kHostGrace.count()});
    }
    timer_.expires_after(kHostSign);
    boost::system::error_code woken;
    co_await timer_.async_wait(asio::redirect_error(asio::use_awaitable, woken));
  }
}

void HostGrpcService::Stop() {
  stopping_ = true;
  timer_.cancel();
  while (!attachments_.empty()) {
    Detach(attachments_.begin()->first, Unavailable("the weight store is shutting down"));
  }
}

}  // namespace titan::weightstore
