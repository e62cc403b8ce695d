// SPDX-License-Identifier: Apache-2.0
//
// The memory of one slot: a memory file for the bytes and one for the header page. Sized once and
// filled with pages at once (no later lack of memory), sealed against resizing; sealed against new
// writers once its writer has mapped it. The header can be written by this process alone.
//
// With a domain both are windows for one-sided reads until the slot's end: registered once, where
// they lie, so readers of an earlier version must look at the header after they read. The windows
// are closed before the memory goes back. What was adopted has none: a device registers only memory
// that this process may write. On lane shm-test, which is for tests, nothing is sealed
// against writers: whoever opens a window there maps it for writing (core/transport/rma.h).
#ifndef TITAN_WEIGHTSTORE_SLOT_MEMORY_H_
#define TITAN_WEIGHTSTORE_SLOT_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "core/base/status.h"
#include "core/transport/rma.h"
#include "weightstore/client/slot_header.h"
#include "weightstore/client/slot_mapping.h"
#include "weightstore/client/unix_socket.h"
#include "weightstore/transport/rma_source.h"

namespace titan::weightstore {

// Thread-safe, except that WriteHeader calls must not run at the same time.
class SlotMemory {
 public:
  enum class Writer {
    kClient,  // a trainer maps it through DuplicateForWriter, then SealWriters
    kDaemon,  // this process keeps a writable map (evaluation slot); sealed at once
    kNobody,  // adopted
  };

  // Asked every some dozens of MiB while pages are taken.
  using Wanted = std::function<bool()>;

  // ResourceExhausted, with the bytes: the memory cannot be had or registered. Cancelled: not
  // wanted any more.
  static StatusOr<std::unique_ptr<SlotMemory>> Create(
      uint64_t slot_id, uint64_t num_bytes, Writer writer, const Wanted& wanted = {},
      std::shared_ptr<titan::transport::RmaDomain> rma = nullptr);

  // Slot memory that a process which is gone made, from a reader's descriptor of it; the header
  // page is new. Codes of CheckSealed.
  static StatusOr<std::unique_ptr<SlotMemory>> Adopt(uint64_t slot_id, uint64_t num_bytes,
                                                     const UniqueFd& bytes);
  // Whether it is what Create and SealWriters leave. InvalidArgument: it has another size.
  // FailedPrecondition: it is no memory file, or one that can be resized or mapped for writing, or
  // some of its pages were never taken.
  static Status CheckSealed(const UniqueFd& bytes, uint64_t num_bytes);

  uint64_t slot_id() const { return slot_id_; }
  uint64_t num_bytes() const { return num_bytes_; }
  Writer writer() const { return writer_; }
  // Of them in huge pages: all whole ones where the system gives them (Linux 6.1 or later). 0 of
  // what was adopted: the system does not tell.
  uint64_t huge_bytes() const { return huge_bytes_; }

  // Read-only descriptors of the bytes and of the header page.
  StatusOr<UniqueFd> DuplicateForReader() const { return readable_.Duplicate(); }
  int reader_fd() const { return readable_.get(); }  // as long as this lives
  StatusOr<UniqueFd> DuplicateHeader() const { return header_readable_.Duplicate(); }
  // REQUIRES: Writer::kClient.
  StatusOr<UniqueFd> DuplicateForWriter() const { return file_.Duplicate(); }
  // From here on nobody can map it for writing or write to the file; maps that exist stay.
  // Internal: the kernel refused.
  Status SealWriters();

  std::span<const std::byte> bytes() const { return {map_->data(), map_->size()}; }
  // REQUIRES: Writer::kDaemon.
  std::span<std::byte> writable_bytes();

  void WriteHeader(const SlotHeaderFields& fields);

  // Where it is to be read; null without a domain.
  const lanes::RmaSource* windows() const { return rma_ != nullptr ? &source_ : nullptr; }

 private:
  SlotMemory(uint64_t slot_id, uint64_t num_bytes, Writer writer)
      : slot_id_(slot_id), num_bytes_(num_bytes), writer_(writer) {}
  // Its descriptor, not sealed against writers yet.
  StatusOr<UniqueFd> MakeHeader(const std::string& name);
  Status OpenWindows(const UniqueFd& header);
  Status SealAgainstWriters(const UniqueFd& file) const;

  const uint64_t slot_id_;
  const uint64_t num_bytes_;
  const Writer writer_;
  uint64_t huge_bytes_ = 0;
  UniqueFd file_;      // readable and writable; none of what was adopted
  UniqueFd readable_;  // the same file, opened read-only
  UniqueFd header_readable_;
  // Windows keep them, too, until they are closed.
  std::shared_ptr<MappedMemory> map_, header_map_;
  std::shared_ptr<titan::transport::RmaDomain> rma_;  // outlives what follows
  titan::transport::RmaWindow window_, header_window_;
  lanes::RmaSource source_;
};

}  // namespace titan::weightstore

#endif  // TITAN_WEIGHTSTORE_SLOT_MEMORY_H_
