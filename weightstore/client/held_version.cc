// SPDX-License-Identifier: Apache-2.0
#include "weightstore/client/held_version.h"

#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "core/base/check.h"
#include "weightstore/client/slot_header.h"

namespace titan::weightstore {
namespace {

// Between two questions about an offer: the daemon hashes some GB in a second.
constexpr std::chrono::milliseconds kOfferPeriod{10};
// Of a map, which the daemon answers out of its tables: connecting and the answer together.
constexpr std::chrono::milliseconds kMapPatience{1'500};

StatusOr<SocketAnswer> CallInTime(const std::string& socket_path, const SocketRequest& request,
                                  UniqueFd* connection) {
  const auto deadline = std::chrono::steady_clock::now() + kMapPatience;
  TITAN_ASSIGN_OR_RETURN(*connection, ConnectUnix(socket_path, kMapPatience));
  TITAN_RETURN_IF_ERROR(SetTimeout(
      connection->get(),
      std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now())));
  return Call(connection->get(), request);
}

}  // namespace

HeldVersion& HeldVersion::operator=(HeldVersion&& other) noexcept {
  if (this == &other) return *this;
  Drop();
  lease_ = std::move(other.lease_);
  slot_file_ = std::move(other.slot_file_);
  slot_ = std::move(other.slot_);
  tie_ = std::move(other.tie_);
  pulled_ = std::move(other.pulled_);
  return *this;
}

StatusOr<HeldVersion::DaemonTie> HeldVersion::Present(const std::string& socket_path,
                                                      const Lease& lease, SocketAnswer* answer) {
  DaemonTie tie;
  tie.lease_id = lease.lease_id;
  tie.grant = lease.grant;
  StatusOr<SocketAnswer> mapped =
      CallInTime(socket_path,
                 {.kind = SocketRequestKind::kMapLease, .id = lease.lease_id, .grant = lease.grant},
                 &tie.connection);
  if (mapped.status().code() == StatusCode::kDeadlineExceeded) {
    return Unavailable("the weight store's daemon at " + socket_path + " has not answered for " +
                       std::to_string(kMapPatience.count()) +
                       " ms: it stands still, or its machine is overloaded; ask again");
  }
  if (!mapped.ok()) return mapped.status();
  *answer = *std::move(mapped);
  if (answer->fds.size() != 2) return DataLoss("weight store's socket: two descriptors expected");
  if (answer->slot_bytes < lease.manifest->slot_bytes) {
    return DataLoss("the slot is smaller than the manifest says");
  }
  TITAN_ASSIGN_OR_RETURN(tie.header, MappedMemory::Map(answer->fds[1].get(), kSlotHeaderBytes,
                                                       /*writable=*/false));
  SlotHeaderFields header;
  if (!SlotHeaderPage(tie.header.data()).Read(&header) || header.grant != lease.grant) {
    return Aborted("lease " + std::to_string(lease.lease_id) + ": its grant number is stale");
  }
  if (header.version != lease.version || header.digest != lease.digest) {
    return DataLoss("the slot holds version " + std::to_string(header.version) + " with digest " +
                    ToHex(header.digest) + ", the lease is for version " +
                    std::to_string(lease.version) + " with digest " + ToHex(lease.digest));
  }
  return tie;
}

StatusOr<HeldVersion> HeldVersion::Map(const std::string& socket_path, Lease lease,
                                       MappedMemory::Tables tables) {
  HeldVersion mapped;
  SocketAnswer answer;
  mapped.tie_ = std::make_unique<GuardedTie>();
  TITAN_ASSIGN_OR_RETURN(mapped.tie_->tie, Present(socket_path, lease, &answer));
  TITAN_ASSIGN_OR_RETURN(mapped.slot_, MappedMemory::Map(answer.fds[0].get(), answer.slot_bytes,
                                                         /*writable=*/false, tables));
  mapped.slot_file_ = std::move(answer.fds[0]);
  mapped.lease_ = std::move(lease);
  return mapped;
}

HeldVersion HeldVersion::OfPulled(Lease lease, std::shared_ptr<const MappedMemory> memory) {
  HeldVersion held;
  held.lease_ = std::move(lease);
  held.pulled_ = std::move(memory);
  return held;
}

Lease HeldVersion::lease() const {
  Lease lease = lease_;
  if (tie_ == nullptr) return lease;
  std::lock_guard lock(tie_->mutex);
  lease.lease_id = tie_->tie.lease_id;
  lease.grant = tie_->tie.grant;
  return lease;
}

bool HeldVersion::HeaderUnchanged() const {
  if (pulled_ != nullptr) return true;
  if (!mapped()) return false;
  std::lock_guard lock(tie_->mutex);
  const DaemonTie& tie = tie_->tie;
  return SlotHeaderPage(tie.header.data()).GrantAfterReads() == tie.grant;
}

bool HeldVersion::orphaned() const {
  if (!mapped()) return false;
  std::lock_guard lock(tie_->mutex);
  // The daemon says nothing that it was not asked.
  pollfd connection = {tie_->tie.connection.get(), POLLIN, 0};
  return ::poll(&connection, 1, 0) > 0;
}

Status HeldVersion::Offer(const std::string& socket_path, std::stop_token stop) const {
  TITAN_CHECK(mapped());
  TITAN_CHECK(lease_.run_id.size() <= kMaxRunIdBytes);
  SocketOffer offer;
  offer.version = lease_.version;
  offer.slot_bytes = slot_.size();
  offer.digest = lease_.digest;
  offer.manifest_id = ManifestId(*lease_.manifest);
  offer.run_id_bytes = lease_.run_id.size();
  std::memcpy(offer.run_id, lease_.run_id.data(), lease_.run_id.size());
  const auto deadline = std::chrono::steady_clock::now() + kSocketTimeout;
  TITAN_ASSIGN_OR_RETURN(const UniqueFd connection, ConnectUnix(socket_path, kSocketTimeout));
  // Wakes who waits for an answer.
  const std::stop_callback on_stop(stop, [&] { ::shutdown(connection.get(), SHUT_RDWR); });
  StatusOr<SocketAnswer> answer = CallOffer(connection.get(), offer, slot_file_.get());
  while (answer.ok() && answer->slot_id == 0 && !stop.stop_requested()) {
    if (std::chrono::steady_clock::now() >= deadline) {
      return DeadlineExceeded("the weight store has not decided about the offered slot yet");
    }
    std::this_thread::sleep_for(kOfferPeriod);
    answer = Call(connection.get(), {.kind = SocketRequestKind::kOfferState});
  }
  if (stop.stop_requested()) return Cancelled("this process is shutting down");
  return answer.status();
}

Status HeldVersion::Tie(const std::string& socket_path, const Lease& lease) {
  TITAN_CHECK(mapped());
  if (lease.run_id != lease_.run_id || lease.version != lease_.version ||
      lease.digest != lease_.digest) {
    return DataLoss("version " + std::to_string(lease.version) + " of run " + lease.run_id +
                    " has digest " + ToHex(lease.digest) + ", version " +
                    std::to_string(lease_.version) + " of run " + lease_.run_id +
                    " is held with digest " + ToHex(lease_.digest));
  }
  SocketAnswer answer;
  TITAN_ASSIGN_OR_RETURN(DaemonTie tie, Present(socket_path, lease, &answer));
  std::lock_guard lock(tie_->mutex);
  std::swap(tie_->tie, tie);
  return OkStatus();
}

void HeldVersion::Drop() {
  slot_ = MappedMemory();
  slot_file_.Close();
  tie_.reset();
  pulled_.reset();
}

}  // namespace titan::weightstore
