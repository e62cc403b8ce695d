// SPDX-License-Identifier: Apache-2.0
#include "weightstore/client/publisher.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/base/check.h"
#include "weightstore/client/weights_digest.h"

namespace titan::weightstore {

Publisher::Publisher(LeaderPort& leader, PublisherOptions options, Registration registration)
    : leader_(leader), options_(std::move(options)), registration_(registration) {}

StatusOr<std::unique_ptr<Publisher>> Publisher::Register(LeaderPort& leader,
                                                         PublisherOptions options) {
  TITAN_CHECK(options.hash_threads >= 1);
  TITAN_RETURN_IF_ERROR(Validate(options.manifest));
  TITAN_RETURN_IF_ERROR(CheckSocketPath(options.socket_path));
  TITAN_ASSIGN_OR_RETURN(UniqueFd connection, ConnectUnix(options.socket_path, kSocketTimeout));
  TITAN_ASSIGN_OR_RETURN(const SocketAnswer host,
                         Call(connection.get(), {.kind = SocketRequestKind::kWhoIsThere}));
  TITAN_ASSIGN_OR_RETURN(
      const Registration registration,
      leader.RegisterTrainer(options.request_id, options.run_id, options.manifest, options.max_age,
                             options.evaluation_slots, host.text));
  std::unique_ptr<Publisher> publisher(new Publisher(leader, std::move(options), registration));
  publisher->connection_ = std::move(connection);
  return publisher;
}

StatusOr<Publisher::Begun> Publisher::Begin(uint64_t version, std::chrono::milliseconds wait) {
  TITAN_ASSIGN_OR_RETURN(const BeginResult result,
                         leader_.BeginVersion(options_.run_id, registration_.epoch, version, wait));
  open_.reset();
  Begun begun;
  if (result.recorded_digest.has_value()) {
    begun.recorded = true;
    begun.recorded_digest = *result.recorded_digest;
    return begun;
  }
  TITAN_ASSIGN_OR_RETURN(const uint64_t slot_id, MapForWriting(result.grant));
  const MappedMemory& slot = slots_.at(slot_id);
  open_ = OpenVersion{version, result.grant, slot_id, std::nullopt};
  begun.bytes = {slot.data(), slot.size()};
  return begun;
}

StatusOr<uint64_t> Publisher::MapForWriting(uint64_t grant) {
  TITAN_ASSIGN_OR_RETURN(
      SocketAnswer answer,
      Call(connection_.get(),
           {.kind = SocketRequestKind::kMapForWriting, .id = registration_.epoch, .grant = grant}));
  const auto known = slots_.find(answer.slot_id);
  if (known != slots_.end()) {
    TITAN_RETURN_IF_ERROR(Protect(answer.slot_id, /*writable=*/true));
    return answer.slot_id;
  }
  if (answer.fds.size() != 1 || answer.slot_bytes != options_.manifest.slot_bytes) {
    return DataLoss("weight store's socket: one descriptor of slot_bytes expected");
  }
  TITAN_ASSIGN_OR_RETURN(MappedMemory memory,
                         MappedMemory::Map(answer.fds[0].get(), answer.slot_bytes, true));
  answer.fds.clear();
  TITAN_ASSIGN_OR_RETURN(
      SocketAnswer sealed,
      Call(connection_.get(),
           {.kind = SocketRequestKind::kWriterHasMapped, .id = answer.slot_id, .grant = grant}));
  (void)sealed;
  slots_.emplace(answer.slot_id, std::move(memory));
  return answer.slot_id;
}

Status Publisher::Protect(uint64_t slot_id, bool writable) {
  const MappedMemory& slot = slots_.at(slot_id);
  if (::mprotect(slot.data(), slot.size(), writable ? PROT_READ | PROT_WRITE : PROT_READ) != 0) {
    return ResourceExhausted(std::string("changing the protection of a slot's map: ") +
                             std::strerror(errno));
  }
  return OkStatus();
}

StatusOr<Hash128> Publisher::Finish() {
  if (!open_.has_value() || open_->digest.has_value()) {
    return FailedPrecondition("no version is open for writing");
  }
  TITAN_RETURN_IF_ERROR(Protect(open_->slot_id, /*writable=*/false));
  const MappedMemory& slot = slots_.at(open_->slot_id);
  const Hash128 digest =
      WeightsDigest(options_.manifest, {slot.data(), slot.size()}, options_.hash_threads);
  const Status done =
      leader_.PutDone(options_.run_id, registration_.epoch, open_->version, open_->grant, digest);
  if (!done.ok()) {
    if (done.code() == StatusCode::kDataLoss) open_.reset();
    return done;
  }
  open_->digest = digest;
  return digest;
}

StatusOr<int64_t> Publisher::Commit(const std::string& plan_digest, uint64_t train_step) {
  if (!open_.has_value() || !open_->digest.has_value()) {
    return FailedPrecondition("no version is finished");
  }
  TITAN_ASSIGN_OR_RETURN(const int64_t committed_unix_ms,
                         leader_.CommitVersion(options_.run_id, registration_.epoch, open_->version,
                                               *open_->digest, plan_digest, train_step));
  open_.reset();
  return committed_unix_ms;
}

StatusOr<Hash128> Publisher::ConfirmRecorded(uint64_t version,
                                             std::span<const std::byte> weights) const {
  if (weights.size() < options_.manifest.slot_bytes) {
    return InvalidArgument("the weights are smaller than a slot");
  }
  const Hash128 digest = WeightsDigest(options_.manifest, weights, options_.hash_threads);
  // The leader compares with its record and answers an equal digest as it answers a repeated
  // commit.
  const StatusOr<int64_t> committed = leader_.CommitVersion(
      options_.run_id, registration_.epoch, version, digest, /*plan_digest=*/"", /*train_step=*/0);
  if (!committed.ok()) return committed.status();
  return digest;
}

}  // namespace titan::weightstore
