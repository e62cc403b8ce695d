// SPDX-License-Identifier: Apache-2.0
//
// The host daemon's end of the TCP lane (wire.h): sends ranges of slots to whoever has a valid
// handle, and tells where their windows are to who reads those. Every request is checked on its
// own; nothing that a client sends makes the server read outside of a slot, keep more than
// kMaxPackedBytes for a connection, or wait for long.
//
//   accept -> thread of the connection: read request -> check form, handle, range -> hash
//          -> handle again -> answer -> sendfile from the memory file -> next request
//
// The hash is that of a verified tile, or made before the second look at the handle, so it is that
// of the handle's version; the pages are sent after it, and a reader of bytes that changed in
// between finds another hash.
#ifndef TITAN_WEIGHTSTORE_TRANSPORT_TCP_SERVER_H_
#define TITAN_WEIGHTSTORE_TRANSPORT_TCP_SERVER_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "core/base/status.h"
#include "weightstore/transport/slot_reads.h"

namespace titan::weightstore::lanes {

struct TcpServerOptions {
  std::string listen = "127.0.0.1:0";  // host:port in digits; port 0 for a free one
  int threads = 2;                     // at least 1
  int max_connections = 256;           // more are closed at once
  bool sends_bytes = true;             // else it only confirms, and tells where windows are
  // A connection without a valid request for this long is closed.
  std::chrono::milliseconds first_request_timeout{2'000};
  std::chrono::milliseconds idle_timeout{60'000};
  // One that takes no bytes of an answer for this long.
  std::chrono::milliseconds send_timeout{10'000};
  // One that has not taken all of an answer by then: its slot's memory is kept as long.
  std::chrono::milliseconds answer_timeout{60'000};
};

// For metrics.
struct TcpServerStats {
  uint64_t connections = 0;          // now
  uint64_t refused_connections = 0;  // since the start, as what follows
  uint64_t answers = 0;              // with bytes
  uint64_t sent_bytes = 0;
  uint64_t refused_requests = 0;  // answered with an error
  uint64_t damaged_requests = 0;  // not of the form: the connection was closed
};

// Thread-safe. Serves from threads of its own.
class TcpServer {
 public:
  // reads must outlive the server. InvalidArgument: the options. Unavailable: the address is in
  // use.
  static StatusOr<std::unique_ptr<TcpServer>> Start(const TcpServerOptions& options,
                                                    SlotReads& reads);
  // Closes all connections and joins the threads.
  ~TcpServer();
  TcpServer(const TcpServer&) = delete;
  TcpServer& operator=(const TcpServer&) = delete;

  const std::string& address() const;  // with the real port
  TcpServerStats Stats() const;

 private:
  struct Impl;
  explicit TcpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace titan::weightstore::lanes

#endif  // TITAN_WEIGHTSTORE_TRANSPORT_TCP_SERVER_H_
