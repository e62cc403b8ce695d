// SPDX-License-Identifier: Apache-2.0
//
// Append-only segment files for payloads that are too large for the key-value store (token arrays).
//
//   folder/00000001.seg:  [u32 length][u32 crc32c of payload][payload] ...   little-endian
//
// A record is named by its SegmentPlace, which its owner stores elsewhere after Sync(): a record
// that nothing points to does not exist, so a torn tail is harmless and never repaired. Opening
// starts a new file after the last one; files are never written again.
#ifndef TITAN_CORE_STORAGE_SEGMENT_LOG_H_
#define TITAN_CORE_STORAGE_SEGMENT_LOG_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "core/base/status.h"

namespace titan::storage {

// crc32c (Castagnoli) of the bytes.
uint32_t Crc32c(std::string_view bytes);

// Where a record lies.
struct SegmentPlace {
  uint32_t segment = 0;  // file number, from 1
  uint64_t offset = 0;   // of the record's header
  uint32_t length = 0;   // of its payload
  uint32_t crc32c = 0;   // of its payload
  friend bool operator==(const SegmentPlace&, const SegmentPlace&) = default;
};

struct SegmentLogOptions {
  uint64_t max_segment_bytes = uint64_t{256} << 20;  // a new file begins beyond this
};

// Append and Sync: one thread at a time. Read: any thread, also beside them, of records whose
// Append has returned. After a failed write or sync the log refuses everything but reads (what the
// disk holds is unknown then); reopen it.
class SegmentLog {
 public:
  // Makes the folder if it is missing (its parent must exist). Unavailable: the disk refuses.
  static StatusOr<std::unique_ptr<SegmentLog>> Open(const std::string& folder,
                                                    SegmentLogOptions options = {});
  ~SegmentLog();
  SegmentLog(const SegmentLog&) = delete;
  SegmentLog& operator=(const SegmentLog&) = delete;

  // InvalidArgument: payload of 1 GiB or more. ResourceExhausted: disk full. Unavailable: other
  // failure, or an earlier one.
  StatusOr<SegmentPlace> Append(std::string_view payload);
  // What was appended so far survives power loss once it returns OK. Codes as Append.
  Status Sync();
  // The payload. DataLoss: the file is shorter, or the bytes are not what was written. NotFound: no
  // such file.
  StatusOr<std::string> Read(const SegmentPlace& place) const;

 private:
  SegmentLog(std::string folder, SegmentLogOptions options, uint32_t next_segment)
      : folder_(std::move(folder)), options_(options), next_segment_(next_segment) {}
  std::string PathOf(uint32_t segment) const;
  Status StartSegment();
  Status Fail(int error, const std::string& what);

  const std::string folder_;
  const SegmentLogOptions options_;
  uint32_t next_segment_;
  int fd_ = -1;           // the current file; -1: none yet
  uint32_t segment_ = 0;  // its number
  uint64_t offset_ = 0;   // its length
  bool dirty_ = false;    // written since the last sync
  Status failure_;
};

}  // namespace titan::storage

#endif  // TITAN_CORE_STORAGE_SEGMENT_LOG_H_
