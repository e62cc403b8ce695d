// SPDX-License-Identifier: Apache-2.0
//
// Content-addressed files: <folder>/<xxh3-128 of the bytes, 32 hex digits>. A blob is written
// beside its name, synced and renamed: under its name it is whole. It never changes; whoever reads
// it compares the bytes with the name.
#ifndef TITAN_WEIGHTSTORE_BLOB_FILES_H_
#define TITAN_WEIGHTSTORE_BLOB_FILES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "core/base/hash.h"
#include "core/base/hash_stream.h"
#include "core/base/status.h"
#include "weightstore/client/unix_socket.h"

namespace titan::weightstore {

// Thread-safe. Codes of all calls are those of SystemError (core/base/durable_file.h), with the
// path: ResourceExhausted = the disk is full. A file that cannot be synced is removed and may be
// written again from its source. After a failed sync of the folder nothing more is taken in: names
// that it had then may be lost, and no later sync tells. Open it again.
class BlobFiles {
 public:
  // Is told of each blob that was read and is not what was stored; by the thread that reads.
  using OnDamage = std::function<void(const Status& damage)>;
  // Makes the folder if it is missing (its parent must exist) and removes what earlier processes
  // left half written. One process has a folder open at a time.
  static StatusOr<std::unique_ptr<BlobFiles>> Open(std::string folder, OnDamage on_damage = {});

  // A blob that is being written, by one thread. Gone with this object unless it is
  // published.
  class Writer {
   public:
    Writer(Writer&& other) noexcept;
    Writer& operator=(Writer&&) = delete;
    ~Writer();
    Status Append(std::span<const std::byte> bytes);
    // Syncs the file and shows its bytes, as they can be read, to `visit` (may be empty). The
    // digest.
    StatusOr<Hash128> Seal(const std::function<void(std::span<const std::byte>)>& visit = {});
    // After Seal: gives it its name. A blob of the same content is replaced, so a damaged one is
    // repaired. It survives power loss after BlobFiles::Sync.
    Status Publish();

   private:
    friend class BlobFiles;
    Writer(const BlobFiles& files, UniqueFd fd, std::string path)
        : files_(&files), fd_(std::move(fd)), path_(std::move(path)) {}
    const BlobFiles* files_;
    UniqueFd fd_;
    std::string path_;  // "" once it is published
    Hash128 digest_;
  };
  StatusOr<Writer> Create() const;

  // What was published so far survives power loss. Its own failure, again and again, after one.
  Status Sync();

  // At most max_bytes from offset on; empty at the end. Reads no more of the file than that. Who
  // reads a blob from its start to its end, piece after piece, has the pieces compared with its
  // name: DataLoss as of ReadWhole in place of the last one. Before that, and for other cuts, the
  // bytes are what the file has: no reader uses them before it has compared all of them itself, as
  // ModelPort::ReadBlob does. NotFound names the blob.
  StatusOr<std::string> Read(const Hash128& digest, uint64_t offset, size_t max_bytes) const;
  // The whole blob, compared with its name. DataLoss, naming the file: it has another size than
  // `out` or other bytes. NotFound names the blob.
  Status ReadWhole(const Hash128& digest, std::span<std::byte> out) const;
  // Shows the bytes of a blob, as they can be read, if it is there and they are those of its name;
  // else false.
  bool VisitWhole(const Hash128& digest,
                  const std::function<void(std::span<const std::byte>)>& visit) const;
  // NotFound: no such blob.
  StatusOr<uint64_t> SizeOf(const Hash128& digest) const;
  // OK also when there is none.
  Status Remove(const Hash128& digest) const;

  struct Entry {
    Hash128 digest;
    uint64_t num_bytes = 0;
  };
  StatusOr<std::vector<Entry>> List() const;  // ascending by name
  // Of the volume, for a user without privileges.
  StatusOr<uint64_t> FreeBytes() const;

  const std::string& folder() const { return folder_; }

 private:
  BlobFiles(std::string folder, OnDamage on_damage)
      : folder_(std::move(folder)), on_damage_(std::move(on_damage)) {}
  // Of a blob that somebody reads from its start: the pieces so far. Those who are at the same
  // place of the same blob have read the same and may change places.
  struct Reading {
    Hash128 digest;
    uint64_t offset = 0;  // of the next piece
    Hash128Stream hash;
  };
  // Null: nobody is there, or it was forgotten.
  std::unique_ptr<Reading> TakeReading(const Hash128& digest, uint64_t offset) const;
  void KeepReading(std::unique_ptr<Reading> reading) const;
  // Compares the file with its name and shows the bytes.
  Status Compare(const Hash128& digest, const UniqueFd& fd,
                 const std::function<void(std::span<const std::byte>)>& visit) const;
  // DataLoss of this blob, which is told of.
  Status Damaged(const Hash128& digest, const std::string& what) const;
  std::string PathOf(const Hash128& digest) const { return folder_ + "/" + ToHex(digest); }
  // Of the folder's sync that failed; OK: none did.
  Status SyncFailure() const;

  const std::string folder_;
  const OnDamage on_damage_;
  std::mutex syncing_;        // held over Sync, taken before mutex_
  mutable std::mutex mutex_;  // guards what follows
  Status sync_failure_;
  mutable std::list<std::unique_ptr<Reading>> readings_;  // the latest last
};

}  // namespace titan::weightstore

#endif  // TITAN_WEIGHTSTORE_BLOB_FILES_H_
