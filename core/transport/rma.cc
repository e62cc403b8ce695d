// SPDX-License-Identifier: Apache-2.0
#include "core/transport/rma.h"

#include <cstring>
#include <utility>

#include "core/transport/ucx_worker.h"

namespace titan::transport {

std::span<std::byte> RmaWindow::memory() const { return window_->memory; }
const RmaWindowKey& RmaWindow::key() const { return window_->key; }

Status RmaPeer::Read(const RmaWindowKey& from, uint64_t from_offset, const RmaWindow& to,
                     uint64_t to_offset, uint64_t bytes, std::chrono::milliseconds deadline) {
  return peer_->worker.Read(*peer_, from, from_offset, to.window_, to_offset, bytes, deadline);
}

RmaDomain::RmaDomain(std::unique_ptr<UcxWorker> worker) : worker_(std::move(worker)) {}
RmaDomain::~RmaDomain() = default;

StatusOr<std::unique_ptr<RmaDomain>> RmaDomain::Open(const RmaOptions& options) {
  TITAN_ASSIGN_OR_RETURN(auto worker, UcxWorker::Open(options));
  return std::unique_ptr<RmaDomain>(new RmaDomain(std::move(worker)));
}

RmaLane RmaDomain::lane() const { return worker_->lane(); }

const std::string& RmaDomain::address() const { return worker_->address(); }

uint64_t RmaDomain::registered_bytes() const { return worker_->registered_bytes(); }

StatusOr<RmaWindow> RmaDomain::Share(int file, std::span<std::byte> map,
                                     std::shared_ptr<const void> owner) {
  if (map.empty()) return InvalidArgument("a window has at least one byte");
  TITAN_ASSIGN_OR_RETURN(auto window, worker_->lane() == RmaLane::kRdma
                                          ? worker_->Map(map, std::move(owner))
                                          : worker_->AllocateOver(file, map.size()));
  return RmaWindow(std::move(window));
}

StatusOr<RmaWindow> RmaDomain::Land(std::span<std::byte> memory,
                                    std::shared_ptr<const void> owner) {
  if (memory.empty()) return InvalidArgument("a window has at least one byte");
  TITAN_ASSIGN_OR_RETURN(auto window, worker_->Map(memory, std::move(owner)));
  return RmaWindow(std::move(window));
}

StatusOr<RmaWindow> RmaDomain::Allocate(size_t bytes) {
  if (bytes == 0) return InvalidArgument("a window has at least one byte");
  TITAN_ASSIGN_OR_RETURN(auto window, worker_->Allocate(bytes));
  std::memset(window->memory.data(), 0, bytes);
  return RmaWindow(std::move(window));
}

StatusOr<RmaPeer> RmaDomain::Connect(const std::string& address,
                                     std::chrono::milliseconds deadline) {
  TITAN_ASSIGN_OR_RETURN(auto peer, worker_->Connect(address, deadline));
  return RmaPeer(std::move(peer));
}

}  // namespace titan::transport
