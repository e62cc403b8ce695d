// SPDX-License-Identifier: Apache-2.0
#include "weightstore/transport/puller.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/runtime/log.h"
#include "weightstore/client/reason.h"
#include "weightstore/client/weights_digest.h"
#include "weightstore/transport/rma_lane.h"
#include "weightstore/transport/rma_transport.h"

namespace titan::weightstore::lanes {
namespace {

using std::chrono::steady_clock;

// Of one Read: after it the handle is confirmed and Cancel is looked at.
constexpr uint64_t kStepBytes = uint64_t{64} << 20;
constexpr int kTries = 2;
// A host that one-sided reads did not reach is pulled from over TCP for so long.
constexpr std::chrono::seconds kByTcp{30};

bool IsOneSided(Lane lane) { return lane == Lane::kRdma || lane == Lane::kShmTest; }

std::vector<Lane> LanesOf(const PullerOptions& options) {
  std::vector<Lane> lanes;
  if (options.rma != nullptr) lanes.push_back(LaneOf(*options.rma));
  if (!options.require_rdma) lanes.push_back(Lane::kTcp);
  return lanes;
}

// Adds the time of its life.
class Phase {
 public:
  explicit Phase(double* seconds) : seconds_(seconds) {}
  ~Phase() { *seconds_ += std::chrono::duration<double>(steady_clock::now() - start_).count(); }
  Phase(const Phase&) = delete;
  Phase& operator=(const Phase&) = delete;

 private:
  double* const seconds_;
  const SteadyTime start_ = steady_clock::now();
};

// What to do about it, where this process knows.
Status Explained(const Status& status) {
  if (status.code() == StatusCode::kUnavailable) {
    return Annotate(status,
                    "the source does not answer; does the weight store run, and is its "
                    "data_plane_address reachable from this machine?");
  }
  if (status.code() == StatusCode::kDeadlineExceeded) {  // the lease's end is the deadline
    return WithReason(Aborted("the lease ended before all bytes were here: the link is slower than "
                              "the store's lease_ttl_ms allows for"),
                      kLeaseExpired);
  }
  return status;
}

}  // namespace

Puller::Puller(PullerOptions options)
    : options_(std::move(options)),
      lanes_(LanesOf(options_)),
      memory_(options_.memory, options_.rma, options_.keeps_spare) {}

StatusOr<std::unique_ptr<Puller>> Puller::Create(PullerOptions options) {
  if (options.hash_threads < 1) return InvalidArgument("pull.hash_threads: must be at least 1");
  if (options.require_rdma && options.rma == nullptr) {
    return InvalidArgument("pull.require_rdma: there is no domain to read by");
  }
  TITAN_RETURN_IF_ERROR(TcpTransport::Create("127.0.0.1:1", options.tcp).status());
  return std::unique_ptr<Puller>(new Puller(std::move(options)));
}

StatusOr<std::unique_ptr<ByteTransport>> Puller::TransportOf(const RemoteLease& lease,
                                                             const PullGrant& grant,
                                                             const OwnBuffer& buffer,
                                                             PullReport* report) const {
  TITAN_ASSIGN_OR_RETURN(auto tcp, TcpTransport::Create(lease.address, options_.tcp));
  if (report->lane == Lane::kTcp) return std::unique_ptr<ByteTransport>(std::move(tcp));
  TITAN_ASSIGN_OR_RETURN(RmaSource source, tcp->FindWindows(grant, grant.expires));
  report->found_windows = true;
  TITAN_ASSIGN_OR_RETURN(auto rma,
                         RmaTransport::Create(*options_.rma, std::move(source), buffer.landing));
  return std::unique_ptr<ByteTransport>(std::move(rma));
}

StatusOr<Lane> Puller::LaneFor(const RemoteLease& lease) {
  if (std::find(lanes_.begin(), lanes_.end(), lease.lane) == lanes_.end()) {
    return InvalidArgument("the lease names lane " + std::string(NameOf(lease.lane)) +
                           ", by which this process cannot pull");
  }
  if (!IsOneSided(lease.lane) || !MayUseTcp()) return lease.lane;
  std::lock_guard lock(mutex_);
  std::erase_if(by_tcp_until_,
                [now = steady_clock::now()](const auto& e) { return e.second < now; });
  return by_tcp_until_.contains(lease.address) ? Lane::kTcp : lease.lane;
}

StatusOr<std::shared_ptr<const MappedMemory>> Puller::Pull(const RemoteLease& lease,
                                                           SteadyTime expires) {
  if (lease.lease.manifest == nullptr) return InvalidArgument("lease: has no manifest");
  PullReport report;
  TITAN_ASSIGN_OR_RETURN(report.lane, LaneFor(lease));
  auto pulled = PullBy(lease, expires, &report);
  if (pulled.ok() || !IsOneSided(report.lane) || !MayUseTcp()) return pulled;
  // Of this version: there is no way to its host, it has no windows, or its memory may not be
  // registered. Who is reached and silent is given up, there is no time for another wait.
  const StatusCode code = pulled.status().code();
  const bool now =
      code == StatusCode::kFailedPrecondition || code == StatusCode::kResourceExhausted;
  // Of all that the host has.
  const bool not_reached = report.found_windows && (code == StatusCode::kFailedPrecondition ||
                                                    code == StatusCode::kUnavailable);
  if (not_reached) {
    TITAN_LOG(kWarning, "pulls_over_tcp", {"lane", NameOf(report.lane)}, {"host", lease.address},
              {"for_s", kByTcp.count()}, {"status", pulled.status()});
    std::lock_guard lock(mutex_);
    by_tcp_until_[lease.address] = steady_clock::now() + kByTcp;
  }
  if (!now) return pulled;
  PullReport over_tcp;
  auto again = PullBy(lease, expires, &over_tcp);
  if (again.ok() && !not_reached) {
    TITAN_LOG(kWarning, "pulled_over_tcp", {"lane", NameOf(report.lane)}, {"host", lease.address},
              {"version", lease.lease.version}, {"status", pulled.status()});
  }
  return again;
}

StatusOr<std::shared_ptr<const MappedMemory>> Puller::PullBy(const RemoteLease& lease,
                                                             SteadyTime expires,
                                                             PullReport* report) {
  auto buffer = memory_.Take(lease.lease.manifest->slot_bytes, IsOneSided(report->lane));
  if (!buffer.ok()) return buffer.status();
  const PullGrant grant = {lease.lease, lease.epoch, lease.token, expires};
  Status fetched = OkStatus();
  for (int i = 0; i < kTries; ++i) {
    fetched = Fetch(lease, grant, *buffer, report);
    if (ReasonOf(fetched) != kDigestMismatch) break;
  }
  report->complete = fetched.ok();
  if (options_.report) options_.report(*report);
  if (fetched.ok()) return memory_.Seal(*std::move(buffer));
  // A device that did not answer may still write: nobody gets that memory again.
  if (IsOneSided(report->lane)) {
    memory_.Drop(*std::move(buffer));
  } else {
    memory_.GiveBack(*std::move(buffer));
  }
  return Explained(fetched);
}

Status Puller::Fetch(const RemoteLease& lease, const PullGrant& grant, const OwnBuffer& buffer,
                     PullReport* report) {
  std::unique_ptr<ByteTransport> transport;
  std::unique_ptr<RemoteSlot> slot;
  {
    const Phase phase(&report->open_seconds);
    TITAN_ASSIGN_OR_RETURN(transport, TransportOf(lease, grant, buffer, report));
    TITAN_ASSIGN_OR_RETURN(slot, transport->Open(grant, grant.expires));
  }
  {
    const Phase phase(&report->transfer_seconds);
    const Status read = ReadAll(*slot, grant, buffer.bytes(), report);
    report->corrupt += slot->corrupt_answers();
    TITAN_RETURN_IF_ERROR(read);
  }
  const Phase phase(&report->verify_seconds);
  const Hash128 digest =
      WeightsDigest(*lease.lease.manifest, buffer.bytes(), options_.hash_threads);
  if (digest == lease.lease.digest) return OkStatus();
  ++report->corrupt;
  return WithReason(
      DataLoss("the bytes that arrived have digest " + ToHex(digest) + ", the version's is " +
               ToHex(lease.lease.digest) + "; they turned in the source's slot or on the way"),
      kDigestMismatch);
}

Status Puller::ReadAll(RemoteSlot& slot, const PullGrant& grant, std::span<std::byte> memory,
                       PullReport* report) {
  if (slot.slot_bytes() < memory.size()) {
    return DataLoss("the source's slot has " + std::to_string(slot.slot_bytes()) +
                    " bytes, the manifest says " + std::to_string(memory.size()));
  }
  for (uint64_t at = 0; at < memory.size(); at += kStepBytes) {
    if (cancelled_) return Cancelled("this process is shutting down");
    const Piece piece = {
        .source_offset = at,
        .destination = memory.subspan(at, std::min<uint64_t>(kStepBytes, memory.size() - at))};
    TITAN_RETURN_IF_ERROR(slot.Read(std::span(&piece, 1), grant.expires));
    report->num_bytes += piece.destination.size();
  }
  return OkStatus();
}

}  // namespace titan::weightstore::lanes
