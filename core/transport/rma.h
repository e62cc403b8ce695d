// SPDX-License-Identifier: Apache-2.0
//
// One-sided reads between the hosts of the store: a host offers windows of memory, a peer copies
// from them without that host doing anything (UCX).
//
// What a window's key opens is not guarded by anybody: a reader with an old key may get another
// version's bytes as a success. Whoever reads a slot therefore confirms its header afterwards
// (weightstore/transport/rma_transport.h) and hashes what it got.
//
// All objects are thread-safe. Calls block until they are done or their deadline is over. One
// thread of the domain reads and answers peers, another one registers, which takes seconds for
// large memory; they sleep when there is nothing to do.
#ifndef TITAN_CORE_TRANSPORT_RMA_H_
#define TITAN_CORE_TRANSPORT_RMA_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "core/base/status.h"
#include "core/transport/rma_probe.h"

namespace titan::transport {

class UcxWorker;
struct UcxPeer;
struct UcxWindow;

// kRdma: a network adapter that reads memory by itself (UCX's transports rc and dc; ud, which may
// not read, wires them up). kShmTest: shared memory between processes of one machine (posix), the
// same code where there is no adapter.
// Others are never taken, whatever UCX_TLS says: a read that UCX emulates over tcp answers an old
// key with somebody's bytes as a success, and lets a reader crash the process that it reads from.
//
// Whoever has a window's key can also write to it, on either lane: UCX 1.13 registers memory no
// other way, and so the map of a window is one that may be written.
//
// UCX 1.13 crashes a process that opens a window over shared memory whose owner has ended: it
// releases a key that it could not read. We look for the owner's file first, which leaves some
// microseconds between. A key of an adapter is read without a look at its owner, so there that
// cannot happen.
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
  LockLimit lockable{.bytes = 0, .unlimited = true};  // of all windows together
  // Called with what was registered, or unregistered (negative); any thread, must not block. May be
  // empty.
  std::function<void(double num_bytes)> registered;
};

// What a peer must know of a window. Plain data, sent in the store's messages.
struct RmaWindowKey {
  uint64_t address = 0;
  uint64_t bytes = 0;
  std::string key;
  std::string file;  // kShmTest: of its memory, while its owner is there
};

// Memory that peers may read or that Read writes to. Its end waits for nothing: the memory is
// unregistered soon after, and its owner let go of after that.
class RmaWindow {
 public:
  RmaWindow() = default;
  explicit RmaWindow(std::shared_ptr<UcxWindow> window) : window_(std::move(window)) {}
  bool registered() const { return window_ != nullptr; }
  // REQUIRES: registered.
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

  // Copies `bytes` bytes. When it returns, nothing writes to `to` any more; but past a deadline a
  // device that does not give up its reads within 500 ms more may, and `to` is kept for it.
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

  // Memory that peers may read: a map, for reading and writing, of a memory file, which `owner`
  // keeps. Registered where it lies. kShmTest, whose peers read only what UCX allocated: UCX's
  // segment is made one of that file; who opens the window maps the file for writing, so it must
  // not be sealed against writers. ResourceExhausted: not enough lockable memory, with the limit;
  // windows that have ended do not count.
  StatusOr<RmaWindow> Share(int file, std::span<std::byte> map, std::shared_ptr<const void> owner);
  // Memory of this process, which `owner` keeps, that Read writes to. ResourceExhausted: as Share.
  StatusOr<RmaWindow> Land(std::span<std::byte> memory, std::shared_ptr<const void> owner);
  // Zeroed. ResourceExhausted: no memory.
  StatusOr<RmaWindow> Allocate(size_t bytes);
  // Of all windows that are registered now.
  uint64_t registered_bytes() const;

  // InvalidArgument: not an address. FailedPrecondition: the peer is not reachable over this lane
  // alone, with the transports that it would take. DeadlineExceeded: nobody answers.
  StatusOr<RmaPeer> Connect(const std::string& address, std::chrono::milliseconds deadline);

 private:
  explicit RmaDomain(std::unique_ptr<UcxWorker> worker);
  std::unique_ptr<UcxWorker> worker_;
};

}  // namespace titan::transport

#endif  // TITAN_CORE_TRANSPORT_RMA_H_
