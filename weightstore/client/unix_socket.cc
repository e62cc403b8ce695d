// SPDX-License-Identifier: Apache-2.0
#include "weightstore/client/unix_socket.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/base/check.h"

namespace titan::weightstore {
namespace {

constexpr size_t kMaxFds = 2;

Status FromErrno(std::string_view what) {
  const int error = errno;
  const std::string message = std::string(what) + ": " + std::strerror(error);
  if (error == EAGAIN || error == EWOULDBLOCK) return DeadlineExceeded(message);
  if (error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM) {
    return ResourceExhausted(message);
  }
  return Unavailable(message);
}

}  // namespace

void UniqueFd::Close() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

StatusOr<UniqueFd> UniqueFd::Duplicate() const {
  UniqueFd copy(::fcntl(fd_, F_DUPFD_CLOEXEC, 0));
  if (!copy.valid()) return FromErrno("duplicating a descriptor");
  return copy;
}

Status SendPacket(int socket, const void* data, size_t num_bytes, const std::vector<int>& fds) {
  TITAN_CHECK(fds.size() <= kMaxFds);
  iovec part = {const_cast<void*>(data), num_bytes};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxFds)] = {};
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
    std::memcpy(CMSG_DATA(header), fds.data(), sizeof(int) * fds.size());
  }
  ssize_t sent;
  do {
    sent = ::sendmsg(socket, &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0) return FromErrno("sending to the weight store's socket");
  return OkStatus();
}

StatusOr<Packet> ReceivePacket(int socket, size_t max_bytes) {
  Packet packet;
  packet.bytes.resize(max_bytes);
  iovec part = {packet.bytes.data(), max_bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxFds)] = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t received;
  do {
    received = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  } while (received < 0 && errno == EINTR);
  if (received < 0) return FromErrno("reading from the weight store's socket");
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(fd));
      packet.fds.emplace_back(fd);
    }
  }
  if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    return DataLoss("weight store's socket: a packet is larger than the protocol allows");
  }
  if (received == 0) return Unavailable("weight store's socket: the peer closed it");
  packet.bytes.resize(static_cast<size_t>(received));
  return packet;
}

Status CheckSocketPath(const std::string& path) {
  constexpr size_t kLimit = sizeof(sockaddr_un::sun_path) - 1;
  if (path.empty() || path.size() > kLimit) {
    return InvalidArgument("socket path '" + path + "' has " + std::to_string(path.size()) +
                           " bytes; the operating system takes 1 to " + std::to_string(kLimit) +
                           ": choose a shorter data folder");
  }
  return OkStatus();
}

Status SetTimeout(int socket, std::chrono::milliseconds timeout) {
  const auto ms = std::max<std::chrono::milliseconds::rep>(timeout.count(), 1);  // 0: for ever
  const timeval limit = {static_cast<time_t>(ms / 1000),
                         static_cast<suseconds_t>(ms % 1000 * 1000)};
  if (::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) != 0 ||
      ::setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) != 0) {
    return FromErrno("setting the unix socket's timeout");
  }
  return OkStatus();
}

StatusOr<UniqueFd> ConnectUnix(const std::string& path, std::chrono::milliseconds timeout) {
  TITAN_RETURN_IF_ERROR(CheckSocketPath(path));
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return FromErrno("making a unix socket");
  TITAN_RETURN_IF_ERROR(SetTimeout(socket.get(), timeout));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  int result;
  do {
    result = ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  } while (result != 0 && errno == EINTR);
  if (result != 0) return FromErrno("connecting to the weight store's socket " + path);
  return socket;
}

namespace {

StatusOr<SocketAnswer> ReceiveAnswer(int socket) {
  TITAN_ASSIGN_OR_RETURN(Packet packet, ReceivePacket(socket, sizeof(SocketReply)));
  SocketReply reply;
  if (packet.bytes.size() != sizeof(reply)) {
    return DataLoss("weight store's socket: a reply of another size; is it a weight store?");
  }
  std::memcpy(&reply, packet.bytes.data(), sizeof(reply));
  if (reply.magic != kSocketMagic || reply.message_bytes > sizeof(reply.message) ||
      reply.num_fds != packet.fds.size()) {
    return DataLoss("weight store's socket: a reply of another form; is it a weight store?");
  }
  if (reply.code != 0) {
    return MakeStatus(static_cast<StatusCode>(reply.code),
                      std::string_view(reply.message, reply.message_bytes));
  }
  return SocketAnswer{reply.slot_id, reply.slot_bytes, std::move(packet.fds),
                      std::string(reply.message, reply.message_bytes)};
}

}  // namespace

StatusOr<SocketAnswer> Call(int socket, const SocketRequest& request) {
  TITAN_RETURN_IF_ERROR(SendPacket(socket, &request, sizeof(request)));
  return ReceiveAnswer(socket);
}

StatusOr<SocketAnswer> CallOffer(int socket, const SocketOffer& offer, int bytes) {
  const struct {
    SocketRequest request;
    SocketOffer offer;
  } packet = {{.kind = SocketRequestKind::kOfferSlot}, offer};
  static_assert(sizeof(packet) == sizeof(SocketRequest) + sizeof(SocketOffer));
  TITAN_RETURN_IF_ERROR(SendPacket(socket, &packet, sizeof(packet), {bytes}));
  return ReceiveAnswer(socket);
}

}  // namespace titan::weightstore
