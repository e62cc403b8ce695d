// SPDX-License-Identifier: Apache-2.0
//
// A host daemon in another process, for the leader: commands go down its Attach stream, what it
// says of them comes with its reports. One object for each attachment.
#ifndef TITAN_SERVICES_WEIGHTSTORE_REMOTE_HOST_H_
#define TITAN_SERVICES_WEIGHTSTORE_REMOTE_HOST_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "core/base/status.h"
#include "services/rpc/rpc_server.h"
#include "titan/weightstore/v1/host.pb.h"
#include "weightstore/host_port.h"

namespace titan::weightstore {

// Thread-safe.
class RemoteHost final : public HostPort {
 public:
  using Stream = rpc::ResponseStream<v1::AttachResponse>;

  // The first message of the stream; names the attachment.
  RemoteHost(std::shared_ptr<Stream> stream, uint64_t attachment);
  ~RemoteHost() override { End(Cancelled("the leader ends")); }

  // Tells the host that its leader is there.
  void SignOfLife();
  // From a report of this attachment. InvalidArgument: it claims what was never asked of it.
  Status Took(const v1::ReportRequest& report);
  // The attachment is over: who waits for an answer learns it, the stream ends with `why`.
  void End(const Status& why);

  // HostPort.
  void Send(std::vector<HostCommand> commands) override;
  uint64_t num_done() const override { return num_done_; }
  StatusOr<Hash128> HashWritten(uint64_t slot_id, uint64_t grant,
                                std::shared_ptr<const Manifest> manifest) override;
  StatusOr<Hash128> CopySlot(uint64_t from_slot, uint64_t to_slot, uint64_t to_grant,
                             std::shared_ptr<const Manifest> manifest) override;
  StatusOr<Hash128> FillSlot(uint64_t to_slot, uint64_t to_grant,
                             std::shared_ptr<const Manifest> manifest,
                             const ReadTensor& read) override;
  // Reads all of it into this process's memory, for as long as the view lives.
  StatusOr<SlotView> ViewSlot(uint64_t slot_id, uint64_t offset, uint64_t num_bytes) override;

 private:
  void Push(v1::AttachResponse message);
  // fill: the command, with the number of its question. Waits for the answer.
  template <typename Fill>
  StatusOr<v1::HostAnswer> Ask(Fill fill);

  const std::shared_ptr<Stream> stream_;
  std::atomic<uint64_t> num_done_{0};
  std::mutex mutex_;  // guards what follows
  std::condition_variable answered_;
  uint64_t num_sent_ = 0;   // commands
  uint64_t last_question_;  // their numbers are those of no other attachment
  std::map<uint64_t, std::optional<v1::HostAnswer>> questions_;  // that are open
  bool ended_ = false;
};

}  // namespace titan::weightstore

#endif  // TITAN_SERVICES_WEIGHTSTORE_REMOTE_HOST_H_
