// SPDX-License-Identifier: Apache-2.0
//
// The host daemon's end of the unix socket (weightstore/client/unix_socket.h): one thread that
// polls all connections, checks every request's form and passes it to a SlotSource.
#ifndef TITAN_WEIGHTSTORE_SOCKET_SERVER_H_
#define TITAN_WEIGHTSTORE_SOCKET_SERVER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/base/status.h"
#include "weightstore/client/unix_socket.h"
#include "weightstore/host_port.h"

namespace titan::weightstore {

struct SlotDescriptors {
  uint64_t slot_id = 0;
  uint64_t slot_bytes = 0;
  std::vector<UniqueFd> fds;
  std::string text;
};

// Called by the server's thread alone. A connection's number is never used again.
class SlotSource {
 public:
  SlotSource() = default;
  SlotSource(const SlotSource&) = delete;
  SlotSource& operator=(const SlotSource&) = delete;
  virtual ~SlotSource() = default;

  // Descriptors of slot and header, read-only. From here on the lease ends with the connection.
  virtual StatusOr<SlotDescriptors> MapLease(uint64_t connection, uint64_t lease_id,
                                             uint64_t grant) = 0;
  // The descriptor of the open slot, or none if this connection has mapped it before.
  virtual StatusOr<SlotDescriptors> MapForWriting(uint64_t connection, uint64_t epoch,
                                                  uint64_t grant) = 0;
  virtual Status WriterHasMapped(uint64_t connection, uint64_t slot_id, uint64_t grant) = 0;
  // Of a reader whose daemon is gone; offer_id is set. The answer is that of OfferState.
  virtual StatusOr<SlotDescriptors> OfferSlot(uint64_t connection, SlotOffer offer,
                                              UniqueFd bytes) = 0;
  // What became of it: the slot that has it now, slot_id 0 while that is not decided, or why it is
  // refused.
  virtual StatusOr<SlotDescriptors> OfferState(uint64_t connection) = 0;
  virtual const std::string& host_name() const = 0;
  virtual void ConnectionClosed(uint64_t connection) = 0;
};

class SocketServer {
 public:
  // Listens; only processes of the same user may connect. A socket file that nobody listens on is
  // replaced. source must outlive the server. InvalidArgument: the path. FailedPrecondition:
  // another process listens there. Unavailable: the socket cannot be made.
  static StatusOr<std::unique_ptr<SocketServer>> Start(const std::string& path, SlotSource& source);
  // Closes all connections (ConnectionClosed is called for each) and removes the socket file.
  ~SocketServer();

  SocketServer(const SocketServer&) = delete;
  SocketServer& operator=(const SocketServer&) = delete;

  const std::string& path() const { return path_; }

 private:
  SocketServer(std::string path, SlotSource& source) : path_(std::move(path)), source_(source) {}
  void Serve();
  void Accept();
  // False: the connection is to be closed.
  bool Answer(uint64_t connection, int socket);

  const std::string path_;
  SlotSource& source_;
  UniqueFd listener_;
  UniqueFd stop_;
  std::map<uint64_t, UniqueFd> connections_;  // of the thread alone
  uint64_t next_connection_ = 1;
  bool accept_failed_ = false;
  std::thread thread_;
};

}  // namespace titan::weightstore

#endif  // TITAN_WEIGHTSTORE_SOCKET_SERVER_H_
