// SPDX-License-Identifier: Apache-2.0
//
// What the store keeps on disk: imported models, checkpoints of runs that go on with the versions
// that they belong to, and the newest version of every run that ended. Blobs first, then one synced
// record; a blob that no record names is removed; equal blobs are stored once.
//
//   import:      BeginImport - Append ... - Finish      (dropped halfway: nothing stays)
//   checkpoint:  BeginCheckpoint - Append ... - Finish - ReleaseCheckpoints; DropCheckpoints at the
//                end of the run
//   run:         Reserve at its registration - Keep with each checkpoint and at its end - Unreserve
//   reading:     Find, ReadBlob                         (the reader compares blob and digest, too)
//
// Thread-safe. Calls block (files, hashing, synced writes); `mutex_` guards records and pins and is
// not held while bytes are written.
#ifndef TITAN_WEIGHTSTORE_LIBRARY_H_
#define TITAN_WEIGHTSTORE_LIBRARY_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/storage/key_value_store.h"
#include "weightstore/blob_files.h"
#include "weightstore/client/stored_model.h"
#include "weightstore/host_port.h"

namespace titan::weightstore {

struct LibraryOptions {
  std::string folder;                        // of the blobs
  std::string index;                         // folder of the records, to be named in errors
  std::optional<uint64_t> disk_limit_bytes;  // of all blobs; 0: nothing is kept; none: the volume
  uint64_t keep_free_bytes = 0;              // of the volume
  std::function<int64_t()> unix_ms;          // for records only
  // Is told of each blob that was read and is not what was stored; by any thread, may be empty.
  BlobFiles::OnDamage on_damage;
};

class Library {
 public:
  // Reads the records and removes blobs that none of them names. `records` must outlive the
  // library. DataLoss: a record is damaged; FailedPrecondition, before anything is removed: there
  // is no record of anything, but there are blobs, which are not of these records then; codes of
  // BlobFiles.
  static StatusOr<std::unique_ptr<Library>> Open(storage::KeyValueStore& records,
                                                 LibraryOptions options);

  // A model or checkpoint on its way in: the bytes of its bundle, then of every tensor of the
  // manifest, cut anywhere. One thread at a time. What was written is gone when it is dropped
  // unfinished.
  class Import {
   public:
    ~Import();
    // InvalidArgument: more bytes than the header said.
    Status Append(std::string_view bytes);
    // The record, which is durable. existed: equal content had one before. InvalidArgument: bytes
    // are missing; DataLoss: the weights are not those of the digest. AlreadyExists: the name
    // belongs to another model. FailedPrecondition: the run has another checkpoint of this version.
    StatusOr<StoredModel> Finish(bool* existed);

   private:
    friend class Library;
    explicit Import(Library& library) : library_(library) {}
    uint64_t PartBytes() const;
    Status EndPart();
    Library& library_;
    bool checkpoint_ = false;
    std::string name_;
    StoredModel model_;
    Hash128 sum_;      // of the tensors so far
    size_t part_ = 0;  // 0: the bundle; i: tensor i - 1
    uint64_t part_done_ = 0;
    std::optional<BlobFiles::Writer> writer_;
    std::vector<Hash128> pinned_;
    uint64_t reserved_ = 0;
  };
  // name "": none. InvalidArgument names the field; AlreadyExists: the name belongs to another
  // model; ResourceExhausted, with the numbers: the disk.
  StatusOr<std::unique_ptr<Import>> BeginImport(const std::string& name, Manifest manifest,
                                                uint64_t bundle_bytes,
                                                const Hash128& weights_digest);

  // State of a run as it was at a version (StoredModel::run_id and version), its facts in place of
  // a bundle. InvalidArgument names the field; FailedPrecondition: the limit is 0;
  // ResourceExhausted, with the numbers: the disk.
  StatusOr<std::unique_ptr<Import>> BeginCheckpoint(const std::string& run_id, uint64_t version,
                                                    Manifest manifest, uint64_t facts_bytes,
                                                    const Hash128& digest);
  // The run's newest one, or the newest of those at or below a version. NotFound.
  StatusOr<StoredModel> FindCheckpoint(const std::string& run_id,
                                       std::optional<uint64_t> at_most = std::nullopt) const;
  std::vector<StoredModel> ListCheckpoints() const;  // by run and version
  // Forgets those of the run that are older than its newest one at or below `needed`, and the kept
  // versions before the newest at or below that one. The bytes that became free.
  StatusOr<uint64_t> ReleaseCheckpoints(const std::string& run_id, uint64_t needed);
  // Forgets all of a run, and its kept versions but the newest.
  StatusOr<uint64_t> DropCheckpoints(const std::string& run_id);

  // Keeps a bundle as long as this process lives, and longer with a version that names it.
  StatusOr<Hash128> PutBundle(std::string_view bundle);

  // Room for the last version of a run. ResourceExhausted, with the numbers. Idempotent.
  Status Reserve(const std::string& run_id, const Manifest& manifest);
  void Unreserve(const std::string& run_id);
  // Writes a version out of its slot, but for what is on disk already. Idempotent.
  // in_reserved_room: in that of Reserve. Aborted: the bytes changed meanwhile; AlreadyExists:
  // another call keeps one of the run now; ResourceExhausted, with the numbers: the disk; codes of
  // view. Without effect when the limit is 0.
  Status Keep(const std::string& run_id, uint64_t version, const Hash128& digest,
              std::shared_ptr<const Manifest> manifest, const ViewPart& view,
              bool in_reserved_room);

  // NotFound.
  StatusOr<StoredModel> FindModel(const std::string& id_or_name) const;
  StatusOr<StoredModel> FindVersion(const std::string& run_id, uint64_t version) const;
  // Keeps the files of a version until what is returned goes (before the library does), whatever
  // becomes of its record. NotFound.
  StatusOr<std::shared_ptr<void>> HoldVersion(const std::string& run_id, uint64_t version);
  // Why the version, the last one of its run that was to be kept, is not; "" = nothing is known.
  std::string NotKeptReason(const std::string& run_id, uint64_t version) const;
  void NoteNotKept(const std::string& run_id, uint64_t version, const std::string& reason);
  // Imported models by time, then versions by run.
  std::vector<StoredModel> List() const;
  // Forgets an imported model (by id or name) or a version, and removes the blobs that nothing else
  // names. The bytes that became free. NotFound.
  StatusOr<uint64_t> RemoveModel(const std::string& id_or_name);
  StatusOr<uint64_t> RemoveVersion(const std::string& run_id, uint64_t version);

  // Forgets the versions of ended runs but those of the newest `keep_runs` runs, and removes blobs
  // that nothing names. Imported models stay. Who reads a version meanwhile finds a blob gone
  // (NotFound).
  struct Collected {
    std::vector<StoredModel> versions;  // forgotten ones, oldest first
    uint64_t freed_bytes = 0;           // a dry run: of blobs that nothing else would name
    size_t versions_left = 0;
  };
  StatusOr<Collected> CollectVersions(size_t keep_runs, bool dry_run);

  StatusOr<std::string> ReadBlob(const Hash128& digest, uint64_t offset, size_t max_bytes) const {
    return blobs_->Read(digest, offset, max_bytes);
  }
  // One tensor of a stored model, whole. Codes of BlobFiles::ReadWhole, the tensor first. REQUIRES:
  // `out` has its num_bytes.
  Status ReadTensor(const StoredModel& model, size_t tensor, std::span<std::byte> out) const;
  StatusOr<DiskUse> Disk() const;

 private:
  Library(storage::KeyValueStore& records, LibraryOptions options)
      : records_(records), options_(std::move(options)) {}
  // Before blobs are removed: the records are those of the blobs' folder.
  Status CheckRecords();
  Status Restore();
  // Under mutex_.
  StatusOr<DiskUse> DiskLocked() const;
  Status RoomFor(uint64_t bytes, const std::string& what) const;
  const StoredModel* FindLocked(const std::string& id_or_name) const;
  StatusOr<const StoredModel*> FindVersionLocked(const std::string& run_id, uint64_t version) const;
  Status PutRecord(const std::string& key, const StoredModel& model);
  Status WriteRecord(const std::string& key, const StoredModel& model);
  StatusOr<uint64_t> EraseRecord(const std::string& key);
  StatusOr<std::unique_ptr<Import>> Begin(Manifest manifest, uint64_t bundle_bytes,
                                          const Hash128& digest, const std::string& what);
  // Under mutex_. What Finish does with a whole one.
  StatusOr<StoredModel> PutModel(Import& import, bool* existed);
  StatusOr<StoredModel> PutCheckpoint(StoredModel checkpoint, bool* existed);
  // Checkpoints below end_version, and versions before the newest at or below it.
  StatusOr<uint64_t> EraseCheckpoints(const std::string& run_id, uint64_t end_version);
  bool HasCheckpoint(const std::string& run_id) const;
  // Removes blobs that nothing but `without` names; the bytes. A dry run only counts them.
  StatusOr<uint64_t> Collect(const std::set<std::string>& without = {}, bool dry_run = false);
  // Has these bytes on disk, pinned, and shows them as they can be read; writes them unless they
  // are there. wants_room: who needs room that is not reserved; "": it is. REQUIRES: no lock.
  Status PutPinned(std::span<const std::byte> bytes, const std::string& wants_room,
                   const std::function<void(std::span<const std::byte>)>& visit,
                   std::vector<Hash128>* pinned);
  // Names a sealed blob; it stays until Unpin even if no record names it.
  Status PublishPinned(BlobFiles::Writer& writer, const Hash128& digest);
  void Unpin(const std::vector<Hash128>& digests, uint64_t reserved);
  // So much of what it announced is on disk, and counts as used from here on.
  void Arrived(Import* import, uint64_t bytes);

  storage::KeyValueStore& records_;
  const LibraryOptions options_;
  std::unique_ptr<BlobFiles> blobs_;

  mutable std::mutex mutex_;                                             // guards what follows
  std::map<std::string, StoredModel> models_;                            // by key of their record
  std::map<std::pair<std::string, uint64_t>, StoredModel> checkpoints_;  // by run and version
  std::map<std::string, int> pins_;  // blobs in use, with a record or without, by hex digest
  std::map<std::string, uint64_t> reserved_;  // by run
  uint64_t importing_bytes_ = 0;              // announced by imports, not on disk yet
  std::set<std::string> keeping_;             // runs
  std::map<std::string, std::pair<uint64_t, std::string>> not_kept_;  // version, reason by run
};

}  // namespace titan::weightstore

#endif  // TITAN_WEIGHTSTORE_LIBRARY_H_
