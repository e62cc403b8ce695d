// SPDX-License-Identifier: Apache-2.0
#include "weightstore/transport/puller.h"

#include <algorithm>
#include <string>
#include <utility>

#include "weightstore/client/reason.h"
#include "weightstore/client/weights_digest.h"

namespace titan::weightstore::lanes {
namespace {

using std::chrono::steady_clock;

// Of one Read: after it the handle is confirmed and Cancel is looked at.
constexpr uint64_t kStepBytes = uint64_t{64} << 20;
constexpr int kTries = 2;

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
    : options_(std::move(options)), lanes_({Lane::kTcp}), memory_(options_.memory) {}

StatusOr<std::unique_ptr<Puller>> Puller::Create(PullerOptions options) {
  if (options.hash_threads < 1) return InvalidArgument("pull.hash_threads: must be at least 1");
  TITAN_RETURN_IF_ERROR(TcpTransport::Create("127.0.0.1:1", options.tcp).status());
  return std::unique_ptr<Puller>(new Puller(std::move(options)));
}

StatusOr<std::unique_ptr<ByteTransport>> Puller::TransportOf(const RemoteLease& lease) const {
  if (lease.lane == Lane::kTcp) {
    TITAN_ASSIGN_OR_RETURN(auto tcp, TcpTransport::Create(lease.address, options_.tcp));
    return std::unique_ptr<ByteTransport>(std::move(tcp));
  }
  return InvalidArgument("the lease names lane " + std::string(NameOf(lease.lane)) +
                         ", by which this process cannot pull");
}

StatusOr<std::shared_ptr<const MappedMemory>> Puller::Pull(const RemoteLease& lease,
                                                           SteadyTime expires) {
  if (lease.lease.manifest == nullptr) return InvalidArgument("lease: has no manifest");
  PullReport report;
  report.lane = lease.lane;
  auto memory = memory_.Take(lease.lease.manifest->slot_bytes);
  if (!memory.ok()) return memory.status();
  const PullGrant grant = {lease.lease, lease.epoch, lease.token, expires};
  Status fetched = OkStatus();
  for (int i = 0; i < kTries; ++i) {
    fetched = Fetch(lease, grant, {memory->data(), memory->size()}, &report);
    if (ReasonOf(fetched) != kDigestMismatch) break;
  }
  if (options_.report) options_.report(report);
  if (!fetched.ok()) {
    memory_.GiveBack(*std::move(memory));
    return Explained(fetched);
  }
  return memory_.Seal(*std::move(memory));
}

Status Puller::Fetch(const RemoteLease& lease, const PullGrant& grant, std::span<std::byte> memory,
                     PullReport* report) {
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<ByteTransport> transport, TransportOf(lease));
  std::unique_ptr<RemoteSlot> slot;
  {
    const Phase phase(&report->open_seconds);
    TITAN_ASSIGN_OR_RETURN(slot, transport->Open(grant, grant.expires));
  }
  {
    const Phase phase(&report->transfer_seconds);
    const Status read = ReadAll(*slot, grant, memory, report);
    report->corrupt += slot->corrupt_answers();
    TITAN_RETURN_IF_ERROR(read);
  }
  const Phase phase(&report->verify_seconds);
  const Hash128 digest = WeightsDigest(*lease.lease.manifest, memory, options_.hash_threads);
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
