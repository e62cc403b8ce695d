// SPDX-License-Identifier: Apache-2.0
//
// One-sided reads between the hosts of the store: a host offers windows of memory, a peer copies
// from them without that host doing anything (UCX).
//
// What a window's key opens is not guarded by anybody: a reader with an old key may get another
// version's bytes as a success. Whoever reads a slot therefore confirms its header afterwards
// (weightstore/transport/rma_transport.h) and hashes what it got.
//
// All objects are thread-safe. Calls block until they are done or their deadline is over; the work
// is done by one thread of the domain, which sleeps when there is none.
#ifndef TITAN_CORE_TRANSPORT_RMA_H_
#define TITAN_CORE_TRANSPORT_RMA_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "core/base/status.h"

namespace titan::transport {

class UcxWorker;
struct UcxPeer;
struct UcxWindow;

// kRdma: a network adapter that reads memory by itself (UCX's transports rc, dc, ud). kShmTest:
// shared memory between processes of one machine (posix), the same code where there is no adapter;
// whoever has the key can write to the window, and UCX 1.13 crashes a process that reads from a
// window for the first time when its owner has just ended. Others are never taken, whatever UCX_TLS
// says: a read that UCX emulates over tcp answers an old key with somebody's bytes as a success,
// and lets a reader crash the process that it reads from.
//
// Not tested without an adapter: registering memory with it and its limits, how it reports a peer
// that is lost, what it reaches.
enum class RmaLane { kRdma, kShmTest };
// "rdma", "shm-test".
std::string_view NameOf(RmaLane lane);

struct RmaOptions {
  RmaLane lane = RmaLane::kRdma;
  std::string device;                    // kRdma: as `ucx_info -d` names it; empty: any
  size_t piece_bytes = size_t{8} << 20;  // one read of the wire
  int pieces_in_flight = 4;              // of one Read
  std::chrono::milliseconds keepalive{1000};
};

// What a peer must know of a window. Plain data, sent in the store's messages.
struct RmaWindowKey {
  uint64_t address = 0;
  uint64_t bytes = 0;
  std::string key;
};

// Memory that peers may read and that Read writes to. Unregistered at the end.
class RmaWindow {
 public:
  RmaWindow() = default;
  explicit RmaWindow(std::shared_ptr<UcxWindow> window) : window_(std::move(window)) {}
  std::span<std::byte> memory() const;
  const RmaWindowKey& key() const;

 private:
  friend class RmaPeer;
  std::shared_ptr<UcxWindow> window_;
};

// A connection to the domain of another process. Closed at the end.
class RmaPeer {
 public:
  RmaPeer() = default;
  explicit RmaPeer(std::shared_ptr<UcxPeer> peer) : peer_(std::move(peer)) {}

  // Copies `bytes` bytes. When it returns, nothing writes to `to` any more.
  // InvalidArgument: a range outside its window, a key that is none. DeadlineExceeded: the peer did
  // not answer in time; the connection is given up. Unavailable: the peer is gone.
  Status Read(const RmaWindowKey& from, uint64_t from_offset, const RmaWindow& to,
              uint64_t to_offset, uint64_t bytes, std::chrono::milliseconds deadline);

 private:
  std::shared_ptr<UcxPeer> peer_;
};

// Outlives its windows and peers.
class RmaDomain {
 public:
  // FailedPrecondition: this machine has no such lane; says what it has instead.
  // InvalidArgument: options out of range, an unknown device.
  static StatusOr<std::unique_ptr<RmaDomain>> Open(const RmaOptions& options);
  ~RmaDomain();

  // As it was opened.
  RmaLane lane() const;
  // What peers connect to; opaque bytes.
  const std::string& address() const;

  // kRdma: registers memory that the caller keeps until the window's end. FailedPrecondition with
  // kShmTest, whose peers read only what Allocate made. ResourceExhausted: not enough lockable
  // memory, with the limit.
  StatusOr<RmaWindow> Register(std::span<std::byte> memory);
  // Zeroed. ResourceExhausted: no memory.
  StatusOr<RmaWindow> Allocate(size_t bytes);

  // InvalidArgument: not an address. FailedPrecondition: the peer is not reachable over this lane
  // alone, with the transports that it would take. DeadlineExceeded: nobody answers.
  StatusOr<RmaPeer> Connect(const std::string& address, std::chrono::milliseconds deadline);

 private:
  explicit RmaDomain(std::unique_ptr<UcxWorker> worker);
  std::unique_ptr<UcxWorker> worker_;
};

}  // namespace titan::transport

#endif  // TITAN_CORE_TRANSPORT_RMA_H_
