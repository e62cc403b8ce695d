// SPDX-License-Identifier: Apache-2.0
//
// The reader's end of the TCP lane (wire.h): a few connections to one host daemon, each with a few
// requests on the way, so that neither end waits for the other; every answer's hash is checked.
#ifndef TITAN_WEIGHTSTORE_TRANSPORT_TCP_TRANSPORT_H_
#define TITAN_WEIGHTSTORE_TRANSPORT_TCP_TRANSPORT_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "core/base/status.h"
#include "weightstore/transport/byte_transport.h"
#include "weightstore/transport/rma_source.h"

namespace titan::weightstore::lanes {

struct TcpTransportOptions {
  int streams = 4;                 // connections of a slot, 1 to 64
  int threads = 1;                 // that receive and hash, 1 to streams
  int window = 2;                  // requests on the way on each connection, 1 to 64
  uint64_t piece_bytes = 1 << 20;  // of a request, 1 to kMaxAnswerBytes; hashed while in the cache
  std::chrono::milliseconds connect_timeout{1'500};
  // A source that sends nothing for this long, while something is asked of it, is gone.
  std::chrono::milliseconds stall_timeout{1'200};
};

class TcpTransport final : public ByteTransport {
 public:
  // address: host:port in digits, of a TcpServer. InvalidArgument, naming the option.
  static StatusOr<std::unique_ptr<TcpTransport>> Create(std::string address,
                                                        const TcpTransportOptions& options);

  Lane lane() const override { return Lane::kTcp; }
  StatusOr<std::unique_ptr<RemoteSlot>> Open(const PullGrant& grant, SteadyTime deadline) override;
  // Where the slot is for one-sided reads. Codes of Open, and FailedPrecondition: it has no
  // windows.
  StatusOr<RmaSource> FindWindows(const PullGrant& grant, SteadyTime deadline) const;

 private:
  TcpTransport(std::string address, const TcpTransportOptions& options)
      : address_(std::move(address)), options_(options) {}

  const std::string address_;
  const TcpTransportOptions options_;
};

}  // namespace titan::weightstore::lanes

#endif  // TITAN_WEIGHTSTORE_TRANSPORT_TCP_TRANSPORT_H_
