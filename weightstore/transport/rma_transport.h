// SPDX-License-Identifier: Apache-2.0
//
// The RDMA lane: one-sided reads out of the windows of a host (core/transport/rma.h), then of the
// slot's header, which says whether the bytes were the version's all the while. The same code over
// shared memory is the lane shm-test.
//
// The source does nothing for a read, so nothing hashes what arrives: the caller compares the
// weights digest of what it put together.
#ifndef TITAN_WEIGHTSTORE_TRANSPORT_RMA_TRANSPORT_H_
#define TITAN_WEIGHTSTORE_TRANSPORT_RMA_TRANSPORT_H_

#include <memory>
#include <string>
#include <utility>

#include "core/base/status.h"
#include "core/transport/rma.h"
#include "weightstore/transport/byte_transport.h"
#include "weightstore/transport/rma_source.h"

namespace titan::weightstore::lanes {

struct RmaTransportOptions {
  // That are read at a time; outside of the landing window also the memory that they go through.
  size_t step_bytes = size_t{16} << 20;
  // A source that takes longer for a step is gone: a link as slow as the store's leases allow for
  // (16 MiB/s) takes 1 s. Less than a deadline, so that the caller has time for another one.
  std::chrono::milliseconds stall_timeout{1'200};
};

class RmaTransport final : public ByteTransport {
 public:
  // domain must outlive the transport and its slots. landing: a window of the domain, or none;
  // pieces whose destination lies in it are read there, others through a bounce window that the
  // first of them takes. InvalidArgument: options.
  static StatusOr<std::unique_ptr<RmaTransport>> Create(titan::transport::RmaDomain& domain,
                                                        RmaSource source,
                                                        titan::transport::RmaWindow landing,
                                                        const RmaTransportOptions& options = {});

  // As the domain was opened.
  Lane lane() const override;
  StatusOr<std::unique_ptr<RemoteSlot>> Open(const PullGrant& grant, SteadyTime deadline) override;

 private:
  RmaTransport(titan::transport::RmaDomain& domain, RmaSource source,
               titan::transport::RmaWindow landing, const RmaTransportOptions& options)
      : domain_(domain),
        source_(std::move(source)),
        landing_(std::move(landing)),
        options_(options) {}

  titan::transport::RmaDomain& domain_;
  const RmaSource source_;
  const titan::transport::RmaWindow landing_;
  const RmaTransportOptions options_;
};

}  // namespace titan::weightstore::lanes

#endif  // TITAN_WEIGHTSTORE_TRANSPORT_RMA_TRANSPORT_H_
