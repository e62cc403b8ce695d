// SPDX-License-Identifier: Apache-2.0
#include "weightstore/socket_server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/check.h"

namespace titan::weightstore {
namespace {

// More connections than slots times readers of one host would ever need; later ones wait in the
// backlog.
constexpr size_t kMaxConnections = 1024;
constexpr int kBacklog = 64;

Status Failed(const std::string& what) { return Unavailable(what + ": " + std::strerror(errno)); }

Status RemoveStaleSocket(const std::string& path) {
  struct stat file = {};
  if (::lstat(path.c_str(), &file) != 0) {
    return errno == ENOENT ? OkStatus() : Failed("socket path " + path);
  }
  if (!S_ISSOCK(file.st_mode)) {
    return InvalidArgument("socket path " + path + " is a file of another kind; remove it");
  }
  const StatusOr<UniqueFd> other = ConnectUnix(path, std::chrono::milliseconds(1000));
  if (other.ok()) {
    return FailedPrecondition("socket path " + path + ": another process listens on it");
  }
  if (::unlink(path.c_str()) != 0) return Failed("removing the stale socket " + path);
  return OkStatus();
}

bool IsSameUser(int socket) {
  ucred peer = {};
  socklen_t size = sizeof(peer);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return false;
  return peer.uid == ::geteuid() || peer.uid == 0;
}

// Of a request, of a later protocol's too.
constexpr size_t kMaxRequestBytes = 512;

// FailedPrecondition: a request of another protocol of ours, "TWS" and a digit.
Status OtherProtocol(std::string_view bytes) {
  const std::string_view own(reinterpret_cast<const char*>(&kSocketMagic), sizeof(kSocketMagic));
  if (bytes.size() < own.size() || bytes.substr(0, 3) != own.substr(0, 3)) return OkStatus();
  const char protocol = bytes[3];
  if (protocol == own[3] || protocol < '0' || protocol > '9') return OkStatus();
  return FailedPrecondition(std::string("the weight store's socket: the client speaks protocol ") +
                            protocol + ", this daemon speaks " + own[3] +
                            "; run programs of one release");
}

// nullopt: it has another form.
std::optional<SlotOffer> ParseOffer(uint64_t connection, const Packet& packet) {
  SocketOffer said;
  if (packet.bytes.size() != sizeof(SocketRequest) + sizeof(said) || packet.fds.size() != 1) {
    return std::nullopt;
  }
  std::memcpy(&said, packet.bytes.data() + sizeof(SocketRequest), sizeof(said));
  if (said.run_id_bytes > sizeof(said.run_id)) return std::nullopt;
  SlotOffer offer;
  offer.offer_id = connection;
  offer.run_id.assign(said.run_id, said.run_id_bytes);
  offer.version = said.version;
  offer.num_bytes = said.slot_bytes;
  offer.digest = said.digest;
  offer.manifest_id = said.manifest_id;
  return offer;
}

// A peer that does not read its replies is cut off (false).
bool Reply(int socket, const StatusOr<SlotDescriptors>& result) {
  SocketReply reply;
  std::vector<int> fds;
  const std::string text = result.ok() ? result->text : MessageOf(result.status());
  reply.message_bytes = static_cast<uint32_t>(std::min(text.size(), sizeof(reply.message)));
  std::memcpy(reply.message, text.data(), reply.message_bytes);
  if (result.ok()) {
    reply.slot_id = result->slot_id;
    reply.slot_bytes = result->slot_bytes;
    reply.num_fds = static_cast<uint32_t>(result->fds.size());
    for (const UniqueFd& fd : result->fds) fds.push_back(fd.get());
  } else {
    reply.code = static_cast<int32_t>(result.status().code());
  }
  return SendPacket(socket, &reply, sizeof(reply), fds).ok();
}

}  // namespace

StatusOr<std::unique_ptr<SocketServer>> SocketServer::Start(const std::string& path,
                                                            SlotSource& source) {
  TITAN_RETURN_IF_ERROR(CheckSocketPath(path));
  TITAN_RETURN_IF_ERROR(RemoveStaleSocket(path));
  std::unique_ptr<SocketServer> server(new SocketServer(path, source));
  server->stop_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!server->stop_.valid()) return Failed("eventfd");
  UniqueFd listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener.valid()) return Failed("making a unix socket");
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  // Before bind gives the path away: the socket's mode is that of the file.
  if (::fchmod(listener.get(), 0600) != 0) return Failed("restricting the socket " + path);
  if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return Failed("binding the socket " + path);
  }
  if (::listen(listener.get(), kBacklog) != 0) return Failed("listening on " + path);
  server->listener_ = std::move(listener);
  SocketServer* raw = server.get();
  server->thread_ = std::thread([raw] { raw->Serve(); });
  return server;
}

SocketServer::~SocketServer() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  TITAN_CHECK(::write(stop_.get(), &one, sizeof(one)) == sizeof(one));
  thread_.join();
  ::unlink(path_.c_str());
}

void SocketServer::Serve() {
  std::vector<pollfd> polled;
  std::vector<uint64_t> numbers;
  for (;;) {
    polled.assign({{stop_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}});
    if (connections_.size() >= kMaxConnections) polled[1].fd = -1;  // poll skips it
    numbers.clear();
    for (const auto& [number, socket] : connections_) {
      polled.push_back({socket.get(), POLLIN, 0});
      numbers.push_back(number);
    }
    // Out of descriptors: look again after a while instead of spinning on the listener.
    if (std::exchange(accept_failed_, false)) polled[1].fd = -1;
    const int timeout_ms = polled[1].fd < 0 ? 100 : -1;
    if (::poll(polled.data(), polled.size(), timeout_ms) < 0) {
      TITAN_CHECK(errno == EINTR || errno == ENOMEM);
      continue;
    }
    if (polled[0].revents != 0) break;
    for (size_t i = 0; i < numbers.size(); ++i) {
      if (polled[i + 2].revents == 0) continue;
      if (!Answer(numbers[i], polled[i + 2].fd)) {
        connections_.erase(numbers[i]);
        source_.ConnectionClosed(numbers[i]);
      }
    }
    if (polled[1].revents != 0) Accept();
  }
  for (auto& [number, socket] : connections_) {
    socket.Close();
    source_.ConnectionClosed(number);
  }
  connections_.clear();
}

void SocketServer::Accept() {
  UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket.valid()) {
    accept_failed_ = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
    return;
  }
  if (!IsSameUser(socket.get())) return;
  connections_.emplace(next_connection_++, std::move(socket));
}

bool SocketServer::Answer(uint64_t connection, int socket) {
  StatusOr<Packet> packet = ReceivePacket(socket, kMaxRequestBytes);
  if (!packet.ok()) return packet.status().code() == StatusCode::kDeadlineExceeded;
  const Status other = OtherProtocol(packet->bytes);
  if (!other.ok()) return Reply(socket, other);
  SocketRequest request;
  if (packet->bytes.size() < sizeof(request)) return false;
  std::memcpy(&request, packet->bytes.data(), sizeof(request));
  if (request.magic != kSocketMagic) return false;
  if (request.kind == SocketRequestKind::kOfferSlot) {
    std::optional<SlotOffer> offer = ParseOffer(connection, *packet);
    if (!offer.has_value()) return false;
    return Reply(socket,
                 source_.OfferSlot(connection, *std::move(offer), std::move(packet->fds[0])));
  }
  if (packet->bytes.size() != sizeof(request) || !packet->fds.empty()) return false;
  StatusOr<SlotDescriptors> result = InvalidArgument("no such request");
  switch (request.kind) {
    case SocketRequestKind::kMapLease:
      result = source_.MapLease(connection, request.id, request.grant);
      break;
    case SocketRequestKind::kMapForWriting:
      result = source_.MapForWriting(connection, request.id, request.grant);
      break;
    case SocketRequestKind::kWriterHasMapped: {
      const Status status = source_.WriterHasMapped(connection, request.id, request.grant);
      if (status.ok()) {
        result = SlotDescriptors{.slot_id = request.id};
      } else {
        result = status;
      }
      break;
    }
    case SocketRequestKind::kOfferSlot:
      break;  // above
    case SocketRequestKind::kOfferState:
      result = source_.OfferState(connection);
      break;
    case SocketRequestKind::kWhoIsThere:
      result = SlotDescriptors{.text = source_.host_name()};
      break;
  }
  return Reply(socket, result);
}

}  // namespace titan::weightstore
