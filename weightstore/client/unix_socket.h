// SPDX-License-Identifier: Apache-2.0
//
// The unix socket between a host daemon and its clients: packets (SOCK_SEQPACKET) of one fixed form
// that may carry descriptors. One connection per mapped slot of a reader (its end is the end of the
// lease), one per writer.
//
//   reader                          daemon          writer                           daemon
//     | kMapLease {lease, grant}  ->  |               | kMapForWriting {epoch, grant} -> |
//     | <- slot and header, to read   |               | <- slot; none if mapped before   |
//     | ... runs on the map ...       |               | kWriterHasMapped {slot, grant}-> |  seals
//     the slot | closes                        |               | <- done                          |
//
//   reader of a daemon that is gone                     daemon
//     | kOfferSlot, SocketOffer, the slot to read  ->      |  asks the leader, hashes
//     | <- {slot}: it is adopted; {0}: not decided yet     |
//     | kOfferState, until it is decided  ->               |
//     | closes, takes a lease as any reader does           |
#ifndef TITAN_WEIGHTSTORE_CLIENT_UNIX_SOCKET_H_
#define TITAN_WEIGHTSTORE_CLIENT_UNIX_SOCKET_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/base/hash.h"
#include "core/base/status.h"

namespace titan::weightstore {

// Owns a descriptor. Movable, closes at the end.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~UniqueFd() { Close(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void Close();
  // Another descriptor of the same file. ResourceExhausted: the process has too many.
  StatusOr<UniqueFd> Duplicate() const;

 private:
  int fd_ = -1;
};

enum class SocketRequestKind : uint32_t {
  kMapLease = 1,         // id = lease
  kMapForWriting = 2,    // id = epoch of the trainer
  kWriterHasMapped = 3,  // id = slot
  kWhoIsThere = 4,       // answered with the host's name
  kOfferSlot = 5,   // a SocketOffer follows in the packet; one descriptor; one for a connection
  kOfferState = 6,  // of what this connection offered
};

inline constexpr uint32_t kSocketMagic = 0x31535754;  // "TWS1"

struct SocketRequest {
  uint32_t magic = kSocketMagic;
  SocketRequestKind kind = SocketRequestKind::kMapLease;
  uint64_t id = 0;
  uint64_t grant = 0;
};
static_assert(sizeof(SocketRequest) == 24);

inline constexpr size_t kMaxRunIdBytes = 128;

// What a reader says of the slot that it offers.
struct SocketOffer {
  uint64_t version = 0;
  uint64_t slot_bytes = 0;
  Hash128 digest;
  Hash128 manifest_id;
  uint64_t run_id_bytes = 0;
  char run_id[kMaxRunIdBytes] = {};
};
static_assert(sizeof(SocketOffer) == 184);

struct SocketReply {
  uint32_t magic = kSocketMagic;
  int32_t code = 0;  // StatusCode; what follows is set only for OK
  uint64_t slot_id = 0;
  uint64_t slot_bytes = 0;
  uint32_t num_fds = 0;
  uint32_t message_bytes = 0;
  char message[480] = {};  // of a failure, or the host's name
};
static_assert(sizeof(SocketReply) == 512);

// Sends one packet. Unavailable: the peer is gone. ResourceExhausted: a non-blocking socket is
// full.
Status SendPacket(int socket, const void* data, size_t num_bytes, const std::vector<int>& fds = {});

struct Packet {
  std::string bytes;
  std::vector<UniqueFd> fds;
};
// The next packet; at most max_bytes and 2 descriptors (more: DataLoss). Unavailable: the peer
// closed or is gone. DeadlineExceeded: nothing came within the socket's time or, for a non-blocking
// one, is there.
StatusOr<Packet> ReceivePacket(int socket, size_t max_bytes);

// Connects; each later operation ends after the timeout. Unavailable: nobody listens at path.
// InvalidArgument: path is longer than a unix socket's address can be.
StatusOr<UniqueFd> ConnectUnix(const std::string& path, std::chrono::milliseconds timeout);

// Another timeout for the operations to come; 0 and less count as 1 ms.
Status SetTimeout(int socket, std::chrono::milliseconds timeout);

// InvalidArgument, naming the limit, when path cannot be a socket's address.
Status CheckSocketPath(const std::string& path);

// Sends a request and waits for its reply; a reply that reports a failure is returned as that
// Status.
struct SocketAnswer {
  uint64_t slot_id = 0;
  uint64_t slot_bytes = 0;
  std::vector<UniqueFd> fds;
  std::string text;
};
StatusOr<SocketAnswer> Call(int socket, const SocketRequest& request);
// The same for kOfferSlot. bytes: the slot's descriptor.
StatusOr<SocketAnswer> CallOffer(int socket, const SocketOffer& offer, int bytes);

}  // namespace titan::weightstore

#endif  // TITAN_WEIGHTSTORE_CLIENT_UNIX_SOCKET_H_
